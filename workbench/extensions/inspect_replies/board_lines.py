"""Boards on which a line wins (E13): where one stands, the game is over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.extensions.inspect_replies.bearings import maps_in
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, text_of
from workbench.extensions.scripted_play.written_numbers import NUMBER_WORDS, counted
from workbench.values.errors import shortened

FEWEST = 2  # trajectories
IN_A_LINE = re.compile(
    rf"\b(\d|{'|'.join(NUMBER_WORDS)})\b (?:\w+ )?in (?:a|one|any) (?:row|line)\b", re.IGNORECASE
)
# What a line must not be, of what a board shows.
EMPTY_OR_NUMBER = re.compile(r"[\W_\d]")
WAYS = {"a row": (0, 1), "a column": (1, 0), "a diagonal": (1, 1), "the other diagonal": (1, -1)}


def check_board_lines(given: CheckInput) -> Iterator[RuleResult]:
    """No line of as many equal signs as the prompt says stands on a board of a game that goes
    on."""
    rule = IN_A_LINE.search(given.first_prompt)
    if rule is None:
        return
    length = int(counted(rule[1]))
    standing: list[tuple[PlayedTrajectory, str, list[str]]] = []
    boards = 0
    for one in given.played:
        first: tuple[PlayedTrajectory, str, list[str]] | None = None
        for k, result in enumerate(one.results):
            board = maps_in(text_of(result.observation))
            boards += board is not None
            if board is None or result.terminated or result.truncated:
                continue
            if k + 1 < len(one.results) and (way := _line(board, length)):
                first = first or (one, way, board)
        standing += [first] if first else []
    yield Checked(boards, "boards on which a line wins")
    if len(standing) >= FEWEST and len(standing) < boards:
        one, way, board = standing[0]
        drawn = " / ".join(board)
        yield Finding(
            f"the prompt says {shortened(rule[0], 40)}, and {length} in {way} stand on {drawn} at "
            f"{one.task.id!r} ({one.policy}), where the game goes on; so in {len(standing)} "
            "trajectories: a line is missing where it is asked who has won (both diagonals, the "
            "last row and column)",
            severity=ERROR,
        )


def _line(board: Sequence[str], length: int) -> str:
    """The way in which `length` equal signs lie; "" for none."""
    rows = len(board)
    columns = len(board[0])
    for way, (down, right) in WAYS.items():
        for row in range(rows):
            for column in range(columns):
                cells = [(row + k * down, column + k * right) for k in range(length)]
                last_row, last_column = cells[-1]
                if last_row >= rows or not 0 <= last_column < columns:
                    continue
                signs = {board[r][c] for r, c in cells}
                if len(signs) == 1 and not EMPTY_OR_NUMBER.match(min(signs)):
                    return way
    return ""
