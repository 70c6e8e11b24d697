"""The config for Qwen2.5-3B-Instruct on HotpotQA: its own text loaded, and its path trained in one process with smaller sizes.

That the file starts as it stands, in the processes and with the engine that it names, is tests/test_recipes.py's. What needs the
model, the data set and GPUs is not run anywhere here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.engines.scripted import ScriptedEngine
from workbench.learn.replay import replay_step
from workbench.look.cells.train import train_here
from workbench.training.config import load_config, load_config_with_warnings
from workbench.training.session import open_session, rollout
from workbench.values import Source
from workbench.values.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "experiments/hotpotqa-qwen2.5-3b.toml"
FILES = ROOT / "tests/qa/files"
HERE = {  # what a laptop has instead of the model, the data set and eight GPUs; nothing that the tests with it are about
    "env.questions": str(FILES / "hotpot_train_v1.1.json"),
    "env.heldout": str(FILES / "hotpot_dev_distractor_v1.json.gz"),
    "policy.name": "frozenlake-tiny",
    "engine.kind": "transformers",
    "learner.num_processes": 1,
    "learner.sharding": "none",
    "lint.start": False,
    "engine.max_context": 2048,
    "collect.max_turn_tokens": 8,
    "collect.max_context": 1000,
    "env.most_chars": 60,
    "env.turns": 2,
    "env.calls.show_schemas": False,
    "train.steps": 1,
    "train.tasks_per_step": 4,
    "algorithm.minibatch_size": 2,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 2,
}


def test_it_says_that_it_was_not_run_and_has_the_published_settings():
    assert CONFIG.read_text().startswith("# NOT TRAINED HERE")
    config, warnings = load_config_with_warnings(CONFIG)
    assert warnings == []
    found = {
        "lr": (config.learner.lr, 1e-6),
        "critic lr": (config.critic.lr, 1e-5),
        "batch": (config.train.tasks_per_step, 128),
        "mini": (config.algorithm.minibatch_size, 64),
        "group": (config.train.group_size, 1),
        "c": (config.algorithm.objective.dual_clip, 3),
        "clip": (
            (config.algorithm.objective.clip_low, config.algorithm.objective.clip_high),
            (0.2, 0.2),
        ),
        "gamma": (config.algorithm.estimator.gamma, 1),
        "lambda": (config.algorithm.estimator.lam, 1),
        "kl": (
            (config.algorithm.reference.kl_coef, config.algorithm.reference.kl_in),
            (0.001, "reward"),
        ),
        "values": (config.algorithm.critic.value_clip, 0.5),
        "turns": (config.env.turns, 5),
        "characters": (config.env.most_chars, 2048),
        "documents": (config.env.documents, 5),
        "turn": (config.collect.max_turn_tokens, 1024),
        "temperature": (config.collect.temperature, 1),
        "decay": (config.learner.weight_decay, 0.01),
        "gradient": (config.learner.max_grad_norm, 1.0),
        "processes": (config.learner.num_processes, 4),
        "engine": (config.engine.dtype, "bfloat16"),
        "sharding": (config.learner.sharding, "full"),
        "rule": (config.env.rewards.rule, "agent-r1"),
    }
    assert {name: got for name, (got, _) in found.items()} == {
        name: wanted for name, (_, wanted) in found.items()
    }


def test_without_the_data_set_it_says_so_before_anything_is_loaded():
    with pytest.raises(
        ConfigError, match="env.questions: there is no file 'hotpot_train_v1.1.json'"
    ):
        open_session(load_config(CONFIG, {"policy.name": "no/such-model"}))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The file without its vLLM server, for one process and the embedded engine."""
    path = tmp_path_factory.mktemp("alone") / "hotpotqa.toml"
    text, count = re.subn(r"\[layout\]\n(?:[^\[\n].*\n)*", "", CONFIG.read_text())
    assert count == 1
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def run(alone, tmp_path_factory):
    return train_here(load_config(alone, HERE), tmp_path_factory.mktemp("hotpotqa") / "run")


@pytest.mark.full
def test_its_path_trains_and_replays_on_small_files(run, alone):
    assert run.steps() == [1] and replay_step(run, 1, load_config(alone, HERE).algorithm).equal
    trajectories = [t for group in run.groups(1) for t in group]
    assert {t.task.payload["question"] for t in trajectories} <= {
        t.payload["question"] for t in open_session(load_config(alone, HERE)).train_tasks(1, 40)
    }
    assert {name for t in trajectories for turn in t.turns for name in turn.reward_parts} == {
        "answer",
        "format",
    }
    assert all(t.reward in (-1.0, -0.5, 0.0, 1.0) for t in trajectories)


def test_an_agent_that_searches_and_answers_is_trained_on_its_own_words_only(alone):
    session = open_session(
        load_config(
            alone,
            HERE
            | {
                "env.turns": 4,
                "collect.max_turn_tokens": 200,
                "collect.max_context": 4000,
                "engine.max_context": None,
                "env.most_chars": 2048,
                "env.documents": 1,
            },
        )
    )
    [task] = [
        t
        for t in {t.payload["question"]: t for t in session.train_tasks(1, 40)}.values()
        if t.payload["answers"] == ["Lund Quay"]
    ]
    form = session.family.make().format
    said = [
        form.write_call("search", {"query": "Ysolde Marr restored"}, thought="who"),
        form.write_call("search", {"query": "Petrel cutter moored"}, thought="where"),
        form.write_answer("Lund Quay", thought="there"),
    ]

    written = iter(said)

    def script(request):
        return [
            *session.policy.tokenizer.encode(next(written), add_special_tokens=False),
            min(request.stop_ids),
        ]

    session = replace(session, engine=ScriptedEngine(script, context_length=4000))
    [[trajectory]] = rollout(session, [task], group_size=1)
    assert trajectory.success and [turn.reward for turn in trajectory.turns] == [0, 0, 1]
    assert [len(turn.tool_calls) for turn in trajectory.turns] == [1, 1, 0]
    assert "moored at Lund Quay" in trajectory.turns[1].reply[0].text
    [segment] = trajectory.segments
    assert all(span.sampled == (span.source is Source.POLICY) for span in segment.spans)
