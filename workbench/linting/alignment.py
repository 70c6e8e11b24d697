"""Lengths and alignment (R4): every array of the batch holds at index t what the spans say of token t.

The expected arrays are put together here from spans, turns and stop reasons by plain loops; nothing of the batch's own
derived maps is used to check them.

Axis letters: N trajectories · K turns (flat) · S segments · T tokens · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.evidence import Evidence
from workbench.linting.messages import at_first, number_in_words, unequal
from workbench.linting.prefixes import token
from workbench.linting.rule import Rule, RuleResult
from workbench.values.sequences import first_difference

# Arrays about trajectories and turns, which have the same names in a batch and in `Attempts`.
OF_TRAJECTORIES = (
    "group_of_trajectory_N",
    "tag_N",
    "state_of_turn_K",
    "turn_offsets",
    "turn_reward_K",
    "reward_N",
    "scored_N",
    "outcome_N",
    "terminated_N",
    "truncated_N",
    "context_full_N",
)
AXES = {"T": "tokens", "N": "trajectories", "S": "segments", "K": "turns"}


def check_alignment(evidence: Evidence) -> Iterator[RuleResult]:
    yield from _lengths(evidence)
    yield from _pad(evidence)
    if not evidence.groups:
        yield NotChecked("trajectories", "whose tokens they are")
        return
    yield from _order(evidence)
    wrong_counts = list(_counts(evidence))
    yield from wrong_counts
    if wrong_counts:
        return  # what does not fit cannot be compared index by index
    yield Checked(len(evidence.flat.ids_T))
    yield from _same(evidence, expected(evidence))


# ------------------------------------------------------------------------------------------------ expected arrays


def expected(evidence: Evidence) -> dict[str, np.ndarray]:
    """The arrays that the batch of these trajectories is to hold, by the names of its fields and derived maps."""
    flat = evidence.flat
    trajectories = evidence.plain_trajectories
    last_N = np.full(trajectories.num_trajectories, -1, np.int64)
    last_N[trajectories.row_T] = np.arange(
        trajectories.num_tokens
    )  # of equal indices the last one stays
    version_P = [
        span.policy_version if sampled and span.policy_version is not None else -1
        for span, sampled in zip(flat.spans, flat.sampled_P)
    ]
    return {
        "token_ids_T": flat.ids_T,
        "source_T": flat.source_T,
        "turn_T": flat.turn_T,
        "eligible_T": flat.trained_T,
        "response_T": trajectories.response_T,
        "rollout_logp_T": flat.logp_T,
        "plain_logp_T": flat.plain_logp_T,
        "policy_version_T": np.repeat(np.array(version_P, np.int32), flat.length_P),
        "segment_offsets": flat.offset_S,
        "trajectory_of_segment_S": flat.trajectory_S,
        "segment_of_token_T": trajectories.segment_T,
        "trajectory_of_token_T": trajectories.row_T,
        "position_T": trajectories.position_T,
        "last_token_N": last_N,
        "segment_lengths_S": np.diff(flat.offset_S),
    } | {name: getattr(trajectories, name) for name in OF_TRAJECTORIES}


# ------------------------------------------------------------------------------------------------ comparing


def _lengths(evidence: Evidence) -> Iterator[RuleResult]:
    """One length for everything that has an entry per token, trajectory, segment or turn."""
    batch = evidence.batch
    credit = evidence.credit
    axes = {
        "T": len(batch.token_ids_T),
        "N": len(batch.names_N),
        "S": len(batch.segment_offsets) - 1,
        "K": int(batch.turn_offsets[-1]),
    }
    arrays: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    if credit is not None:
        arrays |= {f"credit.{field.name}": getattr(credit, field.name) for field in fields(credit)}
    compared = 0
    for name, values in arrays.items():
        axis = name.rpartition("_")[2]
        if values is None or axis not in axes or name.rpartition("_")[0] == "":
            continue
        compared += 1
        if len(values) != axes[axis]:
            yield Finding(
                f"{name} has {len(values)} entries, the batch has {axes[axis]} {AXES[axis]}",
                Place(step=evidence.step),
            )
    yield from _offsets(evidence)
    yield Checked(compared, "lengths")


def _offsets(evidence: Evidence) -> Iterator[Finding]:
    batch = evidence.batch
    for what, offsets, total in (
        ("segment_offsets", batch.segment_offsets, len(batch.token_ids_T)),
        ("turn_offsets", batch.turn_offsets, len(batch.turn_reward_K)),
    ):
        first = int(offsets[0])
        last = int(offsets[-1])
        if first != 0 or last != total or bool((offsets.diff() < 0).any()):
            yield Finding(
                f"{what} run from {first} to {last}; expected 0 to {total}, never falling",
                Place(step=evidence.step),
            )


def _order(evidence: Evidence) -> Iterator[Finding]:
    """Address order (invariant 8): trajectories ascending in their group."""
    for first, group in evidence.numbered_groups:
        attempts = [trajectory.attempt for trajectory in group]
        if attempts != sorted(attempts):
            yield Finding(
                f"the trajectories of this group stand in the order {attempts}; in address order a batch does "
                "not depend on who finished first",
                evidence.place(first),
                NOTE if evidence.collect is None else ERROR,
            )


def _counts(evidence: Evidence) -> Iterator[Finding]:
    """The batch is of these trajectories, in this order, and has all of their tokens."""
    batch = evidence.batch
    flat = evidence.flat
    if tuple(batch.names_N) != flat.names_N:
        at = first_difference(batch.names_N, flat.names_N)
        ours, theirs = (
            names[at] if at < len(names) else "nothing more"
            for names in (batch.names_N, flat.names_N)
        )
        yield Finding(
            f"trajectory {at} of the batch is {ours}, of the groups {theirs}",
            Place(step=evidence.step),
        )
    for what, ours, theirs in (
        ("tokens", len(batch.token_ids_T), len(flat.ids_T)),
        ("segments", len(batch.trajectory_of_segment_S), len(flat.trajectory_S)),
        ("turns", len(batch.turn_reward_K), sum(len(t.turns) for t in evidence.trajectories)),
    ):
        if ours != theirs:
            yield Finding(
                f"the batch has {ours} {what}, its trajectories have {theirs}",
                Place(step=evidence.step),
            )


def differences_of_batch(evidence: Evidence, names: Sequence[str]) -> Iterator[Finding]:
    """Those of the batch's numbers about trajectories and turns that are not its trajectories'. Used by R7, R11 and R16,
    each for the numbers that it is about."""
    trajectories = evidence.plain_trajectories
    if "names_N" in names and evidence.batch.names_N != trajectories.names_N:
        yield from _counts(evidence)
    compared = [name for name in names if name in OF_TRAJECTORIES]
    yield from _same(evidence, {name: getattr(trajectories, name) for name in compared})


def _same(evidence: Evidence, wanted: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    for name, values in wanted.items():
        ours = getattr(evidence.batch, name).numpy()
        if ours.shape != values.shape:
            yield Finding(
                f"{name} has {len(ours)} entries, {len(values)} expected", Place(step=evidence.step)
            )
            continue
        yield from at_first(
            _unequal(ours, values),
            lambda at: (
                f"{name}[{at}] is {number_in_words(ours[at])}, the trajectories say {number_in_words(values[at])}"
            ),
            lambda at: _place(evidence, name, at),
        )


def _unequal(ours: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Indices of different values; NaN equals NaN. Rewards are sums, whose last digit may depend on their order."""
    if values.dtype == np.float64:
        return np.flatnonzero(~np.isclose(ours, values, rtol=1e-12, atol=1e-12, equal_nan=True))
    return np.flatnonzero(unequal(ours, values))


def _place(evidence: Evidence, name: str, at: int) -> Place:
    axis = name.rpartition("_")[2]
    flat = evidence.flat
    if axis == "T":
        return flat.place(at)
    if axis == "N":
        return evidence.place(at)
    if axis == "S":
        return flat.place_of_segment(at)
    if axis == "K":
        return evidence.plain_trajectories.place_of_turn(at)
    return Place(step=evidence.step)


# ------------------------------------------------------------------------------------------------ pad


def _pad(evidence: Evidence) -> Iterator[RuleResult]:
    """No mask comes from comparing ids with the pad token: where pad is eos, the turn's end would be left out."""
    credit = evidence.credit
    batch = evidence.batch
    tokenizer = evidence.chat.template.tokenizer if evidence.chat is not None else None
    pad = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "bos")}
    pad = {name: value for name, value in pad.items() if value is not None}
    if credit is None or not pad or len(credit.weight_T) != len(batch.token_ids_T):
        return
    ids_T = batch.token_ids_T.numpy()
    eligible_T = batch.eligible_T.numpy()
    weight_T = credit.weight_T.numpy()
    row_T = batch.trajectory_of_token_T.numpy()
    kept_N = np.bincount(row_T[weight_T != 0], minlength=batch.num_trajectories) > 0
    for name, pad_id in pad.items():
        at = np.flatnonzero((ids_T == pad_id) & eligible_T & kept_N[row_T])
        left = at[weight_T[at] == 0]
        if len(left):
            yield Finding(
                f"the sampled {token(evidence, pad_id)}, which is also the {name} token, has no weight while "
                "its neighbours have: a mask was made by comparing ids",
                evidence.place_of_token(int(left[0])),
                count=len(left),
            )


R4 = Rule(
    "R4",
    "lengths and alignment",
    "A number at index t describes another token than token t, or none: masks, logprobs and advantages are shifted "
    "against the tokens, and every figure still looks plausible.",
    "Make all arrays from the spans in one place, with offsets instead of padding, and let nothing compare ids with "
    "the pad token.",
    ("batch",),
    check_alignment,
    threads=("trl#5144", "trl#4974", "rllm#517"),
)

RULES: tuple[Rule, ...] = (R4,)
