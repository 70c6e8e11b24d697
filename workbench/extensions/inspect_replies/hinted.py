"""Hints in replies against what turned out to be right (E32): too low or too high, warmer or colder, so many in the right place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import NamedTuple

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.playing import PlayedTrajectory, text_of
from workbench.extensions.scripted_play.written_numbers import number_of
from workbench.values.errors import shortened

LEAST = 4
SOMETIMES = 0.1  # of the hints
MOSTLY = 0.6
LIES = re.compile(
    r"\b(?:lies?|lying|liar|nois[ey]\w*|unreliable|may be wrong|sometimes wrong|not always)\b",
    re.IGNORECASE,
)
LOW = re.compile(r"\btoo (?:low|small|little|few|short|cheap|early)\b", re.IGNORECASE)
HIGH = re.compile(r"\btoo (?:high|large|big|much|many|great|long|expensive|late)\b", re.IGNORECASE)
# Where to go from here, and not what the guess is.
GO_UP = re.compile(
    r"(?:^|[.!?:]\s*)(?:go |try |guess |search )?(?:higher|up|upwards?|more)\s*(?:[.!?]|$)|"
    r"\b(?:my|the secret|the hidden|the) number is (?:higher|larger|bigger|greater)\b",
    re.IGNORECASE,
)
GO_DOWN = re.compile(
    r"(?:^|[.!?:]\s*)(?:go |try |guess |search )?(?:lower|down|downwards?|less)\s*(?:[.!?]|$)|"
    r"\b(?:my|the secret|the hidden|the) number is (?:lower|smaller|less)\b",
    re.IGNORECASE,
)
NEARER = re.compile(r"\b(?:warmer|hotter|closer|nearer)\b", re.IGNORECASE)
FARTHER = re.compile(r"\b(?:colder|cooler|farther|further away)\b", re.IGNORECASE)
IN_PLACE = re.compile(
    r"\b(\d+)\b(?:(?!\bnot\b|\bbut\b|\bwrong\b)[^.;,\n\d]){0,30}\b(?:in (?:the |its |their )?(?:right|correct|exact) (?:places?|positions?|spots?)|"
    r"(?:correctly|exactly) placed|bulls?\b)",
    re.IGNORECASE,
)
OUT_OF_PLACE = re.compile(
    r"\b(\d+)\b[^.;,\n\d]{0,30}\b(?:(?:in|but in|but) (?:the |a |another )?"
    r"(?:wrong|other|another|different) (?:places?|positions?|spots?)|"
    r"misplaced|elsewhere|out of place|cows?\b)",
    re.IGNORECASE,
)
MARKS = 3  # different ones of a word that was guessed: right, elsewhere, nowhere


class ReplyClaim(NamedTuple):
    """A guess, what is right, what the reply says of the guess, and whether that is so."""

    played: PlayedTrajectory
    guess: str
    right: str
    says: str
    true: bool


def check_hinted(given: CheckInput) -> Iterator[RuleResult]:
    """Compare hints with the solver's last, paid words at the same task."""
    if LIES.search(given.first_prompt):
        return
    secrets = {
        one.task.id: inside(one.texts[-1]).strip() for one in given.solved_once() if one.success
    }
    played = [
        one
        for one in chain.from_iterable(given.plays.values())
        if one.task.id in secrets and len(one.texts) > 1 and not one.error
    ]
    for name, hints in _by_kind(played, secrets).items():
        yield Checked(len(hints), f"hints of {name}")
        wrong = [hint for hint in hints if not hint.true]
        # What is nearer may be measured from the best guess so far.
        often = MOSTLY if name == "near and far" else SOMETIMES
        if len(wrong) >= LEAST and len(wrong) >= often * len(hints):
            hint = wrong[0]
            yield Finding(
                f"what a reply says of a guess is not so: at {hint.played.task.id!r} {hint.right} is right, and {hint.guess} is answered with "
                f"{shortened(hint.says, 60)}, so at {len(wrong)} of {len(hints)} hints of that kind; expected a hint that is true. The solver may go "
                "by the state and not by the words; a policy has the words alone. Look at which of the two is taken from, or compared with, the other",
                severity=ERROR,
            )
            return


def _by_kind(
    played: Sequence[PlayedTrajectory], secrets: dict[str, str]
) -> dict[str, list[ReplyClaim]]:
    hints: dict[str, list[ReplyClaim]] = {
        name: [] for name in ("low and high", "near and far", "places", "other places")
    }
    for one in played:
        right = secrets[one.task.id]
        before: Decimal | None = None
        for text, result in zip(one.texts[:-1], one.results):
            guess = inside(text).strip()
            says = text_of(result.observation)
            number = number_of(guess)
            secret = number_of(right)
            if number is not None and secret is not None and number.value != secret.value:
                apart = number.value - secret.value
                hints["low and high"] += _of_size(one, guess, right, says, apart)
                if before is not None and abs(apart) != before:
                    hints["near and far"] += _of_distance(
                        one, guess, right, says, abs(apart) < before
                    )
                before = abs(apart)
            hints["places"] += _of_places(one, guess, right, says)
            hints["other places"] += _of_other_places(one, guess, right, says)
    hints["marks"] = _of_marks(played, secrets)
    return hints


def _of_size(
    one: PlayedTrajectory, guess: str, right: str, says: str, apart: Decimal
) -> Iterator[ReplyClaim]:
    low = LOW.search(says) or GO_UP.search(says)
    high = HIGH.search(says) or GO_DOWN.search(says)
    if bool(low) != bool(high):
        yield ReplyClaim(one, guess, right, (low or high)[0], (apart < 0) == bool(low))


def _of_distance(
    one: PlayedTrajectory, guess: str, right: str, says: str, nearer: bool
) -> Iterator[ReplyClaim]:
    near = NEARER.search(says)
    far = FARTHER.search(says)
    if bool(near) != bool(far):
        yield ReplyClaim(one, guess, right, (near or far)[0], nearer == bool(near))


def _of_places(one: PlayedTrajectory, guess: str, right: str, says: str) -> Iterator[ReplyClaim]:
    match = IN_PLACE.search(says)
    ours, theirs = map(_parts, (guess, right))
    if match is not None and len(ours) == len(theirs) > 1:
        places = sum(a == b for a, b in zip(ours, theirs))
        yield ReplyClaim(one, guess, right, match[0], int(match[1]) == places)


def _of_other_places(
    one: PlayedTrajectory, guess: str, right: str, says: str
) -> Iterator[ReplyClaim]:
    """How many are right and stand elsewhere: of one that is there once, one counts."""
    match = OUT_OF_PLACE.search(says)
    ours, theirs = map(_parts, (guess, right))
    if match is not None and len(ours) == len(theirs) > 1:
        shared = (Counter(ours) & Counter(theirs)).total()
        places = sum(a == b for a, b in zip(ours, theirs))
        yield ReplyClaim(one, guess, right, match[0], int(match[1]) == shared - places)


def _parts(words: str) -> list[str]:
    return re.findall(r"\w+", words) if re.search(r"\s|,", words) else list(words)


# ------------------------------------------------------------------------------------------------ marks of letters


def _of_marks(played: Sequence[PlayedTrajectory], secrets: dict[str, str]) -> list[ReplyClaim]:
    """Words that are guessed and answered by a mark for each letter: as many of a letter are marked
    as stand in the word that is right. Which mark says what is learnt from letters that stand once
    in both words, or in one of them."""
    marked = [
        (one, guess, secrets[one.task.id].lower(), marks)
        for one in played
        for guess, marks in _marked_guesses(one, secrets[one.task.id])
    ]
    meant = _what_marks_mean(marked)
    if len(set(meant.values())) != MARKS:
        return []
    claims = []
    for one, guess, right, marks in marked:
        ours = Counter(letter for letter, mark in zip(guess, marks) if meant.get(mark) != "nowhere")
        repeated = [letter for letter, times in Counter(guess).items() if times > 1]
        for letter in repeated:
            expected = min(guess.count(letter), right.count(letter))
            claims.append(ReplyClaim(one, guess, right, marks, ours[letter] == expected))
    return claims


def _marked_guesses(one: PlayedTrajectory, right: str) -> Iterator[tuple[str, str]]:
    """(guess, a mark for each of its letters); a reply may hold the marks of earlier guesses, and
    the last ones are taken."""
    for text, result in zip(one.texts, one.results):
        words = re.findall(r"[a-z]+", inside(text).lower())
        if not words or len(words[-1]) != len(right) or not right.isalpha():
            continue
        lines = re.findall(r"\S+", text_of(result.observation))
        marks = [line for line in lines if len(line) == len(right) and line.lower() != words[-1]]
        if marks and len(set(marks[-1])) <= MARKS:
            yield words[-1], marks[-1]


def _what_marks_mean(
    marked: Sequence[tuple[PlayedTrajectory, str, str, str]],
) -> dict[str, str]:
    """Mark -> right, elsewhere or nowhere; empty where one mark says two of them."""
    seen: dict[str, Counter[str]] = {}
    for _, guess, right, marks in marked:
        for place, (letter, mark) in enumerate(zip(guess, marks)):
            if guess.count(letter) > 1:
                continue
            meaning = "elsewhere" if letter in right else "nowhere"
            if right[place] == letter:
                meaning = "right"
            seen.setdefault(mark, Counter())[meaning] += 1
    if any(len(meanings) > 1 for meanings in seen.values()):
        return {}
    return {mark: next(iter(meanings)) for mark, meanings in seen.items()}
