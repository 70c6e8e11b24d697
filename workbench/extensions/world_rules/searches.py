"""What a search brings, and which answers are right: the part of R30 about questions with tools.

A document is found by its own words and by its title, with its own text; the gold answer is right, any other one wrong,
and nobody who asks for nothing is told it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.basics.findings import Checked, Finding
from workbench.extensions.scripted_play.leaks import Probe, golds, holds, words_of
from workbench.extensions.scripted_play.playing import Script, replay
from workbench.linting.rule import RuleResult
from workbench.tools.search import SearchTool
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.worlds.base import EnvFamily
from workbench.worlds.scoring import scores_after
from workbench.worlds.shared import made

DOCUMENTS = 12  # that are looked for
FEW = 3  # tasks at each of which the words of all are searched for


def check_searches(family: EnvFamily, probes: Sequence[Probe]) -> Iterator[RuleResult]:
    yield from _searches(family, probes[0].task)
    yield from _of_other_tasks(family, probes[:FEW])
    yield from _telling(family, probes)


def _searches(family: EnvFamily, task: Task) -> Iterator[RuleResult]:
    """Who asks a searcher for a document's own words is given it, first or with equals, and with its own text."""
    has_corpus = hasattr(family, "search_tool") and hasattr(family, "corpus_of")
    if not has_corpus or getattr(family, "is_remote", False):
        return
    tool = family.search_tool(task)
    corpus = family.corpus_of(task)
    searcher = getattr(tool, "searcher", None)
    documents = corpus.documents[:: max(len(corpus) // DOCUMENTS, 1)][:DOCUMENTS]
    if searcher is None or getattr(searcher, "remote", False) or not documents:
        return
    yield Checked(len(documents))
    missed = []
    for document in documents:
        hits = searcher.search(document.words[:1000], max(3, getattr(tool, "k", 1)))
        if not _is_found(tool, document, hits):
            missed.append(document)
        scores = [hit.score for hit in hits]
        if scores != sorted(scores, reverse=True):
            rounded = [round(score, 3) for score in scores]
            yield Finding(f"a search brings the scores {rounded}, which is not best first")
            return
        what = _other_text(tool, corpus, document)
        if what is not None:
            yield Finding(what)
            return
    if 4 * len(missed) > len(documents):
        yield Finding(
            f"asked for a document's own words or title, the search does not bring it, for {len(missed)} of "
            f"{len(documents)} documents (so {missed[0].id!r})"
        )


def _is_found(tool: Any, document: Any, hits: Sequence[Any]) -> bool:
    """Whether the hits for its own words hold a document, and those for its title one that has this title."""
    near = [document]
    if document.title:
        near = [hit.document for hit in tool.searcher.search(document.title, max(3, tool.k))]
    by_title = any(holds(candidate.words, document.title) for candidate in near)
    return by_title and document.id in [hit.document.id for hit in hits]


def _other_text(tool: Any, corpus: Any, document: Any) -> str | None:
    """The tool brings the text of the documents that it names, and no more of them than it may."""
    brought = tool.call({"query": document.words[:1000]})
    named = (brought.value or {}).get("documents", [])
    words = set(brought.text.split())
    for document_id in named:
        if len(named) > tool.k or not set(corpus[document_id].words.split()[:4]) & words:
            return (
                f"a search says that it brings {named}, and its text is {shortened(brought.text)}"
            )
    return None


def _of_other_tasks(family: EnvFamily, probes: Sequence[Probe]) -> Iterator[RuleResult]:
    """Who asks what was asked at another task is answered of their own documents."""
    if not hasattr(family, "search_tool") or getattr(family, "is_remote", False):
        return
    for probe in probes:
        for other in probes:  # every task's question, in all tasks
            if what := not_of_the_searcher(
                family.search_tool(probe.task), {"query": words_of(other.opening)[:200]}
            ):
                yield Finding(f"at {probe.task.id!r} {what}")
                return


def not_of_the_searcher(tool: Any, arguments: Mapping[str, Any]) -> str | None:
    """Our search brings what its searcher finds, asked behind its back: what it keeps is somebody else's answer."""
    if getattr(type(tool), "call", None) is not SearchTool.call or getattr(
        tool.searcher, "remote", False
    ):
        return None
    expected = [hit.document.id for hit in tool.searcher.search(arguments["query"], tool.k)]
    brought = (tool.call(arguments).value or {}).get("documents", expected)
    return (
        None
        if brought == expected
        else (
            f"the search for {shortened(arguments['query'])} brings {shortened(brought)}, and "
            f"its searcher finds {shortened(expected)}"
        )
    )


def _telling(family: EnvFamily, probes: Sequence[Probe]) -> Iterator[RuleResult]:
    """Nobody's question brings the answer; and the gold answer is right, any other one wrong."""
    env = made(family)
    write = getattr(getattr(env, "format", None), "write_answer", None)
    known = [probe for probe in probes if golds(probe.task)]
    if write is None or not known:
        return
    yield Checked(len(known))
    judged = getattr(env, "reward", None) is not None or scores_after(family)
    wrong = None if judged else _misjudged(family, write, known)
    yield from [wrong] if wrong is not None else _told_for_nothing(env, known)


def _misjudged(
    family: EnvFamily, write: Callable[[str], str], known: Sequence[Probe]
) -> Finding | None:
    """A gold answer that counts as wrong, or another one that counts as right."""
    answers = [golds(probe.task)[0] for probe in known]
    for number, (probe, gold) in enumerate(zip(known, answers)):
        other = next((answer for answer in answers if answer.lower() != gold.lower()), None)
        tries = {gold: True} | (
            {}
            if other is None
            else {other: False, f"{other} {gold}": False, f"{gold}, {other}": False}
        )
        for text, right in tries.items():
            answered = replay(family, Script(probe.task, number, (write(text),)))
            reported = answered.reported_success
            if reported is not None and reported is not right:
                return Finding(
                    f"at {probe.task.id!r}, whose gold answer is {gold!r}, the answer {text!r} counts as "
                    f"{'right' if reported else 'wrong'}"
                )
    return None


def _told_for_nothing(env: Any, known: Sequence[Probe]) -> Iterator[Finding]:
    given = 0
    for probe in known:
        for tool in getattr(env, "tools", ()):
            if getattr(tool, "trusted", False) and not getattr(tool, "stateful", True):
                given += _tells_the_answer(tool, probe.task)
    if 2 * given > len(known) >= 3:
        yield Finding(
            f"a tool that is asked for nothing at all brings the gold answer, at {given} of {len(known)} "
            f"tasks"
        )


def _tells_the_answer(tool: Any, task: Task) -> bool:
    named = tool.parameters.get("properties", {})
    try:
        reply = tool.for_trajectory(task).call(
            {name: "zzqx" for name in named if named[name].get("type") == "string"}
        )
    except Exception:
        return False
    return any(holds(getattr(reply, "text", None) or str(reply), gold) for gold in golds(task))
