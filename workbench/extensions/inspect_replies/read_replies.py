"""How an action is read (E32): a command out of the thoughts before it, and several at once where one is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, replay, text_of
from workbench.values.errors import shortened

STATES = 8
FEWEST = 4
THOUGHT = "<think>{}</think>\n"
NEUTRAL = "let me see what is best here"
ONE_EACH = re.compile(
    r"\b(?:one|1|a single) (?:\w+ ){0,2}?(?:a|per|each|every|at a) (?:turn|time|step|round|answer"
    r"|reply|message)\b|\bonly one\b|\bexactly one\b|\bone (?:command|action|move|letter|guess"
    r"|word|number|step|coin)\b",
    re.IGNORECASE,
)
THINKS = re.compile(
    r"<think|\b(?:may|can|should|must|first|to) (?:first )?(?:think|reason)\b|\bthink (?:first"
    r"|before|step)|\breasoning\b|\bthoughts?\b",
    re.IGNORECASE,
)


def _result(played: PlayedTrajectory, k: int) -> tuple[Any, ...]:
    if played.error or len(played.results) <= k:
        return ("an error",)
    result = played.results[k]
    return text_of(result.observation), result.reward, result.terminated


def _pairs(given: CheckInput) -> Iterator[tuple[PlayedTrajectory, int, str]]:
    """States of the family's own play, and another action that was said elsewhere and does something else there."""
    common = given.common_actions(6)
    count = 0
    for trajectories in given.own.values():
        for played in trajectories:
            if played.error or not played.results:
                continue
            k = (count * 2) % max(len(played.texts) - 1, 1)
            own = _result(played, k)
            for other in common:
                if other == played.texts[k]:
                    continue
                there = replay(
                    given.family, played.script._replace(texts=(*played.texts[:k], other))
                )
                if _result(there, k) != own:
                    count += 1
                    yield played, k, other
                    break
            if count >= STATES:
                return


def check_read_replies(given: CheckInput) -> Iterator[RuleResult]:
    """Thoughts are no commands, and one command is one."""
    if given.why_not_played(baselines=True) is not None or given.family.max_turns < 2:
        return
    thought = several = asked = asked_several = 0
    example: tuple[PlayedTrajectory, int, str] | None = None
    one_each = ONE_EACH.search(given.first_prompt)
    thinks = THINKS.search(given.first_prompt)
    for played, k, other in _pairs(given):
        before = played.texts[:k]
        own = _result(played, k)

        def said(text: str, before: Any = before, played: Any = played, k: int = k) -> Any:
            return _result(replay(given.family, played.script._replace(texts=(*before, text))), k)

        if thinks and said(THOUGHT.format(NEUTRAL) + played.texts[k]) == own:
            asked += 1
            there = said(other)
            thinking = said(THOUGHT.format(f"I could say {other} here") + played.texts[k])
            if thinking == there != own:
                thought += 1
                example = example or (played, k, other)
        if one_each and _both(given, played, k, other):
            several += 1
        asked_several += bool(one_each)
    yield Checked(asked, "thoughts before an action")
    yield Checked(asked_several, "two actions in one text")
    if asked >= FEWEST and thought == asked and example is not None:
        played, k, other = example
        yield Finding(
            f"an action is read out of the thoughts before "
            f"it: {shortened(THOUGHT.format('I could say ' + other + ' here').strip() + ' ' + played.texts[k], 110)} "
            f"at {played.task.id!r} is carried out as {shortened(other, 30)}, so at {thought} "
            f"of {asked} states, and a thought without it changes nothing. Take "
            "the thoughts out of the text before it is read, or read its last line",
            severity=ERROR,
        )
    elif asked_several >= FEWEST and 2 * several >= asked_several and several >= FEWEST:
        yield Finding(
            f"the prompt says {one_each[0]!r}, and two actions in one text are both carried out, "
            f"in one turn, at {several} of {asked_several} states: a policy "
            "that writes them all at once saves turns and what they cost. Carry out none or the "
            "last of several, and say so",
            severity=ERROR,
        )


def _both(given: CheckInput, played: PlayedTrajectory, k: int, other: str) -> bool:
    """Whether two actions in one text come to what they come to in two turns, and to what neither does by itself."""
    mine = played.texts[k]
    before = played.texts[:k]

    def end_of(*texts: str) -> Any:
        again = replay(given.family, played.script._replace(texts=(*before, *texts)))
        return _result(again, k + len(texts) - 1)

    two = _said_in(end_of(mine, other))
    singles = set().union(*(_said_in(end_of(text)) for text in (mine, other, NONSENSE)))
    return any(
        _said_in(end_of(f"{mine}{between}{other}")) & (two - singles) for between in ("\n", " ")
    )


def _said_in(result: tuple[Any, ...]) -> set[str]:
    """Sentences and lines of a reply: a counter of turns stands in one of its own."""
    if result == ("an error",):
        return set()
    return {part.strip() for part in re.split(r"(?<=[.!?])\s+|\n", result[0]) if part.strip()}
