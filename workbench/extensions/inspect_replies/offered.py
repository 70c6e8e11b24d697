"""What replies offer (E31): moves that are listed as allowed and are refused, and numbers of tries left that are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import EXAMPLE, NONSENSE, CheckInput, inside
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    ShownResult,
    Spent,
    text_of,
)
from workbench.values.errors import shortened

LEAST = 4
COMMON = 200  # texts of its own play
STATES = 8  # at which listed moves are tried
MOVES = 6  # of each
LISTED = re.compile(
    r"\b(?:legal|valid|possible|available|allowed|open)\s+(?:moves?|actions?|choices?|commands?|columns?|cells?|squares?|fields?|"
    r"directions?|exits?|doors?)\b[^:\n]{0,20}:\s*([^\n.;]+)",
    re.IGNORECASE,
)
LEFT = re.compile(
    r"\b(\d+) (?:more )?(?:tries|try|turns?|guesses|guess|attempts?|answers?|rounds?)\s+(?:left|remain(?:ing|s)?|to go)\b|"
    r"\b(?:tries|turns|guesses|attempts|answers|rounds)\s+(?:left|remaining)\s*[:=]?\s*(\d+)",
    re.IGNORECASE,
)


# A number of anything that is left.
COUNTDOWN = re.compile(
    r"\b(\d+) (?:more )?([a-z]+)\s+(?:left|remain(?:ing|s)?|to go)\b|"
    r"\b([a-z]+) (?:left|remaining)\s*[:=]?\s*(\d+)",
    re.IGNORECASE,
)


def check_offered(given: CheckInput) -> Iterator[RuleResult]:
    yield from _listed_moves(given)
    yield from _tries_left(given)
    yield from _goes_up(given)


# ------------------------------------------------------------------------------------------------ moves


def _listed(text: str) -> list[str]:
    lists = LISTED.findall(text)
    items = re.split(r",\s*|\s+or\s+|\s*\|\s*", lists[-1]) if lists else []
    return [item.strip(" []'\"()") for item in items if item.strip(" []'\"()")]


def _in_the_form_of(example: str, move: str) -> str:
    """The move, written as the family's own play writes one."""
    tagged = EXAMPLE.search(example)
    if tagged is None:
        return move
    return example.replace(inside(tagged[0]), move, 1)


def _listed_moves(given: CheckInput) -> Iterator[RuleResult]:
    """Each move that is listed is answered otherwise than nonsense."""
    refused: list[tuple[PlayedTrajectory, str, str]] = []
    asked = 0
    spent = Spent()
    played = given.acted()
    # A list has the form of what is played: one of its moves is said somewhere.
    spoken = {inside(text) for text in given.common_actions(COMMON)}
    for number, one in enumerate(played[:STATES]):
        k = number % max(len(one.texts), 1)
        shown = one.shown[k] if k < len(one.shown) else None
        moves = _listed(text_of(shown))
        if spent.seconds > given.budget_s or len(moves) < 2 or not spoken & set(moves):
            continue
        start = one.script._replace(texts=one.texts[:k])
        nonsense = given.answer_to(start, NONSENSE)
        for move in moves[:MOVES]:
            asked += 1
            text = _in_the_form_of(one.texts[k], move)
            answer = given.answer_to(start, text)
            if _is_unread(answer, text, nonsense):
                refused.append((one, move, f"{answer.text} {answer.reward}"))
    yield Checked(asked, "moves that are listed")
    if asked >= LEAST and len(refused) >= 2 and len({one.task.id for one, _, _ in refused}) >= 2:
        yield _refused(refused, asked)


def _refused(refused: Sequence[tuple[PlayedTrajectory, str, str]], asked: int) -> Finding:
    one, move, answer = refused[0]
    return Finding(
        f"a move that is listed as allowed is answered as {NONSENSE!r} is, at {len(refused)} of {asked} moves that were tried: "
        f"{shortened(move, 30)} at {one.task.id!r}, with {shortened(answer, 80)}. Make the list of the same test that takes a move",
        severity=ERROR if 2 * len(refused) >= asked else NOTE,
    )


def _is_unread(answer: ShownResult | None, text: str, nonsense: ShownResult | None) -> bool:
    """Whether a text is answered as nonsense is, its own words aside."""
    if answer is None or nonsense is None or answer.is_over or nonsense.is_over:
        return False
    same_words = answer.text.replace(text, "") == nonsense.text.replace(NONSENSE, "")
    return same_words and answer.reward == nonsense.reward


# ------------------------------------------------------------------------------------------------ tries


def _tries_left(given: CheckInput) -> Iterator[RuleResult]:
    """Who is told that n are left can go on n times."""
    off: Counter[int] = Counter()
    example: PlayedTrajectory | None = None
    for name, trajectories in given.plays.items():
        for one in trajectories if name != "solver" else ():
            at_limit = len(one.results) == given.family.max_turns or one.cut
            if one.error or one.success or len(one.results) < 2 or not at_limit:
                continue
            for k, observation in enumerate(one.shown[:-1]):
                left = LEFT.search(text_of(observation))
                if left is not None:
                    apart = len(one.results) - k - int(left[1] or left[2])
                    off[apart] += 1
                    example = one if apart else example
    count = sum(off.values())
    yield Checked(count, "tries that are left")
    if count < 2 * LEAST or example is None:
        return
    apart, times = off.most_common(1)[0]
    if apart and times >= 0.9 * count:
        more = "more" if apart > 0 else "fewer"
        yield Finding(
            f"{abs(apart)} {more} can be taken than replies say are left, at {times} of {count} places that say so, at "
            f"{example.task.id!r} ({example.policy}) for one: count them at one place, before or after the turn is taken, and show that",
            severity=ERROR if apart < 0 else NOTE,
        )


def _goes_up(given: CheckInput) -> Iterator[RuleResult]:
    """What is left of something becomes less now and then, where it becomes more."""
    steps: dict[str, list[tuple[PlayedTrajectory, int, int]]] = {}
    for one in given.played:
        before: dict[str, int] = {}
        for observation in one.shown:
            here = _countdowns(text_of(observation))
            for noun in here.keys() & before.keys():
                steps.setdefault(noun, []).append((one, before[noun], here[noun]))
            before = here
    yield Checked(sum(map(len, steps.values())), "numbers of what is left")
    for noun, pairs in steps.items():
        more = [pair for pair in pairs if pair[2] > pair[1]]
        fewer = sum(new < old for _, old, new in pairs)
        if len(more) >= 2 * LEAST and not fewer:
            one, old, new = more[0]
            yield Finding(
                f"replies say how many {noun} are left, and the number goes up: from {old} to "
                f"{new} at {one.task.id!r} ({one.policy}), so in {len(more)} of {len(pairs)} "
                "turns; expected what there is minus what was used, not plus",
                severity=ERROR,
            )
            return


def _countdowns(text: str) -> dict[str, int]:
    """What is said to be left, by the word for it."""
    return {
        (match[2] or match[3]).lower(): int(match[1] or match[4])
        for match in COUNTDOWN.finditer(text)
    }
