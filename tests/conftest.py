"""What every test can count on: one thread, no network to a model hub, repeatable properties, named skips.

@pytest.mark.debian("chromium")     skipped where the package is missing; under WORKBENCH_CI=1 that is a failure
@pytest.mark.gpu                    skipped where torch sees no CUDA device
@pytest.mark.full                   the fuller count; only with `-m full`. So are the cases of tests/fuller.txt
def test_page(chromium): ...        path of the browser, with the same rule as above
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

# Before anything imports torch or transformers: thread pools read these once.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Runs of the tests are sealed with a key of the tests, not with the user's (run/code.py).
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="workbench-tests-state-")

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from tests.counts import cases_of  # noqa: E402

if importlib.util.find_spec("nbformat"):  # the environment of vLLM has no JupyterLab
    from tests.lab_kit import lab  # noqa: E402, F401

ROOT = Path(__file__).resolve().parents[1]

# A red suite must be red again when run again: properties are drawn from a fixed stream by default.
# HYPOTHESIS_PROFILE=explore looks for new counter-examples. No deadline: two workers share the cores with others.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
# A mutant needs only a counter-example, not the smallest one.
hypothesis.settings.register_profile(
    "mutants",
    derandomize=True,
    deadline=None,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def no_import_from_the_folder_one_stands_in():
    """A command that a test calls in this process finds modules there that the user named; later tests do not."""
    yield
    beside = sys.modules.get("workbench.basics.beside")
    if beside is not None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not beside._Beside]


@pytest.fixture(autouse=True, scope="session")
def nothing_at_the_root_of_the_disk():
    """Root may write anywhere; a test that does so changes what the others find."""
    before = set(os.listdir("/"))
    yield
    made = set(os.listdir("/")) - before
    assert not made, f"a test wrote at the root of the disk: {sorted(made)}"


HERE = (
    "http://127.0.0.1",
    "ws://127.0.0.1",
    "data:",
    "blob:",
    "file:",
)  # addresses of this machine


def find_browser() -> str | None:
    """Path of a Chromium, under the names Debian and others give it."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def find_dejavu() -> str | None:
    folder = Path("/usr/share/fonts/truetype/dejavu")
    return str(folder) if folder.is_dir() else None


# Debian package -> how to see that it is there. A test may name only these: .ci/run must install the same ones.
DEBIAN: dict[str, Callable[[], str | None]] = {
    "chromium": find_browser,
    "fonts-dejavu-core": find_dejavu,
}


def need_debian(*packages: str) -> None:
    """Skip the running test, or fail it under WORKBENCH_CI=1, unless all `packages` are there."""
    if unknown := [package for package in packages if package not in DEBIAN]:
        raise ValueError(
            f"{unknown}: expected packages of tests/conftest.py DEBIAN ({', '.join(DEBIAN)}); add a line there "
            f"that finds it, and the package to .ci/run"
        )
    missing = [package for package in packages if not DEBIAN[package]()]
    if not missing:
        return
    reason = f"needs Debian packages: apt-get install {' '.join(missing)}"
    if os.environ.get("WORKBENCH_CI") == "1":
        pytest.fail(f"{reason} (skipped elsewhere, a failure under WORKBENCH_CI=1)", pytrace=False)
    pytest.skip(reason)


# Half a minute and more each. A worker of `make test` takes a whole file at a time, in this order and then the others':
# a long one that came last would be waited for.
LONG_FILES = (
    "test_extensions.py",
    "test_drive.py",
    "test_plan.py",
    "test_discovery.py",
    "test_alarm.py",
    "test_lab.py",
    "test_lab_tasks.py",
    "test_notebooks.py",
    "test_readme.py",
    "test_cli.py",
    "test_distributed.py",
    "test_resume.py",
    "test_golden_runs.py",
    "test_old_runs.py",
    "test_kills.py",
    "test_process_runner.py",
    "test_audit_names.py",
    "test_views_escape.py",
    "test_running.py",
    "test_learner_terms.py",
    "test_credit_editor.py",
    "test_lint_doors.py",
    "test_bias_bench.py",
    "test_critic.py",
    "test_train.py",
    "test_logprobs.py",
    "test_algorithm_table.py",
    "test_pretrain.py",
)


FULLER = cases_of((ROOT / "tests/fuller.txt").read_text())


def pytest_addoption(parser: pytest.Parser) -> None:
    from tests.mutants.run import read_share

    parser.addoption(
        "--share",
        type=read_share,
        metavar="K/N",
        help="of the tests chosen only the K-th of N shares, by their names; N runs try them all",
    )


@pytest.hookimpl(tryfirst=True)  # before -m is heard
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in FULLER:
            item.add_marker(pytest.mark.full)
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(
        key=lambda item: place.get(item.path.name, len(place))
    )  # stable: files stay together
    if config.getoption("--share"):
        part, parts = config.getoption("--share")
        shares: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            shares[zlib.crc32(item.nodeid.encode()) % parts == part - 1].append(item)
        config.hook.pytest_deselected(items=shares[False])
        items[:] = shares[True]


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection of garbage need go over it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Here and not at exit: a worker of xdist ends without that."""
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("debian"):
        need_debian(*mark.args)
    if item.get_closest_marker("gpu"):
        import torch  # only where a test asks for it

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device; torch sees none")


@pytest.fixture
def chromium() -> str:
    """Path of a browser for playwright's `executable_path`; fonts are there too."""
    need_debian("chromium", "fonts-dejavu-core")
    return find_browser()


@pytest.fixture
def page(chromium):
    """A browser page of its own. `page.outside` collects what was asked of any other machine, `page.trouble` what the
    console called an error."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install -e '.[test]'"
    )
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(120_000)
        page.outside, page.trouble = [], []
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(HERE) else page.outside.append(request.url)
            ),
        )
        page.on(
            "console",
            lambda message: page.trouble.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        yield page
        browser.close()


@pytest.fixture
def shell():
    """An IPython shell as a notebook has one, without a history on the disk, and gone after the test: while there is one,
    progress is drawn for a notebook."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    yield InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    InteractiveShell.clear_instance()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return ROOT
