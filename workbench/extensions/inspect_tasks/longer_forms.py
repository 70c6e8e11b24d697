"""Gold answers that lost what makes them what they are (E33): leading zeros, a sign, accents, the case of a code."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_tasks.answers import known_gold
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.leaks import GOLD, leaves
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    replay,
    text_of,
)
from workbench.extensions.scripted_play.words import framed
from workbench.values import Task

TASKS = 40
FEWEST = 3


class ReadAnswer(NamedTuple):
    """A task, what is said there as the right answer, the frame that it stands in, and all that can be read there."""

    task: Task
    answer: str
    before: str
    after: str
    earlier: tuple[str, ...]
    texts: str


class LostPart(NamedTuple):
    name: str
    longer: Callable[
        [str, str], str
    ]  # (answer, texts) -> the form that the texts have; "" for none


def _bounded(pattern: str, text: str) -> str:
    match = re.search(rf"(?<![\w.:/,+-]){pattern}(?![\w:/]|[.,]\d)", text)
    return match[0] if match else ""


def _with_zeros(answer: str, texts: str) -> str:
    if not re.fullmatch(r"[1-9]\d*|0", answer):
        return ""
    matching = _bounded(rf"0+{answer}", texts)
    return matching if len(matching) >= 3 else ""


def _with_sign(answer: str, texts: str) -> str:
    if not re.fullmatch(r"\d[\d .]*", answer):
        return ""
    match = re.search(rf"(?<![\w+-])\+{re.escape(answer)}(?!\w)", texts)
    return match[0] if match else ""


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _with_accents(answer: str, texts: str) -> str:
    if not answer.isascii() or not re.search(r"[A-Za-z]{2}", answer):
        return ""
    for match in re.finditer(r"[^\W\d_][\w'-]*(?: [^\W\d_][\w'-]*){0,3}", texts):
        words = match[0].split(" ")
        size = len(answer.split(" "))
        for at in range(len(words) - size + 1):
            matching = " ".join(words[at : at + size])
            if matching != answer and not matching.isascii() and _plain(matching) == answer:
                return matching
    return ""


def _with_case(answer: str, texts: str) -> str:
    """Of codes alone: letters of both cases in one word that is no name, or letters and digits."""
    if not re.fullmatch(r"[\w-]{3,40}", answer) or not answer.isascii():
        return ""
    for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", texts, re.IGNORECASE):
        matching = match[0]
        mixed = re.search(r"[a-z][A-Z]", matching) or re.search(r"\d", matching)
        if matching != answer and mixed and matching.lower() != matching:
            return matching
    return ""


LOST = (
    LostPart("leading zeros", _with_zeros),
    LostPart("a sign", _with_sign),
    LostPart("accents", _with_accents),
    LostPart("the case of a code", _with_case),
)


def check_longer_forms(given: CheckInput) -> Iterator[RuleResult]:
    """The right answer stands in what is read as it is, and not with more to it."""
    read = _read_answers(given)
    yield Checked(len(read), "answers in what is read")
    by_part: dict[str, list[tuple[ReadAnswer, str]]] = defaultdict(list)
    for one in read:
        if _stands(one.answer, one.texts):
            continue
        for part in LOST:
            if longer := part.longer(one.answer, one.texts):
                by_part[part.name].append((one, longer))
                break
    for name, lost in by_part.items():
        if len({one.answer for one, _ in lost}) < FEWEST:
            continue
        paid = [_is_paid(given, one, longer) for one, longer in lost[:6]]
        if all(paid):
            continue
        one, longer = lost[paid.index(False)]
        yield Finding(
            f"right answers have lost {name}: {one.answer!r} is the answer of {one.task.id!r}, "
            f"and what is read there has {longer!r} and nowhere "
            f"{one.answer!r}, so at {len(lost)} of {len(read)} tasks; who says {longer!r} is "
            f"told that it is wrong ({paid.count(False)} of {len(paid)} that were "
            "tried). Something took the text for a number or cleaned it (int, a table's column "
            "types, lower, normalize): keep answers as texts, as "
            "they are written",
            severity=ERROR if paid.count(False) >= FEWEST else NOTE,
        )
        return


def _stands(answer: str, texts: str) -> bool:
    return re.search(rf"(?<![\w+]){re.escape(answer)}(?!\w)", texts) is not None


def _is_paid(given: CheckInput, one: ReadAnswer, words: str) -> bool:
    script = Script(one.task, 0, (*one.earlier, f"{one.before}{words}{one.after}"))
    again = replay(given.family, script)
    return bool(again.success) or (again.success is None and (again.reward or 0.0) > 0)


def _read_answers(given: CheckInput) -> list[ReadAnswer]:
    family = given.family
    if "solver" in given.own:
        solved = given.solved_anew("longer", TASKS, 1 / 3)
        played = [one for one in solved if len(inside(one.texts[-1])) <= 60]
        frames = framed([one.texts[-1] for one in played]) if played else []
        return [
            ReadAnswer(one.task, words.strip(), before, after, one.texts[:-1], _texts(one))
            for one, (before, words, after) in zip(played, frames)
            if words.strip()
        ]
    asked = []
    for task in given.further_tasks(TASKS, "longer"):
        gold = known_gold(given, task)
        if gold:
            whole = given.as_answer("\0")
            before, _, after = whole.partition("\0")
            opened = replay(family, Script(task, 0, ()))
            asked.append(ReadAnswer(task, gold, before, after, (), _texts(opened)))
    return asked


def _texts(one: PlayedTrajectory) -> str:
    """All that can be read before the answer: prompts, replies, and the payload but for its gold answer."""
    payload = {name: value for name, value in one.task.payload.items() if name.lower() not in GOLD}
    shown = [text_of(one.opening), *(text_of(result.observation) for result in one.results[:-1])]
    return "\n".join([*shown, *(leaf for leaf in leaves(payload) if isinstance(leaf, str))])
