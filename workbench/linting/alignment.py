"""Lengths and alignment (R4): every array of the batch holds at index t what the spans say of token t.

The expected arrays are put together here from spans, turns and stop reasons by plain loops; nothing of the batch's own
derived maps is used to check them.

Axis letters: N trajectories · K turns (flat) · S segments · T tokens · V vocabulary.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from workbench.linting.attempts import FAULTS
from workbench.linting.evidence import Evidence
from workbench.linting.flat import Flat
from workbench.linting.prefixes import token
from workbench.linting.rule import Rule, Said
from workbench.types import StopReason, Trajectory
from workbench.types.findings import NOTE, Finding, Looked, Missing, Place

AXES = {"T": "tokens", "N": "trajectories", "S": "segments", "K": "turns"}


def check_alignment(evidence: Evidence) -> Iterator[Said]:
    yield from _lengths(evidence)
    yield from _pad(evidence)
    if not evidence.groups:
        yield Missing("trajectories")
        return
    yield from _order(evidence)
    wrong_counts = list(_counts(evidence))
    yield from wrong_counts
    if wrong_counts:
        return  # what does not fit cannot be compared index by index
    yield Looked(len(evidence.flat.ids_T))
    yield from _same(evidence, expected(evidence))
    for update in evidence.updates:
        yield from _table(evidence, update.table)


# ------------------------------------------------------------------------------------------------ expected arrays


def expected(evidence: Evidence) -> dict[str, np.ndarray]:
    """What the batch of these trajectories holds, by the names of its fields and derived maps."""
    flat, trajectories = evidence.flat, evidence.trajectories
    length_S = np.diff(flat.offset_S)
    segment_T = np.repeat(np.arange(len(length_S)), length_S)
    position_T = np.arange(len(flat.ids_T)) - flat.offset_S[segment_T]
    turns = [len(t.turns) for t in trajectories]
    last_N = np.full(len(trajectories), -1, np.int64)
    last_N[flat.trajectory_T] = np.arange(len(flat.ids_T))  # of equal indices the last one stays
    plain_T, version_T = _sampled_facts(flat)
    return {
        "token_ids_T": flat.ids_T, "source_T": flat.source_T, "turn_T": flat.turn_T, "eligible_T": flat.sampled_T,
        "response_T": position_T >= _prompt_length_S(flat)[segment_T], "rollout_logp_T": flat.logp_T,
        "plain_logp_T": plain_T, "policy_version_T": version_T,
        "segment_offsets": flat.offset_S, "trajectory_of_segment_S": flat.trajectory_S,
        "group_of_trajectory_N": np.repeat(np.arange(len(evidence.groups)), [len(g) for g in evidence.groups]),
        "reward_N": np.array([_number(reward_of(t)) for t in trajectories]),
        "scored_N": np.isfinite([_number(reward_of(t)) for t in trajectories]),
        "outcome_N": np.array([_number(t.outcome) for t in trajectories]),
        "terminated_N": np.array([t.stop_reason is StopReason.TERMINATED for t in trajectories]),
        "truncated_N": np.array([t.stop_reason not in (StopReason.TERMINATED, *FAULTS) for t in trajectories]),
        "context_full_N": np.array([t.stop_reason is StopReason.CONTEXT_FULL for t in trajectories]),
        "turn_offsets": np.concatenate([[0], np.cumsum(turns)]),
        "turn_reward_K": np.array([_number(turn.reward) for t in trajectories for turn in t.turns], np.float64),
        "state_of_turn_K": _numbered([None if turn.state_key is None else (g, turn.state_key)
                                      for g, group in enumerate(evidence.groups) for t in group for turn in t.turns]),
        "tag_N": _numbered([t.task.metadata.get("tag", t.task.env) for t in trajectories]),
        "segment_of_token_T": segment_T, "trajectory_of_token_T": flat.trajectory_T, "position_T": position_T,
        "last_token_N": last_N, "segment_lengths_S": length_S,
    }


def reward_of(trajectory: Trajectory) -> float | None:
    """The undiscounted sum of what was earned, None where any of it could not be scored (law 5)."""
    rewards = [turn.reward for turn in trajectory.turns]
    if not trajectory.scored or trajectory.stop_reason in FAULTS or None in rewards:
        return None
    return sum(rewards) + (0.0 if trajectory.outcome is None else trajectory.outcome)


def _numbered(keys: Sequence[Hashable]) -> np.ndarray:
    """Equal keys have equal numbers, in order of appearance; -1: None."""
    known: dict[Hashable, int] = {}
    for key in keys:
        if key is not None and key not in known:
            known[key] = len(known)
    return np.array([-1 if key is None else known[key] for key in keys], np.int64)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _prompt_length_S(flat: Flat) -> np.ndarray:
    """Tokens before the first sampled one of each segment; all of them where none was."""
    first_S = np.diff(flat.offset_S)
    sampled = np.flatnonzero(flat.sampled_P)[::-1]
    first_S[flat.segment_P[sampled]] = flat.start_P[sampled]  # the first span of a segment is written last
    return first_S


def _sampled_facts(flat: Flat) -> tuple[np.ndarray, np.ndarray]:
    """(plain logprobs, NaN where not known; policy versions, -1 where not known) [T]."""
    plain_T = flat.logp_T.copy()
    version_P = np.full(len(flat.spans), -1, np.int32)
    for p in np.flatnonzero(flat.sampled_P).tolist():
        span, settings = flat.spans[p], flat.spans[p].sampling
        version_P[p] = -1 if span.policy_version is None else span.policy_version
        bends = settings is not None and (settings.temperature != 1.0 or settings.top_p != 1.0)
        if bends or span.plain_logprobs is not None:
            end = int(flat.end_P[p])
            plain_T[end - len(span) : end] = np.nan if span.plain_logprobs is None else span.plain_logprobs
    return plain_T, np.repeat(version_P, flat.length_P)


# ------------------------------------------------------------------------------------------------ comparing


def _lengths(evidence: Evidence) -> Iterator[Said]:
    """One length for everything that has an entry per token, trajectory, segment or turn."""
    batch, credit = evidence.batch, evidence.credit
    axes = {"T": len(batch.token_ids_T), "N": len(batch.names_N), "S": len(batch.segment_offsets) - 1,
            "K": int(batch.turn_offsets[-1])}
    arrays: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    if credit is not None:
        arrays |= {f"credit.{field.name}": getattr(credit, field.name) for field in fields(credit)}
    found = 0
    for name, values in arrays.items():
        axis = name.rpartition("_")[2]
        if values is None or axis not in axes or name.rpartition("_")[0] == "":
            continue
        found += 1
        if len(values) != axes[axis]:
            yield Finding(f"{name} has {len(values)} entries, the batch has {axes[axis]} {AXES[axis]}",
                          Place(step=evidence.step))
    for what, offsets, total in (("segment_offsets", batch.segment_offsets, axes["T"]),
                                 ("turn_offsets", batch.turn_offsets, len(batch.turn_reward_K))):
        if int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((offsets.diff() < 0).any()):
            yield Finding(f"{what} run from {int(offsets[0])} to {int(offsets[-1])}; expected 0 to {total}, never "
                          "falling", Place(step=evidence.step))
    yield Looked(found)


def _order(evidence: Evidence) -> Iterator[Finding]:
    """Address order (law 8): attempts ascending in their group."""
    for first, group in zip(np.cumsum([0, *map(len, evidence.groups)]).tolist(), evidence.groups, strict=False):
        attempts = [trajectory.attempt for trajectory in group]
        if attempts != sorted(attempts):
            yield Finding(f"the attempts of this group stand in the order {attempts}; in address order a batch does "
                          "not depend on who finished first", evidence.place(first),
                          severity=NOTE if evidence.collect is None else "error")


def _counts(evidence: Evidence) -> Iterator[Finding]:
    """The batch is of these trajectories, in this order, and has all of their tokens."""
    batch, flat = evidence.batch, evidence.flat
    names = [f"{t.task.id}/{t.attempt}" for t in evidence.trajectories]
    if list(batch.names_N) != names:
        at = next((n for n, (a, b) in enumerate(zip(batch.names_N, names, strict=False)) if a != b),
                  min(len(names), len(batch.names_N)))
        ours = batch.names_N[at] if at < len(batch.names_N) else "nothing more"
        yield Finding(f"trajectory {at} of the batch is {ours}, of the groups "
                      f"{names[at] if at < len(names) else 'nothing more'}", Place(step=evidence.step))
    for what, ours, theirs in (
            ("tokens", len(batch.token_ids_T), len(flat.ids_T)),
            ("segments", len(batch.trajectory_of_segment_S), len(flat.trajectory_S)),
            ("turns", len(batch.turn_reward_K), sum(len(t.turns) for t in evidence.trajectories))):
        if ours != theirs:
            yield Finding(f"the batch has {ours} {what}, its trajectories have {theirs}", Place(step=evidence.step))


def _same(evidence: Evidence, wanted: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    for name, values in wanted.items():
        ours = getattr(evidence.batch, name).numpy()
        if ours.shape != values.shape:
            yield Finding(f"{name} has {len(ours)} entries, {len(values)} expected", Place(step=evidence.step))
            continue
        wrong = _unequal(ours, values)
        if len(wrong):
            at = int(wrong[0])
            yield Finding(f"{name}[{at}] is {ours[at]}, the trajectories say {values[at]}",
                          _place(evidence, name, at), count=len(wrong))


def _unequal(ours: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Indices of different values; NaN equals NaN. Rewards are sums, whose last digit may depend on their order."""
    if values.dtype.kind != "f":
        return np.flatnonzero(ours != values)
    if values.dtype == np.float64:
        return np.flatnonzero(~np.isclose(ours, values, rtol=1e-12, atol=1e-12, equal_nan=True))
    return np.flatnonzero((ours != values) & ~(np.isnan(ours) & np.isnan(values)))


def _place(evidence: Evidence, name: str, at: int) -> Place:
    axis, flat = name.rpartition("_")[2], evidence.flat
    if axis == "T":
        return flat.place(evidence, at)
    if axis == "N":
        return evidence.place(at)
    if axis == "S":
        return evidence.place(int(flat.trajectory_S[at]), segment=int(flat.number_S[at]))
    if axis == "K":
        end_N = np.cumsum([len(t.turns) for t in evidence.trajectories])
        n = int(np.searchsorted(end_N, at, side="right"))
        return evidence.place(n, turn=at - int(end_N[n]) + len(evidence.trajectories[n].turns))
    return Place(step=evidence.step)


def _table(evidence: Evidence, table: Any) -> Iterator[Said]:
    """A credit table has the batch's tokens in the batch's order."""
    flat = evidence.flat
    length_S = np.diff(flat.offset_S)
    segment_T = np.repeat(np.arange(len(length_S)), length_S)
    columns = {"trajectory": flat.trajectory_T, "segment": segment_T, "turn": flat.turn_T,
               "position": np.arange(len(flat.ids_T)) - flat.offset_S[segment_T], "token_id": flat.ids_T,
               "source": flat.source_T, "eligible": flat.sampled_T, "rollout_logp": flat.logp_T}
    for name, values in columns.items():
        if name not in table.columns:
            continue
        ours = table.columns[name]
        if len(ours) != len(values):
            yield Finding(f"the credit table of update {table.update} has {len(ours)} rows for {len(values)} tokens",
                          Place(step=evidence.step, update=table.update))
            return
        yield Looked(len(ours))
        wrong = _unequal(ours, values)
        if len(wrong):
            at = int(wrong[0])
            yield Finding(f"column {name!r} of update {table.update} says {ours[at]}, the trajectories {values[at]}",
                          flat.place(evidence, at), count=len(wrong))


# ------------------------------------------------------------------------------------------------ pad


def _pad(evidence: Evidence) -> Iterator[Said]:
    """No mask comes from comparing ids with the pad token: where pad is eos, the turn's end would be left out."""
    credit, batch = evidence.credit, evidence.batch
    pad = _special_ids(evidence)
    if credit is None or not pad or len(credit.weight_T) != len(batch.token_ids_T):
        return
    ids_T, eligible_T = batch.token_ids_T.numpy(), batch.eligible_T.numpy()
    weight_T, row_T = credit.weight_T.numpy(), batch.trajectory_of_token_T.numpy()
    kept_N = np.bincount(row_T[weight_T != 0], minlength=batch.num_trajectories) > 0
    for name, pad_id in pad.items():
        at = np.flatnonzero((ids_T == pad_id) & eligible_T & kept_N[row_T])
        left = at[weight_T[at] == 0]
        if len(left):
            yield Finding(f"the sampled {token(evidence, pad_id)}, which is also the {name} token, has no weight while "
                          "its neighbours have: a mask was made by comparing ids",
                          evidence.place_of_token(int(left[0])), count=len(left))


def _special_ids(evidence: Evidence) -> dict[str, int]:
    tokenizer = evidence.chat.template.tokenizer if evidence.chat is not None else None
    ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "bos")}
    return {name: value for name, value in ids.items() if value is not None}


R4 = Rule(
    "R4", "lengths and alignment",
    "A number at index t describes another token than token t, or none: masks, logprobs and advantages are shifted "
    "against the tokens, and every figure still looks plausible.",
    "Make all arrays from the spans in one place, with offsets instead of padding, and let nothing compare ids with "
    "the pad token.",
    ("batch",), check_alignment, threads=("trl#5144", "trl#4974", "rllm#517"))
