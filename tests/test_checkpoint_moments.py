"""What a checkpoint holds of AdamW (train.checkpoint_moments): its size, and that a run resumed from it is the run that was never
interrupted, bit for bit, with each; and that nothing is copied for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.learning_data import tiny_model
from tests.test_learner import batch_and_credit, full_state, learner, same
from workbench.learn.learner import Learner
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.training.config import load_config
from workbench.training.resume import resume_here
from workbench.training.session import open_session
from workbench.training.train import train_here
from workbench.values.errors import ConfigError

MOMENTS = ("float32", "bfloat16", "none")
BYTES = {"float32": 12, "bfloat16": 8, "none": 4}  # a parameter


def config(moments: str):
    return load_config(
        "bandit",
        {
            "train.steps": 4,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 2,
            "train.checkpoint_moments": moments,
            "evaluation.num_tasks": 2,
            "lint.mode": "off",
        },
    )


def without_last_checkpoint(path: Path) -> None:
    """As if the process had been killed right after it committed step 3: step 3 is repeated from the checkpoint of step 2."""
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 3]
    (path / "metrics.jsonl").write_bytes(b"".join(kept))
    for entry in ("steps/step-00000004", "checkpoints/step-00000004"):
        shutil.rmtree(path / entry)
    for entry in (path / "evaluations").glob("*00000004*"):
        entry.unlink()


def equal(a: Path, b: Path) -> bool:
    return compare_runs(open_run(a), open_run(b), exact=True).equal


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {m: train_here(config(m), folder / m, on_note=None).path for m in MOMENTS}


@pytest.mark.parametrize("moments", MOMENTS)
def test_resuming_is_exact_with_each(runs, moments, tmp_path):
    shutil.copytree(runs[moments], tmp_path / "run")
    without_last_checkpoint(tmp_path / "run")
    resume_here(tmp_path / "run", on_note=None)
    assert equal(runs[moments], tmp_path / "run")


@pytest.mark.parametrize("moments", MOMENTS)
def test_it_holds_what_resuming_needs_and_no_more(runs, moments):
    tensors = checkpoint.load(runs[moments], 4).tensors
    parameters = sum(t.numel() for t in tensors["model"].values())
    held = sum(t.numel() * t.element_size() for part in tensors.values() for t in part.values())
    steps = sum(t.numel() == 1 for t in tensors["optimizer"].values())
    assert held == BYTES[moments] * parameters + 4 * steps


def test_what_is_saved_is_what_the_run_goes_on_with(runs):
    """The first two steps are the same runs; after the checkpoint, where the moments differ, so do the weights."""
    at = {
        m: [checkpoint.load(path, s).tensors["model"] for s in (2, 4)] for m, path in runs.items()
    }
    for moments in ("bfloat16", "none"):
        assert same(at[moments][0], at["float32"][0])
        assert not same(at[moments][1], at["float32"][1])


def test_negative_control_a_run_that_went_on_with_other_moments_ends_otherwise(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as broken:
        broken.setattr(Learner, "reduce_moments", lambda self, precision: None)
        path = train_here(config("bfloat16"), tmp_path / "run", on_note=None).path
    shutil.copytree(path, tmp_path / "resumed")
    without_last_checkpoint(tmp_path / "resumed")
    resume_here(tmp_path / "resumed", on_note=None)
    assert not equal(path, tmp_path / "resumed")


def test_it_cannot_be_changed_in_a_run_that_has_begun(runs, tmp_path):
    shutil.copytree(runs["none"], tmp_path / "run")
    with pytest.raises(ConfigError, match="train.checkpoint_moments"):
        resume_here(
            tmp_path / "run",
            {"train.checkpoint_moments": "float32", "train.steps": 5},
            on_note=None,
        )


# ------------------------------------------------------------------------------------------------ no copies


def test_a_state_is_copied_unless_it_is_written_at_once():
    batch, credit = batch_and_credit()
    a_learner = learner()
    a_learner.update(batch, credit, step=1)
    own = {p.data_ptr() for p in a_learner.models.policy.parameters}
    copies, state = a_learner.state()
    live, same_state = a_learner.state(copied=False)
    assert state == same_state and copies.keys() == live.keys()
    for part in copies:
        assert same(copies[part], live[part])
    assert {t.data_ptr() for t in live["model"].values()} == own
    assert not own & {t.data_ptr() for t in copies["model"].values()}


def test_reduced_moments_are_what_their_type_holds_and_go_on_exactly():
    batch, credit = batch_and_credit()
    for moments in ("bfloat16", "none"):
        first = learner()
        first.update(batch, credit, step=1)
        full = full_state(first)
        first.reduce_moments(moments)
        tensors, state = first.state()
        stored = {n: t for n, t in tensors["optimizer"].items() if "exp_avg" in n}
        assert {t.dtype for t in stored.values()} <= {torch.bfloat16}
        assert bool(stored) == (moments == "bfloat16")
        for name, tensor in stored.items():
            torch.testing.assert_close(
                tensor.float(), full[f"optimizer/{name}"], rtol=2**-8, atol=0
            )
        second = learner(model=tiny_model(9))
        second.load_state(tensors, state)
        for a_learner in (first, second):
            a_learner.update(batch, credit, step=2)
        assert same(full_state(first), full_state(second))


def test_a_large_policy_is_trained_in_place_where_nobody_reads_the_first_one(monkeypatch):
    """And its numbers are those of a copy."""

    def trained(**settings):
        session = open_session(config("float32"), quiet=True, **settings)
        own = session.policy.model
        return session, session.learner.models.policy.module is own

    assert not trained(keeps_first=False)[1]  # a small one costs nothing
    monkeypatch.setattr("workbench.training.session.SMALL", 0)
    assert trained(keeps_first=False)[1] and not trained()[1]
    with_reference = load_config("bandit", {"algorithm.reference.kl_coef": 0.1})
    session = open_session(with_reference, quiet=True, keeps_first=False)
    assert session.learner.models.policy.module is not session.policy.model


def test_a_run_in_place_is_the_run_of_a_copy(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.training.session.SMALL", 0)
    path = train_here(config("float32"), tmp_path / "run", on_note=None).path
    assert equal(runs["float32"], path)
