"""The search tool: a line a document, bounded, the room shared, and nothing that a policy writes raises."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tools.base import schema_of
from workbench.tools.retrieval import MOST_QUERY_CHARACTERS, Bm25, Corpus, Document
from workbench.tools.search import NOTHING, SearchTool, lines_of
from workbench.values.errors import ConfigError

CORPUS = Corpus(
    [
        Document("1", "", "ada was born in ora"),
        Document("2", "Ora", "A town\n in Sun."),
        Document("3", "", "sun is hot"),
    ]
)


def test_documents_come_a_line_each_and_are_named_for_people():
    result = SearchTool(Bm25(CORPUS), k=2).call({"query": "ora"})
    assert result.text == "ada was born in ora\nOra: A town in Sun." and result.value == {
        "documents": ["1", "2"]
    }
    assert (result.error, result.reward, result.cut_bytes) == ("", None, 0)
    assert SearchTool(Bm25(CORPUS)).call({"query": ""}).text == NOTHING


def test_a_query_that_is_too_long_is_answered_with_what_to_do():
    result = SearchTool(Bm25(CORPUS)).call({"query": "x" * (MOST_QUERY_CHARACTERS + 1)})
    assert (
        result.error == "bad_arguments" and "at most 1000" in result.text and result.value is None
    )


def test_the_room_is_shared_and_short_documents_leave_theirs_to_long_ones():
    text, cut = lines_of(
        [
            Document("1", "", "word " * 40),
            Document("2", "", "short"),
            Document("3", "", "word " * 40),
        ],
        100,
    )
    first, second, third = text.split("\n")
    assert second == "short" and len(text) <= 100 and min(len(first), len(third)) > 38
    assert first.endswith("word...") and cut == 199 + 199 - len(first) - len(third)


@given(
    st.lists(st.tuples(st.text(max_size=8), st.text(max_size=60)), max_size=6), st.integers(1, 80)
)
def test_text_never_exceeds_its_bound_and_whole_documents_stay_whole(documents, most):
    documents = [Document(str(index), *both) for index, both in enumerate(documents)]
    text, cut = lines_of(documents, most)
    assert len(text) <= most and cut >= 0
    whole, nothing = lines_of(documents, 10_000)
    assert nothing == 0 and (text == whole or len(whole) > most)


def test_it_is_a_tool_that_can_travel_to_a_worker():
    tool = SearchTool(Bm25(CORPUS))
    assert tool.trusted and not tool.stateful and tool.for_trajectory(None) is tool
    assert schema_of(tool)["function"]["parameters"]["required"] == ["query"]
    assert pickle.loads(pickle.dumps(tool)).call({"query": "hot"}) == tool.call({"query": "hot"})
    with pytest.raises(ConfigError, match="at least 1 document"):
        SearchTool(Bm25(CORPUS), k=0)
