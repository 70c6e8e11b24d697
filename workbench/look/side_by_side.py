"""Trajectories side by side, as the navigator asks for them: those of a group, and those of two policies at the same tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from workbench.look import words
from workbench.look.escape import capped, visible
from workbench.look.pairs import Pair, PairedGroups
from workbench.look.tokens import TokenTexts
from workbench.values import Group, Trajectory, Turn
from workbench.values.errors import DataError
from workbench.values.sequences import first_difference

LONGEST_TURN = 600  # characters of a turn in a column
AROUND = 6  # tokens shown from where two trajectories diverge


def side_by_side(group: Group, texts: TokenTexts) -> dict[str, Any]:
    """JSON values. `best`: the trajectory that earned most, the first of several; the others say at which token of theirs, in
    which turn and by which author they diverge from it (None: identical tokens)."""

    def merit(number: int) -> tuple[bool, float, int]:
        reward = group[number].reward
        return (reward is not None, reward or 0.0, -number)

    best = max(range(len(group)), key=merit)
    columns = [
        _column(number, trajectory, group[best], texts) for number, trajectory in enumerate(group)
    ]
    return {"best": best, "attempts": columns}


def _column(
    number: int, trajectory: Trajectory, beside: Trajectory, texts: TokenTexts
) -> dict[str, Any]:
    replies = [_reply(turn) for turn in trajectory.turns]
    return {
        "attempt": number,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "stop": trajectory.stop_reason.value,
        "turns": [visible(capped(turn.text, LONGEST_TURN)) for turn in trajectory.turns],
        "replies": [visible(capped(reply, LONGEST_TURN)) for reply in replies],
        "parts": None if trajectory is beside else _parting(trajectory, beside, texts),
    }


def _reply(turn: Turn) -> str:
    return "\n".join(message.text for message in turn.reply)


def pairs_of(paired: PairedGroups) -> dict[str, Any]:
    """Two policies at the same tasks as JSON values: the difference, and a row a task, lost ones first."""
    difference = paired.difference
    interval = None
    if difference is not None:
        interval = [difference.mean, difference.low, difference.high]
    return {
        "names": [visible(name) for name in paired.names],
        "measure": paired.measure,
        "left_out": paired.left_out,
        "difference": interval,
        "rows": [_pair_row(number, pair) for number, pair in paired.numbered],
    }


def _pair_row(number: int, pair: Pair) -> dict[str, Any]:
    return {
        "pair": number,
        "name": visible(pair.task.id),
        "change": pair.change,
        "success": list(pair.success),
        "reward": list(pair.reward),
        "parts": pair.first_difference,
    }


def pair_of(paired: PairedGroups, number: int, texts: TokenTexts) -> dict[str, Any]:
    """One task: the first trajectory of either side, the second compared with the first."""
    if not 0 <= number < len(paired):
        raise DataError(f"there is no pair {number}; they are counted from 0 to {len(paired) - 1}")
    pair = paired[number]
    columns = [
        _column(side, group[0], pair.first[0], texts)
        for side, group in enumerate((pair.first, pair.second))
    ]
    return {"best": 0, "attempts": columns, "names": [visible(name) for name in pair.names]}


def _parting(trajectory: Trajectory, best: Trajectory, texts: TokenTexts) -> dict[str, Any] | None:
    """Where a trajectory diverges from the best one: at which token of its own (None: it is the beginning of the best one), in
    which turn, by which author, and how either continues."""
    here = _Tokens.of(trajectory)
    there = _Tokens.of(best)
    token = first_difference(here.ids.tolist(), there.ids.tolist())
    if token is None:
        return None
    ended = token >= len(here.ids)
    longer = there if ended else here
    following = slice(token, token + AROUND)
    return {
        "token": None if ended else token,
        "turn": int(longer.turns[token]),
        "author": words.AUTHORS[int(longer.authors[token])],
        "here": visible("".join(texts(here.ids[following]))),
        "best": visible("".join(texts(there.ids[following]))),
    }


class _Tokens(NamedTuple):
    """The tokens of a trajectory, its segments end to end."""

    ids: np.ndarray
    authors: np.ndarray
    turns: np.ndarray

    @classmethod
    def of(cls, trajectory: Trajectory) -> _Tokens:
        columns = []
        for name in ("token_ids", "sources", "turns"):
            values = [getattr(segment, name) for segment in trajectory.segments]
            columns.append(np.concatenate([np.zeros(0, np.int32), *values]))
        return cls(*columns)
