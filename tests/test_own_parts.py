"""Parts of the user's own by name beside the package's: an objective in an algorithm, a policy's loader, an engine (invariant 17)."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.engines.policy import SHIPPED, load_policy
from workbench.learn.algorithms import GRPO
from workbench.look.cells.replay import replay
from workbench.run.code import changed_code, why_foreign
from workbench.run.store import open_run
from workbench.training.config import PRESETS, from_dict, load_config, to_dict
from workbench.training.reading import flatten
from workbench.training.resume import resumption
from workbench.training.stored import stored_config
from workbench.values.errors import ConfigError, PolicyError, WorkbenchError

PAGES = Path(__file__).resolve().parents[1] / "docs/extend"
MODULES = {
    "part_policy": ("engine.md", "a loader"),
    "part_engine": ("engine.md", "an engine"),
    "part_length": ("algorithm.md", "an algorithm"),
}
OWN = {
    "algorithm.objective.kind": "part_length:LengthObjective",
    "algorithm.objective.power": 0.75,
    "policy.loader": "part_policy:load",
    "policy.name": str(SHIPPED / "frozenlake-tiny"),
    "engine.kind": "part_engine:Counting",
    "engine.max_rows": 8,
}
SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 4,
    "train.group_size": 4,
    "evaluation.num_tasks": 2,
    "env.max_turns": 2,
    "collect.max_turn_tokens": 8,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The modules of the documentation, where they can be imported, and a run that they made."""
    folder = tmp_path_factory.mktemp("parts")
    for module, (page, block) in MODULES.items():
        text = (PAGES / page).read_text()
        (folder / f"{module}.py").write_text(
            re.search(rf"<!-- {block} -->\n```python\n(.*?)```", text, re.DOTALL)[1]
        )
    sys.path.insert(0, str(folder))
    wb.train_here(load_config("frozenlake", OWN | SMALL), folder / "run", on_note=None)
    yield folder
    sys.path.remove(str(folder))


def forget(*modules: str) -> None:
    for name in modules or MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def away(folder, monkeypatch):
    """None of the modules can be imported."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(folder)])
    forget()
    yield
    forget()


# ------------------------------------------------------------------------------------------------ a run with all three


def test_a_run_with_parts_of_ones_own_is_a_run_like_any_other(folder):
    run = open_run(folder / "run")
    assert {key: value for key, value in flatten(run.config).items() if key in OWN} == OWN
    origins = json.loads((folder / "run/code.json").read_text())["content"]["origins"]
    assert {key: origins[key]["name"] for key in origins} == {
        key: OWN[key] for key in ("algorithm.objective.kind", "policy.loader", "engine.kind")
    }
    assert all(origin["source"] for origin in origins.values()) and why_foreign(run) == ""
    found = wb.lint(folder / "run")
    assert found.ok, found.text
    assert not [
        answer.rule for answer in found.report if answer.rule in ("R1", "R19") and not answer.looked
    ], found.text
    assert replay(run, 1)[0].equal
    assert wb.show_tokens(
        run.groups(1)[0][0], wb.open_session(from_dict(run.config)).chat.token_texts
    ).text
    assert resumption(run, {"train.steps": 2}).other_code == ()


@pytest.mark.full
def test_it_goes_on_in_a_process_of_its_own_and_is_exported_and_evaluated(folder, tmp_path, capsys):
    config = load_config("frozenlake", OWN | SMALL | {"train.steps": 2})
    run = wb.train(config, tmp_path / "run").wait()
    assert run.steps() == [1, 2]
    first, again = (open_run(path).credit(1, 0)["advantage"] for path in (folder / "run", run.path))
    assert np.array_equal(first, again)
    wb.export_policy(run, tmp_path / "policy")
    assert load_policy(tmp_path / "policy").tokenizer.chat_template
    assert (
        main(["evaluate", str(run.path), "--tasks", "2", "--attempts", "2"]) == 0
        and "trained" in capsys.readouterr().out
    )


def test_changed_parts_are_told_and_resume_refuses(folder):
    for module, key in (
        ("part_policy", "policy.loader"),
        ("part_engine", "engine.kind"),
        ("part_length", "algorithm.objective.kind"),
    ):
        path, text = folder / f"{module}.py", (folder / f"{module}.py").read_text()
        path.write_text(text + "# a change\n")
        try:
            [words] = changed_code(open_run(folder / "run"))
            assert key in words
            with pytest.raises(ConfigError, match="--accept-changed-code"):
                resumption(folder / "run", {"train.steps": 2})
        finally:
            path.write_text(text)


def test_without_them_the_run_is_shown_and_linted_and_says_what_lacks(folder, away):
    run = open_run(folder / "run")
    assert set(stored_config(run).missing) == {"algorithm", "engine", "policy"}
    found = wb.lint(run)
    assert found.ok and "policy.loader 'part_policy:load' cannot be imported" in found.report.about
    assert wb.show(run).text and wb.show(run, step=1, tokens=True).text
    for ask in (
        lambda: wb.reopen(run),
        lambda: replay(run, 1),
        lambda: wb.export_policy(run, folder / "none"),
    ):
        with pytest.raises(ConfigError, match="part_.*cannot be imported: there is no module"):
            ask()


@pytest.mark.parametrize("key", ["policy.loader", "engine.kind", "algorithm.objective.kind"])
def test_a_foreign_run_imports_none_of_them(folder, tmp_path, monkeypatch, key):
    alone = {
        name: value for name, value in OWN.items() if name.startswith(key) or name == "policy.name"
    }
    alone |= {"algorithm.objective.power": 0.75} if "objective" in key else {}
    run = wb.train_here(
        load_config("frozenlake", alone | SMALL | {"lint.mode": "off", "train.tasks_per_step": 2}),
        tmp_path / "run",
        on_note=None,
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    forget()
    wb.lint(run.path)
    assert wb.show(open_run(run.path), step=1, tokens=True).text
    for ask in (wb.reopen, wb.resume, wb.talk, wb.resume_here, wb.audit):
        with pytest.raises(ConfigError, match="--trust"):
            ask(str(run.path))
    if key == "policy.loader":
        with pytest.raises(ConfigError, match="--trust"):
            wb.export_policy(run.path, tmp_path / "exported")
    assert not set(MODULES) & set(sys.modules)
    assert wb.reopen(run.path, trust=True).policy.name == str(SHIPPED / "frozenlake-tiny")
    assert set(MODULES) & set(sys.modules)  # negative control


# ------------------------------------------------------------------------------------------------ an objective by name


def test_an_objective_by_name_brings_its_settings_and_takes_away_the_others(folder):
    config = load_config(
        "frozenlake",
        {"algorithm.objective.kind": "part_length:LengthObjective", "algorithm.minibatches": 2},
    )
    assert config.algorithm.objective.power == 0.5 and config.algorithm.minibatches == 2
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert (
        config.kind_of("algorithm") == "grpo"
        and "clip_high" not in to_dict(config)["algorithm"]["objective"]
    )
    for wrong, said in (
        ({"algorithm.objective.clip_high": 0.3}, "no setting 'algorithm.objective.clip_high'"),
        ({"algorithm.objective.power": -1}, "algorithm.objective.power is at least 0"),
        ({"algorithm.objective.powr": 1}, "did you mean 'algorithm.objective.power'"),
        (
            {"algorithm.objective.kind": "part_length:LENGTH_GRPO"},
            "expected the class of an objective",
        ),
        (
            {"algorithm.objective.kind": "part_length:LengthObjectiv"},
            "did you mean 'LengthObjective'",
        ),
        (
            {"algorithm.objective.kind": "clipp"},
            "did you mean 'clip'? (one of your own: package.module:Name)",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load_config(
                "frozenlake", {"algorithm.objective.kind": "part_length:LengthObjective"} | wrong
            )


def test_it_goes_with_every_algorithm_and_in_python_too(folder):
    part_length = import_module("part_length")

    for kind in ("rloo", "gigpo", "dapo", "ppo"):
        config = load_config(
            "frozenlake",
            {"algorithm.kind": kind, "algorithm.objective.kind": "part_length:LengthObjective"},
        )
        assert isinstance(config.algorithm.objective, part_length.LengthObjective)
        assert from_dict(to_dict(config)) == config
    made = replace(
        load_config("frozenlake"),
        algorithm=replace(GRPO, objective=part_length.LengthObjective(0.25)),
    )
    assert to_dict(made)["algorithm"]["objective"]["kind"] == "part_length:LengthObjective"
    assert from_dict(to_dict(made)).algorithm.objective == part_length.LengthObjective(0.25)
    assert GRPO(objective={"kind": "part_length:LengthObjective", "power": 0.25}) == made.algorithm
    both = load_config(
        "frozenlake",
        {"algorithm.kind": "part_length:LENGTH_GRPO", "algorithm.objective.kind": "gspo"},
    )
    assert (
        "power" not in to_dict(both)["algorithm"]["objective"]
        and both.algorithm.objective.clip_high == 4e-4
    )
    assert from_dict(to_dict(both)) == both and both.algorithm.objective.name == "gspo"

    class Local(part_length.LengthObjective):
        pass

    with pytest.raises(ConfigError, match="defined inside a function"):
        replace(made, algorithm=replace(GRPO, objective=Local())).kind_of("algorithm")


def test_a_run_that_stored_the_objectives_short_name_still_opens(folder):
    config = load_config(
        "frozenlake",
        {"algorithm.kind": "part_length:LENGTH_GRPO", "algorithm.objective.power": 0.25},
    )
    before = to_dict(config)
    del before["format"]  # as it was stored before objectives had names of their own
    before["algorithm"] = {
        "kind": "part_length:LENGTH_GRPO",
        "objective": "length",
        "power": 0.25,
    }
    assert from_dict(before) == config


# ------------------------------------------------------------------------------------------------ a policy's loader


def test_what_was_stored_before_there_were_loaders_is_read():
    tree = to_dict(PRESETS["frozenlake"])
    del tree["policy"]["loader"]
    assert from_dict(tree) == PRESETS["frozenlake"]
    assert to_dict(load_config("frozenlake", {"policy.loader": "a:b"}))["policy"]["loader"] == "a:b"
    assert load_config("frozenlake", {"policy.loader": "none"}).policy.loader is None


def test_a_loaded_policy_is_the_one_of_its_folder(folder):
    usual, own = (
        load_policy("frozenlake-tiny"),
        load_policy(OWN["policy.name"], loader="part_policy:load"),
    )
    assert (
        own.folder is None
        and own.model.num_parameters() == usual.model.num_parameters()
        and not own.model.training
    )
    assert own.fingerprint == load_policy(OWN["policy.name"], loader="part_policy:load").fingerprint
    assert {"config.json", "tokenizer.json"} <= set(
        own.files
    ) and own.contents().keys() == own.files.keys()


WRONG = """
def raises(name): raise FileNotFoundError(f"no weights for {name}")
def nothing(name): pass
def swapped(name):
    import part_policy
    return part_policy.load(name)[::-1]
def no_argument(): pass
value = 3
"""


@pytest.mark.parametrize(
    "name, said",
    [
        ("raises", "raised FileNotFoundError for policy.name = .*no weights for"),
        ("nothing", "returned NoneType; load.name. returns"),
        ("swapped", "as its model, which is no PreTrainedModel"),
        ("no_argument", "raised TypeError"),
        ("value", "is 3, not a function"),
        ("rises", "did you mean 'raises'"),
    ],
)
def test_a_loader_that_loads_nothing_is_named_with_what_it_owes(folder, name, said):
    (folder / "part_wrong.py").write_text(WRONG)
    forget("part_wrong")
    with pytest.raises(WorkbenchError, match=f"policy.loader 'part_wrong:{name}'.*{said}"):
        load_policy(OWN["policy.name"], loader=f"part_wrong:{name}")


def test_a_policy_that_another_function_makes_is_not_gone_on_with(folder, tmp_path):
    module, text = folder / "part_other.py", (folder / "part_policy.py").read_text()
    module.write_text(text)
    config = load_config(
        "frozenlake",
        SMALL
        | {
            "policy.loader": "part_other:load",
            "policy.name": OWN["policy.name"],
            "lint.mode": "off",
        },
    )
    run = wb.train_here(config, tmp_path / "run", on_note=None)
    module.write_text(
        text.replace("    return", "    model.lm_head.weight.data.mul_(1.5)\n    return")
    )
    forget("part_other")
    with pytest.raises(
        PolicyError, match="is not the one that .* began with: its weights had the fingerprint"
    ):
        wb.resume_here(run.path, {"train.steps": 2}, on_note=None, accept_changed_code=True)
