"""Search as a tool: one query in, the documents that fit best out, a line each.

The text is plain and short, because a policy pays for every token of it: no JSON, no scores, no numbers. `value` names
the documents for people and for rewards that pay for finding them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.tools.base import ToolResult
from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS, Document, Searcher
from workbench.values import Task
from workbench.values.errors import ConfigError

NOTHING = "Nothing found."


@dataclass(frozen=True)
class SearchTool:
    """`search(query)` over whatever `searcher` searches.

    k           documents an answer holds at most
    most_chars  characters it holds at most; where more were found, long documents are cut before short ones
    """

    searcher: Searcher = field(repr=False)
    k: int = 3
    most_chars: int = 2_000
    name: str = "search"
    description: str = "Find documents about a query."
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
            "additionalProperties": False,
        }
    )
    stateful: bool = False

    def __post_init__(self) -> None:
        if self.k < 1 or self.most_chars < 1:
            raise ConfigError(
                f"SearchTool finds at least 1 document and shows at least 1 character, got k = {self.k!r} "
                f"and most_chars = {self.most_chars!r}"
            )

    @property
    def trusted(self) -> bool:
        """A searcher in this process is ours, pure and bounded; one outside is waited for elsewhere."""
        return not getattr(self.searcher, "remote", False)

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """The documents found, one a line. A query that is too long is answered, not raised."""
        query = arguments["query"]
        if len(query) > MOST_QUERY_CHARACTERS:
            return ToolResult(
                f"Error: the query has {len(query)} characters; at most {MOST_QUERY_CHARACTERS} are "
                "searched. Ask for less.",
                error="bad_arguments",
            )
        documents = [hit.document for hit in self.searcher.search(query, self.k)]
        text, cut_bytes = lines_of(documents, self.most_chars)
        value = {"documents": [document.id for document in documents]}
        return ToolResult(text or NOTHING, value, cut_bytes=cut_bytes)

    def for_trajectory(self, task: Task) -> SearchTool:
        return self


def line_of(document: Document) -> str:
    """A document on one line: its text, after its title where it has one."""
    text = document.text
    if document.title:
        text = f"{document.title}: {text}"
    return " ".join(text.split())


def lines_of(documents: Sequence[Document], most_chars: int) -> tuple[str, int]:
    """Documents one a line in at most `most_chars` characters, and how many bytes were left out.

    The room is shared: a line that needs less than its equal part leaves the rest to the longer ones.
    """
    lines = [line_of(document) for document in documents]
    room = most_chars - max(len(lines) - 1, 0)  # without the line ends
    shares: dict[int, int] = {}
    shortest_first = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    for rank, index in enumerate(shortest_first):
        equal_part = max(room // (len(lines) - rank), 0)
        shares[index] = min(len(lines[index]), equal_part)
        room -= shares[index]
    shown = [_cut(line, shares[index]) for index, line in enumerate(lines)]
    cut = sum(_size(line) - _size(kept) for line, kept in zip(lines, shown))
    return "\n".join(line for line in shown if line)[:most_chars], max(cut, 0)


def _cut(line: str, most: int) -> str:
    """The first words of a line, with "..." where something is missing."""
    if len(line) <= most:
        return line
    head = line[: max(most - 3, 0)]
    return (head.rpartition(" ")[0] or head) + "..."[:most]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
