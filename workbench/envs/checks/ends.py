"""How attempts end: by the environment's own word, once, at the limits that it states; and never by what a policy wrote
(E13 to E15)."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

from workbench.envs.checks.given import CheckInput
from workbench.envs.checks.playing import PlayedAttempt, play, text_of
from workbench.envs.shared import opened
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, RuleResult, shortened

NUMBERS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
ANSWERS = (
    "answers?|turns?|guess(?:es)?|attempts?|tries|try|chances?|rounds?|responses?|replies|messages?"
)
MOVES = "moves?|steps?|actions?"
_NUMBER = rf"(\d+|{'|'.join(NUMBERS)})"
# What promises a number of them in all, and not in one answer.
_STATED = re.compile(
    rf"(?:(?:you (?:have|get|are given|may (?:use|take|make)|can (?:use|take|make))|at most|up to|no more than|a maximum of|"
    rf"maximum|limits?(?: of|:)?|within|only|in all|,) (?:only |at most |up to |exactly )?(?:[^.,;:\n]{{0,40}}?, )?"
    rf"{_NUMBER} (?:(?!per\b|an?\b|each\b|in\b)\w+ )?({ANSWERS}|{MOVES})\b)(?! (?:per|an|a|each|in one|in each|at a time|at once|for each)\b)"
    rf"|{_NUMBER} ({ANSWERS}|{MOVES}) (?:left|remaining|in all|in total|at most|altogether)",
    re.IGNORECASE,
)
CANARY = "zq7<|im_end|>zq7"
BAD = {
    "an empty text": "",
    "words": "zzz",
    "tags that do not close": "<answer><answer><think>",
    "an empty answer": "<answer></answer>",
    "a control token": CANARY,
    "broken JSON": '<tool_call>{"name": [}</tool_call>',
    "a null character": "\x00\x1b[31m",
    "other scripts": "<answer>\u202eдва ½ 一 🙂</answer>",
    "a huge number": f"<answer>{'9' * 5000}</answer>",
    "a long text": "<answer>" * 20_000,
}
SLOW_S = 2.0


def check_ends(given: CheckInput) -> Iterator[RuleResult]:
    attempts = [each for each in given.attempts if each.results and not each.error]
    yield Checked(len(attempts))
    goes_on = [
        each
        for each in attempts
        if any(r.info.get("success") is True for r in each.results) and not each.ended
    ]
    if len(goes_on) >= 2 and len(goes_on) * 2 > sum(bool(each.success) for each in attempts):
        yield Finding(
            f"{len(goes_on)} attempts have succeeded and are not over: terminated is never said, at "
            f"{goes_on[0].task.id!r} ({goes_on[0].policy}) for one"
        )
    elif attempts and not any(each.ended for each in attempts) and not goes_on:
        if "solver" not in given.own and not any((each.reward or 0.0) > 0 for each in attempts):
            yield NotChecked(
                f"an attempt that ends: none of {len(attempts)} does, and no solver is known that could"
            )
            return
        yield Finding(
            f"none of {len(attempts)} attempts, by {len(given.plays)} ways to play, ends by the environment's word: "
            f"neither terminated nor truncated is ever said, and all go on to max_turns = {given.family.max_turns}",
            severity="error" if "solver" in given.own else NOTE,
        )
    yield from _after_the_end(given, attempts)


def _after_the_end(given: CheckInput, attempts: list[PlayedAttempt]) -> Iterator[RuleResult]:
    """Nobody here steps an attempt that is over; other programs do, and one that pays once more is paid twice."""
    ended = [each for each in attempts if each.results[-1].terminated]
    for each in sorted(ended, key=lambda e: -(e.reward or 0.0))[:3]:
        try:
            with opened(given.family) as env:
                env.reset(each.task, each.seed)
                for text in each.texts:
                    env.step(text)
                beyond = env.step(each.texts[-1])
        except Exception:  # that is the right answer
            yield Checked(1)
            continue
        yield Checked(1)
        if (beyond.reward or 0.0) > 0:
            yield Finding(
                f"a step after the end of {each.task.id!r} pays {beyond.reward:g} again: raise EnvError there",
                severity=NOTE,
            )
            return
        if not (beyond.terminated or beyond.truncated):
            yield Finding(
                f"a step after the end of {each.task.id!r} is answered as if the attempt went on: raise EnvError there",
                severity=NOTE,
            )
            return


# ------------------------------------------------------------------------------------------------ limits


def check_limits(given: CheckInput) -> Iterator[RuleResult]:
    """Where the environment cuts attempts off, its prompt says so; and what the prompt says is what happens."""
    idle = [
        each
        for name, attempts in given.plays.items()
        if name != "solver"
        for each in attempts
        if each.results and not each.error and not each.success
    ]
    yield Checked(len(idle))
    if not idle:
        return
    prompts = [
        text_of(given.openings[each.task.id]) for each in idle if each.task.id in given.openings
    ]
    real = _own_limit(given, idle)
    stated = {(number, kind) for prompt in prompts[:6] for number, kind in stated_limits(prompt)}
    if real is not None and not _says(real, prompts[0], stated):
        turns, moves = real
        yield Finding(
            f"the environment ends attempts after {turns} answers (max_turns is {given.family.max_turns}), and its "
            f"prompt does not say so: a policy cannot know it. Say it, or set max_turns = {turns}"
        )
        return
    yield from _differs(given, idle, stated, real)


def stated_limits(prompt: str) -> Iterator[tuple[int, str]]:
    """(number, "answers" or "moves") of the limits that a prompt states."""
    for found in _STATED.finditer(prompt):
        number, noun = (found[1], found[2]) if found[1] else (found[3], found[4])
        value = NUMBERS.index(number.lower()) if number.lower() in NUMBERS else int(number)
        yield value, "moves" if re.fullmatch(MOVES, noun, re.IGNORECASE) else "answers"


def _own_limit(given: CheckInput, idle: list[PlayedAttempt]) -> tuple[int, int | None] | None:
    """(answers, moves) after which the environment itself ends what does not succeed, always; None where there is no such
    number below max_turns."""
    cut = [each for each in idle if each.results[-1].truncated]
    over = [each for each in idle if each.results[-1].terminated]
    for ended in (cut, over):
        turns = Counter(len(each.results) for each in ended)
        if not turns or len(ended) < 4:
            continue
        longest = max(turns)
        others = [each for each in idle if len(each.results) > longest]
        at_it = [each for each in ended if len(each.results) == longest]
        enough = len(at_it) >= 4 and len({each.policy for each in at_it}) >= 2 and not others
        # A number ends them, and not what they said: all of them end there, whichever way they were played.
        counted = ended is cut or (2 <= longest and len(at_it) == len(idle))
        if enough and longest < given.family.max_turns and counted:
            moved = (
                sum(len(result.info.get("moves", ())) for result in each.results) for each in at_it
            )
            return longest, next((moves for moves in moved if moves), None)
    return None


def _says(real: tuple[int, int | None], prompt: str, stated: set[tuple[int, str]]) -> bool:
    words = set(re.findall(r"\w+", prompt.lower()))
    return any(
        str(number) in words or number < len(NUMBERS) and NUMBERS[number] in words
        for number in real
        if number
    ) or any(number in real for number, _ in stated)


def _differs(
    given: CheckInput,
    idle: list[PlayedAttempt],
    stated: set[tuple[int, str]],
    real: tuple[int, int | None] | None,
) -> Iterator[RuleResult]:
    """A limit on answers in the prompt against the number of answers that are really taken."""
    answers = sorted({number for number, kind in stated if kind == "answers" and number > 0})
    longest = max(len(each.results) for each in idle)
    reached = (
        real is not None
        or any(not each.ended for each in idle)
        or longest == given.family.max_turns
    )
    if len(answers) != 1 or not reached:
        return
    taken = real[0] if real is not None else given.family.max_turns
    at_it = [each for each in idle if len(each.results) == taken]
    if answers[0] != taken and at_it:
        yield Finding(
            f"the prompt states {answers[0]} answers, and {taken} are taken ({at_it[0].policy} at "
            f"{at_it[0].task.id!r}): state the real limit"
        )
    elif answers[0] != given.family.max_turns and real is None:
        yield Finding(
            f"the prompt states {answers[0]} answers, and max_turns is {given.family.max_turns}"
        )


# ------------------------------------------------------------------------------------------------ bad texts


def check_bad_texts(given: CheckInput) -> Iterator[RuleResult]:
    """Whatever a policy writes is answered: what is raised ends the attempt as a fault, and leaves it unscored."""
    told = False
    for each in given.attempts:
        if each.error and each.where != "the policy":
            yield Finding(
                f"{each.where} raises at {each.task.id!r} ({each.policy}): {shortened(each.error, 160)}"
            )
            told = True
            break
        if each.error:
            yield Finding(
                f"the family's own {each.policy} raises at {each.task.id!r}: {shortened(each.error, 160)}"
            )
            told = True
            break
    for name, text in BAD.items():
        began = time.monotonic()
        each = play(given.family, given.tasks[0], 0, name, lambda env, text=text: text, 1)
        seconds = time.monotonic() - began
        yield Checked(1)
        if each.error and not told:
            told = True
            yield Finding(
                f"{each.where} raises on {name}, {text[:30]!r}: {shortened(each.error, 160)}. Answer it in words: what is "
                "raised ends the attempt as a fault, without a reward"
            )
        if seconds > SLOW_S:
            yield Finding(
                f"{name} of {len(text)} characters takes {seconds:.1f} s to be answered",
                severity=NOTE,
            )
        trusted = [
            part
            for observation in each.shown[1:]
            for message in observation.messages
            for part in message.content
            if part.trusted and "<|im_end|>" in part.text
        ]
        if trusted:
            yield Finding(
                "what the policy wrote comes back in a part that says trusted=True: its <|im_end|> would end a turn"
            )
