"""Moves through what a map's legend says is a wall (E32), and replies of which a part shows the state before the action (E23)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    is_over,
    replay,
    text_of,
)
from workbench.values import Task

WALL = re.compile(
    r"(?<!\w)['\"`]?([^\w\s.,;:'\"`()-]|[A-Z])['\"`]?\s*(?:is|are|=|:|marks?|means?)\s*(?:an? "
    r"|the )?(?:solid )?(?:walls?|rocks?|obstacles?|blocked)\b",
    re.IGNORECASE,
)
YOU = re.compile(
    r"(?<!\w)['\"`]?([^\w\s.,;:'\"`()-]|[A-Z])['\"`]?\s*(?:is|are|=|:|marks?|means?)\s*(?:you\b"
    r"|the player|your|the agent|the robot)",
    re.IGNORECASE,
)
FEWEST = 3
LATE_TASKS = 4
AT_ODDS = re.compile(
    r"\b(?:delay|late|ago|previous|before|last turn|behind|overnight|tomorrow)\w*", re.IGNORECASE
)


def check_walls(given: CheckInput) -> Iterator[RuleResult]:
    """Who stands on the map, never comes to stand where a wall was."""
    wall, you = WALL.search(given.first_prompt), YOU.search(given.first_prompt)
    if wall is None or you is None or wall[1] == you[1] or given.why_not_played(baselines=True):
        return
    moved = 0
    through: list[tuple[PlayedTrajectory, int]] = []
    for trajectories in given.own.values():
        for played in trajectories:
            maps = [map_of(text_of(seen), wall[1], you[1]) for seen in played.shown]
            for k, (one, other) in enumerate(zip(maps, maps[1:])):
                if not one or not other or len(one) != len(other):
                    continue
                before, after = _place(one, you[1]), _place(other, you[1])
                if before is None or after is None or before == after:
                    continue
                moved += 1
                row, column = after
                if column < len(one[row]) and one[row][column] == wall[1]:
                    through.append((played, k))
    yield Checked(moved, "moves on a map")
    if len(through) >= FEWEST:
        played, k = through[0]
        yield Finding(
            f"{wall[1]!r} is a wall, says the prompt, and is walked through: {played.texts[k]!r} "
            f"at turn {k} of {played.task.id!r} comes to stand where one was, so "
            f"in {len(through)} of {moved} moves. Ask the map of the place that the move leads "
            f"to, before it is made",
            severity=ERROR,
        )


def map_of(text: str, wall: str, you: str) -> list[str]:
    """The lines of the map: the longest block of lines of one length without blanks between words."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        fits = len(line) >= 3 and (not blocks[-1] or len(line) == len(blocks[-1][0]))
        if fits and not re.search(r"[a-z]{3}", line):
            blocks[-1].append(line)
        else:
            blocks.append([line] if len(line) >= 3 and not re.search(r"[a-z]{3}", line) else [])
    best = max(blocks, key=len)
    one_you = sum(line.count(you) for line in best) == 1
    return best if len(best) >= 3 and one_you else []


def _place(lines: Sequence[str], what: str) -> tuple[int, int] | None:
    return next(((r, line.index(what)) for r, line in enumerate(lines) if what in line), None)


# ------------------------------------------------------------------------------------------------ a part that is late


def check_late_part(given: CheckInput) -> Iterator[RuleResult]:
    """The last lines of a reply are the same whatever is done, and go by it after the next action."""
    actions = given.common_actions(4)
    if given.family.max_turns < 3 or len(actions) < 2 or given.why_not_played(baselines=True):
        return
    if AT_ODDS.search(given.first_prompt):
        return
    for name, part in PARTS.items():
        late: list[Task] = []
        spent = Spent()
        for task in given.tasks:
            if spent.seconds > given.budget_s / 4:
                break
            verdict = _lags(given, task, actions, part)
            if verdict is False:
                late = []
                break
            late += [task] if verdict else []
        yield Checked(len(late), "parts of replies that may be late")
        if len(late) >= LATE_TASKS:
            yield Finding(
                f"a part of each reply is one action late, at {len(late)} tasks, {late[0].id!r} "
                f"for one: its {name} is the same whatever is done in a turn, and "
                "after the next action it goes by the one before. What is said of the action is "
                "new, and what is shown of the state is old. Build the "
                "observation after the state has changed",
                severity=ERROR,
            )
            return


PARTS = {
    "last lines": lambda text: "\n".join(text.splitlines()[-4:]) if text.count("\n") >= 4 else "",
    "last sentence": lambda text: (
        re.split(r"(?<=[.!?])\s+", text.strip())[-1] if text.count(". ") else ""
    ),
}


def _lags(given: CheckInput, task: Task, actions: Sequence[str], part) -> bool | None:
    """As of whole replies: True where the part goes by the action before, twice, False where it goes by its own."""

    def shown(*texts: str) -> str:
        played = replay(given.family, Script(task, 0, texts))
        if played.error or not played.results or any(map(is_over, played.results)):
            return ""
        return part(text_of(played.results[-1].observation))

    start: tuple[str, ...] = ()
    for _ in range(2):
        now = {shown(*start, text) for text in actions} - {""}
        if len(now) > 1:
            return False
        if not now or AT_ODDS.search(next(iter(now))):
            return None
        after = {text: {shown(*start, text, other) for other in actions} - {""} for text in actions}
        if any(len(parts) > 1 for parts in after.values()):
            return False
        different = {next(iter(parts)) for parts in after.values() if parts}
        goes_on = [text for text in actions if after[text]]
        if len(different) < 2 or not goes_on:
            return None
        start = (*start, goes_on[0])
    return True
