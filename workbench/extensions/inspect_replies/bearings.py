"""Words against what happens (E32): directions and the coordinates or the map that are shown, edges that a prompt says hold, and
hints such as "too low" against the number that was right.

Neither the solver nor random play need notice: they move by the code's own table. A policy reads the prompt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_replies.hinted import check_hinted
from workbench.extensions.inspect_replies.map_walls import check_walls
from workbench.extensions.inspect_replies.named_cells import check_named_cells
from workbench.extensions.inspect_replies.read_replies import check_read_replies
from workbench.extensions.inspect_replies.seen_through import check_seen_through
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.playing import PlayedTrajectory, text_of
from workbench.values.errors import shortened

LEAST = 4  # moves by which an axis is judged
MOSTLY = 0.9  # of them
FEWEST = 2  # moves past an edge
DIRECTION = re.compile(
    r"(?:(?:go|move|walk|step|head|drive|push|slide) )?(up|down|left|right|north|south|east|west|n|s|e|w)",
    re.IGNORECASE,
)
# (axis, sign): to the top and to the right are above zero.
COMPASS = {
    "up": ("vertical", 1),
    "north": ("vertical", 1),
    "n": ("vertical", 1),
    "down": ("vertical", -1),
    "south": ("vertical", -1),
    "s": ("vertical", -1),
    "right": ("horizontal", 1),
    "east": ("horizontal", 1),
    "e": ("horizontal", 1),
    "left": ("horizontal", -1),
    "west": ("horizontal", -1),
    "w": ("horizontal", -1),
}
PAIR = r"\((-?\d+), ?(-?\d+)\)"
PLACED = re.compile(
    rf"\b(?:stand\w*|are|is|now|at|on|position\w*|start\w*|begin\w*|reach\w*)\b[^.()\n]{{0,25}}{PAIR}",
    re.IGNORECASE,
)
CORNER = r"(top|upper|bottom|lower|north|south)[ -]?(left|right|west|east)"
ORIGIN = re.compile(
    rf"\([01], ?[01]\)[^.;()\n]{{0,30}}?\b{CORNER}|\b{CORNER}\b[^.;()\n]{{0,30}}?\([01], ?[01]\)",
    re.IGNORECASE,
)
ROW_FIRST = re.compile(
    r"\((?:row|line|r|y)\s*,\s*(?:col(?:umn)?|c|x)\)|\brow (?:and|,|then) (?:the )?col",
    re.IGNORECASE,
)
COLUMN_FIRST = re.compile(
    r"\((?:col(?:umn)?|c|x)\s*,\s*(?:row|line|r|y)\)|\bcolumn (?:and|,|then) (?:the )?row",
    re.IGNORECASE,
)
GROWS = re.compile(
    r"\b(x|y|rows?|columns?)\b[^.;\n]{0,25}\b(?:grows?|increas\w+|ris\w+|counts?|goes|go|runs?|numbered)\b[^.;\n]{0,30}?"
    r"\b(upwards?|up|downwards?|down|north\w*|south\w*|right\w*|left\w*|east\w*|west\w*)\b",
    re.IGNORECASE,
)
TURNED_MAP = re.compile(
    r"\b(?:bottom|last) (?:row|line)[^.\n]{0,30}\b(?:first|0|1|north|top)\b|\bupside down\b|\bmirror\w*\b|\b(?:north|up) is (?:down|below)\b|"
    r"\breversed?\b|\bopposite\b|\binverted\b|\bdrunk\w*|\brelative\b|\bfac(?:es|ing)\b",
    re.IGNORECASE,
)
EDGES_HOLD = re.compile(
    r"(?:nothing happens|does nothing|do nothing|has no effect|have no effect|stays?|cannot|can't|not possible|blocked|ignored)\b[^.\n]{0,50}"
    r"\b(?:edges?|borders?|walls?|off|outside|bounds|beyond|leave)\b|\b(?:edges?|borders?|walls?|off|outside|bounds|beyond)\b[^.\n]{0,50}"
    r"(?:nothing happens|does nothing|do nothing|no effect|stays?|cannot|can't|blocked|ignored)\b",
    re.IGNORECASE,
)
SIZE = re.compile(r"\b(\d{1,3}) ?(?:x|by|×) ?(\d{1,3})\b", re.IGNORECASE)


class MoveRecord(NamedTuple):
    """A move in one direction and what was seen of it: how far, to the top and to the right, by `how` it is shown."""

    played: PlayedTrajectory
    word: str
    up: int
    right: int
    how: str
    shown: str  # in words


def check_bearings(given: CheckInput) -> Iterator[RuleResult]:
    """What is said, and what happens."""
    if (why := given.why_not_played(baselines=True)) is not None:
        yield NotChecked(why)
        return
    played = given.acted()
    yield from _directions(given, played)
    yield from _past_the_edge(given, played)
    yield from check_hinted(given)
    yield from check_seen_through(given)
    yield from check_read_replies(given)
    yield from check_walls(given)
    yield from check_named_cells(given)


# ------------------------------------------------------------------------------------------------ directions


def _directions(given: CheckInput, played: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Moves of one axis all go against their word."""
    prompt = given.first_prompt
    axes = _axes_of(prompt)
    seen: list[MoveRecord] = []
    for one in played:
        for k, word in _single_moves(one):
            before = text_of(one.shown[k])
            after = text_of(one.shown[k + 1])
            seen += _by_coordinates(one, word, before, after, axes) if axes else ()
            if not TURNED_MAP.search(prompt):
                seen += _by_the_map(one, word, before, after)
    yield Checked(len(seen), "directions")
    for axis in ("vertical", "horizontal"):
        for how in ("coordinates", "map"):
            moves = [move for move in seen if COMPASS[move.word][0] == axis and move.how == how]
            against = [move for move in moves if _along(move) <= 0]
            if len(against) >= LEAST and len(against) >= MOSTLY * len(moves):
                yield _against_the_words(against, how, prompt)
                return


def _along(move: MoveRecord) -> int:
    """How far it went the way that its word says: below zero where it went back, 0 where it went aside."""
    axis, sign = COMPASS[move.word]
    return sign * (move.up if axis == "vertical" else move.right)


def _against_the_words(against: Sequence[MoveRecord], how: str, prompt: str) -> Finding:
    move = against[0]
    back = sum(_along(one) < 0 for one in against)
    where = "the other way" if 2 * back >= len(against) else "along the other axis"
    stated = ORIGIN.search(prompt) or GROWS.search(prompt)
    by = (
        f"the prompt says {shortened(stated[0], 60)}"
        if how == "coordinates" and stated
        else f"by the {how} that is shown"
    )
    words = ", ".join(sorted({one.word for one in against}))
    return Finding(
        f"{words!r} move {where} in {len(against)} moves that could be seen: {move.word!r} at {move.played.task.id!r} goes {move.shown}, and "
        f"{by}; expected what the word says. The baselines move by the same table and notice nothing, a policy reads the prompt. Turn the "
        "table's signs or axes round, or say in the prompt which way a word goes",
        severity=ERROR,
    )


def _single_moves(one: PlayedTrajectory) -> Iterator[tuple[int, str]]:
    """(turn, direction) of turns that make one move."""
    for k, text in enumerate(one.texts[: len(one.shown) - 1]):
        match = DIRECTION.fullmatch(inside(text).strip().strip(".!"))
        if match is not None:
            yield k, match[1].lower()


class PromptFrame(NamedTuple):
    """How a prompt's pairs are to be read. `vertical`: which of the two numbers; the signs: of a step to the top, to the right."""

    vertical: int
    up: int
    right: int


def _axes_of(prompt: str) -> PromptFrame | None:
    rows = ROW_FIRST.search(prompt)
    columns = COLUMN_FIRST.search(prompt)
    if bool(rows) == bool(columns):
        return None
    up = right = 0
    corner = ORIGIN.search(prompt)
    if corner is not None:
        high = (corner[1] or corner[3]).lower()
        side = (corner[2] or corner[4]).lower()
        up = -1 if high in ("top", "upper", "north") else 1
        right = 1 if side in ("left", "west") else -1
    for match in GROWS.finditer(prompt):
        to = next(word for word in COMPASS if len(word) > 1 and match[2].lower().startswith(word))
        axis, sign = COMPASS[to]
        if axis == "vertical":
            up = sign
        else:
            right = sign
    if not (up or right):
        return None
    return PromptFrame(0 if rows else 1, up, right)


def _place(text: str) -> tuple[int, int] | None:
    """The one place that a text names, or that it says something stands at; None where it names several."""
    placed = {match.groups() for match in PLACED.finditer(text)} or set(re.findall(PAIR, text))
    if len(placed) != 1:
        return None
    row, column = placed.pop()
    return int(row), int(column)


def _by_coordinates(
    one: PlayedTrajectory, word: str, before: str, after: str, axes: PromptFrame
) -> Iterator[MoveRecord]:
    here = _place(before)
    there = _place(after)
    if here is None or there is None:
        return
    apart = [there[0] - here[0], there[1] - here[1]]
    if sum(abs(step) for step in apart) != 1:
        return
    up = axes.up * apart[axes.vertical]
    right = axes.right * apart[1 - axes.vertical]
    # Of an axis whose direction is not stated, only that it moved is known.
    unknown = axes.up == 0 and apart[axes.vertical] or axes.right == 0 and apart[1 - axes.vertical]
    if not unknown:
        yield MoveRecord(one, word, up, right, "coordinates", f"from {here} to {there}")


# ------------------------------------------------------------------------------------------------ maps


def maps_in(text: str) -> list[str] | None:
    """The longest block of lines of the same length, without the spaces between cells."""
    best: list[str] = []
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        cells = line.strip()
        if re.fullmatch(r"\S(?: \S)+", cells):
            cells = cells.replace(" ", "")
        is_row = len(cells) >= 3 and " " not in cells and (not block or len(cells) == len(block[0]))
        if is_row:
            block.append(cells)
            continue
        best = max(best, block, key=len)
        block = []
    return best if len(best) >= 3 else None


def _by_the_map(one: PlayedTrajectory, word: str, before: str, after: str) -> Iterator[MoveRecord]:
    """One sign that stands there once goes one cell, and no other one moves."""
    here = maps_in(before)
    there = maps_in(after)
    if here is None or there is None or (len(here), len(here[0])) != (len(there), len(there[0])):
        return
    if _is_around_somebody(here, there):
        return
    moved = []
    for sign, times in Counter("".join(here)).items():
        if times == 1 and "".join(there).count(sign) == 1 and sign.isascii():
            old = _cell(here, sign)
            new = _cell(there, sign)
            if old != new:
                moved.append((sign, old, new))
    if len(moved) != 1:
        return
    sign, old, new = moved[0]
    down = new[0] - old[0]
    right = new[1] - old[1]
    if abs(down) + abs(right) == 1:
        yield MoveRecord(
            one,
            word,
            -down,
            right,
            "map",
            f"{sign!r} from line {old[0]}, place {old[1]} to line {new[0]}, place {new[1]}",
        )


def _is_around_somebody(here: Sequence[str], there: Sequence[str]) -> bool:
    """Whether one sign alone stays in the middle: the map is of what lies around it, and all else goes the other way."""
    if len(here) % 2 == 0 or len(here[0]) % 2 == 0:
        return False
    middle = here[len(here) // 2][len(here[0]) // 2]
    alone = "".join(here).count(middle) == 1 == "".join(there).count(middle)
    return alone and there[len(there) // 2][len(there[0]) // 2] == middle


def _cell(rows: Sequence[str], sign: str) -> tuple[int, int]:
    return next((k, row.index(sign)) for k, row in enumerate(rows) if sign in row)


# ------------------------------------------------------------------------------------------------ edges


def _past_the_edge(given: CheckInput, played: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """The prompt says that edges hold, and a move of one step goes round or out."""
    prompt = given.first_prompt
    holds = EDGES_HOLD.search(prompt)
    size = SIZE.search(prompt)
    if holds is None or size is None:
        return
    most = max(int(size[1]), int(size[2]))
    corner = ORIGIN.search(prompt) is not None  # else places may lie below zero
    past: list[tuple[PlayedTrajectory, str, str]] = []
    asked = 0
    for one in played:
        for k, word in _single_moves(one):
            here = _place(text_of(one.shown[k]))
            there = _place(text_of(one.shown[k + 1]))
            if here is None or there is None:
                continue
            asked += 1
            steps = sorted(abs(there[axis] - here[axis]) for axis in (0, 1))
            round_it = steps[0] == 0 and steps[1] == most - 1 > 1
            outside = corner and (max(there) > most or min(there) < 0 <= min(here))
            past += [(one, word, f"from {here} to {there}")] if round_it or outside else []
    yield Checked(asked, "moves at an edge")
    if len(past) >= FEWEST:
        one, word, where = past[0]
        yield Finding(
            f"the prompt says {shortened(holds[0], 70)}, and {word!r} goes {where} at {one.task.id!r}, on {size[0]} fields, so in {len(past)} of {asked} "
            "moves: it comes out on the other side, or leaves the field. Bound the place where it moves (min, max), or say what happens",
            severity=ERROR,
        )
