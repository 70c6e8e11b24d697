"""verifiers from 0.2 on (`verifiers.v1`), and prime-rl's own rollouts: `traces.jsonl`, a row an episode of one or more
traces.

A trace is a graph of messages, each with the tokens it adds; a path from a root to a leaf is one training sample. Who
sampled a token is written twice: in `mask`, and in `sampled` with as many logprobs as tokens were sampled. So the one
is compared with the other here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.importers.values import (
    Damaged,
    Reader,
    Row,
    has_ids,
    ids,
    mapping,
    name,
    number,
    numbers,
    rows_of,
    text_of,
)

NO_TOKENS = (
    "token ids, masks and logprobs: these traces were sampled through a client that relays text, so R1, R3, "
    "R4, R5, R12 and R22 cannot be checked; sample with verifiers' train client (type 'train', an inference "
    "server that returns token ids), as prime-rl does"
)
LIMITS = (
    "max_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_total_tokens",
    "compaction_failed",
)


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of these: an episode, or a trace by itself."""
    return _is_trace(row) or (isinstance(row.get("traces"), list) and "task" in row)


def _is_trace(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("nodes"), list) and "task" in row


def version(rows: Sequence[Row], file: Path) -> str | None:
    """The verifiers version that the first trace with one names."""
    for row in rows:
        for trace in [row] if _is_trace(row) else rows_of(row.get("traces"), "traces"):
            build = trace.get("verifiers") if isinstance(trace, dict) else None
            if isinstance(build, dict) and isinstance(build.get("version"), str):
                return name(build["version"], 24)
    return None


def sequences_of(row: dict[str, Any], where: str) -> list[RawSequence]:
    """One sequence for each path of each trace."""
    if _is_trace(row):
        return _trace(row, {}, where)
    traces = rows_of(row.get("traces"), "traces")
    sequences = []
    for k, trace in enumerate(traces):
        place = where if len(traces) == 1 else f"{where}, trace {k}"
        sequences += _trace(mapping(trace, "a trace"), row, place)
    return sequences


def _trace(trace: dict[str, Any], episode: Mapping[str, Any], where: str) -> list[RawSequence]:
    nodes = [mapping(node, "a node") for node in rows_of(trace.get("nodes"), "nodes")]
    common = _common(trace, episode, where)
    trainable = mapping(trace.get("agent"), "agent").get("trainable", True)
    paths = _paths(nodes)
    if any(node.get("token_ids") for node in nodes):
        return [_sequence(nodes, path, k, bool(trainable), common) for k, path in enumerate(paths)]
    return [RawSequence(number=0, prompt_ids=None, completion_ids=None, **_texts(nodes), **common)]


def _common(trace: dict[str, Any], episode: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that all sequences of a trace share."""
    task = mapping(trace.get("task"), "task")
    stamped = mapping(mapping(trace.get("info"), "info").get("prime_rl"), "info.prime_rl")
    stamped_group = trace.get("group_id", stamped.get("group_id"))
    group = mapping(episode.get("group"), "group").get("id", stamped_group)
    group_name = group if group is not None else task.get("key") or task.get("hash")
    data = mapping(task.get("data"), "task.data")
    labels = [data[key] for key in ("id", "name", "idx") if data.get(key) is not None]
    label = labels[0] if labels and labels[0] else task.get("type")
    errors = [*rows_of(trace.get("errors"), "errors"), *rows_of(episode.get("errors"), "errors")]
    last = mapping(errors[-1], "an error") if errors and not trace.get("ok") else {}
    return {
        "attempt": f"{name(label, 24)}, {where}",
        "group": None if group_name is None else name(group_name, 64),
        "grouped": group is not None,
        "reward": _reward(trace),
        "truncated": _truncated(trace),
        "failed": name(f"{last.get('type', 'error')}: {last.get('message', '')}") if last else None,
    }


def _texts(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The prompt, up to the first message that was sampled, and all messages that were."""
    is_sampled = [bool(node.get("sampled")) for node in nodes]
    messages = [node.get("message") for node in nodes]
    first = is_sampled.index(True) if True in is_sampled else len(nodes)
    return {
        "prompt_text": text_of(messages[:first]),
        "completion_text": text_of([*compress(messages, is_sampled)]),
    }


def _paths(nodes: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Node numbers from a root to each leaf, leaves in order."""
    parents = []
    for n, node in enumerate(nodes):
        parent = node.get("parent")
        if parent is not None and not (type(parent) is int and 0 <= parent < n):
            raise Damaged(f"node {n} names {name(parent)} as its parent, expected an earlier node")
        parents.append(parent)
    paths = []
    for leaf in sorted(set(range(len(nodes))) - set(parents)):
        path = []
        at = leaf
        while at is not None:
            path.append(at)
            at = parents[at]
        paths.append(path[::-1])
    return paths


def _sequence(
    nodes: Sequence[Mapping[str, Any]],
    path: Sequence[int],
    k: int,
    trainable: bool,
    common: Mapping[str, Any],
) -> RawSequence:
    """The path as one sequence: its prompt ends where the first token was sampled (or, if none was, with the path)."""
    parts = [_part(nodes[n], n) for n in path]
    token_ids, mask, sampled, logprobs = (np.concatenate(arrays) for arrays in zip(*parts))
    credits = [numbers(nodes[n].get("advantages"), f"advantages of node {n}") for n in path]
    has_credit = any(credit is not None for credit in credits)
    starts = np.flatnonzero(sampled)
    first = int(starts[0]) if len(starts) else len(token_ids)
    fits = len(mask) == len(token_ids)
    return RawSequence(
        number=k,
        prompt_ids=token_ids[:first],
        completion_ids=token_ids[first:],
        sampled=sampled[first:].astype(bool),
        mask=mask[first:] if trainable else None,
        prompt_mask=mask[:first] if trainable and fits else None,
        logprobs=logprobs[first:],
        advantages=_spread(credits, parts)[first:] if has_credit else None,
        fork=True if k else None,
        **_texts([nodes[n] for n in path]),
        **common,
    )


def _part(node: Mapping[str, Any], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask, who sampled, logprobs of a node's tokens. What was sampled stands at the end of a sampled node, one
    logprob a token."""
    token_ids = ids(node.get("token_ids") or [], f"token_ids of node {n}")
    mask = numbers(node.get("mask") or [], f"mask of node {n}")
    logprobs = numbers(node.get("logprobs") or [], f"logprobs of node {n}")
    sampled = np.zeros(len(token_ids))
    spread = np.full(len(token_ids), np.nan)
    if node.get("sampled") and len(logprobs) <= len(token_ids):
        start = len(token_ids) - len(logprobs)
        sampled[start:] = 1
        spread[start:] = logprobs
    elif len(logprobs):
        spread = logprobs
    return token_ids, mask, sampled, spread


def _spread(
    credits: Sequence[np.ndarray | None], parts: Sequence[tuple[np.ndarray, ...]]
) -> np.ndarray:
    """Advantages of sampled tokens on their places, NaN elsewhere and where a node has none."""
    spread = []
    for values, (token_ids, _, sampled, _) in zip(credits, parts):
        places = np.flatnonzero(sampled)
        if values is not None and len(values) != len(places):
            raise Damaged(f"{len(values)} advantages for {len(places)} sampled tokens of a node")
        row = np.full(len(token_ids), np.nan)
        if values is not None:
            row[places] = values
        spread.append(row)
    return np.concatenate(spread)


def _reward(trace: Mapping[str, Any]) -> float | None:
    """The weighted sum; None where nothing was scored, or something could not be."""
    rewards = mapping(trace.get("rewards"), "rewards")
    if not rewards or any(reward is None for reward in rewards.values()):
        return None
    total = 0.0
    for key, reward in rewards.items():
        reward = mapping(reward, f"reward {name(key)}")
        score = number(reward.get("score"), "score")
        weight = number(reward.get("weight", 1.0), "weight")
        if score is None or weight is None:
            return None
        total += score * weight
    return total


def _truncated(trace: Mapping[str, Any]) -> bool:
    if trace.get("stop_condition") in LIMITS:
        return True
    calls = [call for call in rows_of(trace.get("calls"), "calls") if isinstance(call, dict)]
    answered = [call for call in calls if call.get("error") is None]
    return bool(answered) and answered[-1].get("finish_reason") == "length"


def missing(sequences: list[RawSequence], rows: list[dict[str, Any]]) -> list[str]:
    """What these files do not tell."""
    lacking = []
    if not has_ids(sequences):
        lacking.append(NO_TOKENS)
    elif all(sequence.advantages is None for sequence in sequences):
        lacking.append(
            "advantages: verifiers assigns none, the trainer does (prime-rl writes them beside the traces, as "
            "annotations, which are not read here), so the credit of R6 cannot be checked"
        )
    if not any(sequence.grouped for sequence in sequences):
        lacking.append(
            "group ids: an evaluation writes none; trajectories of the same task are taken as a group, so R7 "
            "cannot be checked"
        )
    return lacking


READER = Reader("verifiers (traces)", is_row, sequences_of, missing, version)
