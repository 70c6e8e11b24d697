"""Search by words: BM25, by the library bm25s, whose index is arrays that numpy reads.

    score(document) = sum over the words of the query of idf(word) * tf / (tf + k1 * (1 - b + b * length / mean length))

bm25s computes every such term when the index is made, so a query only adds columns. What is ours: which words there are
(nothing is stemmed or left out: in an invented world, or for the name "The Who", every word counts), and what comes first
among equals.

Source: Robertson and Zaragoza 2009; Lucene's variant of idf, which is never negative; Lu 2024 (bm25s, arXiv 2407.03618).
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator

from workbench.tools.retrieval.base import Corpus, Hit, best_first, hits
from workbench.values.errors import ConfigError

_WORD = re.compile(r"\w+")
_MOST_QUERY_WORDS = 512


def words_of(text: str) -> list[str]:
    """The words of a text, as they are compared: letters and digits, without case, compatibility forms made one."""
    if text.isascii():
        return _WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class _WordIds:
    """The word numbers of every document, four bytes each: as lists of lists, a large corpus would not fit."""

    def __init__(self, corpus: Corpus, vocabulary: dict[str, int]) -> None:
        self._numbers = array("i")
        self._ends = array("q", [0])
        for document in corpus.documents:
            words = words_of(document.words)
            self._numbers.extend([vocabulary.setdefault(word, len(vocabulary)) for word in words])
            self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self._numbers[start:end].tolist() for start, end in zip(self._ends, self._ends[1:]))


class _Words:
    """What bm25s takes for a tokenized corpus: `ids` and `vocab`."""

    def __init__(self, corpus: Corpus) -> None:
        self.vocab: dict[str, int] = {}
        self.ids = _WordIds(corpus, self.vocab)


class Bm25:
    """BM25 over a corpus, in memory. About 15 ms to make for a thousand short documents, 50 us to ask (one core).

    k1, b   how fast a repeated word stops counting, and how much long documents pay for their length
    """

    remote = False
    read_only = True  # after it is made, so that all trajectories may search in the same one

    def __init__(self, corpus: Corpus, k1: float = 1.5, b: float = 0.75) -> None:
        if not 0 <= k1 < float("inf") or not 0 <= b <= 1:
            raise ConfigError(
                f"BM25 takes k1 from 0 on and b from 0 to 1, got k1 = {k1!r} and b = {b!r}"
            )
        import bm25s  # here, because it takes a tenth of a second that only those pay who search

        self.corpus = corpus
        words = _Words(corpus)
        self._number_of = words.vocab
        self._index = None
        if words.vocab:
            self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
            self._index.index(words, show_progress=False, create_empty_token=False)

    def search(self, query: str, k: int) -> list[Hit]:
        """As in `Searcher`: documents that share a word with the query, of which the first 512 words are read."""
        words = words_of(query)[:_MOST_QUERY_WORDS]
        numbers = [self._number_of[word] for word in words if word in self._number_of]
        if not numbers:
            return []
        scores = self._index.get_scores_from_ids(numbers)
        return hits(self.corpus.documents, scores, best_first(scores, k, above=0.0))
