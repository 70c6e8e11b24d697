"""R18: what an update reports is what its columns and the settings make of it, and nothing else passes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.composed import of_class
from tests.linting.credited import answer, draw, errors, updated
from workbench.learn.algorithms import ALGORITHMS, CISPO, GRPO, GSPO, PPO, Algorithm, StarPO
from workbench.learn.algorithms.parts import Filter, Masks
from workbench.linting import Evidence

SETTINGS = {
    "plain": GRPO(),
    "all terms": GRPO(entropy_coef=0.05, reference={"kl_coef": 0.1}),
    "two passes": GRPO(epochs=2, minibatches=3),
    "sequence mean": GRPO(reduction="seq-mean-token-mean", epochs=2),
    "sequence sum": GRPO(reduction="seq-mean-token-sum"),
    "fixed length": ALGORITHMS["dr_grpo"](),
    "gspo": GSPO(epochs=2),
    "cispo": CISPO(epochs=3, objective={"clip_high": 0.05}),
    "critic": PPO(minibatches=2, critic={"value_clip": 1e-3}),
    "dual clip": StarPO(minibatch_size=3, objective={"dual_clip": 1.05}),
    "capped": GRPO(sampler_cap=1.5, epochs=2),
    "wide": PPO(masks=Masks(False, False), entropy_coef=0.1),
    "one-mask-wide": GRPO(
        masks=Masks(kl_loss_over="response"), minibatches=2, reference={"kl_coef": 0.1}
    ),
    "filtered": GRPO(filter=Filter(zero_variance="drop"), minibatch_size=4),
}


@cache
def made(name: str) -> Evidence:
    return updated(draw(21), SETTINGS[name], lr=0.02)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_learner_does_passes(name):
    evidence = made(name)
    found = answer(evidence, "R18")
    assert found.status == "passed" and not found.missing and not found.findings, found
    stored = Evidence(evidence.groups, algorithm=evidence.algorithm, updates=evidence.updates)
    assert answer(stored, "R18").status == "passed"


def test_the_settings_above_hold_and_free():
    """Negative control: without tokens at a bound, nothing about bounds was checked."""
    for name in ("two passes", "gspo", "cispo", "dual clip"):
        states = np.concatenate(
            [update.table["clip_state"][update.table["used"]] for update in made(name).updates]
        )
        assert (states != 0).any() and (states == 0).any(), name
    held = [update.metrics["value_clip_fraction"] for update in made("critic").updates]
    assert max(held) > 0


def test_eight_bits_are_no_error():
    assert not errors(updated(draw(21), GRPO(epochs=2, minibatches=2), precision="bf16"), "R18")


def with_column(evidence: Evidence, number: int, name: str, values) -> Evidence:
    updates = list(evidence.updates)
    table = updates[number].table
    updates[number] = updates[number]._replace(
        table=replace(table, columns=dict(table.columns) | {name: values})
    )
    return replace(evidence, updates=tuple(updates))


def with_metric(evidence: Evidence, number: int, **values) -> Evidence:
    updates = list(evidence.updates)
    updates[number] = updates[number]._replace(metrics=dict(updates[number].metrics) | values)
    return replace(evidence, updates=tuple(updates))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_figure_is_recomputed(name):
    evidence = made(name)
    for figure in (
        "loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "trained_tokens",
        "weight_mean",
        "ratio_max",
        "trained_share",
        "entropy_loss",
        "kl_loss",
        "kl_ref",
        "value_loss",
        "sampler_weight",
    ):
        last = len(evidence.updates) - 1
        said = evidence.updates[last].metrics.get(figure)
        if said is not None:
            wrong = with_metric(evidence, last, **{figure: said + 1e-3 * (1 + abs(said))})
            assert any(figure in what for what in errors(wrong, "R18")), figure


@pytest.mark.parametrize(
    "name, by, words",
    [
        ("plain", "tokens", "the tokens of the whole batch"),
        ("sequence mean", 1, "divided by"),
        ("plain", "rows", "trajectories"),
    ],
)
def test_another_denominator(name, by, words):
    """SkyRL#462: the mean counts what is not trained."""
    evidence = made(name)
    last = len(evidence.updates) - 1
    table, loss = evidence.updates[last].table, evidence.updates[last].metrics["loss"]
    trained = int((table["weight"] != 0).sum())
    rows = len(np.unique(table["trajectory"][table["weight"] != 0]))
    mine = trained if name == "plain" else rows
    theirs = {"tokens": len(table["weight"]), "rows": rows}.get(by, by)
    assert loss
    found = errors(with_metric(evidence, last, loss=loss * mine / theirs), "R18")
    assert any(what.startswith("loss") and words in what for what in found), found


@pytest.mark.parametrize(
    "term, setting", [("entropy", {"reference": {"kl_coef": 0.1}}), ("kl", {"entropy_coef": 0.05})]
)
def test_a_dropped_term(term, setting):
    """NeMo-RL#3792: the settings have a term that the loss has not."""
    without = updated(draw(21), GRPO(**setting))
    told = replace(without, algorithm=GRPO(entropy_coef=0.05, reference={"kl_coef": 0.1}))
    if term == "kl":
        updates = [
            u._replace(
                table=replace(
                    u.table, columns=dict(u.table.columns) | {"ref_logp": u.table["new_logp"] - 1}
                )
            )
            for u in without.updates
        ]
        told = replace(told, updates=tuple(updates))
    assert any(what.startswith("loss") for what in errors(told, "R18"))


def test_bounds_that_were_not_followed():
    evidence = made("two passes")
    for other in (
        evidence.algorithm(objective={"clip_high": 0.5, "clip_low": 0.5}),
        evidence.algorithm(objective={"clip_low": 0.01}),
    ):
        assert any(
            "clip state" in what for what in errors(replace(evidence, algorithm=other), "R18")
        )
    ratio = evidence.updates[-1].table["ratio"] * np.float32(1.01)
    assert any(
        what.startswith("ratio") for what in errors(with_column(evidence, 5, "ratio", ratio), "R18")
    )


def test_stale_and_fresh_old_logprobs():
    evidence = made("two passes")
    table = evidence.updates[0].table
    stale = with_column(evidence, 0, "old_logp", table["old_logp"] - np.float32(0.3))
    assert any("before anything was moved" in what for what in errors(stale, "R18"))
    current = with_column(evidence, 5, "old_logp", evidence.updates[5].table["new_logp"])
    said = errors(current, "R18")
    assert any("off 1" in what for what in said) and any(
        "in an earlier update" in what for what in said
    )


@pytest.mark.parametrize("lr", [0.0, 1e-12])
def test_weights_that_do_not_move_make_no_ratios(lr):
    """Right after training, of a stored run (means of the metrics), and where nobody says how fast they moved."""
    evidence = updated(draw(21), GRPO(epochs=2), lr=lr)
    bare = tuple(update._replace(metrics={}) for update in evidence.updates)
    stored = replace(evidence, updates=bare, means={"lr": lr, "grad_norm": 0.1})
    for each in (evidence, stored, replace(stored, means=None)):
        found = answer(each, "R18")
        assert not found.errors and any("weights" in what for what in found.missing), found
    moved = replace(stored, means={"lr": 1e-3, "grad_norm": 0.1})
    assert any("off 1" in what for what in errors(moved, "R18"))


def test_credit_that_is_not_the_steps():
    evidence = made("plain")
    table = evidence.updates[0].table
    for name in ("advantage", "weight"):
        found = errors(with_column(evidence, 0, name, np.roll(table[name], 1)), "R18")
        assert any(f"{name} " in what and "in the step's credit" in what for what in found)
    assert any(
        "token_id" in what
        for what in errors(with_column(evidence, 0, "token_id", table["token_id"][::-1]), "R18")
    )


def test_tokens_that_no_minibatch_or_two_took():
    evidence = made("two passes")
    first, second = (evidence.updates[n].table["used"] for n in (0, 1))
    assert any(
        "used 2 times" in what
        for what in errors(with_column(evidence, 0, "used", first | second), "R18")
    )
    lost = np.flatnonzero(first)[:1]
    short = first.copy()
    short[lost] = False
    found = errors(with_column(evidence, 0, "used", short), "R18")
    assert any("used 0 times" in what for what in found) and any(
        "trained whole" in what for what in found
    )
    fewer = replace(evidence, updates=evidence.updates[:2])
    assert any("updates per pass" in what for what in errors(fewer, "R18"))


def test_no_gradient_where_there_is_credit():
    evidence = made("plain")
    assert any(
        "exactly zero" in what for what in errors(with_metric(evidence, 0, grad_norm=0.0), "R18")
    )


def test_a_loss_of_yours_is_not_ours_to_judge():
    class Own(Algorithm):
        def loss(self, inputs):
            return super().loss(inputs)

    found = answer(replace(made("plain"), algorithm=of_class(Own)), "R18")
    assert "own" in found.missing[0] and not found.errors
    without = answer(
        replace(
            made("two passes"),
            updates=tuple(u._replace(metrics={}) for u in made("two passes").updates),
        ),
        "R18",
    )
    assert any("metrics" in what for what in without.missing) and not without.errors


def test_an_update_is_left_out_for_what_its_numbers_say():
    evidence = made("plain")
    first = evidence.updates[0]

    def said(skipped, **metrics) -> list[str]:
        other = first._replace(skipped=skipped, metrics=dict(first.metrics) | metrics)
        return errors(replace(evidence, updates=(other,)), "R18")

    assert not said(None)
    broken = f"not finite (loss {first.metrics['loss']}, gradient norm {first.metrics['grad_norm']}): overflow"
    assert any("a sound update was thrown away" in what for what in said(broken))
    assert any(
        "exactly zero; its norm is" in what
        for what in said("nothing to learn: the gradient is exactly zero")
    )
    assert any("moved all the same" in what for what in said(None, grad_norm=0.0))
    finite = {name: value for name, value in first.metrics.items() if name != "grad_norm"}
    other = first._replace(skipped=broken, metrics=finite)
    assert not any(
        "thrown away" in what for what in errors(replace(evidence, updates=(other,)), "R18")
    )


@pytest.mark.parametrize(
    "name", ["logp_gap_mean", "logp_gap_max", "raw_ratio_mean", "raw_ratio_outside", "mismatch_kl"]
)
def test_the_gap_of_sampler_and_trainer_is_recomputed(name):
    evidence = made("plain")
    assert name in evidence.updates[0].metrics and not errors(evidence, "R18")
    wrong = with_metric(evidence, 0, **{name: evidence.updates[0].metrics[name] * 1.01 + 1e-3})
    assert any(what.startswith(name) for what in errors(wrong, "R18"))


def test_columns_about_tokens_are_those_of_the_trajectories():
    evidence = made("two passes")
    for name in (
        "trajectory",
        "segment",
        "turn",
        "position",
        "token_id",
        "source",
        "eligible",
        "rollout_logp",
    ):
        column = evidence.updates[0].table[name]
        assert any(
            what.startswith(f"{name} ")
            for what in errors(with_column(evidence, 0, name, np.roll(column, 1)), "R18")
        ), name
