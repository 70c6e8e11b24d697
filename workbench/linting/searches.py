"""What a search brings, and which answers are right: the part of R30 about questions with tools.

A document is found by its own words and by its title, with its own text; the gold answer is right, any other one wrong,
and nobody who asks for nothing is told it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.leaks import Probe, golds, holds, words_of
from workbench.envs.shared import made, opened
from workbench.envs.tools.search import SearchTool
from workbench.linting.rule import RuleResult
from workbench.types import Task
from workbench.types.findings import Checked, Finding, shortened

DOCUMENTS = 12  # that are looked for
FEW = 3  # tasks at each of which the words of all are searched for


def check_searches(family: EnvFamily, found: Sequence[Probe]) -> Iterator[RuleResult]:
    yield from _searches(family, found[0].task)
    yield from _of_other_tasks(family, found[:FEW])
    yield from _telling(family, found)


def _answered(family: EnvFamily, task: Task, seed: int, text: str) -> bool | None:
    """Whether this answer, at once, is a success; None: the environment does not say."""
    with opened(family) as env:
        env.reset(task, seed)
        said = env.step(text).info.get("success")
    return said if isinstance(said, bool) else None


def _searches(family: EnvFamily, task: Task) -> Iterator[RuleResult]:
    """Who asks a searcher for a document's own words is given it, first or with equals, and with its own text."""
    if (
        not hasattr(family, "search_tool")
        or not hasattr(family, "corpus_of")
        or getattr(family, "is_remote", False)
    ):
        return
    tool, corpus = family.search_tool(task), family.corpus_of(task)
    documents = corpus.documents[:: max(len(corpus) // DOCUMENTS, 1)][:DOCUMENTS]
    searcher, missed = getattr(tool, "searcher", None), []
    if searcher is None or getattr(searcher, "remote", False) or not documents:
        return
    yield Checked(len(documents))
    for document in documents:
        hits = searcher.search(document.words[:1000], max(3, getattr(tool, "k", 1)))
        near = [document]
        if document.title:
            near = [hit.document for hit in searcher.search(document.title, max(3, tool.k))]
        missed += (
            [document]
            if document.id not in [hit.document.id for hit in hits]
            or not any(holds(each.words, document.title) for each in near)
            else []
        )
        scores = [hit.score for hit in hits]
        if scores != sorted(scores, reverse=True):
            yield Finding(
                f"a search brings the scores {[round(s, 3) for s in scores]}, which is not best first"
            )
            return
        brought = tool.call({"query": document.words[:1000]})
        named = (brought.value or {}).get("documents", [])
        said = set(brought.text.split())
        lost = next(
            (each for each in named if not set(corpus[each].words.split()[:4]) & said), None
        )
        if lost is not None or len(named) > tool.k:
            yield Finding(
                f"a search says that it brings {named}, and its text is {shortened(brought.text)}"
            )
            return
    if 4 * len(missed) > len(documents):
        yield Finding(
            f"asked for a document's own words or title, the search does not bring it, for {len(missed)} of "
            f"{len(documents)} documents (so {missed[0].id!r})"
        )


def _of_other_tasks(family: EnvFamily, found: Sequence[Probe]) -> Iterator[RuleResult]:
    """Who asks what was asked at another task is answered of their own documents."""
    if not hasattr(family, "search_tool") or getattr(family, "is_remote", False):
        return
    for probe in found:
        for other in found:  # every task's question, in all tasks
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
    found = [hit.document.id for hit in tool.searcher.search(arguments["query"], tool.k)]
    brought = (tool.call(arguments).value or {}).get("documents", found)
    return (
        None
        if brought == found
        else (
            f"the search for {shortened(arguments['query'])} brings {shortened(brought)}, and "
            f"its searcher finds {shortened(found)}"
        )
    )


def _telling(family: EnvFamily, found: Sequence[Probe]) -> Iterator[RuleResult]:
    """Nobody's question brings the answer; and the gold answer is right, any other one wrong."""
    env = made(family)
    write = getattr(getattr(env, "format", None), "write_answer", None)
    known = [probe for probe in found if golds(probe.task)]
    if write is None or not known:
        return
    answers = [golds(probe.task)[0] for probe in known]
    yield Checked(len(known))
    for number, (probe, gold) in enumerate(zip(known, answers)):
        other = next((each for each in answers if each.lower() != gold.lower()), None)
        tries = {gold: True} | (
            {}
            if other is None
            else {other: False, f"{other} {gold}": False, f"{gold}, {other}": False}
        )
        for text, right in tries.items():
            said = _answered(family, probe.task, number, write(text))
            if said is not None and said is not right:
                yield Finding(
                    f"at {probe.task.id!r}, whose gold answer is {gold!r}, the answer {text!r} counts as "
                    f"{'right' if said else 'wrong'}"
                )
                return
    given = 0
    for probe in known:
        for tool in getattr(env, "tools", ()):
            if getattr(tool, "trusted", False) and not getattr(tool, "stateful", True):
                given += _tells(tool, probe.task)
    if 2 * given > len(known) >= 3:
        yield Finding(
            f"a tool that is asked for nothing at all brings the gold answer, at {given} of {len(known)} "
            f"tasks"
        )


def _tells(tool: Any, task: Task) -> bool:
    named = tool.parameters.get("properties", {})
    try:
        said = tool.for_attempt(task).call(
            {name: "zzqx" for name in named if named[name].get("type") == "string"}
        )
    except Exception:
        return False
    return any(holds(getattr(said, "text", None) or str(said), gold) for gold in golds(task))
