"""The four ways to put a question: with tools, with nothing, beside what one search brings, beside what it takes."""

from __future__ import annotations

from typing import Annotated, Any

from workbench.basics.settings import Inert, at_least, one_of
from workbench.tools.base import Tool, tools_named
from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS
from workbench.tools.search import lines_of
from workbench.values import Task
from workbench.worlds.tool_env import ToolEnv

CONTEXTS = ("search", "closed", "rag", "gold")
Context = Annotated[
    str,
    one_of(*CONTEXTS),
    "search: tools; closed: none; rag: one search for the question's own words, in the prompt; gold: the "
    "supporting documents, in the prompt",
]
Turns = Annotated[
    int,
    at_least(1, most=10_000),
    "with tools, the answering one included; without them there is one",
]


class QuestionFamily:
    """The common part of families of questions. Their fields are `context`, `tools`, `documents`, `turns`, `calls` and
    `rewards`; `most_chars` bounds what one search brings, and `corpus_of` and `search_tool` say what a task is about."""

    @property
    def max_turns(self) -> int:
        return self.turns if self.context == "search" else 1

    def inert_settings(self) -> list[Inert]:
        """Settings that cannot act beside the others."""
        return [
            Inert("turns", self.context != "search", "without the tool there is one turn"),
            Inert(
                "documents",
                self.context in ("closed", "gold"),
                "nothing is searched; set env.context='search' or 'rag'",
            ),
        ]

    def check_files(self) -> None:
        """Raise ToolError for a tool that is not there, or that cannot be run where it would be."""
        tools_named([name for name in self.tools if name != "search"])


class QuestionEnv(ToolEnv):
    """One trajectory of a question, put in the way that its family says. `search`: the tool of that name, where one is
    offered."""

    def __init__(self, family: QuestionFamily, search: Tool | None, **settings: Any) -> None:
        names = family.tools if family.context == "search" else ()
        tools = [search if name == "search" else tools_named([name])[0] for name in names]
        super().__init__(
            tools,
            max_turns=family.max_turns,
            calls=family.calls,
            rewards=family.rewards,
            opening=self._found_before,
            **settings,
        )
        self.family = family

    def _found_before(self, task: Task) -> str:
        """The text before the question: nothing, one search for its own words, or all documents that it takes."""
        if self.family.context == "rag":
            query = task.payload["question"][:MOST_QUERY_CHARACTERS]
            return self.family.search_tool(task).call({"query": query}).text
        if self.family.context == "gold":
            corpus = self.family.corpus_of(task)
            documents = [corpus[name] for name in task.payload["support"]]
            return lines_of(documents, self.family.most_chars)[0]
        return ""

    def search(self, query: str) -> str:
        """The text of a turn that searches."""
        return self.format.write_call("search", {"query": query})
