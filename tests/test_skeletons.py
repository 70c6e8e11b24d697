"""What `workbench new-env`, `new-tool` and `new-algorithm` write works as it is written: its test passes, it trains, it lints clean."""

from __future__ import annotations

import importlib
import sys

import pytest

import workbench as wb
from tests.counts import reduced
from workbench import cli
from workbench.extensions.skeletons.skeletons import SKELETONS, write_skeleton
from workbench.values.errors import ConfigError, StoreError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that one stands in, as one does at a terminal; what was imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.full
@pytest.mark.parametrize("kind", reduced(SKELETONS, ["env"]))
def test_it_passes_its_test_trains_and_lints_clean(kind, here, capsys):
    assert cli.main([f"new-{kind}", f"first_{kind}"]) == 0
    said = capsys.readouterr().out
    assert f"workbench train first_{kind}.toml" in said and len(list(here.iterdir())) == 3
    tests = importlib.import_module(f"test_first_{kind}")
    names = [name for name in vars(tests) if name.startswith("test_")]
    assert names
    for name in names:
        getattr(tests, name)()
    run = wb.train_here(wb.load_config(f"first_{kind}.toml"), here / "run", on_note=None)
    assert run.steps() == [1, 2]
    found = wb.lint(here / "run")
    assert found.ok, found.report


def test_the_test_of_an_algorithm_holds_with_a_reference(here):
    """A KL term needs logprobs of the reference, which a learner knows and a bare batch lacks."""
    write_skeleton("algorithm", "pulled")
    module = here / "pulled.py"
    with_kl = 'ignores_shifts=True))(reference={"kl_coef": 0.01})'
    module.write_text(module.read_text().replace("ignores_shifts=True))", with_kl))
    tests = importlib.import_module("test_pulled")
    tests.test_a_higher_reward_in_a_group_gives_a_higher_advantage()
    assert importlib.import_module("pulled").PULLED.reference.kl_coef == 0.01


def test_its_own_test_can_fail(here):
    """The negative control: a mistake in what was written is noticed by the test beside it."""
    write_skeleton("env", "wrong_env")
    module = here / "wrong_env.py"
    module.write_text(module.read_text().replace("terminated=right", "terminated=True"))
    tests = importlib.import_module("test_wrong_env")
    with pytest.raises(AssertionError):
        tests.test_a_seed_makes_one_problem_and_only_the_right_answer_is_paid()


def test_nothing_is_written_over_and_a_name_is_a_modules(here):
    (here / "test_mine.py").write_text("mine")
    with pytest.raises(StoreError, match="test_mine.py is there already"):
        write_skeleton("tool", "mine")
    assert [path.name for path in here.iterdir()] == ["test_mine.py"] and (
        here / "test_mine.py"
    ).read_text() == "mine"
    for name in ("my-env", "class", "MyEnv", "1st", ""):
        with pytest.raises(ConfigError, match="such as my_env"):
            write_skeleton("env", name)
    with pytest.raises(ConfigError, match="env, tool, algorithm"):
        write_skeleton("policy", "mine")
