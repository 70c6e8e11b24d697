"""The four ways to put a question: with tools, with nothing, beside what one search brings, beside what it takes."""
from __future__ import annotations

from typing import Annotated

from workbench.types.settings import Inert, at_least, one_of

CONTEXTS = ("search", "closed", "rag", "gold")
Context = Annotated[str, one_of(*CONTEXTS),
                    "search: tools; closed: none; rag: one search for the question's own words, in the prompt; gold: the "
                    "supporting documents, in the prompt"]
Turns = Annotated[int, at_least(1), "with tools, the answering one included; without them there is one"]


def inert_beside(context: str) -> list[Inert]:
    """What cannot act where a question is put in this way."""
    return [Inert("turns", context != "search", "without the tool there is one turn"),
            Inert("documents", context in ("closed", "gold"), "nothing is searched; set env.context='search' or 'rag'")]
