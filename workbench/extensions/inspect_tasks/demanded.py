"""Answers in the very form that a prompt demands (E30): words before the answer, a label such as "Answer:", tags, a box; the
prompt's own example, and the moves that it lists. What solver and random play write may be shorter, and never shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_tasks.answers import OFTEN, SolverAnswer, is_paid
from workbench.extensions.scripted_play.given import (
    EXAMPLE,
    NONSENSE,
    PLACEHOLDER,
    CheckInput,
    inside,
)
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    ShownResult,
    replay,
)
from workbench.values.errors import shortened

FEWEST = 3  # answers, or tasks, by which a form is judged
TASKS = 6
STATES = 8  # in which a listed move is tried
MOVES = (2, 10)  # that are listed
PLAIN_WORDS = "I look at what is there, piece by piece.\n"
WITH_A_NUMBER = "There are 2 things to look at before I am sure.\n"
BEFORE_IT = re.compile(
    r"\b(?:first|before (?:you answer|answering|the answer|that))\b[^.\n]{0,60}\b(?:think|reason|explain|write down|describe|note)\b|"
    r"\b(?:think|reason|explain|describe|write down)\b[^.\n]{0,80}\b(?:first|before (?:you |the )?answer\w*|sentences?|reasoning|out loud)\b|"
    r"\bstep by step\b|\b(?:end|finish|close|conclude) (?:it |your \w+ )?(?:with|by) (?:an? |the |your )?(?:final |last )?(?:line|answer|sentence)\b|"
    r"\b(?:last|final) line\b|\bline of its own\b",
    re.IGNORECASE,
)
NOTHING_ELSE = re.compile(
    r"\b(?:nothing (?:else|more|but)|only (?:the|a|one|your)|alone|no other (?:words|text)|without (?:any )?(?:words|explanation|text))\b",
    re.IGNORECASE,
)
LABEL = re.compile(
    r"(?:^|[`'\"])[ \t>*]*((?:(?:the |my |your )?(?:final )?(?:answer|result|solution)(?: is)?)\s*[:=]\s*)(?=\S)[^\n`'\"]{1,40}(?:$|[`'\"])",
    re.IGNORECASE | re.MULTILINE,
)
ASKED_SO = re.compile(  # right before a label: else it may be part of an example, or of a sheet
    r"\b(?:like this|form|format|write|reply|respond|answer (?:as|in|with)|end with|line|as follows|exactly)\b[^\n]{0,80}\n?\s*[`'\"]?\s*$",
    re.IGNORECASE,
)
BOX = re.compile(r"\\boxed\{")
LISTED = re.compile(
    r"\b(?:moves|actions|commands|choices|one of|answer with|reply with|choose (?:from|between|one of)|say)\b[^.:\n,]{0,25}[: ]\s*"
    r"((?:['\"`]?[\w-]+['\"`]?, )+(?:(?:and|or) )?['\"`]?[\w-]+['\"`]?(?:,? (?:and|or) ['\"`]?[\w-]+['\"`]?)?)",
    re.IGNORECASE,
)


def check_demanded(given: CheckInput, answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    """`answers`: those that are paid; fewer than FEWEST, and what can be read is asked of random play's words."""
    yield from _words_before(given, answers)
    yield from _stated_form(answers)
    yield from _own_example(given)
    yield from _listed_moves(given)


# ------------------------------------------------------------------------------------------------ words before the answer


def _words_before(given: CheckInput, answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    asked_for = BEFORE_IT.search(given.first_prompt)
    thought = "<think>" in given.first_prompt or any("<think>" in one.before for one in answers)
    if asked_for is None or thought or NOTHING_ELSE.search(given.first_prompt):
        return
    for words, means in (
        (PLAIN_WORDS, "it is matched from the beginning, or as a whole"),
        (WITH_A_NUMBER, "the first number of the text is taken for the answer"),
    ):
        asked, refused, example = _with_words(given, answers, words)
        yield Checked(asked, "words before the answer")
        if asked >= FEWEST and refused >= OFTEN * asked:
            yield Finding(
                f"the prompt asks for words before the answer ({shortened(asked_for[0], 70)}), and a right answer behind {words.strip()!r} is "
                f"refused at {refused} of {asked} tasks, {example!r} for one, where it is taken by itself: {means}. Who does what the prompt "
                "asks for is never right. Search for the answer, the last one, in place of matching the text",
                severity=ERROR,
            )
            return


def _with_words(
    given: CheckInput, answers: Sequence[SolverAnswer], words: str
) -> tuple[int, int, str]:
    """How many texts were asked, how many of them are refused with words in front, and a task where one is."""
    refused: list[str] = []
    if len(answers) >= FEWEST:
        for one in answers:
            text = words + one.played.texts[-1]
            if not is_paid(one, replay(given.family, one.played.script.ending(text))):
                refused.append(one.played.task.id)
        return len(answers), len(refused), (refused or [""])[0]
    readable = [one for one in given.own.get("random", ()) if one.texts and _is_read(one) is True]
    for one in readable[:TASKS]:
        again = replay(given.family, one.script._replace(texts=(words + one.texts[0],)))
        refused += [one.task.id] if _is_read(again) is False else []
    return len(readable[:TASKS]), len(refused), (refused or [""])[0]


def _is_read(played: PlayedTrajectory) -> bool | None:
    """What the environment says of the first text's form; None where it says nothing."""
    valid = played.results[0].info.get("valid_format") if played.results else None
    return valid if isinstance(valid, bool) else None


# ------------------------------------------------------------------------------------------------ the stated form


class PromptForm(NamedTuple):
    """A form of the whole text that the prompt shows and the solver does not write."""

    shown: str
    before: str
    after: str = ""


def _stated_form(answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    if len(answers) < FEWEST:
        return
    for form in _forms_of(answers):
        refused = []
        for one in answers:
            text = f"{form.before}{one.words.strip()}{form.after}"
            script = one.played.script.ending(text)
            refused += [] if is_paid(one, replay(one.played.family, script)) else [(one, text)]
        yield Checked(len(answers), "right answers in the stated form")
        if len(refused) >= OFTEN * len(answers):
            one, text = refused[0]
            yield Finding(
                f"the prompt states the form {shortened(form.shown, 50)}, and the right answer in it is refused at {len(refused)} of {len(answers)} tasks: "
                f"{shortened(text, 60)} at {one.played.task.id!r}, where the solver's {shortened(one.played.texts[-1], 60)} is paid; expected that who "
                "writes as the prompt says is understood. Read the stated form, or state the one that is read",
                severity=ERROR,
            )
            return


def _forms_of(answers: Sequence[SolverAnswer]) -> Iterator[PromptForm]:
    prompt = answers[0].prompt
    spoken = answers[0].played.texts[-1]
    label = next(
        (one for one in LABEL.finditer(prompt) if ASKED_SO.search(prompt[: one.start()])), None
    )
    tagged = EXAMPLE.search(prompt)
    if (
        label is not None
        and tagged is None
        and label[1].strip().casefold() not in spoken.casefold()
    ):
        yield PromptForm(label[0].strip(" `'\""), label[1])
    if BOX.search(prompt) and "\\boxed" not in spoken:
        yield PromptForm("\\boxed{}", "\\boxed{", "}")
    if tagged is not None and label is None and "<answer>" not in spoken:
        yield PromptForm(tagged[0], "<answer>", "</answer>")


# ------------------------------------------------------------------------------------------------ the own example


def _own_example(given: CheckInput) -> Iterator[RuleResult]:
    """The prompt's example, said to the letter, is called unreadable, and random play's words are not."""
    tagged = EXAMPLE.search(given.first_prompt)
    if tagged is None or PLACEHOLDER.search(inside(tagged[0])):
        return
    by_chance = [one for one in given.own.get("random", ()) if _is_read(one) is True]
    asked = [Script(task, 0, ()) for task in given.tasks[:TASKS]]
    unread = 0
    for start in asked:
        # An example of another problem may be wrong here, and is told so in other words than what is no answer at all.
        example = _answered(given, start, tagged[0], tagged[0])
        nonsense = _answered(given, start, NONSENSE, NONSENSE)
        unread += example is not None and example.valid_format is False and example == nonsense
    yield Checked(len(asked), "the prompt's own example")
    if len(by_chance) >= FEWEST and unread == len(asked) >= FEWEST:
        yield Finding(
            f"the prompt's own example, {shortened(tagged[0], 60)}, is answered as {NONSENSE!r} is, as unreadable (valid_format is False), at {unread} of {len(asked)} "
            f"tasks; random play's {shortened(by_chance[0].texts[0], 50)} is read. Show an example of the form that is read",
            severity=ERROR if given.family.max_turns == 1 else NOTE,
        )


# ------------------------------------------------------------------------------------------------ listed moves


def _listed_moves(given: CheckInput) -> Iterator[RuleResult]:
    """A move that the prompt lists, which no own play ever says, is answered as nonsense everywhere."""
    played = given.acted()
    spoken = {inside(text).strip().casefold() for text in given.common_actions(200)}
    match = next(
        (one for one in LISTED.finditer(given.first_prompt) if _is_a_list(one[1], spoken)), None
    )
    if match is None:
        return
    items = [item for item in _items(match[1]) if item.casefold() not in spoken]
    for item in items:
        asked = 0
        unread = 0
        for number, one in enumerate(played[:STATES]):
            start = one.script._replace(texts=one.texts[: number % len(one.texts)])
            spoken_there = one.texts[len(start.texts)]
            answers = [
                _answered(given, start, spoken_there.replace(inside(spoken_there), words, 1), words)
                for words in (item, NONSENSE)
            ]
            asked += 1
            unread += answers[0] == answers[1] is not None
        yield Checked(asked, "moves that the prompt lists")
        if asked >= FEWEST and unread == asked:
            yield Finding(
                f"the prompt lists {shortened(match[1], 70)}, and {item!r} is answered as {NONSENSE!r} is, in {unread} of {asked} states; neither random play "
                "nor the solver ever says it. Take what the prompt lists, or list what is taken",
                severity=ERROR if given.family.max_turns == 1 else NOTE,
            )
            return


def _items(listed: str) -> list[str]:
    items = [
        item.strip(" '\"`") for item in re.split(r",\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+", listed)
    ]
    return [item for item in items if item]


def _is_a_list(listed: str, spoken: set[str]) -> bool:
    """Whether most of it is said by the family's own play."""
    items = _items(listed)
    low, high = MOVES
    known = [item for item in items if item.casefold() in spoken]
    return low <= len(items) <= high and len(known) >= low and 2 * len(known) >= len(items)


def _answered(given: CheckInput, start: Script, text: str, words: str) -> ShownResult | None:
    """What is answered to a text, its own words aside; None where nothing is."""
    last = given.answer_to(start, text)
    return None if last is None else last._replace(text=last.text.replace(words, ""))
