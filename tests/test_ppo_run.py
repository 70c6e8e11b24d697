"""PPO through the whole loop on a shipped policy: exact, replayable, resumed with its critic, from every history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.counts import reduced
from tests.golden_runs.make_old import stopped_after
from workbench.learn.replay import replay_step
from workbench.look.cells.stored import learning_curves_view
from workbench.look.cells.train import resume_here, train_here, train_step
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.training.config import load_config
from workbench.training.reopening import reopen
from workbench.training.session import open_session
from workbench.values.errors import LearnerError

SETTINGS = {
    "train.steps": 3,
    "train.tasks_per_step": 2,
    "train.group_size": 3,
    "train.evaluate_every": 0,
    "lint.start": False,
    "train.checkpoint_every": 1,
    "evaluation.num_tasks": 4,
    "algorithm.kind": "ppo",
    "algorithm.minibatches": 2,
    "algorithm.reference.kl_coef": 0.01,
}


def small(**settings):
    return load_config(
        "frozenlake", SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_here(small(), tmp_path_factory.mktemp("runs") / "whole")


def test_every_step_replays_and_values_are_the_moving_critics(whole):
    for step in whole.steps():
        report = replay_step(whole, step, small().algorithm)
        assert report.equal and {"return", "advantage"} <= set(report.compared[0]), report.text
    values = [whole.credit(step)["value"] for step in whole.steps()]
    assert (
        not np.nan_to_num(values[0]).any() and np.nan_to_num(values[2]).any()
    )  # it began by expecting nothing
    assert {"explained_variance", "value_loss", "kl_ref"} <= set(whole.metrics().columns)
    assert whole.metrics()["kl_ref"][1] < whole.metrics()["kl_ref"][3]
    shown = learning_curves_view(whole).text
    assert all(
        name in shown
        for name in ("KL to the reference", "KL(old || new)", "explained variance of the critic")
    )


@pytest.mark.full
def test_an_interrupted_run_goes_on_with_its_critic_to_the_same_bytes(whole, tmp_path):
    """Stopped in the third step: the critic, its moments and the reference all come back."""
    with pytest.raises(KeyboardInterrupt):
        train_here(small(), tmp_path / "run", on_step=stopped_after(2))
    resume_here(tmp_path / "run", on_note=None)
    assert compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal


@pytest.mark.full
def test_negative_control_a_resume_that_forgets_the_critics_moments_is_noticed(
    whole, tmp_path, monkeypatch
):
    from workbench.learn.optimizer import TrainedWeights

    with pytest.raises(KeyboardInterrupt):
        train_here(small(), tmp_path / "run", on_step=stopped_after(2))
    load_state = TrainedWeights.load_state
    monkeypatch.setattr(
        TrainedWeights,
        "load_state",
        lambda self, name, tensors: load_state(self, name, {**tensors, "critic_optimizer": {}}),
    )
    resume_here(tmp_path / "run", on_note=None)
    assert not compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal


def test_a_checkpoint_holds_the_critic_and_reopening_brings_it_back(whole):
    step, tensors, state = checkpoint.load_newest(whole.path)
    assert step == 3 and {"model", "optimizer", "critic", "critic_optimizer"} == set(tensors)
    session = reopen(whole, quiet=True)
    head = session.learner.models.critic.bare.head.weight
    assert torch.equal(head, tensors["critic"]["head.weight"]) and head.abs().max() > 0
    without = {part: named for part, named in tensors.items() if not part.startswith("critic")}
    with pytest.raises(LearnerError, match="this state has no critic"):
        session.learner.load_state(without, state["learner"])


WAYS = {
    "fresh": {"collect__history": "fresh"},
    "window": {"collect__history": "window"},
    "shared-trunk": {"critic__trunk": "policy", "algorithm__critic__bootstrap": "truncated"},
    "no-siblings": {"train__group_size": 1, "algorithm__reference__kl_in": "loss"},
}


@pytest.mark.parametrize("way", reduced(WAYS, ("fresh", "shared-trunk")))
def test_every_way_goes_through(way):
    session = open_session(small(**WAYS[way]), quiet=True)
    before = {name: weight.clone() for name, weight in session.policy.model.state_dict().items()}
    for step in (1, 2):
        outcome = train_step(session, step)
        assert outcome.updates == 2 and np.isfinite(outcome.metrics["critic_grad_norm"])
    assert all(
        torch.equal(weight, before[name])
        for name, weight in session.learner._reference.state_dict().items()
    )  # the reference is who the run started from
