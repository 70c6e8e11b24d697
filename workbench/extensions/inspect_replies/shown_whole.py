"""What is shown beside what is the case (E31): the answer among the examples, a passage that ends before it, a number that is
another one's or an hour old, and a running total that the reward goes against."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_replies.offered import check_offered
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.leaks import gold_of, holds
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    is_over,
    opening_of,
    play,
    text_of,
)
from workbench.values import Observation, Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

DRAWN = 48  # tasks whose prompts are searched for the answer
SECONDS = 1.0
LEAST = 12
DIFFERENT = 6  # answers at least: of fewer one stands among examples by right
SOMETIMES = (0.12, 0.95)  # share of tasks at which the answer stands there
STRANGE = 0.34  # of that share: how often another task's answer does
SHORTEST = 2  # characters of an answer that is looked for
EXAMPLES = re.compile(
    r"\b(?:examples?|for instance|samples?|solved|demonstrations?|shots?|here (?:is|are) (?:how|some))\b",
    re.IGNORECASE,
)
PASSAGE = re.compile(
    r"\b(?:passages?|texts?|paragraph|documents?|article|story|notes?|report|letter|manual|table|log|page|below|above|following)\b",
    re.IGNORECASE,
)
PROMISES = re.compile(
    r"\b(?:passage|text|it|document|story|article|report)\b[^.\n]{0,40}\b(?:says?|holds?|answers?|contains?|tells?|gives?)\b|"
    r"\b(?:by|from|in|according to|using) the (?:passage|text|document|story|article|report)\b",
    re.IGNORECASE,
)
LONG = 25  # words of a prompt that holds a passage
TRAJECTORIES = 8
CHANGING = 12  # pairs of turns by which a total is judged
LABELLED = re.compile(
    r"([A-Za-z][A-Za-z' ]{1,30}?)(?:: ?| is | are |= ?| )([-+]?[$€£]?-?\d[\d,]*(?:\.\d+)?)(?![\d%:/])"
)
GAINS = re.compile(
    r"\b(?:earn\w*|score\w*|points?|accounts?|profit|balance|gain\w*|won|total|wealth|money|cash|coins?|gold|progress|correct|"
    r"right|solved|reward\w*)\b",
    re.IGNORECASE,
)
LOSSES = re.compile(
    r"\b(?:lost|loss\w*|damage|errors?|mistakes?|penalt\w*|debt|misses|wrong|wasted)\b",
    re.IGNORECASE,
)
AGAINST = 0.9  # correlation


def check_shown(given: CheckInput) -> Iterator[RuleResult]:
    if (why := given.why_not_played()) is not None:
        yield NotChecked(why)
        return
    yield from _answers_sometimes(given)
    yield from _another_hour(given)
    yield from _against_the_total(given)
    yield from check_offered(given)


# ------------------------------------------------------------------------------------------------ answers in prompts


class AskedTask(NamedTuple):
    """A task, its prompt in two parts, and its right answer. `before`: all but the last message; the examples, where it is one."""

    task: Task
    before: str
    prompt: str
    answer: str


def _answers_sometimes(given: CheckInput) -> Iterator[RuleResult]:
    """The right answer stands in some prompts and not in the others."""
    asked = _asked_tasks(given)
    answers = {one.answer for one in asked}
    yield Checked(len(asked), "prompts that may hold the answer")
    if len(asked) < LEAST or len(answers) < DIFFERENT:
        return
    if all(EXAMPLES.search(one.prompt) or one.before for one in asked):
        among = [one for one in asked if holds(_examples_of(one), one.answer)]
        if _are_its_own(asked, among, _examples_of):
            yield _among_examples(asked, among)
            return
    if all(PASSAGE.search(one.prompt) and len(one.prompt.split()) >= LONG for one in asked):
        there = [one for one in asked if holds(one.prompt, one.answer)]
        if _are_its_own(asked, there, lambda one: one.prompt) and 3 * len(there) >= len(asked):
            missing = [one for one in asked if one not in there]
            yield _cut_before(asked, missing)


def _asked_tasks(given: CheckInput) -> list[AskedTask]:
    """Of new tasks, with an answer of one turn that is a word or a number of its own."""
    asked: dict[str, AskedTask] = {}
    spent = Spent()
    for task in given.further_tasks(DRAWN, "shown"):
        if spent.seconds > SECONDS:
            break
        opening, answer = _opening_and_answer(given, task)
        if opening is None or not SHORTEST <= len(answer) <= 80:
            continue
        *earlier, _ = [message.text for message in opening.messages] or [""]
        asked.setdefault(task.id, AskedTask(task, "\n".join(earlier), text_of(opening), answer))
    return list(asked.values())


def _opening_and_answer(given: CheckInput, task: Task) -> tuple[Observation | None, str]:
    family: Any = given.family
    gold = gold_of(task)
    if gold or "solver" not in given.own:
        return opening_of(family, task, 0), gold
    rng = rng_at("check-env", "shown", task.id)
    played = play(family, task, 0, lambda env: family.solver_action(env, rng), most=1)
    over = bool(played.results) and is_over(played.results[-1]) and played.success is not False
    return played.opening, inside(played.texts[0]) if over else ""


def _examples_of(one: AskedTask) -> str:
    """What follows the word, to the end of its paragraph; or all messages before the last one."""
    word = EXAMPLES.search(one.prompt)
    if word is None:
        return one.before
    rest = one.prompt[word.end() :]
    own_line = rest.strip(" :.-")[:1] != "\n" and len(rest.split("\n")[0].split()) >= 4
    end = rest.find("\n" if own_line else "\n\n")
    return f"{one.before}\n{rest[:end] if end > 0 else rest}"


def _are_its_own(asked: Sequence[AskedTask], there: Sequence[AskedTask], where: Any) -> bool:
    """Whether the answer stands at some tasks, and those of others hardly do."""
    low, high = SOMETIMES
    share = len(there) / len(asked)
    if not low <= share <= high or len(there) < 3:
        return False
    strangers: list[bool] = []
    for one in asked[:16]:
        others = [other for other in asked[:16] if other.answer != one.answer]
        strangers += [holds(where(one), other.answer) for other in others]
    return bool(strangers) and float(np.mean(strangers)) <= STRANGE * share


def _among_examples(asked: Sequence[AskedTask], among: Sequence[AskedTask]) -> Finding:
    one = among[0]
    shown = _examples_of(one)
    at = shown.lower().find(one.answer.lower())
    near = shown[max(at - 50, 0) : at + len(one.answer) + 20]
    return Finding(
        f"the right answer stands among the examples at {len(among)} of {len(asked)} tasks, and those of other tasks hardly ever "
        f"do: {shortened(one.answer)} at {one.task.id!r}, in {shortened(near, 110)}. It can be read off there, so the success "
        "rate says little of the rest. Draw examples from the problems that are not asked"
    )


def _cut_before(asked: Sequence[AskedTask], missing: Sequence[AskedTask]) -> Finding:
    one = missing[0]
    sizes = {len(other.prompt) for other in missing}
    words = {len(other.prompt.split()) for other in missing}
    longest = max(len(other.prompt.split()) for other in asked)
    cut = len(missing) >= 3 and (len(sizes) == 1 or min(words) >= 0.8 * longest)
    why = (
        "and these prompts are among the longest: the text is cut before the place that answers"
        if cut
        else "whatever is read there"
    )
    return Finding(
        f"the text that is to be read holds the right answer at {len(asked) - len(missing)} of {len(asked)} tasks, and at "
        f"{len(missing)} it does not, {why}: {shortened(one.answer)} at {one.task.id!r} is nowhere in "
        f"{shortened(one.prompt[-160:], 170)}. Such a task can only be guessed. Keep the sentence that answers when a "
        "text is shortened, or draw no such task",
        severity=ERROR if cut and PROMISES.search(one.prompt) else NOTE,
    )


# ------------------------------------------------------------------------------------------------ labelled numbers


class TurnNumber(NamedTuple):
    """A turn: numbers by their label in what was shown, and the environment's own after it."""

    shown: Mapping[str, float]
    own: Mapping[str, float]
    own_before: Mapping[str, float]
    reward: float | None


def _labelled(text: str) -> dict[str, float]:
    """Label -> number; a label that stands twice is left out."""
    by_label: dict[str, list[float]] = defaultdict(list)
    for label, number in LABELLED.findall(text):
        by_label[label.strip().casefold()].append(float(re.sub(r"[$€£,]", "", number)))
    return {label: values[0] for label, values in by_label.items() if len(values) == 1}


def _own_numbers(env: Any) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in getattr(env, "__dict__", {}).items()
        if is_number(value)
    }


def _seen(given: CheckInput) -> list[list[TurnNumber]]:
    return given.once("turns seen", lambda: _turns_seen(given, Spent()))


def _turns_seen(given: CheckInput, spent: Spent) -> list[list[TurnNumber]]:
    """Trajectories of the family's own play: the first entry of each is what was shown at the start."""
    family: Any = given.family
    seen: list[list[TurnNumber]] = []
    for name in given.baselines:
        for task in given.tasks[:TRAJECTORIES]:
            if spent.seconds > SECONDS:
                break
            rng = rng_at("check-env", "seen", name, task.id)
            worlds: list[Any] = []
            own: list[dict[str, float]] = []

            def act(
                env: Any,
                worlds: list[Any] = worlds,
                own: Any = own,
                rng: Any = rng,
                name: str = name,
            ) -> str:
                worlds.append(env)
                own.append(_own_numbers(env))
                return getattr(family, f"{name}_action")(env, rng)

            played = play(family, task, seed_of("check-env", "seen", task.id), act)
            if worlds and not played.error:
                own.append(_own_numbers(worlds[-1]))
                seen.append(_turns_of(played, own))
    return seen


def _turns_of(played: PlayedTrajectory, own: Sequence[Mapping[str, float]]) -> list[TurnNumber]:
    turns = [TurnNumber(_labelled(text_of(played.opening)), own[0], own[0], None)]
    for k, result in enumerate(played.results):
        reward = float(result.reward) if is_number(result.reward) else None
        turns.append(TurnNumber(_labelled(text_of(result.observation)), own[k + 1], own[k], reward))
    return turns


def _names_of(label: str, own: Mapping[str, float]) -> list[str]:
    """The environment's numbers that a label names."""
    words = set(re.findall(r"[a-z]+", label))
    return [
        name for name in own if len(name) >= 3 and set(name.lower().strip("_").split("_")) <= words
    ]


def _named_numbers(
    turn: TurnNumber,
) -> Iterator[tuple[tuple[str, str], float, float, float | None]]:
    """((label, name), as it is shown, as it is, as it was before the turn) of numbers that both have."""
    for label, value in turn.shown.items():
        for name in _names_of(label, turn.own):
            yield (label, name), value, turn.own[name], turn.own_before.get(name)


def _another_hour(given: CheckInput) -> Iterator[RuleResult]:
    """At the start a labelled number is the environment's own; in replies, under the same label, it hardly ever is."""
    if given.family.max_turns < 2 or not given.baselines:
        return
    tallies = _tallied(_seen(given))
    yield Checked(sum(len(tally.right) for tally in tallies.values()), "labelled numbers")
    for key, tally in tallies.items():
        begins_right = bool(tally.begins) and all(tally.begins)
        if len(tally.right) >= CHANGING and begins_right and np.mean(tally.right) <= 1 - AGAINST:
            before = bool(np.mean(tally.old) >= AGAINST)
            yield _of_another_hour(key, tally.right, tally.example or (0.0, 0.0), before)
            return


@dataclass
class LabelRecord:
    """Of one label and one of the environment's numbers: whether they agree at the start, and in each reply after which it
    has changed; whether the reply shows it as it was before; and one that does not agree."""

    begins: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    old: list[bool] = field(default_factory=list)
    example: tuple[float, float] | None = None


def _tallied(trajectories: Sequence[Sequence[TurnNumber]]) -> dict[tuple[str, str], LabelRecord]:
    tallies: dict[tuple[str, str], LabelRecord] = defaultdict(LabelRecord)
    for first, *later in trajectories:
        for key, shown, own, _ in _named_numbers(first):
            tallies[key].begins.append(shown == own)
        for key, shown, own, before in chain.from_iterable(map(_named_numbers, later)):
            if own == before:
                continue
            tally = tallies[key]
            tally.right.append(shown == own)
            tally.old.append(shown == before)
            if own != shown and tally.example is None:
                tally.example = shown, own
    return tallies


def _of_another_hour(
    key: tuple[str, str], values: Sequence[bool], example: tuple[float, float], before: bool
) -> Finding:
    label, name = key
    shown, own = example
    moment = "that of before the action" if before else "that of another moment in the step"
    return Finding(
        f"{label!r} in a reply is not what the environment holds after the action: of {len(values)} replies in which "
        f"{name!r} has changed {sum(values)} show it as it is ({shown:g} is shown where it is {own:g}); the first prompt "
        f"shows it as it is, under the same words. It is {moment}. Build the observation after all changes, or call it by "
        "another name",
        severity=ERROR if before else NOTE,
    )


def _changes_and_rewards(given: CheckInput) -> dict[str, list[tuple[float, float]]]:
    """Label -> (change of its number, reward) of turns in which both are something."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for turns in _seen(given):
        for one, other in zip(turns, turns[1:]):
            at_start = one.reward is None  # a total begins with nothing
            for label, value in other.shown.items():
                if other.reward is None or not (label in one.shown or at_start):
                    continue
                change = value - one.shown.get(label, 0.0)
                if abs(change) > NEAR and abs(other.reward) > NEAR:
                    pairs[label].append((change, other.reward))
    return pairs


def _against_the_total(given: CheckInput) -> Iterator[RuleResult]:
    """A total that is shown goes up where the reward goes down."""
    if given.family.max_turns < 2 or not given.baselines:
        return
    pairs = _changes_and_rewards(given)
    yield Checked(sum(map(len, pairs.values())), "totals that are shown")
    for label, changes in pairs.items():
        gain = GAINS.search(label)
        loss = LOSSES.search(label)
        if len(changes) < CHANGING or bool(gain) == bool(loss):
            continue
        one, other = np.array(changes).T
        along = float(np.mean(np.sign(one) == np.sign(other)))
        both_signs = min(np.mean(other > 0), np.mean(other < 0)) > 0.1
        against = along <= 1 - AGAINST if gain else along >= AGAINST
        if against and (both_signs or bool(loss)):
            yield Finding(
                f"the reward goes against what is shown: of {len(changes)} turns in which {label!r} changes it is paid "
                f"{'less than nothing where that rises' if gain else 'for where that rises'}, at {len(changes) if loss else round((1 - along) * len(changes))} "
                f"of them ({one[0]:+g} is paid {other[0]:+.3g}). Its sign is turned: look at which of the two numbers is taken "
                "from the other",
                severity=ERROR if gain else NOTE,
            )
            return
