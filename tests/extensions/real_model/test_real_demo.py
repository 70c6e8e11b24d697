"""The demo with a pretrained model, with a tiny policy in its place: what is measured beside what, and what counts as learned."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial

import pytest
import torch

from workbench.basics.shipped import shipped_folder
from workbench.cli import main
from workbench.engines.policy import load_policy
from workbench.extensions.real_model import demo
from workbench.rollouts.evaluate import Score
from workbench.training.config import load_config
from workbench.values.errors import ConfigError, StoreError

TINY = shipped_folder() / "frozenlake-tiny"
SMALL = {
    "learner.lora_targets": ["2.self_attn.q_proj", "2.mlp.down_proj"],
    "learner.lora_rank": 4,
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "evaluation.num_tasks": 4,
}


@pytest.fixture(scope="module")
def config():
    return load_config(demo.PRESET, SMALL)


def test_the_preset_trains_the_last_layers_of_this_very_model():
    targets = load_config(demo.PRESET).learner.lora_targets
    assert len(targets) == len(set(targets)) == 7 * 12
    assert {int(name.split(".")[0]) for name in targets} == set(range(18, 30))


def test_what_is_shown_moves_the_named_layers_alone_and_again_the_same(config, tmp_path):
    said = []
    made = [
        demo.shown(config, TINY, tmp_path / name, count=64, say=said.append) for name in ("a", "b")
    ]
    before = load_policy(TINY).model.state_dict()
    after, again = (load_policy(folder).model.state_dict() for folder in made)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.removeprefix("model.layers.") for name in moved} == {
        "2.self_attn.q_proj.weight",
        "2.mlp.down_proj.weight",
    }
    assert all(torch.equal(after[name], again[name]) for name in after)
    assert [line.startswith("warm start: 8 of 8 updates") for line in said] == [True, True]
    provenance = json.loads((made[0] / "provenance.json").read_text())
    assert (provenance["player"], provenance["tasks"], provenance["lr"]) == ("careful", 64, demo.LR)


class AtOnce:
    """In the place of another process, which is given what can be pickled and nothing else."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        done = Future()
        function, arguments = pickle.loads(pickle.dumps((function, arguments)))
        done.set_result(function(*arguments))
        return done


@pytest.mark.parametrize(
    "beside", [AtOnce, pytest.param(ProcessPoolExecutor, marks=pytest.mark.full)]
)
def test_the_command_measures_every_policy_on_the_same_tasks(beside, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "ProcessPoolExecutor", beside)
    monkeypatch.setattr(demo, "DEMONSTRATIONS", 8)
    monkeypatch.setattr(demo, "model_folder", lambda name, say: TINY)
    out = tmp_path / "out"
    command = ["demo-model", "smollm2", "--out", str(out)]
    for key, value in SMALL.items():
        words = ",".join(value) if isinstance(value, list) else value
        command += ["--set", f"{key}={words}"]
    assert main(command) == 1  # nothing is learned in one step
    [seed] = json.loads((out / "table.json").read_text())["seeds"]
    greedy = {row["policy"]: row for row in seed["rows"] if row["mode"] == "greedy"}
    assert set(greedy) == {"solver", "untrained", "warm start", "more fine-tuning", "trained"}
    assert {row["n"] for row in seed["rows"]} == {4}
    assert all("skill" in row for name, row in greedy.items() if name != "solver")
    assert [pair["a"].rsplit(" ", 1)[0] for pair in seed["paired"]] == [
        *demo.CLEAR_OF,
        "more fine-tuning",
    ]
    assert seed["games"] == 8 and set(seed["cpu_seconds"]) == {
        "warm start",
        "reinforcement",
        "more fine-tuning",
    }
    assert "NOT learned" in capsys.readouterr().out
    with pytest.raises(StoreError):
        demo.real_demo("smollm2", [0], out, {}, None)
    with pytest.raises(ConfigError):
        demo.real_demo("smollm2", [0, 0], out, {}, None)


def score(policy: str, won: int, mode: str = "greedy", n: int = 100) -> Score:
    by_task = tuple(float(number < won) for number in range(n))
    return Score(policy, mode, n, won / n, 0, 1, 0.0, 4, 12, 1.0, 0, by_task)


def rows(**won: int) -> list[dict]:
    usual = {"untrained": 0, "warm start": 50, "more fine-tuning": 55, "trained": 90}
    scores = [score(name, count) for name, count in (usual | won).items()]
    return [one.row() for one in (score("random", 25, "sampled"), *scores)]


def test_learned_is_clear_of_chance_and_of_where_it_began():
    assert demo.judged(rows())["learned"]
    for name, count in (("warm start", 88), ("untrained", 95)):
        judged = demo.judged(rows(**{name: count}))
        assert not judged["learned"]
        [failed] = [check for check, held in judged["checks"].items() if not held]
        assert name in failed
    assert not demo.judged(rows(trained=26))["learned"]


def test_more_fine_tuning_is_shown_beside_and_decides_nothing():
    judged = demo.judged(rows(**{"more fine-tuning": 95}))
    assert judged["learned"] and len(judged["checks"]) == len(demo.CLEAR_OF)
    assert judged["paired"][-1]["a"] == "more fine-tuning greedy"
    assert judged["paired"][-1]["difference"] == pytest.approx(-0.05)


def test_a_control_that_fails_is_heard_of_at_once():
    heard = []
    for failed in (None, StoreError("no room")):
        control = Future()
        control.add_done_callback(partial(demo._say_failure, heard.append))
        control.set_exception(failed) if failed else control.set_result(())
    assert len(heard) == 1 and "no room" in heard[0]


def test_a_seed_shows_its_figures(config):
    result = {"seed": 3, "rows": rows(), **demo.judged(rows()), "wall_seconds": 60}
    result["rows"].append(score("solver", 100).row())
    text = demo.seed_words(result | {"cpu_seconds": {"warm start": 12.3}})
    assert "seed 3: learned" in text and "90.0" in text and "warm start 12" in text
    assert "trained greedy over warm start greedy: +40.0" in text
