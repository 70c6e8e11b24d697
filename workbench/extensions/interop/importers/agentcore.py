"""agentcore-rl-toolkit: `rollouts-NNNN.json`, what its loop over the Tinker API puts down for each batch.

A list of groups, each a list of episodes; an episode is a trajectory, its `records` are what the tree of its messages
came to: one where the history only grew, more where it forked. A record's mask and logprobs are about what follows the
first prompt; a token that nobody sampled has a logprob of 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.regular_files import open_stream
from workbench.extensions.interop.dumps import Compared, RawSequence
from workbench.extensions.interop.importers.json_pieces import pieces, value_of
from workbench.extensions.interop.importers.pairs import same_number
from workbench.extensions.interop.importers.values import (
    Damaged,
    Reader,
    Row,
    ids,
    mapping,
    name,
    number,
    numbers,
    rows_of,
)

BEGINNING = re.compile(rb'\s*\[\s*(?:\[\s*\]\s*,\s*)*\[\s*\{\s*"rollout_id"\s*:')
LOOK = 4096  # bytes of a file that tell whose it is
GROUP = EPISODE = 2  # depth: [group][episode]
NO_ADVANTAGES = "advantages: they are computed behind this file, rewards minus the mean of a group, so R6 cannot be checked"
NO_TEXT = "texts: the messages of the tree are not written, and `response` is empty in this loop; show them with a tokenizer"


def is_file(path: Path) -> bool:
    """Whether a file begins as one of these."""
    with open_stream(path) as stream:
        return BEGINNING.match(stream.read(LOOK)) is not None


def rows(path: Path) -> Iterator[Row | Damaged]:
    """An episode at a time, with its group and the name of the file."""
    with open_stream(path) as stream:
        for place, data in pieces(stream, lambda place: len(place) < EPISODE):
            try:
                episode = mapping(value_of(data), "an episode")
                if len(place) < EPISODE:
                    raise Damaged("no list of episodes")
                if not episode:
                    raise Damaged("null where an episode should be")
            except Damaged as damage:
                yield damage
                continue
            yield {"file": path.stem, "group": place[0], "episode": episode}


def sequences_of(row: Row, where: str) -> list[RawSequence]:
    """One sequence for each record of the episode."""
    episode = row["episode"]
    records = [mapping(record, "a record") for record in rows_of(episode.get("records"), "records")]
    identity = name(episode.get("rollout_id"))
    reward = number(episode.get("reward"), "reward")
    error = episode.get("error")
    common = {
        "attempt": f"group {row['group']}, {identity}, {where}",
        "group": f"{name(row['file'], 24)}: group {row['group']}",
        "identity": identity,
        "reward": reward,
        "failed": None if error is None else name(error),
    }
    if not records:
        return [RawSequence(number=0, prompt_ids=None, completion_ids=None, **common)]
    sequences = [_sequence(record, k, common) for k, record in enumerate(records)]
    compared = [*_compared(episode, records), _trained_once(sequences)]
    first = _sequence(records[0], 0, common | {"compared": tuple(compared)})
    return [first, *sequences[1:]]


def _sequence(record: Mapping[str, Any], k: int, common: Mapping[str, Any]) -> RawSequence:
    """A record; its prompt is what mask and logprobs are not about."""
    what = f"record {k}: "
    token_ids = ids(record.get("token_ids"), f"{what}token_ids")
    mask = numbers(record.get("loss_mask"), f"{what}loss_mask")
    if token_ids is None or mask is None:
        raise Damaged(f"{what}token_ids or loss_mask is null")
    start = max(0, len(token_ids) - len(mask))
    metadata = mapping(record.get("metadata"), f"{what}metadata")
    return RawSequence(
        number=k,
        prompt_ids=token_ids[:start],
        completion_ids=token_ids[start:],
        mask=mask,
        logprobs=numbers(record.get("logprobs"), f"{what}logprobs"),
        truncated=bool(metadata.get("truncated", False)) or record.get("status") == "truncated",
        fork=True if k else None,
        completion_text=record.get("response") if isinstance(record.get("response"), str) else None,
        **common,
    )


def _compared(
    episode: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> Iterator[Compared]:
    """Reward, name and length stand in the episode and again in each record."""
    for k, record in enumerate(records):
        same = same_number(
            "R16",
            number(episode.get("reward"), "reward"),
            number(record.get("reward"), f"reward of record {k}"),
            f"the reward of the episode and that of its record {k} differ",
        )
        if same is not None and episode.get("error") is None:
            yield same
        owner = record.get("rollout_id")
        words = None
        if owner is not None and owner != episode.get("rollout_id"):
            words = (
                f"record {k} is of {name(owner)}, and stands in {name(episode.get('rollout_id'))}"
            )
        yield Compared("R37", 1, words)
        length = number(record.get("response_length"), f"response_length of record {k}")
        mask = rows_of(record.get("loss_mask"), "loss_mask")
        words = f"record {k} is said to have {length} tokens behind its prompt, and its mask has {len(mask)}"
        yield Compared("R4", 1, words if length is not None and length != len(mask) else None)


def _trained_once(sequences: Sequence[RawSequence]) -> Compared:
    """What records of a rollout share is trained in the first of them alone."""
    twice = 0
    for k, later in enumerate(sequences):
        for earlier in sequences[:k]:
            twice = max(twice, _shared(earlier, later))
    words = f"{twice} tokens that two records of the rollout share are trained in both: their loss counts twice"
    return Compared("R37", len(sequences), words if twice else None)


def _shared(one: RawSequence, other: RawSequence) -> int:
    """Trained tokens of the beginning that two sequences share, trained in both."""
    ids_of = [np.concatenate([part.prompt_ids, part.completion_ids]) for part in (one, other)]
    size = min(map(len, ids_of))
    same = ids_of[0][:size] == ids_of[1][:size]
    end = size if same.all() else int(same.argmin())
    trained = [_mask_over_all(part, size)[:end] for part in (one, other)]
    return int((trained[0] & trained[1]).sum())


def _mask_over_all(sequence: RawSequence, size: int) -> np.ndarray:
    """bool, one a token of prompt and completion, the first `size` of them."""
    mask = sequence.trained
    if mask is None:
        return np.zeros(size, bool)
    return np.concatenate([np.zeros(len(sequence.prompt_ids), bool), mask])[:size]


def missing(sequences: Sequence[RawSequence], rows: Sequence[Row]) -> list[str]:
    """What these files do not tell."""
    return [NO_ADVANTAGES, NO_TEXT]


READER = Reader(
    "agentcore-rl-toolkit (rollouts)",
    lambda row: False,
    sequences_of,
    missing,
    unit="rollout",
    is_file=is_file,
    rows=rows,
)
