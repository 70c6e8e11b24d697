"""Objects where a person has objects: code handed over as it is; a run, one that trains and a session are one thing."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar

import pytest
import torch

import workbench as wb
from workbench.learn.algorithms import Advantages, Algorithm, Estimator
from workbench.learn.algorithms.named import RLOO
from workbench.rollouts.evaluate import report
from workbench.run.store import Run
from workbench.training.config import from_dict, to_dict
from workbench.training.reopening import reopen, session_of
from workbench.training.sections import TrainConfig
from workbench.training.session import Session
from workbench.values import Message, Observation, StepResult, Task
from workbench.values.errors import ConfigError, DataError, StoreError, ToolError
from workbench.worlds.tool_env import CallSettings

HERE = __name__
SMALL = {
    "train.steps": 4,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "evaluation.num_tasks": 4,
    "lint.mode": "off",
}


class Asking:
    def reset(self, task, dynamics_seed):
        return Observation((Message("user", "Say a number."),))

    def step(self, action_text):
        return StepResult(Observation((Message("user", "Thanks."),)), 1.0, terminated=True)


@dataclass(frozen=True)
class Numbers:
    max_turns: int = 2
    name: ClassVar[str] = "numbers"

    def task(self, task_seed):
        return Task(f"numbers/{task_seed}", "numbers", task_seed, {"number": task_seed})

    def make(self):
        return Asking()


@dataclass(frozen=True)
class Needs(Numbers):
    level: int = 3

    def __init__(self, level):
        object.__setattr__(self, "level", level)


def population(city: str) -> int:
    """How many people live in a city."""
    return 87


@wb.tool(trusted=True)
def distance(city: str) -> int:
    """How far it is."""
    return 3


def judge(trajectory):
    return True


def flat(inputs) -> Advantages:
    return Advantages(inputs.of_rows(inputs.reward_N.nan_to_num()))


FLAT = Algorithm("flat", Estimator(flat))
FLAT_ESTIMATOR = Estimator(flat)


# ------------------------------------------------------------------------------------------------ load_config


@pytest.mark.parametrize("source", [Numbers(), Numbers, f"{HERE}:Numbers"])
def test_an_environment_is_taken_as_it_is_as_its_class_and_by_name(source):
    config = wb.load_config(source, {"env.max_turns": 3, "train.steps": 2})
    assert config.env == Numbers(3) and config.train.steps == 2
    assert to_dict(config)["env"] == {"kind": f"{HERE}:Numbers", "max_turns": 3}
    assert from_dict(to_dict(config)) == config


def test_parts_that_are_handed_over_take_the_place_of_those_of_the_source():
    own = wb.load_config("frozenlake", {"env": Numbers(4), "algorithm": FLAT, "train.steps": 2})
    assert own.env == Numbers(4) and own.algorithm == FLAT
    assert own.policy == wb.load_config("frozenlake").policy
    assert from_dict(to_dict(own)).algorithm.estimator == FLAT.estimator
    changed = wb.load_config(own, {"algorithm": RLOO, "algorithm.epochs": 2, "env.max_turns": 1})
    assert changed.algorithm == replace(RLOO, epochs=2) and changed.env == Numbers(1)
    assert own.env == Numbers(4)  # what was handed over is not changed


def test_a_file_keeps_its_settings_beside_an_environment_that_is_handed_over(tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[env]\nkind = "frozenlake"\nmax_turns = 6\n[train]\nsteps = 7\n'
    )
    config = wb.load_config(tmp_path / "mine.toml", {"env": Numbers()})
    assert config.env == Numbers() and config.train.steps == 7
    only = wb.load_config(tmp_path / "mine.toml", {"algorithm": RLOO})
    assert only.env.max_turns == 6 and only.train.steps == 7 and only.algorithm == RLOO


def test_an_estimator_alone_is_an_algorithm_under_its_own_name():
    config = wb.load_config("frozenlake", {"algorithm": FLAT_ESTIMATOR})
    assert to_dict(config)["algorithm"]["kind"] == f"{HERE}:FLAT_ESTIMATOR"


def test_tools_and_functions_are_written_by_the_name_under_which_they_are_found():
    for given in (population, [population]):
        config = wb.load_config("search", {"env.tools": given})
        assert config.env.tools == (f"{HERE}:population",)
    config = wb.load_config("search", {"env.tools": [population, distance, "calculator"]})
    assert config.env.tools == (f"{HERE}:population", f"{HERE}:distance", "calculator")
    settings = {"env.kind": "tools", "env.reward": judge, "env.tools": (distance,)}
    tools = wb.load_config("frozenlake", settings)
    assert tools.env.reward == f"{HERE}:judge" and tools.env.function("reward") is judge
    assert from_dict(to_dict(tools)) == tools


def test_a_part_of_settings_is_taken_as_it_is():
    settings = {"train": TrainConfig(steps=9), "env.calls": CallSettings(most_calls=2)}
    config = wb.load_config("search", settings)
    assert config.train.steps == 9 and config.env.calls.most_calls == 2


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"env": 3}, "env.kind 'builtins:int' is no dataclass"),
        ({"env": Needs}, "cannot be made without arguments.*hand over one that is made"),
        ({"algorithm": 3}, "algorithm is 3; expected an Algorithm"),
        ({"train": 3}, "train holds settings by name, got 3"),
        ({"train.steps": judge}, "train.steps is a whole number"),
        ({"policy.name": 3}, "policy.name is text, got 3"),
        ({"policy.loader": lambda name: 3}, "policy.loader: .*is not a module-level name"),
    ],
)
def test_what_cannot_be_such_a_part_is_refused_by_its_key(settings, words):
    with pytest.raises(ConfigError, match=words):
        wb.load_config("frozenlake", settings)


def test_what_a_notebooks_cell_defines_is_named_and_another_process_is_refused_with_the_way_out(
    monkeypatch, tmp_path
):
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)

    def here(city: str) -> int:
        """How many people."""
        return 1

    here.__module__, here.__qualname__ = "__main__", "here"
    cell.here = here
    config = wb.load_config("search", {"env.tools": here})
    assert config.env.tools == ("__main__:here",)
    with pytest.raises(
        ToolError, match="here is defined inside a notebook.*%%writefile.*trusted=True"
    ):
        wb.rollout(config, 1)
    cell.here = wb.tool(here, trusted=True)
    trusted = wb.load_config("search", {"env.tools": cell.here})
    assert trusted.env.make().tools[-1].function is here and wb.rollout(trusted, 1, group_size=1)
    with pytest.raises(ConfigError, match=r"env.tools\[0\]: here .*%%writefile.*wb.train_here"):
        wb.train(config, tmp_path / "run")


# ------------------------------------------------------------------------------------------------ one thing to the caller


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with the settings by default of what concerns checkpoints."""
    return wb.train_here(
        wb.load_config("frozenlake", SMALL), tmp_path_factory.mktemp("runs") / "run", on_note=None
    )


@pytest.fixture(scope="module")
def ways(run):
    """One run as a person may hold it."""
    session = wb.reopen(run)
    return {
        "run": run,
        "running": wb.attach(run.path),
        "text": str(run.path),
        "path": run.path,
        "session": session,
    }


WAYS = ("run", "running", "text", "path", "session")


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_sampled_from_and_evaluated_however_it_is_held(ways, way):
    held = ways[way]
    groups = wb.rollout(held, 1, group_size=2)
    assert wb.groups_equal(groups, wb.rollout(ways["session"], 1, group_size=2))
    scores = wb.evaluate(held, modes=("greedy",))
    assert [score.policy for score in scores] == ["trained"]
    assert scores == wb.evaluate(ways["session"], modes=("greedy",))


@pytest.mark.parametrize("way", WAYS)
def test_what_takes_a_run_takes_it_however_it_is_held(ways, way):
    assert wb.show(wb.group_spread(ways[way])).text == wb.show(wb.group_spread(ways["run"])).text
    assert wb.show_replay(ways[way], 1).text == wb.show_replay(ways["run"], 1).text


@pytest.mark.parametrize("way", WAYS[:4])
def test_tokens_of_a_run_are_those_of_the_place_that_is_asked_for(ways, way):
    newest = wb.show(ways["run"], step=4, task=0, attempt=0, tokens=True)
    assert wb.show_tokens(ways[way]).text == newest.text
    other = wb.show(ways["run"], step=2, task=1, attempt=3, tokens=True)
    assert (
        wb.show_tokens(ways[way], "step 2 / task 1 / attempt 3").text == other.text != newest.text
    )


@pytest.mark.parametrize("source", ["frozenlake", wb.load_config("frozenlake"), Numbers(), Numbers])
def test_a_config_and_what_makes_one_are_sampled_from(source):
    [group] = wb.rollout(source, 1, group_size=1)
    env = source.env.name if hasattr(source, "env") else getattr(source, "name", source)
    assert group.task.env.startswith(env)


def test_a_run_that_trains_has_what_a_run_has(ways, run):
    running = ways["running"]
    assert running.metrics().equals(run.metrics()) and running.steps() == [1, 2, 3, 4]
    with pytest.raises(AttributeError, match="no 'metrix'; did you mean 'metrics'"):
        running.metrix()
    assert not hasattr(running, "_repr_html_")


def test_a_session_of_no_run_is_no_run(ways):
    fresh = wb.open_session(wb.load_config("frozenlake"))
    with pytest.raises(DataError, match="wb.show_replay takes a Run.*got a Session"):
        wb.show_replay(fresh, 1)
    assert fresh.run is None and ways["session"].run.path == ways["run"].path
    assert session_of(fresh) is fresh and isinstance(session_of("frozenlake"), Session)


def test_a_session_that_was_opened_for_one_call_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(Session, "close", lambda session: closed.append(session))
    wb.rollout("frozenlake", 1, group_size=1)
    assert len(closed) == 1
    session = wb.open_session(wb.load_config("frozenlake"))
    wb.rollout(session, 1, group_size=1)  # the negative control: the caller's own is left open
    assert len(closed) == 1


# ------------------------------------------------------------------------------------------------ baselines of the folder


def test_an_evaluation_of_a_run_is_shown_beside_the_baselines_of_its_folder(run):
    scores = wb.evaluate(run)
    text = wb.show(scores).text
    assert "not measured" not in text and "trained sampled - untrained sampled" in text
    rows = run.evaluations()["step-00000000"]["rows"]
    last = run.evaluations()["step-00000004"]
    assert {"random", "untrained", "solver"} <= {row["policy"] for row in rows}
    now = json.loads(json.dumps(report([*scores])["rows"]))
    assert now == [row for row in last["rows"] if row["policy"] == "trained"]
    assert len(scores) == 2  # baselines are none of them


def test_baselines_of_other_tasks_are_not_shown_as_if_they_were_of_these(run):
    """The negative control."""
    text = wb.show(wb.evaluate(run, num_tasks=2)).text
    assert "the run has it of 4 tasks" in text and "trained sampled - " not in text
    several = wb.show(wb.evaluate(run, attempts=2, modes=("sampled",))).text
    assert (
        "the run has it of 4 tasks x 1" in several and "trained sampled - untrained" not in several
    )


def test_a_session_of_a_config_says_that_baselines_were_not_measured():
    session = wb.open_session(wb.load_config("frozenlake", {"evaluation.num_tasks": 2}))
    assert "random: not measured" in wb.show(wb.evaluate(session, modes=("greedy",))).text


# ------------------------------------------------------------------------------------------------ any step of a run


@pytest.fixture(scope="module")
def kept(run, tmp_path_factory):
    """The same run, made with every checkpoint."""
    settings = SMALL | {"train.checkpoint_every": 1, "train.keep_checkpoints": 9}
    path = tmp_path_factory.mktemp("runs") / "kept"
    return wb.train_here(wb.load_config("frozenlake", settings), path, on_note=None)


@pytest.mark.parametrize("step", [1, 3])
def test_the_weights_of_a_step_whose_checkpoint_was_not_kept_are_learned_again(run, kept, step):
    assert not (run.path / "checkpoints" / f"step-0000000{step}").exists()
    again = reopen(run, step=step)
    loaded = reopen(kept, step=step)
    assert again.engine.policy_version == loaded.engine.policy_version == step
    weights = loaded.learner.weights()
    for name, tensor in again.learner.weights().items():
        assert torch.equal(tensor, weights[name]), name


def test_the_first_line_of_the_guide_works_with_settings_by_default(run, kept):
    at = "step 3 / task 1 / attempt 2"
    branched = wb.branch(run, at=at, k=2)
    assert branched.weights == "those that step 3 sampled with"
    assert branched.to_frame().equals(wb.branch(kept, at=at, k=2).to_frame())


def test_a_step_that_does_not_come_out_again_is_refused(run, kept, tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="no committed step 9: it has steps 1 to 4"):
        reopen(run, step=9)
    original = Run.groups
    monkeypatch.setattr(Run, "groups", lambda self, step: original(self, 3 - step))
    with pytest.raises(
        StoreError,
        match="step 1 is not reproduced",
    ):
        reopen(run, step=1)


def test_the_checkpoint_before_it_is_what_learning_again_begins_from(kept, tmp_path, monkeypatch):
    path = tmp_path / "run"
    shutil.copytree(kept.path, path)
    for step in (1, 3):
        shutil.rmtree(path / "checkpoints" / f"step-0000000{step}")
    asked = []
    original = Run.groups

    def groups(self, step):
        asked.append(step)
        return original(self, step)

    monkeypatch.setattr(Run, "groups", groups)
    reopen(path, step=3)
    assert asked == [3]
