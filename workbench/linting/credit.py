"""Credit: every sampled token carries its trajectory's (R6).

The credit that is about to be trained on, token by token, against a second computation from spans, turns and settings
(`credit_oracle`). Of an algorithm that is not known there, what must hold for any: nothing where nothing is trained,
one weight per attempt, finite numbers.

Axis letters: N trajectories · T tokens (flat).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from workbench.linting.attempts import Attempts
from workbench.linting.credit_oracle import (PER_ATTEMPT, PER_TURN, Expected, Facts, expected_credit, gives_its_own,
                                             kind_of, over)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, Said
from workbench.types.findings import ERROR, NOTE, Finding, Looked, Missing

TERM_COLUMNS = ("weight", "entropy_weight", "kl_weight", "critic_weight")


def columns_of(evidence: Evidence) -> dict[str, np.ndarray] | None:
    """What a step is credited with, by column [T]: of the credit, else of the first update's table; None: neither."""
    if evidence.credit is not None:
        credit = evidence.credit
        found = {"advantage": credit.advantage_T, "weight": credit.weight_T, "return": credit.return_T,
                 "entropy_weight": credit.entropy_weight_T, "kl_weight": credit.kl_weight_T,
                 "critic_weight": credit.critic_weight_T}
        return {name: values_T.numpy() for name, values_T in found.items() if values_T is not None}
    if not evidence.updates:
        return None
    columns = evidence.updates[0].table.columns
    return {name: columns[name] for name in ("advantage", "return", *TERM_COLUMNS) if name in columns}


def facts_of(evidence: Evidence) -> Facts:
    """What the models said of the step, from its batch, else from the first update's table."""
    batch = evidence.batch
    if batch is not None:
        found = (batch.old_logp_T, batch.ref_logp_T, batch.value_T, batch.final_value_N)
        if any(fact is not None for fact in found) or not evidence.updates:
            return Facts(*(None if fact is None else fact.double().numpy() for fact in found))
    if not evidence.updates:
        return Facts()
    columns = evidence.updates[0].table.columns
    old, ref, value = (columns[name].astype(np.float64) if name in columns else None
                       for name in ("old_logp", "ref_logp", "value"))
    final_N = None
    if "final_value" in columns and evidence.attempts is not None:
        final_N = np.full(evidence.attempts.num_trajectories, np.nan)
        ends = np.flatnonzero(~np.isnan(columns["final_value"]))
        final_N[columns["trajectory"][ends]] = columns["final_value"][ends]
    return Facts(old, ref, value, final_N)


# ------------------------------------------------------------------------------------------------ the rule


def _check(evidence: Evidence) -> Iterator[Said]:
    attempts, columns = evidence.attempts, columns_of(evidence)
    if attempts is None or columns is None:
        yield Missing("trajectories or a batch" if attempts is None else "the credit, or the credit table of an update")
        return
    if wrong := sorted({len(values_T) for values_T in columns.values()} - {attempts.num_tokens}):
        yield Finding(f"credit for {wrong[0]} tokens, but the trajectories have {attempts.num_tokens}")
        return
    if evidence.algorithm is None:
        yield Missing("the algorithm, whose settings say what the credit is to be")
        yield from _of_any(evidence, attempts, columns)
        return
    facts = facts_of(evidence)
    if wrong := [name for name, fact in zip(Facts._fields, facts) if fact is not None and len(fact) !=
                 (attempts.num_trajectories if name.endswith("_N") else attempts.num_tokens)]:
        yield Finding(f"{', '.join(wrong)} of the batch belong to other trajectories: their number is another one")
        return
    expected = expected_credit(attempts, evidence.algorithm, facts)
    if isinstance(expected, Missing):
        yield expected
        yield from _of_any(evidence, attempts, columns)
        yield from _shape(evidence, attempts, columns)
        return
    yield Looked(int(attempts.sampled_T.sum()))
    yield from _compare(evidence, attempts, columns, expected)


def _compare(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray],
             expected: Expected) -> Iterator[Said]:
    """Token by token; one finding per trajectory and column."""
    weight_T = columns["weight"]
    pairs = [("weight", expected.weight_T, weight_T), ("advantage", expected.advantage_T, columns["advantage"])]
    for name, wanted_T in (("entropy_weight", expected.entropy_weight_T), ("kl_weight", expected.kl_weight_T)):
        if wanted_T is not None:
            pairs.append((name, wanted_T, columns.get(name, weight_T)))
    if expected.return_T is not None:
        if "return" not in columns:
            yield Finding("the algorithm has a critic, but the credit says nothing that it could be fitted to (return)")
        else:
            fitted_T = ~np.isnan(expected.return_T)
            pairs += [("return", expected.return_T, columns["return"]),
                      ("critic_weight", fitted_T.astype(np.float64), columns.get("critic_weight", weight_T))]
    weighed_T = _differ(expected.weight_T, weight_T, 0.0)
    for name, wanted_T, got_T in pairs:
        wrong_T = _differ(wanted_T, got_T, expected.near)
        if name == "advantage":  # a token without its weight has no advantage either: said once
            wrong_T &= ~weighed_T
        yield from _by_row(evidence, attempts, name, wanted_T, got_T, wrong_T)
    credit = evidence.credit
    if credit is not None and expected.updates is not None and credit.minibatches != expected.updates:
        yield Finding(f"{credit.minibatches} updates per pass, but {expected.updates} are what "
                      f"{evidence.algorithm.minibatch_size} trajectories per update make of this step")


def _differ(wanted_T: np.ndarray, got_T: np.ndarray, near: float) -> np.ndarray:
    close_T = np.abs(wanted_T - got_T) <= near
    return ~(close_T | (np.isnan(wanted_T) & np.isnan(got_T)))


def _by_row(evidence: Evidence, attempts: Attempts, name: str, wanted_T: np.ndarray, got_T: np.ndarray,
            wrong_T: np.ndarray) -> Iterator[Finding]:
    at = np.flatnonzero(wrong_T)
    row_at = attempts.row_T[at]
    for row in np.unique(row_at).tolist():
        own = at[row_at == row]
        first = int(own[0])
        sampled_T = attempts.sampled_T & (attempts.row_T == row)
        yield Finding(
            f"{name} {got_T[first]:.6g}, but its attempt's settings and rewards make it {wanted_T[first]:.6g} "
            f"(so at {_many(len(own))} of this attempt, which sampled {int(sampled_T.sum())})"
            + _hint(wanted_T[sampled_T], got_T[sampled_T]),
            attempts.place(first, evidence.step, _run(own)), count=len(own))


def _many(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _run(at: np.ndarray) -> int:
    """How many of these tokens stand one after the other, from the first on."""
    gaps = np.flatnonzero(np.diff(at) != 1)
    return int(gaps[0]) + 1 if len(gaps) else len(at)


def _hint(wanted: np.ndarray, got: np.ndarray) -> str:
    """What the wrong numbers look like."""
    if len(wanted) < 2 or np.isnan(got).any() or np.isnan(wanted).any():
        return ""
    if not got.any():
        return "; nothing in it carries any"
    for by, words in ((1, "the token before"), (-1, "the token after")):
        moved = np.roll(wanted, by)
        inner = slice(1, None) if by == 1 else slice(None, -1)
        if np.ptp(wanted) and np.allclose(moved[inner], got[inner], rtol=1e-6, atol=1e-9):
            return f"; each has what belongs to {words}"
    both = (wanted != 0) & (got != 0)
    if both.any():
        ratio = got[both] / wanted[both]
        if np.ptp(ratio) <= 1e-6 * abs(ratio[0]) and both.sum() == (got != 0).sum() == (wanted != 0).sum():
            return f"; all of it is {ratio[0]:.6g} times what it should be"
    return ""


# ------------------------------------------------------------------------------------------------ of any algorithm


def _of_any(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]) -> Iterator[Said]:
    """What no algorithm may do, where a second implementation has nothing to say."""
    weight_T, advantage_T = columns["weight"], columns["advantage"]
    yield Looked(int(attempts.sampled_T.sum()))
    widened = _widened(evidence)
    unscored_T = ~attempts.scored_N[attempts.row_T]
    faults = [
        ("weight {:.6g} in an attempt that is not scored", weight_T, (weight_T != 0) & unscored_T),
        ("advantage {:.6g}, no finite number", advantage_T, ~np.isfinite(advantage_T)),
        ("weight {:.6g}, no finite number", weight_T, ~np.isfinite(weight_T)),
        ("advantage {:.6g} on a token that is not trained (weight 0)", advantage_T,
         (weight_T == 0) & (advantage_T != 0) & np.isfinite(advantage_T)),
    ]
    if not widened:
        faults.append(("weight {:.6g} on a token that the policy did not sample here", weight_T,
                       (weight_T != 0) & ~attempts.sampled_T))
    for words, values_T, wrong_T in faults:
        at = np.flatnonzero(wrong_T)
        if len(at):
            yield Finding(words.format(values_T[at[0]]) + f" ({len(at)} in all)",
                          attempts.place(int(at[0]), evidence.step, _run(at)), count=len(at))
    if not widened:
        yield from _one_weight(evidence, attempts, weight_T)


def _widened(evidence: Evidence) -> bool:
    """Whether tokens that were not sampled are trained on purpose."""
    masks = getattr(evidence.algorithm, "masks", None)
    if masks is not None and over(masks, "loss_over") == "response":
        return True
    return evidence.credit is not None and evidence.credit.widened is not None


def _one_weight(evidence: Evidence, attempts: Attempts, weight_T: np.ndarray) -> Iterator[Said]:
    """All sampled tokens of an attempt weigh the same."""
    at = np.flatnonzero(attempts.sampled_T)
    row_at, weight_at = attempts.row_T[at], weight_T[at]
    highest_N = np.full(attempts.num_trajectories, -np.inf)
    np.maximum.at(highest_N, row_at, weight_at)
    short = at[weight_at != highest_N[row_at]]
    for row in np.unique(attempts.row_T[short]).tolist():
        own = short[attempts.row_T[short] == row]
        yield Finding(f"weight {weight_T[own[0]]:.6g}, but other sampled tokens of the same attempt weigh "
                      f"{highest_N[row]:.6g} ({len(own)} tokens)",
                      attempts.place(int(own[0]), evidence.step, _run(own)),
                      NOTE if gives_its_own(evidence.algorithm) else ERROR, len(own))


def _shape(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]) -> Iterator[Said]:
    """Where no second implementation can say what credit is to be: whether it has the shape that it should have. An
    error where the estimator is ours (its facts are missing), else a note: yours may tell tokens apart on purpose."""
    algorithm: Any = evidence.algorithm
    kind = kind_of(algorithm)
    trained_T = attempts.sampled_T & (columns["weight"] != 0)
    per = "attempt" if kind in PER_ATTEMPT else "turn"
    if kind is None and getattr(algorithm, "has_timeline", True) or kind is not None and kind not in (*PER_ATTEMPT,
                                                                                                       *PER_TURN):
        return
    at = np.flatnonzero(trained_T)
    if not len(at):
        return
    row_at, turn_at, value_at = attempts.row_T[at], attempts.turn_T[at], columns["advantage"][at]
    same = row_at[1:] == row_at[:-1]
    if per == "turn":
        same &= turn_at[1:] == turn_at[:-1]
    broken = np.flatnonzero(same & (np.abs(np.diff(value_at)) > 1e-9 * (1 + np.abs(value_at[1:]))))
    for row in np.unique(row_at[broken]).tolist():
        own = broken[row_at[broken] == row]
        yield Finding(f"advantage {value_at[own[0] + 1]:.6g} after {value_at[own[0]]:.6g}, though all tokens of one "
                      f"{per} are worth the same by this algorithm", attempts.place(int(at[own[0] + 1]), evidence.step),
                      ERROR if kind is not None else NOTE, len(own))


RULES: tuple[Rule, ...] = (Rule(
    "R6", "every sampled token carries its attempt's credit",
    means="tokens are pushed by another amount than the rewards and the algorithm's settings say: some turns learn "
          "nothing, or learn from another turn's, another attempt's or another group's success. Training goes on and "
          "the reward may still rise.",
    mend="recompute the credit of the trajectory named here by hand (wb.edit_step shows every number); then look at "
         "how a value per attempt or turn is laid onto its tokens: all segments, the right mask, no shift by one.",
    needs=(), check=_check,
    threads=("SkyRL#1492", "SkyRL#201", "AReaL#1666", "verl#7300", "verl#7278", "verl#2337", "PipelineRL#54",
             "trl#5902"),
),)
