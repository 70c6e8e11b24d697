"""Invariant 13: what training used is recomputed from the run folder, and a single differing bit is found and named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from faulty_disk import no_waiting  # noqa: F401  (a fixture)
from hypothesis import given, settings
from hypothesis import strategies as st
from store_values import credit_of, ordinary_step

from workbench.learn.algorithms.settings import with_settings
from workbench.learn.replay import replay_step, token_facts
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.values import CreditTable
from workbench.values.errors import StoreError

pytestmark = pytest.mark.usefixtures("no_waiting")


@dataclass(frozen=True)
class MeanBaseline:
    """A stand-in algorithm of three lines: reward minus the mean of the group, on sampled tokens."""

    scale: float = 1.0
    updates_per_step: int | None = None  # unknown: then any row may have fallen into another update

    def credit(self, collected):
        columns = credit_of(collected, 1).columns
        return SimpleNamespace(
            advantage_T=columns["advantage"] * self.scale, weight_T=columns["weight"]
        )


def run_with(path, collected, *tables: CreditTable):
    with create_run(path, {}) as run:
        run.write_step(1, collected)
        for table in tables:
            run.write_credit(table)
        run.commit_step(1, {"loss": 0.0})
    return open_run(path)


def with_column(table: CreditTable, name: str, column) -> CreditTable:
    return CreditTable(table.step, table.update, {**table.columns, name: column})


def replay(run, algorithm=MeanBaseline()):
    return replay_step(run, 1, algorithm, collate=list)


def test_an_honest_step_is_equal_and_says_what_was_compared(tmp_path):
    collected = ordinary_step(1)
    report = replay(
        run_with(
            tmp_path / "run", collected, credit_of(collected, 1, 0), credit_of(collected, 1, 1)
        )
    )
    assert report.equal and report.differences == () and list(report.compared) == [0, 1]
    assert {"advantage", "weight", "token_id", "source", "eligible", "rollout_logp", "used"} <= set(
        report.compared[1]
    )
    assert set(report.left_out[0]) == {"old_logp", "new_logp", "entropy", "ratio", "clip_state"}
    assert "update 1: 80 tokens, recomputed trajectory" in report.text and report.text.endswith(
        "bit for bit"
    )


def test_another_algorithm_is_named_by_its_first_tokens(tmp_path):
    collected = ordinary_step(1, num_groups=6)
    report = replay(
        run_with(tmp_path / "run", collected, credit_of(collected, 1)), MeanBaseline(scale=0.5)
    )
    assert not report.equal
    (difference,) = report.differences
    row = difference.first[0]
    facts, stored = token_facts(collected), credit_of(collected, 1)["advantage"]
    trajectory = int(facts["trajectory"][row])
    assert difference.column == "advantage" and len(difference.first) == 5 < difference.count
    assert (
        f"row {row}: trajectory {trajectory} (task 'lake-{trajectory // 2}', attempt {trajectory % 2}), segment "
        f"{trajectory}, turn 0, position {facts['position'][row]}, token {facts['token_id'][row]}: stored "
        f"{stored[row].item()!r}, recomputed {stored[row].item() / 2!r}"
    ) in report.text
    assert report.text.endswith("NOT EQUAL")


CHECKED = [
    "trajectory",
    "segment",
    "turn",
    "position",
    "token_id",
    "source",
    "eligible",
    "used",
    "advantage",
    "weight",
    "rollout_logp",
]


@settings(max_examples=60)
@given(st.sampled_from(CHECKED), st.data())
def test_one_bit_of_one_token_is_enough(tmp_path_factory, name, data):
    collected = ordinary_step(1)
    table = credit_of(collected, 1)
    column = table[name].copy()
    raw = column.view(np.uint8).reshape(len(column), -1)
    row, byte, bit = (data.draw(st.integers(0, n - 1)) for n in (len(column), raw.shape[1], 8))
    raw[row, byte] ^= 1 if column.dtype == bool else 1 << bit
    still_nan = column.dtype.kind == "f" and np.isnan(column[row]) and np.isnan(table[name][row])
    report = replay(
        run_with(tmp_path_factory.mktemp("r") / "run", collected, with_column(table, name, column)),
        MeanBaseline(updates_per_step=1),
    )
    if (
        still_nan or column.dtype.kind == "f" and column[row] == table[name][row]
    ):  # "not computed", or the sign of zero
        assert report.equal
    else:
        assert not report.equal and [d.column for d in report.differences] == [name]
        assert report.differences[0].count == 1 and report.differences[0].first == (row,)
        assert f"row {row}: trajectory" in report.text


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c | {"advantage": c["advantage"] + 1e-12},
        lambda c: c | {"advantage": c["advantage"].astype(np.float32)},
        lambda c: {k: v for k, v in c.items() if k != "advantage"},
        lambda c: {k: v[:-1] for k, v in c.items()},
        lambda c: c | {"weight": np.full(len(c["weight"]), np.nan)},
        lambda c: {},
    ],
    ids=["a-little", "type", "missing", "short", "nan", "empty"],
)
def test_coarse_differences_too(tmp_path, change):
    collected = ordinary_step(1)
    run = run_with(
        tmp_path / "run",
        collected,
        CreditTable(1, 0, change(dict(credit_of(collected, 1).columns))),
    )
    assert not replay(run).equal


def test_the_second_update_counts_as_much_as_the_first(tmp_path):
    collected = ordinary_step(1)
    good = credit_of(collected, 1)
    bad = with_column(credit_of(collected, 1, 1), "weight", good["weight"] * 2)
    report = replay(run_with(tmp_path / "run", collected, good, bad))
    assert not report.equal and [d.update for d in report.differences] == [1]


def test_nothing_compared_is_not_equal(tmp_path):
    report = replay(run_with(tmp_path / "run", ordinary_step(1)))
    assert not report.equal and "no credit table: there is nothing to compare" in report.text
    with pytest.raises(StoreError, match="has no committed step 2"):
        replay_step(open_run(tmp_path / "run"), 2, MeanBaseline(), collate=list)


def test_a_token_without_weight_that_was_trained_is_found(tmp_path):
    """With several updates a step the learner's shuffle deals the rows; a token that weighs nothing is in none of them."""
    collected = ordinary_step(1)
    table = credit_of(collected, 1)
    some = table["used"].copy()
    some[np.flatnonzero(some)[::2]] = False
    assert replay(run_with(tmp_path / "part", collected, with_column(table, "used", some))).equal
    some[0] = True  # a prompt token
    report = replay(run_with(tmp_path / "stray", collected, with_column(table, "used", some)))
    assert [d.column for d in report.differences] == ["used"]
    one = SimpleNamespace(credit=MeanBaseline().credit, updates_per_step=1)
    assert not replay(open_run(tmp_path / "part"), one).equal, (
        "where a step is one update, all of them are trained"
    )


# ------------------------------------------------------------------------------------------------ the real thing


def trained_run(path, *, minibatches: int = 2, **settings):
    """One step of the real learner on a tiny random model."""
    from learning_data import make_groups, tiny_model

    from workbench.learn.algorithms import GRPO
    from workbench.learn.batch import Batch
    from workbench.learn.config import LearnerConfig
    from workbench.learn.learner import Learner

    algorithm = GRPO(
        epochs=2, minibatches=minibatches, objective={"clip_low": 0.01, "clip_high": 0.01}
    )
    collected = make_groups(**settings)
    batch = Batch.from_groups(collected)
    learner = Learner(tiny_model(), algorithm, LearnerConfig(lr=3e-3, micro_batch_tokens=60))
    with create_run(path, {}) as run:
        run.write_step(1, collected)
        for report in learner.update(batch, algorithm.credit(batch), step=1):
            run.write_credit(report.table, skipped=report.skipped)
        run.commit_step(1, {})
    return open_run(path), algorithm


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": 5, "attempts": 7},
        {"fresh": True},
        {"tasks": 2, "attempts": 3, "rewards": [[1, None, 0], [1, 1, 1]]},
    ],
    ids=["ragged", "segment-per-turn", "unscored-and-flat"],
)
def test_the_real_learner_is_replayed_bit_for_bit(tmp_path, settings):
    run, algorithm = trained_run(tmp_path / "run", **settings)
    report = replay_step(run, 1, algorithm)
    assert report.equal, report.text
    assert len(run.updates(1)) == 4
    for update in run.updates(1):
        assert {"advantage", "weight", "ratio", "clip_state"} <= set(report.compared[update])
        from_models = (
            {"old_logp"} if update == 0 else set()
        )  # later tables repeat the step's, and must agree on it
        assert set(report.left_out[update]) == {"new_logp", "entropy"} | from_models
    states = np.concatenate([run.credit(1, update)["clip_state"] for update in run.updates(1)])
    assert (states != 0).any(), (
        "ratios moved far enough to be clipped: there was something to compare"
    )


def test_the_real_algorithm_with_another_setting_is_noticed(tmp_path):
    run, algorithm = trained_run(tmp_path / "run", tasks=4)
    for setting, column in (
        ({"estimator.normalize_std": False}, "advantage"),
        ({"objective.clip_high": 0.3}, "clip_state"),
    ):
        report = replay_step(run, 1, with_settings(algorithm, setting))
        assert not report.equal and column in {d.column for d in report.differences}


@pytest.mark.parametrize("name", ["ratio", "old_logp", "new_logp"])
def test_a_changed_logprob_or_ratio_is_noticed(tmp_path, name):
    from workbench.run.store import Run

    run, algorithm = trained_run(tmp_path / "run", tasks=3)

    class Changed(Run):
        """A run whose last table has one float changed in its last bit but two."""

        def credit(self, step, update=0):
            table = super().credit(step, update)
            if update != self.updates(step)[-1]:
                return table
            column = table[name].copy()
            row = np.flatnonzero(table["used"])[3]
            column[row] = (column[row : row + 1].view(np.int32) + 4).view(np.float32)[0]
            return with_column(table, name, column)

    report = replay_step(Changed(run.path), 1, algorithm)
    assert not report.equal and "ratio" in {d.column for d in report.differences}


# ------------------------------------------------------------------------------------------------ with a critic


def ppo_run(path, *, trunk: str = "own", minibatches: int = 2, **settings):
    """Two steps of PPO with a critic and a pull towards the reference; every other trajectory was cut short."""
    from learning_data import make_groups, tiny_model

    from workbench.learn.algorithms import PPO
    from workbench.learn.batch import Batch
    from workbench.learn.config import CriticConfig, LearnerConfig
    from workbench.learn.learner import Learner
    from workbench.values import Group, StopReason

    algorithm = PPO(
        minibatches=minibatches,
        estimator={"gamma": 0.99, "lam": 0.9},
        critic={"bootstrap": "truncated"} | ({"value_clip": 0.01} if minibatches > 1 else {}),
        reference={"kl_coef": 0.05},
    )
    model = tiny_model()
    learner = Learner(
        model, algorithm, LearnerConfig(lr=3e-3), reference=model, critic=CriticConfig(trunk=trunk)
    )
    with create_run(path, {}) as run:
        for step in (1, 2):
            collected = [
                Group(
                    tuple(
                        replace(t, stop_reason=StopReason.MAX_TURNS) if t.attempt % 2 else t
                        for t in group
                    )
                )
                for group in make_groups(step, **settings)
            ]
            run.write_step(step, collected)
            batch = learner.facts(Batch.from_groups(collected))
            for report in learner.update(batch, algorithm.credit(batch), step=step):
                run.write_credit(report.table, skipped=report.skipped)
            run.commit_step(step, {})
    return open_run(path), algorithm


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"trunk": "policy", "fresh": True},
        {"minibatches": 1},
        {"tasks": 2, "attempts": 3, "rewards": [[1, None, 0], [1, 1, 1]]},
    ],
    ids=["own", "shared-segment-per-turn", "one-update", "unscored-and-flat"],
)
def test_credit_by_a_critic_is_replayed_bit_for_bit(tmp_path, settings):
    run, algorithm = ppo_run(tmp_path / "run", **settings)
    report = replay_step(run, 2, algorithm)
    assert report.equal, report.text
    assert {"advantage", "weight", "return", "ratio", "clip_state"} <= set(report.compared[0])
    assert set(report.left_out[0]) == {
        "old_logp",
        "ref_logp",
        "value",
        "final_value",
        "new_value",
        "new_logp",
        "entropy",
    }
    assert (
        np.isfinite(run.credit(2)["final_value"]).any()
        and np.abs(run.credit(2)["value"][run.credit(2)["used"]]).max() > 0
    )
    if len(run.updates(2)) > 1:
        assert {"value", "ref_logp", "old_logp", "final_value"} <= set(report.compared[1])


@pytest.mark.parametrize("name", ["value", "final_value", "ref_logp", "old_logp", "return"])
def test_one_changed_number_that_credit_was_made_of_is_noticed(tmp_path, name):
    from workbench.run.store import Run

    run, algorithm = ppo_run(tmp_path / "run", minibatches=1)

    class Changed(Run):
        """A run in whose table one number is larger by a thousandth."""

        def credit(self, step, update=0):
            table = super().credit(step, update)
            column = table[name].copy()
            column[np.flatnonzero(np.isfinite(column))[2]] += 1e-3
            return with_column(table, name, column)

    report = replay_step(Changed(run.path), 2, algorithm)
    assert not report.equal and {"return"} <= {d.column for d in report.differences}


@pytest.mark.parametrize(
    "change",
    [
        {"estimator.gamma": 1.0},
        {"estimator.lam": 1.0},
        {"critic.bootstrap": "never"},
        {"reference.kl_coef": 0.06},
        {"reference.kl_estimator": "k3"},
        {"estimator.whiten": False},
    ],
)
def test_another_setting_of_ppo_is_noticed(tmp_path_factory, change):
    run, algorithm = ppo_run(
        tmp_path_factory.mktemp("r") / "run", minibatches=1, tasks=2, attempts=2
    )
    assert not replay_step(run, 2, with_settings(algorithm, change)).equal


def test_a_step_of_another_algorithm_is_refused_with_what_it_lacks(tmp_path):
    from workbench.learn.algorithms import PPO

    run, _ = trained_run(tmp_path / "run")
    with pytest.raises(
        StoreError,
        match="the credit of ppo is made of value, final_value.*trained by another algorithm",
    ):
        replay_step(run, 1, PPO())


def test_replay_needs_no_weights_and_changes_nothing(tmp_path):
    run, algorithm = trained_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    torch.manual_seed(123)  # nothing is drawn either
    state = torch.get_rng_state()
    assert replay_step(run, 1, algorithm).equal
    assert torch.equal(state, torch.get_rng_state())
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_what_another_program_made_is_said_to_be_so(tmp_path, monkeypatch):
    import workbench.learn.replay as module

    collected = ordinary_step(1)
    changed = dict(credit_of(collected, 1).columns)
    changed["advantage"] = changed["advantage"] + 1
    run = run_with(tmp_path / "run", collected, CreditTable(1, 0, changed))
    assert "another program" not in replay(run).text
    monkeypatch.setattr(module.Run, "machines", lambda run: [(0, {"torch": "1.0", "code": "abc"})])
    assert "NOT EQUAL" in replay(run).text and "torch (1.0, now " in replay(run).text
    same = run_with(tmp_path / "same", collected, credit_of(collected, 1))
    assert replay(same).text.endswith("bit for bit")
