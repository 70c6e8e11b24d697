"""Gap, divergence and ratios by hand; position ids; what every step of training reports; the command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mismatch_kit import session_after

from workbench.extensions.engine_audit.audit import audit
from workbench.extensions.engine_audit.figures import BINS, Ratios, Whole
from workbench.extensions.engine_audit.forward import position_ids
from workbench.learn.batch import Batch
from workbench.training.session import rollout
from workbench.values.errors import ConfigError, DataError

SAMPLED, TURNS = np.array([0, 0, 1, 1, 0, 1], bool), np.array([0, 0, 0, 0, 0, 1])


def test_whole_vocabulary_by_hand():
    p, q = (
        torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]),
        torch.tensor([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]),
    )
    found = Whole.between(p.log(), q.log())
    assert found.kl == pytest.approx(
        0.25 * np.log(2) / 2, abs=1e-7
    ) and found.kl_worst == pytest.approx(0.25 * np.log(2))
    assert found.tv == pytest.approx(0.125) and found.first_changed == 0.5 and found.swapped == 0
    assert (found.tokens, found.vocabulary) == (2, 3)
    cut = Whole.between(torch.tensor([[0.0, -torch.inf]]), torch.tensor([[0.5, 0.5]]).log())
    assert cut.kl == pytest.approx(np.log(2)), "what the engine cut adds nothing"


@given(
    st.lists(st.floats(-8, 0), min_size=3, max_size=6),
    st.lists(st.floats(-8, 0), min_size=3, max_size=6),
)
def test_divergence_is_never_negative_and_zero_only_with_itself(a, b):
    size = min(len(a), len(b))
    p, q = (torch.tensor([x[:size]], dtype=torch.float64).log_softmax(-1) for x in (a, b))
    found = Whole.between(p, q)
    assert (
        found.kl >= -1e-12 and 0 <= found.tv <= 1 and found.kl + 1e-9 >= 2 * found.tv**2
    )  # Pinsker
    assert Whole.between(p, p).kl == 0


def test_ratios_by_hand():
    found = Ratios.between(np.log([0.5, 0.5, 0.5, np.nan]), np.log([0.5, 0.6, 0.25, 0.5]))
    assert found.tokens == 3 and found.mean == pytest.approx((1 + 1.2 + 0.5) / 3)
    assert found.outside == pytest.approx(2 / 3) and found.largest == pytest.approx(1.2)
    assert found.kl == pytest.approx((0 + (0.2 - np.log(1.2)) + (-0.5 - np.log(0.5))) / 3)
    assert found.mult_error == pytest.approx((1 + 1.2 + 2) / 3)
    assert sum(found.histogram) == 3 and found.histogram[BINS.index(0.99)] == 1
    assert Ratios.between(np.array([np.nan]), np.array([0.0])) is None


def test_position_ids_under_each_hypothesis():
    assert position_ids("all +1", SAMPLED, TURNS).tolist() == [1, 2, 3, 4, 5, 6]
    assert position_ids("all -1", SAMPLED, TURNS).tolist() == [0, 0, 1, 2, 3, 4]
    assert position_ids("answer +1", SAMPLED, TURNS).tolist() == [0, 1, 3, 4, 5, 6]
    assert position_ids("decoded +1", SAMPLED, TURNS).tolist() == [0, 2, 3, 3, 5, 5]
    assert position_ids("turn +1", SAMPLED, TURNS).tolist() == [0, 1, 2, 3, 4, 6]
    assert position_ids("restart", SAMPLED, TURNS).tolist() == [0, 1, 0, 1, 2, 3]


def test_every_step_reports_raw_ratios():
    session = session_after(0)
    groups = rollout(session, 2, group_size=4)
    batch = Batch.from_groups(groups)
    credit = session.config.algorithm.credit(batch)
    moved = replace(batch, plain_logp_T=batch.plain_logp_T - 0.2)
    (clean,), (off,) = (
        session_after(0).learner.update(each, credit, step=1) for each in (batch, moved)
    )
    assert (
        clean.metrics["raw_ratio_mean"] == pytest.approx(1, abs=1e-5)
        and clean.metrics["raw_ratio_outside"] == 0
    )
    assert clean.metrics["mismatch_kl"] < 1e-10
    assert (
        off.metrics["raw_ratio_mean"] == pytest.approx(np.exp(0.2), abs=1e-4)
        and off.metrics["raw_ratio_outside"] == 1
    )
    assert off.metrics["mismatch_kl"] == pytest.approx(np.exp(0.2) - 1.2, abs=1e-4)


def test_stored_groups_have_no_whole_distribution_and_it_says_so():
    session = session_after(0)
    report = audit(session, groups=rollout(session, 1, group_size=2), control=False)
    assert report.clean and report.whole is None and "stored" in report.whole_missing
    assert "not available" in report.text and json.dumps(report.as_dict())


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(DataError, match="takes a session, a run"):
        audit(7)
    with pytest.raises(ConfigError, match="at least one"):
        audit(session_after(0), tasks=0)


@pytest.mark.full
def test_a_run_and_the_command(tmp_path, capsys, monkeypatch):
    from workbench.cli import main
    from workbench.engines.transformers_engine import TransformersEngine
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    path = tmp_path / "run"
    train_here(
        load_config(
            "frozenlake",
            {
                "train.steps": 2,
                "train.tasks_per_step": 2,
                "train.group_size": 4,
                "evaluation.num_tasks": 2,
                "train.checkpoint_every": 1,
                "lint.start": False,
            },
        ),
        path,
    )
    assert main(["audit", str(path), "--tasks", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (
        said["clean"]
        and said["control"]["passed"]
        and "checkpoint of step 1" in said["known_weights"]
    )
    assert said["whole_vocabulary"]["vocabulary"] == 491

    def nothing(engine, weights, version):
        engine._policy_version = version

    monkeypatch.setattr(TransformersEngine, "sync", nothing)
    assert main(["audit", str(path), "--tasks", "1", "--html", str(tmp_path / "audit.html")]) == 1
    page = (tmp_path / "audit.html").read_text()
    assert "stale weights" in page and "the policy was opened with" in page
