"""Attempts side by side, as the navigator asks for them: those of a group, and those of two policies at the same tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.types import Group, Source, Trajectory
from workbench.types.errors import DataError
from workbench.types.pairs import PairedGroups
from workbench.views.escape import capped, visible
from workbench.views.pairs import ORDER
from workbench.views.tokens import TokenTexts

LONGEST_TURN = 600  # characters of a turn in a column
AROUND = 6  # tokens shown from where two attempts part


def side_by_side(group: Group, texts: TokenTexts) -> dict[str, Any]:
    """JSON values. `best`: the attempt that earned most, the first of several; the others say at which token of theirs, in
    which turn and by whose words they part from it (None: they are the same tokens throughout)."""
    best = max(
        range(len(group)),
        key=lambda number: (group[number].reward is not None, group[number].reward or 0.0, -number),
    )
    return {
        "best": best,
        "attempts": [
            _column(number, attempt, group[best], texts) for number, attempt in enumerate(group)
        ],
    }


def _column(
    number: int, attempt: Trajectory, beside: Trajectory, texts: TokenTexts
) -> dict[str, Any]:
    return {
        "attempt": number,
        "reward": attempt.reward,
        "success": attempt.success,
        "stop": attempt.stop_reason.value,
        "turns": [visible(capped(turn.text, LONGEST_TURN)) for turn in attempt.turns],
        "replies": [
            visible(capped("\n".join(message.text for message in turn.reply), LONGEST_TURN))
            for turn in attempt.turns
        ],
        "parts": None if attempt is beside else _parting(attempt, beside, texts),
    }


def pairs_of(paired: PairedGroups) -> dict[str, Any]:
    """Two policies at the same tasks as JSON values: the difference, and a row a task, lost ones first."""
    difference = paired.difference
    rows = sorted(enumerate(paired.pairs), key=lambda item: ORDER.index(item[1].change))
    return {
        "names": [visible(name) for name in paired.names],
        "measure": paired.measure,
        "left_out": paired.left_out,
        "difference": None
        if difference is None
        else [difference.mean, difference.low, difference.high],
        "rows": [
            {
                "pair": number,
                "name": visible(pair.task.id),
                "change": pair.change,
                "success": list(pair.success),
                "reward": list(pair.reward),
                "parts": pair.first_difference,
            }
            for number, pair in rows
        ],
    }


def pair_of(paired: PairedGroups, number: int, texts: TokenTexts) -> dict[str, Any]:
    """One task: the first attempt of either side, the second held against the first."""
    if not 0 <= number < len(paired):
        raise DataError(f"there is no pair {number}; they are counted from 0 to {len(paired) - 1}")
    pair = paired[number]
    columns = [
        _column(side, group[0], pair.first[0], texts)
        for side, group in enumerate((pair.first, pair.second))
    ]
    return {"best": 0, "attempts": columns, "names": [visible(name) for name in pair.names]}


def _parting(attempt: Trajectory, best: Trajectory, texts: TokenTexts) -> dict[str, Any] | None:
    here, there = _tokens(attempt), _tokens(best)
    token = first_difference(here[0], there[0])
    if token is None:
        return None
    ended = token >= len(here[0])  # it is the beginning of the best one
    ids, sources, turns = there if ended else here
    said = ["".join(texts(each[0][token : token + AROUND])) for each in (here, there)]
    return {
        "token": None if ended else token,
        "turn": int(turns[token]),
        "author": Source(int(sources[token])).name.lower(),
        "here": visible(said[0]),
        "best": visible(said[1]),
    }


def _tokens(attempt: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, authors, turns) of an attempt's segments end to end."""
    none = np.zeros(0, np.int32)
    return tuple(
        np.concatenate([none, *(getattr(segment, name) for segment in attempt.segments)])
        for name in ("token_ids", "sources", "turns")
    )


def first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    """The first place where two sequences differ, the end of the shorter one included; None where they are the same."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else None if len(a) == len(b) else length
