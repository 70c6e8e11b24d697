"""Documents, a corpus of them, and the one question that every searcher answers: which of them are nearest to a text?

A searcher is any object with `search(query, k)`. Its answer is a function of corpus and query, and documents that score
the same stand in the order of the corpus: a reward that hangs on what was found would else be noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Protocol

import numpy as np

from workbench.values.errors import DataError

MOST_QUERY_CHARACTERS = 1_000  # of a query that a policy writes: beyond that it is no query


@dataclass(frozen=True, slots=True)
class Document:
    """Something that can be found. `id` is unique in its corpus; `title` may be empty."""

    id: str
    title: str
    text: str

    @property
    def words(self) -> str:
        """Title and text as one: what is searched."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found, and how well it fits (in the searcher's own unit: higher is better)."""

    document: Document
    score: float


class Searcher(Protocol):
    """Finds documents."""

    def search(self, query: str, k: int) -> list[Hit]:
        """At most `k` documents, best first, equals in the order of the corpus; [] where nothing fits."""

    # Optional, False or True: remote (its answers come from outside this process, by the wall clock)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in an order that counts. Two corpora with one `digest` hold the same documents in the same order."""

    documents: tuple[Document, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "documents", tuple(self.documents))
        if len(self.index_of) != len(self.documents):
            seen: set[str] = set()
            twice = next(d.id for d in self.documents if d.id in seen or seen.add(d.id))
            raise DataError(
                f"a corpus has one document for each id, this one has {twice!r} twice; make ids unique"
            )

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def index_of(self) -> dict[str, int]:
        """{document id: its place in the order}."""
        return {document.id: index for index, document in enumerate(self.documents)}

    @cached_property
    def digest(self) -> str:
        """sha256 of all documents, each field with its length, so that different corpora have different digests."""
        digest = sha256()
        for document in self.documents:
            for field in (document.id, document.title, document.text):
                encoded = field.encode("utf-8", "surrogatepass")
                digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return digest.hexdigest()

    def __getitem__(self, document_id: str) -> Document:
        """The document of this id. Raises DataError where there is none."""
        if document_id not in self.index_of:
            raise DataError(f"no document {document_id!r} among the {len(self)} of this corpus")
        return self.documents[self.index_of[document_id]]


def best_first(scores: np.ndarray, k: int, above: float = -np.inf) -> np.ndarray:
    """Places of the `k` highest of `scores` [documents] that exceed `above`, best first, equals in their order.

    Partial sorts put equals in any order, which may differ between machines; so the k-th score is looked up first, and
    only what reaches it is sorted, stably.
    """
    places = np.flatnonzero(scores > above)
    if len(places) > k > 0:
        kth = np.partition(scores[places], len(places) - k)[len(places) - k]
        places = places[scores[places] >= kth]
    return places[np.argsort(-scores[places], kind="stable")][: max(k, 0)]


def hits(documents: Sequence[Document], scores: np.ndarray, places: Iterable[int]) -> list[Hit]:
    """The documents at `places` with their scores."""
    return [Hit(documents[place], float(scores[place])) for place in places]
