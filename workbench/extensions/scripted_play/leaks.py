"""Does what a policy is shown hold the answer before it was earned? Asked of trajectories by the lint (R27), and of environments
that are played by `workbench check-env`.

Earned is what a document says that a search brought, what the question itself says, and what the policy wrote before.
The rest of a prompt, of a reply and of a tool's schema is searched for the gold answer and for its rare words: those
that stand in no other task's prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from workbench.basics.findings import Checked, Finding
from workbench.values import Observation, Task, Trajectory
from workbench.values.errors import shortened
from workbench.worlds.base import EnvFamily

PASSAGE = 30  # words of a text that is there to be read

GOLD = frozenset(
    "answer answers gold golds solution solutions secret expected label aliases correct".split()
)
UNSURE = "label"  # a gold answer, or what a thing in the prompt is called
SHORTEST = 3  # characters of an answer or a number that says anything by itself, and two more of a part of one
FEW_DOCUMENTS = 2000
EVERYWHERE = 6  # tasks whose gold answer stands in the question, each time at the same place


class Probe(NamedTuple):
    """A task of a family, and how its trajectories begin."""

    task: Task
    opening: Observation


def leaves(value: Any) -> Iterator[Any]:
    """Whatever in a JSON value is no object and no list."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from leaves(item)


def gold_of(task: Task) -> str:
    """The one gold answer of a task, in its payload or in its row; "" for none."""
    row = task.payload.get("row")
    for values in (dict(task.payload), row if isinstance(row, dict) else {}):
        for name, value in values.items():
            golds = [str(leaf) for leaf in leaves(value)] if name.lower() in GOLD else []
            if len(golds) == 1 and golds[0].strip():
                return golds[0].strip()
    return ""


def _words_in(value: Any) -> Iterator[str]:
    return (
        str(leaf)
        for leaf in leaves(value)
        if isinstance(leaf, (str, int, float)) and not isinstance(leaf, bool)
    )


def golds(task: Task) -> tuple[str, ...]:
    """The gold answers of a task, by the names of its payload, that are long enough to be recognised."""
    named = [name for name in task.payload if name.lower() in GOLD]
    sure = [name for name in named if name.lower() != UNSURE]
    return _texts_under(task, sure or named)


def _texts_under(task: Task, names: Sequence[str]) -> tuple[str, ...]:
    texts: dict[str, None] = {}
    for name in names:
        texts |= dict.fromkeys(text.strip() for text in _words_in(task.payload[name]))
    return tuple(text for text in texts if len(text) >= SHORTEST)


def unsure_is_no_answer(solved: Iterable[tuple[Task, str]]) -> bool:
    """Whether what tasks have under `UNSURE` is no answer: most of what solved them did not say it. `solved`: tasks, and all that was
    written where they were solved."""
    answered = []
    for task, words in solved:
        texts = _texts_under(task, [name for name in task.payload if name.lower() == UNSURE])
        if texts:
            answered.append(any(holds(words, text) for text in texts))
    return 2 * sum(answered) < len(answered)


def without_unsure(task: Task) -> Task:
    """The task with what it has under `UNSURE` as a name in its problem."""
    payload = {}
    for name, value in task.payload.items():
        payload[f"{name} (a name)" if name.lower() == UNSURE else name] = value
    return replace(task, payload=payload)


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


def without(text: str, passages: Sequence[str]) -> str:
    """The text without what else the task holds: its question, its choices, its passages."""
    for passage in sorted(passages, key=len, reverse=True):
        text = text.replace(passage, " ")
    return text


def problem(task: Task) -> list[str]:
    """The texts of a task beside its gold answer, which are there to be shown."""
    shown: list[str] = []
    for name, value in task.payload.items():
        if name.lower() not in GOLD:
            shown += [text for text in _words_in(value) if len(text) >= SHORTEST]
    return shown


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
    own = set(golds(task))
    secrets = list(chain.from_iterable(map(parts, golds(task))))
    if not secrets:
        return None
    strangers = [other for other in others if own.isdisjoint(golds(other.task))]
    shown = [f"{words_of(other.opening)} {' '.join(problem(other.task))}" for other in strangers]
    elsewhere = " ".join(shown)
    return [secret for secret in secrets if not holds(elsewhere, secret)]


def leak_of(
    family: EnvFamily | None, trajectory: Trajectory, rare: Sequence[str]
) -> tuple[int | None, str] | None:
    """The first place where one of the `rare` parts of the answer stands and nothing said before earned it: the turn that
    it answers (None: the first prompt), and what stands there, in words. Nor may a prompt hold what is for a critic
    alone."""
    return (
        _privileged_shown(trajectory)
        or _in_the_opening(family, trajectory, rare)
        or _in_a_reply(family, trajectory, rare)
    )


def _privileged_shown(trajectory: Trajectory) -> tuple[int, str] | None:
    shown = list(trajectory.first_observation.messages)
    for turn in trajectory.turns[:-1]:
        shown += turn.reply
    for turn in trajectory.turns:
        secret = turn.privileged
        if secret and any(secret in message.text for message in shown):
            what = (
                f"a prompt holds {shortened(secret)}, which only the critic is told (privileged())"
            )
            return turn.index, what
    return None


def _in_the_opening(
    family: EnvFamily | None, trajectory: Trajectory, rare: Sequence[str]
) -> tuple[None, str] | None:
    task = trajectory.task
    on_purpose = [
        *problem(task),
        *_passages(family, task),
        *to_be_read(trajectory.first_observation),
    ]
    opening = without(words_of(trajectory.first_observation), on_purpose)
    for secret in rare:
        if holds(opening, secret):
            what = f"the first prompt holds {shortened(secret)}, of the gold answer, outside of the question"
            return None, what
    return None


def to_be_read(opening: Observation) -> list[str]:
    """Passages of a first prompt: long texts of others beside the author's own words. An answer is there to be found."""
    passages = []
    for message in opening.messages:
        has_words_of_the_author = any(part.trusted for part in message.content)
        for part in message.content:
            is_long = len(part.text.split()) >= PASSAGE
            passages += [part.text] * (has_words_of_the_author and is_long and not part.trusted)
    return passages


def _in_a_reply(
    family: EnvFamily | None, trajectory: Trajectory, rare: Sequence[str]
) -> tuple[int, str] | None:
    known = words_of(trajectory.first_observation)
    for k, turn in enumerate(
        trajectory.turns[:-1]
    ):  # what answers the last turn is shown to nobody
        known += f"\n{turn.text}"
        for message in turn.reply:
            for secret in rare:
                is_new = holds(message.text, secret) and not holds(known, secret)
                if is_new and not _earned_by_tool(family, trajectory.task, turn, secret, message):
                    return k, (
                        f"the {message.role} message after turn {k} holds {shortened(secret)}, of the gold answer, "
                        "which no document that it brought says"
                    )
            known += f"\n{message.text}"
    return None


def _earned_by_tool(
    family: EnvFamily | None, task: Task, turn: Any, secret: str, message: Any
) -> bool:
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
    documents = corpus.documents
    if len(corpus) > FEW_DOCUMENTS:
        support = task.payload.get("support", ())
        documents = [
            corpus[document_id] for document_id in support if document_id in corpus.index_of
        ]
    passages: list[str] = []
    for document in documents:
        texts = (document.text, document.title)
        passages += [" ".join(text.split()) for text in texts if text]
    return passages


def _texts(family: EnvFamily, task: Task, ids: Sequence[str]) -> list[str]:
    corpus = family.corpus_of(task)
    return [
        f"{corpus[document_id].title} {corpus[document_id].text}"
        for document_id in ids
        if document_id in corpus.index_of
    ]


def always_there(others: Sequence[Probe]) -> Iterator[Finding | Checked]:
    """A question may name its answer among others; where every question that names it does so at the same place, that
    gives it away."""
    around: dict[tuple[str, str], dict[str, str]] = {}
    for probe in others:
        question = probe.task.payload.get("question")
        gold = golds(probe.task)
        if (
            isinstance(question, str)
            and gold
            and (at := question.lower().find(gold[0].lower())) >= 0
        ):
            key = (question[max(at - 3, 0) : at], question[at + len(gold[0]) :][:3])
            around.setdefault(key, {})[gold[0]] = probe.task.id
    asked = len({probe.task.id for probe in others if golds(probe.task)})
    yield Checked(asked)
    for (before, after), ids_by_gold in around.items() if len(around) == 1 else ():
        if len(ids_by_gold) >= EVERYWHERE and 2 * len(ids_by_gold) > asked:
            yield Finding(
                f"in {len(ids_by_gold)} of {asked} tasks the gold answer stands in the question, each time between "
                f"{before!r} and {after!r} (so {shortened(next(iter(ids_by_gold.values())))})"
            )
