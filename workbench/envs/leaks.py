"""Does what a policy is shown hold the answer before it was earned? Asked of attempts by the lint (R27), and of environments
that are played by `workbench check-env`.

PolicyEstimate is what a document says that was found, what the question itself says, and what the policy wrote before. The rest
of a prompt, of a reply and of a tool's schema is searched for the gold answer and for its rare words: those that stand
in no other task's prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.envs.base import EnvFamily
from workbench.types import Observation, Task, Trajectory
from workbench.types.findings import Checked, Finding, shortened

GOLD = frozenset(
    "answer answers gold golds solution solutions secret expected label aliases correct".split()
)
SHORTEST = 3  # characters of an answer or a number that says anything by itself, and two more of a part of one
FEW_DOCUMENTS = 2000
EVERYWHERE = 6  # tasks whose gold answer stands in the question, each time at the same place


class Probe(NamedTuple):
    """A task of a family, and how its attempts begin."""

    task: Task
    opening: Observation


def leaves(value: Any) -> Iterator[Any]:
    """Whatever in a JSON value is no object and no list."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for each in value:
        yield from leaves(each)


def _words_in(value: Any) -> Iterator[str]:
    return (
        str(each)
        for each in leaves(value)
        if isinstance(each, (str, int, float)) and not isinstance(each, bool)
    )


def golds(task: Task) -> tuple[str, ...]:
    """The gold answers of a task, by the names of its payload, that are long enough to be recognised."""
    found = (
        text.strip()
        for name, value in task.payload.items()
        if name.lower() in GOLD
        for text in _words_in(value)
    )
    return tuple(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def holds(text: str, words: str) -> bool:
    """Whether these words stand in the text, as whole words."""
    return (
        words.lower() in text.lower()
        and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None
    )


def parts(gold: str) -> Iterator[str]:
    yield gold
    yield from (
        word for word in re.findall(r"\w+", gold) if len(word) >= SHORTEST + 2 and word != gold
    )


def without(text: str, said: Sequence[str]) -> str:
    """The text without what else the task holds: its question, its choices, its passages."""
    for each in sorted(said, key=len, reverse=True):
        text = text.replace(each, " ")
    return text


def problem(task: Task) -> list[str]:
    """What a task holds beside its gold answer, and is there to be shown."""
    return [
        text
        for name, value in task.payload.items()
        if name.lower() not in GOLD
        for text in _words_in(value)
        if len(text) >= SHORTEST
    ]


def words_of(observation: Observation) -> str:
    return "\n".join(
        [
            *(message.text for message in observation.messages),
            json.dumps([dict(tool) for tool in observation.tools], default=str),
        ]
    )


# ------------------------------------------------------------------------------------------------ where it stands


def rare_parts(task: Task, others: Sequence[Probe]) -> list[str] | None:
    """Parts of a task's gold answer that no other task shows; None where it has no gold answer."""
    secrets = [part for gold in golds(task) for part in parts(gold)]
    if not secrets:
        return None
    elsewhere = " ".join(
        f"{words_of(each.opening)} {' '.join(problem(each.task))}"
        for each in others
        if not set(golds(each.task)) & set(golds(task))
    )
    return [secret for secret in secrets if not holds(elsewhere, secret)]


def leak_of(
    family: EnvFamily | None, attempt: Trajectory, rare: Sequence[str]
) -> tuple[int | None, str] | None:
    """The first place where one of the `rare` parts of the answer stands and nothing said before earned it: the turn that
    it answers (None: the first prompt), and what stands there, in words. Nor may it say what only a critic is told."""
    task = attempt.task
    for k, told in ((turn.index, turn.privileged) for turn in attempt.turns if turn.privileged):
        if any(
            told in message.text
            for message in (
                *attempt.first_observation.messages,
                *(message for turn in attempt.turns[:-1] for message in turn.reply),
            )
        ):
            return (
                k,
                f"a prompt holds {shortened(told)}, which only the critic is told (privileged())",
            )
    opening = without(
        words_of(attempt.first_observation), [*problem(task), *_passages(family, task)]
    )
    for secret in rare:
        if holds(opening, secret):
            return (
                None,
                f"the first prompt holds {shortened(secret)}, of the gold answer, outside of the question",
            )
    known = words_of(attempt.first_observation)
    for k, turn in enumerate(attempt.turns[:-1]):  # what answers the last turn is shown to nobody
        known += f"\n{turn.text}"
        for message in turn.reply:
            for secret in rare:
                if (
                    holds(message.text, secret)
                    and not holds(known, secret)
                    and not _found(family, task, turn, secret, message)
                ):
                    return k, (
                        f"the {message.role} message after turn {k} holds {shortened(secret)}, of the gold answer, "
                        "which no document that it brought says"
                    )
            known += f"\n{message.text}"
    return None


def _found(family: EnvFamily | None, task: Task, turn: Any, secret: str, message: Any) -> bool:
    """Whether a tool's answer earned it: of a search, a document that it brought says so; other tools answer for
    themselves (R28)."""
    if message.role != "tool" or message.text.startswith("Error"):
        return False
    named = turn.info.get("documents")
    return (
        named is None
        or not hasattr(family, "corpus_of")
        or any(holds(text, secret) for text in _texts(family, task, named))
    )


def _passages(family: EnvFamily | None, task: Task) -> list[str]:
    """Documents that may stand in a prompt by the family's own setting, where they are few enough to look for."""
    if getattr(family, "context", None) not in ("rag", "gold") or not hasattr(family, "corpus_of"):
        return []
    corpus = family.corpus_of(task)
    few = (
        corpus.documents
        if len(corpus) <= FEW_DOCUMENTS
        else [corpus[each] for each in task.payload.get("support", ()) if each in corpus.index_of]
    )
    return [" ".join(text.split()) for each in few for text in (each.text, each.title) if text]


def _texts(family: EnvFamily, task: Task, ids: Sequence[str]) -> list[str]:
    corpus = family.corpus_of(task)
    return [f"{corpus[each].title} {corpus[each].text}" for each in ids if each in corpus.index_of]


def always_there(others: Sequence[Probe]) -> Iterator[Finding | Checked]:
    """A question may name its answer among others; where every question that names it does so at the same place, that
    gives it away."""
    around: dict[tuple[str, str], dict[str, str]] = {}
    for each in others:
        question, gold = each.task.payload.get("question"), golds(each.task)
        if (
            isinstance(question, str)
            and gold
            and (at := question.lower().find(gold[0].lower())) >= 0
        ):
            key = (question[max(at - 3, 0) : at], question[at + len(gold[0]) :][:3])
            around.setdefault(key, {})[gold[0]] = each.task.id
    asked = len({each.task.id for each in others if golds(each.task)})
    yield Checked(asked)
    for (before, after), found in around.items() if len(around) == 1 else ():
        if len(found) >= EVERYWHERE and 2 * len(found) > asked:
            yield Finding(
                f"in {len(found)} of {asked} tasks the gold answer stands in the question, each time between "
                f"{before!r} and {after!r} (so {shortened(next(iter(found.values())))})"
            )
