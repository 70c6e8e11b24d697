"""The core needs no extension: each is taken out of a copy, and the core still imports, lints its layers and trains.

What an extension adds is data (`face.toml`), read by `workbench.basics.extensions`; packages of other people come in
through an entry point, by the same table.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import LAYERS, ROOT, layer_faults, read_package, room_of
from workbench.basics import extensions
from workbench.basics.extensions import KINDS, SHIPPED, Face, faces, provided, read_face, service
from workbench.basics.plugins import load_named
from workbench.values.errors import ConfigError

PREFIX = "extensions."  # of an extension's room
NAMES = sorted(path.name for path in SHIPPED.iterdir() if (path / "__init__.py").is_file())

# Imports every module of the core, trains two steps, lints them and shows the run, beside whatever extensions are left.
SMOKE = """
import importlib, os, sys
from pathlib import Path
folder = os.getcwd()
sys.path.insert(0, folder)
import workbench
root = Path(workbench.__file__).parent
assert str(root).startswith(folder), root
modules = [path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.py"))]
needs_vllm = {"vllm_transfer"}
for parts in modules:
    if "extensions" not in parts[1:-1] and parts[-1] not in needs_vllm:
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
import workbench as wb
small = {"train.steps": 2, "train.tasks_per_step": 2, "train.group_size": 2, "evaluation.num_tasks": 2}
run = wb.train_here(wb.load_config("frozenlake", small), Path(folder) / "run", on_note=None)
assert wb.lint(run).ok and "step" in wb.show(run).text
from workbench.cli import main
assert main(["show", str(run.path)]) == 0
print("the core works")
"""

# Libraries are imported once, those that the first copy came to need too, and each copy is tried in a fork, which halves
# the time: {label: folder} comes as JSON, {label: [exit status, output]} goes to the file that is named second.
TRY_EACH = """
import importlib, json, os, sys, traceback
import torch, transformers
smoke = compile(sys.argv[3], "smoke", "exec")
results = {}
for label, folder in json.loads(sys.argv[1]).items():
    assert not [name for name in sys.modules if name.split(".")[0] == "workbench"]
    output, libraries = os.path.join(folder, "output.txt"), os.path.join(folder, "libraries.txt")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            written = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(written, 1)
            os.dup2(written, 2)
            os.chdir(folder)
            exec(smoke, {"__name__": "smoke"})
            names = [name for name in sys.modules if name.split(".")[0] != "workbench"]
            with open(libraries, "w") as file:
                file.write("\\n".join(names))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    results[label] = [status, open(output).read()]
    if len(results) == 1 and status == 0:
        for name in open(libraries).read().splitlines():
            try:
                importlib.import_module(name)
            except ImportError:
                pass  # made while something ran, such as a module of generated code
with open(sys.argv[2], "w") as file:
    json.dump(results, file)
"""

ALL = "all of them"
NEEDS_ONE = "a core that needs one"


@pytest.fixture(scope="module")
def copies(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Label -> a folder with a copy of the package, of those that are to be tried: without one extension, without all, and
    one whose core needs one."""
    folder = tmp_path_factory.mktemp("copies")
    whole = folder / "whole"
    shutil.copytree(ROOT / "workbench", whole, ignore=shutil.ignore_patterns("__pycache__"))
    # Once: copies of files keep their times, so what is compiled stays valid.
    compileall.compile_dir(whole, quiet=1)
    params = [getattr(item, "callspec", None) for item in request.session.items]
    asked = {param.params.get("label") for param in params if param is not None}
    labels = [label for label in (*NAMES, ALL) if label in asked] + [NEEDS_ONE]
    copies = {label: folder / str(number) for number, label in enumerate(labels)}
    for label, copy in copies.items():
        copy_without(whole, copy, {ALL: NAMES, NEEDS_ONE: ["bias"]}.get(label, [label]))
    victim = copies[NEEDS_ONE] / "workbench/rollouts/metrics.py"
    needs = "\nimport workbench.extensions.bias.tasks\nimport "
    victim.write_text(victim.read_text().replace("\nimport ", needs, 1))
    return copies


def copy_without(whole: Path, folder: Path, names: list[str]) -> None:
    """Copy the package, less these extensions and those that stand on one of them, beside the shipped policies."""
    shutil.copytree(whole, folder / "workbench")
    above = [upper for upper, lower in crossing_imports() if lower in names]
    for name in {*names, *above}:
        shutil.rmtree(folder / "workbench/extensions" / name)
    (folder / "data").symlink_to(ROOT / "data")


@pytest.fixture(scope="module")
def smoked(copies: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """Label of a copy -> exit status and output of its smoke test."""
    results = tmp_path_factory.mktemp("smoke") / "results.json"
    folders = json.dumps({label: str(folder) for label, folder in copies.items()})
    subprocess.run(
        [sys.executable, "-c", TRY_EACH, folders, str(results), SMOKE],
        cwd=results.parent,
        env={**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        timeout=1200,
    )
    return json.loads(results.read_text())


# Without all of them at once in every run of the suite; without each one in the fuller count.
@pytest.mark.parametrize(
    "label", [*(pytest.param(name, marks=pytest.mark.full) for name in NAMES), ALL]
)
def test_the_core_works_without_the_extension(
    label: str, copies: dict[str, Path], smoked: dict[str, list]
):
    faults = layer_faults(*read_package(copies[label] / "workbench"))
    assert not faults, "\n".join(faults)
    status, output = smoked[label]
    assert status == 0 and "the core works" in output, output[-3000:]


def test_negative_control_a_core_that_needs_an_extension_is_noticed(
    copies: dict[str, Path], smoked: dict[str, list]
):
    faults = layer_faults(*read_package(copies[NEEDS_ONE] / "workbench"))
    assert any("workbench.rollouts.metrics" in fault for fault in faults)
    status, output = smoked[NEEDS_ONE]
    assert status != 0 and "workbench.extensions.bias" in output


@cache
def crossing_imports() -> frozenset[tuple[str, str]]:
    """(extension, another one that it imports)."""
    imports, modules = read_package(ROOT / "workbench")
    pairs = {
        (room_of(each.importer), room_of(each.target)) for each in imports if each.target in modules
    }
    crossing = [(upper, lower) for upper, lower in pairs if upper != lower]
    return frozenset(
        (upper.removeprefix(PREFIX), lower.removeprefix(PREFIX))
        for upper, lower in crossing
        if upper.startswith(PREFIX) and lower.startswith(PREFIX)
    )


def test_an_extension_imports_only_one_that_has_a_lower_layer():
    imported = {lower for _, lower in crossing_imports()}
    assert imported == {room.removeprefix(PREFIX) for room in LAYERS if room.startswith(PREFIX)}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_face_names_is_there(name: str):
    face = read_face(SHIPPED / name / "face.toml", name)
    for kind, table in face.adds.items():
        for entry, place in table.items():
            if kind == "help":
                assert entry in face.adds["commands"]
                continue
            assert load_named(place, f"{name}, {kind}.{entry}") is not None
            if kind == "views":
                load_named(entry, f"{name}, {kind}")


def test_a_package_of_somebody_else_comes_in_by_its_entry_point(tmp_path: Path):
    package = tmp_path / "guessing"
    package.mkdir()
    (package / "__init__.py").write_text(GUESSING)
    (package / "face.toml").write_text(
        'summary = "A world, a name of wb and a view."\n'
        '[environments]\nguessing = "guessing:Guessing"\n'
        '[public]\nlucky = "guessing:lucky"\n'
        '[views]\n"guessing:Luck" = "guessing:show_luck"\n'
    )
    metadata = tmp_path / "guessing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: guessing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[workbench.extensions]\nguessing = guessing\n")
    done = subprocess.run(
        [sys.executable, "-c", USES_GUESSING],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout.split() == ["7", "lucky:", "7"], done.stderr


GUESSING = '''
from dataclasses import dataclass
from workbench.values import View


@dataclass(frozen=True)
class Guessing:
    """Guess a number."""


@dataclass(frozen=True)
class Luck:
    number: int


def lucky():
    return Luck(7)


def show_luck(luck):
    return View("", f"lucky: {luck.number}")
'''
USES_GUESSING = """
import workbench as wb
from workbench.worlds import ENVS
assert ENVS["guessing"].__name__ == "Guessing"
print(wb.lucky().number)
print(wb.show(wb.lucky()).text)
"""


COMMANDS_ONE_BY_ONE = """
import sys
from workbench.cli.parser import make_parser
def imported():
    return sorted(name for name in sys.modules if name.startswith("workbench.extensions."))
make_parser().format_help()
assert imported() == [], imported()
assert make_parser().parse_args(["show", "somewhere"]).command == "show"
assert imported() == [], imported()
assert make_parser().parse_args(["bias", "--algorithm", "grpo"]).algorithm == ["grpo"]
print(*imported())
"""


def test_the_command_line_imports_the_extension_of_the_command_alone():
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS_ONE_BY_ONE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {name.split(".")[2] for name in done.stdout.split()} == {"bias"}


def test_a_command_that_cannot_be_imported_leaves_the_others_alone(monkeypatch, capsys):
    from workbench import cli

    broken = Face("broken", "a line", {"commands": {"luck": "not_there_at_all:add_luck"}})
    monkeypatch.setattr(extensions, "faces", lambda: (*faces(), broken))
    assert cli.main(["settings", "train.steps"]) == 0
    assert cli.main(["luck"]) == 2
    assert (
        "the command luck 'not_there_at_all:add_luck' cannot be imported" in capsys.readouterr().err
    )


# ------------------------------------------------------------------------------------------------ faults


def write_face(folder: Path, text: str) -> Path:
    path = folder / "face.toml"
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("summary = 1", "expected summary"),
        ('summary = "x"\n[enviroments]\na = "b:C"', "environments"),
        ('summary = "x"\n[tools]\na = "no colon"', "'a' is not such a line"),
        ('summary = "x"\n[help]\nluck = 3', "'luck' is not such a line"),
        ('summary = "x"\nhelp = 3', r"\[help\] holds lines"),
        ("summary = ", "cannot be read"),
    ],
)
def test_a_face_that_says_nothing_right_is_refused(text: str, words: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        read_face(write_face(tmp_path, text), "mine")


def test_a_service_that_nobody_provides_is_an_error_that_says_what_there_is():
    with pytest.raises(ConfigError, match="reading minds needs an extension.*ablation"):
        service("telepathy", "reading minds")


def test_two_extensions_cannot_add_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_face(tmp_path / name, 'summary = "x"\n[tools]\nhammer = "a.b:C"')
    monkeypatch.setattr(extensions, "SHIPPED", tmp_path)
    faces.cache_clear()
    try:
        with pytest.raises(ConfigError, match="'hammer' to tools: first and second"):
            provided("tools")
    finally:
        monkeypatch.undo()
        faces.cache_clear()


def test_every_kind_is_documented():
    text = (ROOT / "docs" / "extend" / "extension.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
