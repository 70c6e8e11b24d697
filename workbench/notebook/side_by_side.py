"""The attempts of a group side by side: where each of them parts from the best one, to the token."""
from __future__ import annotations

from typing import Any

import numpy as np

from workbench.types import Group, Source, Trajectory
from workbench.views.escape import capped, visible
from workbench.views.tokens import TokenTexts

LONGEST_TURN = 600  # characters of a turn in a column
AROUND = 6          # tokens shown from where two attempts part


def side_by_side(group: Group, texts: TokenTexts) -> dict[str, Any]:
    """JSON values. `best`: the attempt that earned most, the first of several; the others say at which token of theirs, in
    which turn and by whose words they part from it (None: they are the same tokens throughout)."""
    best = max(range(len(group)), key=lambda number: (group[number].reward is not None, group[number].reward or 0.0, -number))
    return {"best": best, "attempts": [_column(number, group, best, texts) for number in range(len(group))]}


def _column(number: int, group: Group, best: int, texts: TokenTexts) -> dict[str, Any]:
    attempt = group[number]
    return {"attempt": number, "reward": attempt.reward, "success": attempt.success, "stop": attempt.stop_reason.value,
            "turns": [visible(capped(turn.text, LONGEST_TURN)) for turn in attempt.turns],
            "replies": [visible(capped("\n".join(message.text for message in turn.reply), LONGEST_TURN)) for turn in attempt.turns],
            "parts": None if number == best else _parting(attempt, group[best], texts)}


def _parting(attempt: Trajectory, best: Trajectory, texts: TokenTexts) -> dict[str, Any] | None:
    here, there = _tokens(attempt), _tokens(best)
    token = first_difference(here[0], there[0])
    if token is None:
        return None
    ended = token >= len(here[0])  # it is the beginning of the best one
    ids, sources, turns = there if ended else here
    said = ["".join(texts(each[0][token:token + AROUND])) for each in (here, there)]
    return {"token": None if ended else token, "turn": int(turns[token]), "author": Source(int(sources[token])).name.lower(),
            "here": visible(said[0]), "best": visible(said[1])}


def _tokens(attempt: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, authors, turns) of an attempt's segments end to end."""
    none = np.zeros(0, np.int32)
    return tuple(np.concatenate([none, *(getattr(segment, name) for segment in attempt.segments)])
                 for name in ("token_ids", "sources", "turns"))


def first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    """The first place where two sequences differ, the end of the shorter one included; None where they are the same."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else None if len(a) == len(b) else length
