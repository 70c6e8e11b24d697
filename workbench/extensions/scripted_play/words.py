"""The solver's words, written by this policy, must be paid; a wrong answer must not (R39, E19).

    spoken(family, tasks, TextPath(chat, collect))       Checked, Finding, NotChecked

The solver's actions go the way of a policy's words: encoded by its tokenizer as it would have written them, cut where the
engine stops, decoded as collecting decodes them, shown to the world, whose reply goes through the chat template. What
comes of it is compared with the same actions handed to the world directly: plain, then with harmless variations
(`variations`). A few tasks, a bounded number of turns and of seconds; nothing is sampled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.chat import ChatFormat, Conversation
from workbench.chat.encode import AuthoredText
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    global_dice,
    is_over,
    play,
    text_of,
    unplayable,
)
from workbench.extensions.scripted_play.variations import (
    KINDS,
    TextEdit,
    declared,
    variations_of,
)
from workbench.rollouts.config import CollectConfig
from workbench.values import Observation, Sampling, Source, Task
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.scoring import scores_after
from workbench.worlds.shared import opened

TASKS = 3  # that the solver is paid for
TRIED = 24  # times that the solver plays to find them, at most
TURNS = 16  # of a trajectory, at most
BUDGET_S = 1.0  # of playing, all together
SHORT = 0.05  # of the solver's payment: who gets as much less is not paid as the solver is
QUOTED = 90  # characters of a text in a message
OPENED = re.compile(r"<(think|thought|reasoning)>\s*$")
PLAIN = "plain words"


@dataclass(frozen=True)
class TextPath:
    """From a policy's words to the world. `chat`: None where the words go to the world as they are."""

    chat: ChatFormat | None = None
    collect: CollectConfig = CollectConfig()

    def open(self, observation: Observation) -> Conversation | None:
        if self.chat is None:
            return None
        return Conversation(
            self.chat,
            observation,
            history=self.collect.history,
            window=self.collect.window,
        )

    def through(self, conversation: Conversation | None, text: str, *, limited: bool) -> str:
        """What the world is handed of a text that the policy wrote. `limited`: cut at collect.max_turn_tokens."""
        if conversation is None:
            return text
        chat = self.chat
        prompt_ids = conversation.prompt_ids
        last = int(prompt_ids[-1])
        written = _continued(text, chat.encoder.backend.decode(prompt_ids[-12:].tolist(), False))
        piece = AuthoredText(written, Source.POLICY, conversation.turn, True)
        spans = chat.encoder.encode([piece], after=last)
        ids = [int(token) for span in spans for token in span.token_ids]
        ids.append(min(chat.stop_ids) if chat.end_of_turn is None else chat.end_of_turn)
        end = next(place for place, token in enumerate(ids) if token in chat.stop_ids)
        ids = ids[: end + 1]
        finish = "stop"
        if limited and len(ids) > self.collect.max_turn_tokens:
            ids = ids[: self.collect.max_turn_tokens]
            finish = "length"
        return conversation.add_action(
            np.array(ids, np.int32),
            np.zeros(len(ids), np.float32),
            finish=finish,
            policy_version=0,
            sampling=Sampling(),
        )


def _continued(text: str, prompt_end: str) -> str:
    """The text as a policy goes on with it: a thought that the prompt has opened is not opened again, and is closed before
    an answer."""
    match = OPENED.search(prompt_end)
    if match is None:
        return text
    tag = match[1]
    if text.lstrip().startswith(f"<{tag}>"):
        return text.lstrip().removeprefix(f"<{tag}>")
    return f"\n</{tag}>\n\n{text}"


# ------------------------------------------------------------------------------------------------ playing


@dataclass(frozen=True)
class TextOutcome:
    """What came of words on their way. `read`: [K] what the world was handed."""

    played: PlayedTrajectory
    read: tuple[str, ...]


def hear(
    reference: PlayedTrajectory,
    texts: Sequence[str],
    way: TextPath,
    *,
    limited: bool = False,
) -> TextOutcome:
    """Play the task of `reference` with other `texts`, each on its way through the policy's tokenizer."""
    family = reference.family
    results = []
    read: list[str] = []
    error = ""
    opening = None
    try:
        with global_dice(0), opened(family) as env:
            opening = env.reset(reference.task, reference.seed)
            conversation = way.open(opening)
            for text in texts:
                read.append(way.through(conversation, text, limited=limited))
                results.append(env.step(read[-1]))
                if is_over(results[-1]):
                    break
                if conversation is not None and len(results) < len(texts):
                    conversation.add_observation(results[-1].observation)
    except Exception as failure:  # anybody's environment, anybody's template
        error = f"{type(failure).__name__}: {failure}"
    played = replace(
        reference, texts=tuple(read), opening=opening, results=tuple(results), error=error
    )
    return TextOutcome(played, tuple(read))


def paid_like(reference: PlayedTrajectory, other: PlayedTrajectory) -> bool:
    """Whether it earned as much, success among it."""
    if other.error or other.reward is None:
        return False
    less = reference.reward - other.reward
    return less <= SHORT * abs(reference.reward) and not (reference.success and not other.success)


def solved(family: EnvFamily, tasks: Sequence[Task], budget_s: float) -> list[PlayedTrajectory]:
    """A few tasks that the solver is paid for, as it played them; where chance pays, at other chances, too."""
    paid_for: list[PlayedTrajectory] = []
    spent = Spent()
    for number in range(TRIED if tasks else 0):
        if len(paid_for) == TASKS or number and spent.seconds > budget_s / 2:
            break
        task = tasks[number % len(tasks)]
        rng = rng_at("solver's words", task.id, number)
        seed = seed_of("solver's words", "dynamics", task.id, number)
        with global_dice(0):
            played = play(
                family,
                task,
                seed,
                lambda env, rng=rng: family.solver_action(env, rng),
                policy="solver",
                most=min(TURNS, family.max_turns),
            )
        ended = played.ended or len(played.results) == family.max_turns
        if ended and not played.error and played.reward is not None and played.reward > 0:
            paid_for.append(played)
        if not number:
            spent = Spent()  # what an environment loads once is not this check's
    return paid_for


# ------------------------------------------------------------------------------------------------ what is asked


def spoken(
    family: EnvFamily,
    tasks: Sequence[Task],
    way: TextPath,
    *,
    budget_s: float = BUDGET_S,
    unpaid_variation: str = ERROR,
    too_long: str = ERROR,
) -> Iterator[RuleResult]:
    """Ask one family. `unpaid_variation`: how grave it is that one is not paid which the world should accept; `too_long`: that
    neither the solver's words nor those of random play fit into collect.max_turn_tokens. Python's and numpy's global generators are left as they were, and each play finds them alike."""
    if not callable(getattr(family, "solver_action", None)):
        yield NotChecked(f"a solver of {family.name}, whose words are known to be right")
        return
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    if unknown := [kind for kind in declared(family) or () if kind not in KINDS]:
        yield Finding(
            f"may_vary of {family.name} names {unknown[0]!r}; what may vary is some of {', '.join(KINDS)}"
        )
    yield from _asked(family, tasks, way, budget_s, unpaid_variation, too_long)


def _asked(
    family: EnvFamily,
    tasks: Sequence[Task],
    way: TextPath,
    budget_s: float,
    unpaid_variation: str,
    too_long: str,
) -> Iterator[RuleResult]:
    references = solved(family, tasks, budget_s)
    spent = Spent()
    if not references:
        yield NotChecked(
            f"a task that the solver of {family.name} is paid for within {TURNS} turns"
        )
        return
    for reference in references:
        heard = hear(reference, reference.texts, way, limited=True)
        yield Checked(1, PLAIN)
        if not paid_like(reference, heard.played):
            severity = _severity(reference, way, too_long)
            yield _unpaid(reference, heard, PLAIN, way, severity)
            if severity == ERROR:
                return
            break
    if scores_after(family):
        yield NotChecked("payment at once: it is scored afterwards, each time anew", "variations")
        return
    must, only_asked = variations_of(family)
    tried = [(variation, unpaid_variation) for variation in must] + [(v, NOTE) for v in only_asked]
    for variation, severity in tried:
        if spent.seconds > budget_s:
            yield NotChecked(f"more than {budget_s:g} seconds", variation.what)
            continue
        yield from _varied(references, variation, way, severity)
    yield from _wrong(references, way)


def _severity(reference: PlayedTrajectory, way: TextPath, too_long: str) -> str:
    """How grave it is that the solver's own words are not paid: `too_long` where they are paid if no limit cuts them; a note
    where shorter words of random play fit, since who plays with fewer words in a turn can be right."""
    if not paid_like(reference, hear(reference, reference.texts, way).played):
        return ERROR
    if not callable(getattr(reference.family, "random_action", None)):
        return too_long
    texts = _by_chance(reference)
    cut = hear(reference, texts, way, limited=True).read
    whole = hear(reference, texts, way).read
    return NOTE if any(short == long for short, long in zip(cut, whole)) else too_long


def _varied(
    references: Sequence[PlayedTrajectory], variation: TextEdit, way: TextPath, severity: str
) -> Iterator[RuleResult]:
    for reference in references:
        texts = [variation.of(text) for text in reference.texts]
        if texts == list(reference.texts):
            continue
        heard = hear(reference, texts, way)
        yield Checked(1, "variations")
        if not paid_like(reference, heard.played):
            weight = NOTE if _told_the_form(reference, heard.played) else severity
            yield _unpaid(reference, heard, variation.what, way, weight)
            return


def _told_the_form(reference: PlayedTrajectory, played: PlayedTrajectory) -> bool:
    """Whether the world refuses in words that name the tags, and lets the policy try again: who is strict and says so costs
    a turn, and no reward in silence."""
    k = _first_less(reference, played)
    tags = re.findall(r"</?\w+>", reference.texts[k])
    if not tags or k >= len(played.results) or is_over(played.results[k]):
        return False
    reply = text_of(played.results[k].observation)
    return all(tag in reply for tag in tags)


def _wrong(references: Sequence[PlayedTrajectory], way: TextPath) -> Iterator[RuleResult]:
    """Not every wrong answer is paid as the solver is."""
    ways: dict[str, Callable[[PlayedTrajectory], Sequence[str]]] = {"the empty answer": _nothing}
    if callable(getattr(references[0].family, "random_action", None)):
        ways["random play"] = _by_chance
    for name, texts_of in ways.items():
        for reference in references:
            texts = texts_of(reference)
            heard = hear(reference, texts, way)
            if tuple(texts) != reference.texts and not paid_like(reference, heard.played):
                yield Checked(1, "wrong answers")
                return
    names = " and ".join(ways)
    yield Finding(
        f"{names} earn as much as the solver at all of {len(references)} tasks "
        f"({references[0].reward:g} at {references[0].task.id!r}): a wrong answer is paid like a right one"
    )


def _nothing(reference: PlayedTrajectory) -> Sequence[str]:
    return [""] * len(reference.texts)


def _by_chance(reference: PlayedTrajectory) -> Sequence[str]:
    family: Any = reference.family
    rng = rng_at("solver's words", "random", reference.task.id)
    with global_dice(0):
        played = play(
            family,
            reference.task,
            reference.seed,
            lambda env: family.random_action(env, rng),
            most=min(TURNS, family.max_turns),
        )
    return played.texts


# ------------------------------------------------------------------------------------------------ in words


def _unpaid(
    reference: PlayedTrajectory, heard: TextOutcome, what: str, way: TextPath, severity: str
) -> Finding:
    played = heard.played
    k = _first_less(reference, played)
    read = heard.read[k] if k < len(heard.read) else ""
    whose = "the solver's words" if what == PLAIN else f"the solver's words with {what}"
    came = f"raised {played.error}" if played.error else f"earned {_number(played.reward)}"
    answer = ""
    if k < len(played.results):
        reply = text_of(played.results[k].observation) or "nothing"
        answer = f"; the world answered {_quoted(reply)}"
    return Finding(
        f"{whose} are not paid at task {reference.task.id!r}: expected {reference.reward:g}, as the solver earns, and "
        f"they {came}. At turn {k} the solver writes {_quoted(reference.texts[k])}, and the world read "
        f"{_quoted(read)}{answer}. {_what_to_do(reference, what, read, k, way)}",
        severity=severity,
    )


def _first_less(reference: PlayedTrajectory, played: PlayedTrajectory) -> int:
    """The first turn that was paid less, or after which it went on or ended otherwise."""
    last = min(len(reference.texts), max(1, len(played.texts))) - 1
    for k, (one, other) in enumerate(zip(reference.results, played.results)):
        if (one.reward or 0.0) > (other.reward or 0.0) or is_over(one) != is_over(other):
            return min(k, last)
        if one.info.get("success") != other.info.get("success"):
            return min(k, last)
    return last


def _what_to_do(reference: PlayedTrajectory, what: str, read: str, k: int, way: TextPath) -> str:
    name = type(reference.family).__name__
    if what != PLAIN:
        return (
            f"Let the world read it (strip white space, search for the answer instead of matching the whole text), or "
            f"say that it is strict: may_vary of {name}, some of {', '.join(KINDS)}, () for none"
        )
    written = reference.texts[k]
    if way.chat is None:
        return f"The same words earned more a moment ago: look at {name}'s reset and step"
    if written.startswith(read) and len(read) < len(written):
        return (
            f"They were cut: raise collect.max_turn_tokens ({way.collect.max_turn_tokens}), or look at the stop tokens "
            f"({', '.join(way.chat.token_texts(sorted(way.chat.stop_ids)))})"
        )
    if _continued(written, "<think>") == read:
        return (
            "The prompt has opened the thought, so the policy does not write its tag: let the world read an answer whose "
            "thought is already open, or set policy.template_flags so that the prompt opens none"
        )
    if written != read:
        return "The policy's tokenizer gives back other words than it was given: take tokenizer.json from the original model"
    return f"The words came whole: look at how {name} reads an answer, and at the chat template"


def _number(value: float | None) -> str:
    return "nothing that is a number" if value is None else f"{value:g}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[: QUOTED - 3] + "...")


def framed(texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Each text as (before, answer, after): between the answer tags, or what is no common beginning or end of all."""
    tagged = [re.search(r"(.*<answer>)(.*?)(</answer>.*)", text, re.DOTALL) for text in texts]
    if all(tagged):
        return [(match[1], match[2], match[3]) for match in tagged]
    before = re.sub(r"[\w.-]*$", "", os.path.commonprefix(list(texts)))
    inner = [text[len(before) :] for text in texts]
    turned = os.path.commonprefix([text[::-1] for text in inner])[::-1]
    after = re.sub(r"^[\w.-]*", "", turned)
    return [(before, text[: len(text) - len(after)], after) for text in inner]
