"""A warm start shows training tasks only, trains what the solver wrote and nothing else, and writes a policy."""

from __future__ import annotations

import json

import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.engines.policy import load_policy
from workbench.extensions.warm_start.demonstrations import demonstrate
from workbench.extensions.warm_start.train import warm_start
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.batch import Batch
from workbench.training.config import load_config
from workbench.training.session import open_session
from workbench.values.errors import ConfigError, StoreError


@pytest.fixture(scope="module")
def session():
    return open_session(load_config("frozenlake"), quiet=True)


def test_demonstrations_are_the_solvers_turns_in_training_tasks(session):
    shown = demonstrate(session, 12)
    assert len(shown.groups) == 12 and (shown.failed, shown.long) == (0, 0)
    family = session.family
    own = {task.id for step in range(1, 4) for task in session.train_tasks(step)}
    for (trajectory,) in shown.groups:
        assert family.split_of(trajectory.task) == "train"
        assert trajectory.task.id not in own
        assert trajectory.success and trajectory.reward == 1.0
        (segment,) = trajectory.segments
        trained = session.policy.tokenizer.decode(segment.token_ids[segment.eligible])
        end = session.policy.tokenizer.decode([session.chat.end_of_turn])
        assert trained == "".join(turn.text + end for turn in trajectory.turns)


def test_every_trained_token_weighs_the_same_and_no_other_token_does(session):
    """With one reward at the end and no baseline the gradient is that of the likelihood."""
    batch = Batch.from_groups(demonstrate(session, 4).groups)
    credit = ALGORITHMS["reinforce"](estimator={"baseline": "none"}).credit(batch)
    eligible = batch.eligible_T.numpy()
    assert np.array_equal(credit.trained_T.numpy(), eligible)
    assert set(credit.advantage_T[batch.eligible_T].tolist()) == {1.0}
    assert not eligible.all()


def test_turns_beyond_the_limit_are_left_out(session):
    short = open_session(load_config("frozenlake", {"collect.max_turn_tokens": 8}), quiet=True)
    shown = demonstrate(short, 12)
    assert shown.long > 0 and len(shown.groups) + shown.long == 12


def test_the_likelihood_rises_and_the_folder_is_a_policy(tmp_path, session):
    made = warm_start(session, "frozenlake", tmp_path / "warm", tasks=24, batch=4, epochs=2)
    assert made.updates == 12 and made.tasks == 24
    assert np.mean(made.nll[-3:]) < np.mean(made.nll[:3]) - 0.1
    assert "trained tokens" in made.text and "CPU-s" in made.text
    policy = load_policy(tmp_path / "warm")
    assert policy.fingerprint != session.policy.fingerprint
    provenance = json.loads((tmp_path / "warm" / "provenance.json").read_text())
    assert provenance["tokens"] == made.tokens and provenance["env"] == "frozenlake"
    again = open_session(
        load_config("frozenlake", {"policy.name": str(tmp_path / "warm")}), quiet=True
    )
    assert again.chat.end_of_turn == session.chat.end_of_turn
    with pytest.raises(StoreError, match="there already"):
        warm_start(session, "frozenlake", tmp_path / "warm")


def test_adapters_are_merged_into_the_folder(tmp_path):
    settings = {"learner.lora_rank": 4, "learner.lr": 5e-3}
    made = wb.warm_start(
        "frozenlake-tiny", "frozenlake", tmp_path / "warm", settings, tasks=8, batch=4
    )
    assert made.lora_rank == 4 and made.lr == 5e-3
    names = load_policy(tmp_path / "warm").model.state_dict()
    assert set(names) == set(load_policy("frozenlake-tiny").model.state_dict())


def test_an_environment_without_a_solver_is_refused(tmp_path, capsys):
    textless = load_config("tests.envs.guessing:Guessing", {"policy.name": "frozenlake-tiny"})
    with pytest.raises(ConfigError, match="solver_action"):
        demonstrate(open_session(textless, quiet=True), 2)
    with pytest.raises(ConfigError, match="at least 1"):
        wb.warm_start("frozenlake-tiny", "frozenlake", tmp_path / "warm", tasks=0)


def test_the_command(tmp_path, capsys):
    arguments = [
        "warm-start",
        "bandit-tiny",
        "bandit",
        "--out",
        str(tmp_path / "warm"),
        "--tasks",
        "8",
    ]
    assert main(arguments) == 0
    assert "use it: --set policy.name=" in capsys.readouterr().out
