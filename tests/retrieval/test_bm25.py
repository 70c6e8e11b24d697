"""BM25 against its formula written out, ties in the order of the corpus, and a corpus that knows what it is."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tools.retrieval import Bm25, Corpus, Document
from workbench.tools.retrieval.base import best_first
from workbench.tools.retrieval.bm25 import words_of
from workbench.values.errors import ConfigError, DataError

FACTS = ("ada was born in ora", "ora lies in sun", "bo was born in ora", "bo likes ada", "")
corpora = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "dd", "É"]), max_size=6).map(" ".join), max_size=12
)


def corpus_of(texts) -> Corpus:
    return Corpus(Document(f"d{index}", "", text) for index, text in enumerate(texts))


def found(texts, query: str, k: int) -> list[str]:
    return [hit.document.id for hit in Bm25(corpus_of(texts)).search(query, k)]


def by_formula(texts, query: str, k1: float = 1.5, b: float = 0.75) -> list[tuple[int, float]]:
    """(place, score) of every document with a word of the query, best first, equals in order: straight from the formula."""
    documents = [words_of(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    ranked = []
    for place, words in enumerate(documents):
        score = 0.0
        for word in words_of(query):
            frequency = Counter(words)[word]
            containing = sum(word in other for other in documents)
            if frequency:
                idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
                score += idf * frequency / (frequency + k1 * (1 - b + b * len(words) / mean))
        if score:
            ranked.append((place, score))
    return sorted(ranked, key=lambda item: (-round(item[1], 5), item[0]))


def test_it_finds_what_shares_words_and_nothing_else():
    assert found(FACTS, "Where was Bo born?", 2) == ["d2", "d0"]
    assert found(FACTS, "likes", 9) == ["d3"]
    for query in ("", "  ", "...", "nobody knows these", "nobody"):
        assert found(FACTS, query, 3) == []
    assert found((), "ada", 3) == [] and found(("", ""), "ada", 3) == []
    assert found(FACTS, "ora", 0) == []


def test_documents_that_score_the_same_stand_in_the_order_of_the_corpus():
    assert found(["x y"] * 40 + ["x"], "x", 5) == ["d40", "d0", "d1", "d2", "d3"]


@given(
    corpora,
    st.lists(st.sampled_from(["a", "b", "dd", "é", "zz"]), max_size=5).map(" ".join),
    st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_formula(texts, query, k):
    expected = by_formula(texts, query)[:k] if any(words_of(text) for text in texts) else []
    answer = Bm25(corpus_of(texts)).search(query, k)
    assert [hit.document.id for hit in answer] == [f"d{place}" for place, _ in expected]
    np.testing.assert_allclose(
        [hit.score for hit in answer], [score for _, score in expected], rtol=1e-4
    )


def test_titles_are_searched_and_case_accents_and_punctuation_do_not_matter():
    corpus = Corpus(
        [Document("1", "Café Ora", "a place"), Document("2", "", "ＯＲＡ, in wide letters")]
    )
    assert [hit.document.id for hit in Bm25(corpus).search("CAFE\u0301", 2)] == ["1"]
    assert {hit.document.id for hit in Bm25(corpus).search("“ora”?", 2)} == {"1", "2"}


def test_an_endless_query_is_read_to_its_512th_word():
    assert found(("x", "y"), "z " * 511 + "x y", 2) == ["d0"]


def test_settings_of_the_formula_are_checked():
    assert Bm25(corpus_of(FACTS), b=0.0).search("ora", 1)
    for wrong in ({"k1": -1.0}, {"b": 1.5}, {"k1": float("nan")}):
        with pytest.raises(ConfigError, match="k1 from 0 on and b from 0 to 1"):
            Bm25(corpus_of(FACTS), **wrong)


def test_it_says_nothing_on_the_console():
    program = (
        "from workbench.tools.retrieval import *\n"
        "Bm25(Corpus([Document('1', '', 'a b')])).search('a', 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


# ------------------------------------------------------------------------------------------------ corpus and order


def test_a_corpus_is_told_by_its_digest():
    corpus = corpus_of(FACTS)
    assert corpus.digest == corpus_of(FACTS).digest == pickle.loads(pickle.dumps(corpus)).digest
    others = [
        corpus_of(FACTS[:-1]),
        corpus_of(FACTS[::-1]),
        Corpus([Document("d0", "ada", "")]),
        Corpus([Document("d0", "", "ada")]),
        Corpus([Document("d0a", "", "da")]),
    ]
    assert len({corpus.digest, *(other.digest for other in others)}) == 6
    assert corpus["d1"].text == "ora lies in sun" and len(corpus) == 5


def test_an_id_that_is_twice_or_nowhere_is_an_error():
    with pytest.raises(DataError, match="'d1' twice"):
        Corpus([Document("d0", "", ""), Document("d1", "", ""), Document("d1", "", "x")])
    with pytest.raises(DataError, match="no document 'zz' among the 5"):
        corpus_of(FACTS)["zz"]


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(0, 8))
def test_best_first_is_a_stable_sort(scores, k):
    scores = np.array(scores, np.float32)
    expected = sorted(
        (i for i in range(len(scores)) if scores[i] > 0), key=lambda i: (-scores[i], i)
    )[:k]
    assert best_first(scores, k, above=0.0).tolist() == expected
