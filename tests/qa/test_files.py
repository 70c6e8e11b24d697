"""Loaders on small files in exactly the published formats (invented content), and what they say of wrong ones."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tools.retrieval import Corpus
from workbench.values.errors import DataError
from workbench.worlds.qa import records as records_module
from workbench.worlds.qa.files import (
    pooled,
    read_2wiki_aliases,
    read_corpus,
    read_qrels,
    read_questions,
    resolved,
    title_ids,
    without_paragraphs,
)
from workbench.worlds.qa.records import records

FILES = Path(__file__).parent / "files"
HOTPOT = json.loads((FILES / "hotpot_train_v1.1.json").read_text())
TWO_WIKI = json.loads((FILES / "2wiki_dev.json").read_text())
MUSIQUE = [
    json.loads(line) for line in (FILES / "musique_full_v1.0_dev.jsonl").read_text().splitlines()
]


def questions(name: str, format: str, beside: str | None = None):
    return list(read_questions(FILES / name, format, beside=beside and FILES / beside))


# ------------------------------------------------------------------------------------------------ the formats


def test_hotpotqa():
    first, second, third = questions("hotpot_train_v1.1.json", "hotpotqa")
    assert (first.id, first.answers, first.kind, first.hops) == (
        "5f0000000000000000000001",
        ("Lund Quay",),
        "bridge",
        2,
    )
    assert [first.paragraphs[place].title for place in first.support] == [
        "Ysolde Marr",
        "Petrel (boat)",
    ]
    assert first.paragraphs[1].text == "Petrel is a wooden cutter. She is moored at Lund Quay."
    assert [second.paragraphs[place].title for place in second.support] == [
        "Orrin Vale",
        "Ysolde Marr",
    ]
    assert third.support == (1, 0), (
        "hop order is the order of supporting_facts, not of the paragraphs"
    )
    assert len(questions("hotpot_dev_distractor_v1.json.gz", "hotpotqa")) == 3


def test_2wiki_with_and_without_the_other_names_of_an_answer():
    plain, both = questions("2wiki_dev.json", "2wiki")
    assert (
        plain.answers == ("Republic of Vell",)
        and both.hops == 4
        and both.kind == "bridge_comparison"
    )
    named, yes = questions("2wiki_dev.json", "2wiki", "id_aliases.json")
    assert named.answers == (
        "Republic of Vell",
        "Vell",
        "Vell Republic",
        "Vellian",
    ) and yes.answers == ("yes",)
    assert read_2wiki_aliases(FILES / "id_aliases.json")["Q9000009"] == ()


def test_musique_in_hop_order_without_what_cannot_be_answered():
    two, three = questions("musique_full_v1.0_dev.jsonl", "musique")
    assert (
        two.answers == ("Harbour Bank", "the Bank of the Harbour")
        and two.kind == "2hop"
        and two.support == (1, 2)
    )
    assert (three.hops, three.kind, three.support) == (3, "3hop1", (2, 1, 0))


def test_beir_queries_with_judgements_and_corpus():
    first, second = questions("beir/queries.jsonl", "beir", "beir/qrels/test.tsv")
    assert (first.support, first.answers, first.hops) == (
        ("12", "39"),
        (),
        2,
    )  # best judged first, 0 is no support
    assert second.answers == ("river Osk",)
    assert [q.id for q in questions("beir/queries.jsonl", "beir")][-1] == "unjudged"
    corpus = Corpus(tuple(read_corpus(FILES / "beir/corpus.jsonl")))
    assert corpus["39"].title == "Petrel (boat)" and corpus["307"].title == "" and len(corpus) == 7
    assert read_qrels(FILES / "beir/qrels/test.tsv")["5f0000000000000000000003"] == ["290"]


def test_plain_lines():
    first, second = questions("questions.jsonl", "jsonl")
    assert (first.id, first.answers, first.support, first.hops) == (
        "1",
        ("Orrin Vale", "Vale"),
        ("Orrin Vale",),
        1,
    )
    assert (second.id, second.answers, second.kind) == ("7", (), "open")


def test_corpus_lines_as_search_r1_has_them(tmp_path):
    (tmp_path / "wiki.jsonl").write_text(
        '{"id": "0", "contents": "\\"Osk\\"\\nA river."}\n{"id": 1, "text": "No title."}\n'
    )
    assert [(d.id, d.title, d.text) for d in read_corpus(tmp_path / "wiki.jsonl")] == [
        ("0", "Osk", "A river."),
        ("1", "", "No title."),
    ]


# ------------------------------------------------------------------------------------------------ own documents


def test_paragraphs_become_one_corpus_and_support_its_ids():
    found, corpus = pooled(read_questions(FILES / "hotpot_train_v1.1.json", "hotpotqa"))
    # each text once; a second text under one title gets a number
    assert [d.id for d in corpus.documents] == [
        "Ysolde Marr",
        "Petrel (boat)",
        "Orrin Vale",
        "Tarn",
        "Petrel (boat) #2",
    ]
    assert found[2].support == ("Ysolde Marr", "Tarn") and not any(q.paragraphs for q in found)
    assert corpus["Petrel (boat) #2"].text == "Petrel was a film of 1980."


def test_support_is_found_by_title_in_another_corpus():
    corpus = Corpus(tuple(read_corpus(FILES / "beir/corpus.jsonl")))
    by_title = title_ids(corpus)
    found = [
        resolved(without_paragraphs(q), corpus, by_title)
        for q in questions("hotpot_train_v1.1.json", "hotpotqa")
    ]
    assert [q.support for q in found] == [("12", "39"), ("303", "12"), ("12", "290")]
    unknown = resolved(
        without_paragraphs(questions("musique_full_v1.0_dev.jsonl", "musique")[0]), corpus, by_title
    )
    assert unknown.support == () and unknown.hops == 2


# ------------------------------------------------------------------------------------------------ wrong files

WRONG = [
    ("hotpotqa", HOTPOT, "answer", None, "the test split has none"),
    ("hotpotqa", HOTPOT, "answer", "  ", "not empty"),
    ("hotpotqa", HOTPOT, "question", 3, "text that is not empty; found '3'"),
    ("hotpotqa", HOTPOT, "_id", None, "text that is not empty"),
    ("hotpotqa", HOTPOT, "context", [["Tarn", "one text"]], "sentences"),
    ("hotpotqa", HOTPOT, "context", [["Tarn", [1]]], "sentences"),
    (
        "hotpotqa",
        HOTPOT,
        "supporting_facts",
        {"title": ["Tarn"], "sent_id": [0]},
        "number of the sentence",
    ),
    ("2wiki", TWO_WIKI, "evidences", "x", "subject, relation, object"),
    ("2wiki", TWO_WIKI, "answer_id", ["Q1"], "text or null"),
    ("musique", MUSIQUE, "paragraphs", [["Tarn"]], "idx, title"),
    ("musique", MUSIQUE, "paragraphs", [{"idx": "0"}], "whole number"),
    (
        "musique",
        MUSIQUE,
        "question_decomposition",
        [{"paragraph_support_idx": 99}],
        "one of the paragraphs",
    ),
    (
        "musique",
        MUSIQUE,
        "question_decomposition",
        [{"paragraph_support_idx": [0]}],
        "one of the paragraphs",
    ),
    ("musique", MUSIQUE, "answerable", "yes", "true or false"),
    ("musique", MUSIQUE, "answer_aliases", "one", "a list of texts"),
]


@pytest.mark.parametrize(("format", "rows", "field", "value", "expected"), WRONG)
def test_a_wrong_field_is_named_with_file_record_and_what_was_expected(
    tmp_path, format, rows, field, value, expected
):
    rows = json.loads(json.dumps(rows[:2]))
    rows[1][field] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(rows) if format != "musique" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError) as error:
        list(read_questions(path, format))
    said = str(error.value)
    named = rows[1].get("_id") or rows[1].get("id")
    blamed = {
        "paragraphs": ("paragraphs", "idx"),
        "question_decomposition": ("paragraph_support_idx",),
    }.get(field, (field,))
    assert (
        f"{path}, record 2" in said
        and expected in said
        and any(f"'{name}'" in said for name in blamed)
    ), said
    assert not named or f"(id '{named}')" in said
    del rows[1][field]
    path.write_text(json.dumps(rows) if format != "musique" else "\n".join(map(json.dumps, rows)))
    if field not in ("answerable", "evidences", "answer_id"):
        with pytest.raises(DataError, match=rf"record 2.*'{field}'.*it is missing \(there are: "):
            list(read_questions(path, format))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ("[]", None),
        ('[{"_id": "1"}', "comma or the end of the list after record 1, found the end of the file"),
        ('[{"_id": "1"} {"_id": "2"}]', 'after record 1, found \'{"_id": "2"}]\''),
        ('[{"_id": "1"}, {"_id": "2", ', "record 2: expected JSON"),
        ('[{"_id": "1"}, ]', "record 2: expected JSON"),
        ('[{"_id": 1}, {"_id": oops}, ' + '{"a": "b"}, ' * 5000 + "]", "record 2: expected JSON"),
        ("[1, 2]", "record 1: expected a JSON object"),
        ('[{"a": 1}] [2]', "nothing after the list"),
        ('{"a": 1}\n[2]\n', "record 2: expected a JSON object"),
        ('{"a": 1}\n{"a": ', "line 2: expected one JSON object a line"),
        ("[" * 100_000, "record 1: expected JSON"),
        ("\n\n  \n", None),
    ],
)
def test_text_that_is_no_list_of_records_is_named_by_its_place(tmp_path, text, said):
    (tmp_path / "file.json").write_text(text)
    if said is None:
        assert list(records(tmp_path / "file.json")) == []
    else:
        with pytest.raises(DataError) as error:
            list(records(tmp_path / "file.json"))
        assert str(tmp_path / "file.json") in str(error.value) and said in str(error.value)


def test_files_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'[{"a": 1}]' * 100)[:-12])
    (tmp_path / "no.json.gz").write_bytes(b'[{"a": 1}]')
    (tmp_path / "latin.jsonl").write_bytes('{"a": "Öl"}\n'.encode("latin-1"))
    for name, said in (
        ("cut.json.gz", "damaged or cut short"),
        ("no.json.gz", "damaged or cut short"),
        ("latin.jsonl", "expected UTF-8, found the byte 0xd6"),
        ("absent.json", "No such file"),
        ("", "it is not a regular file"),
    ):
        with pytest.raises(DataError, match=said):
            list(records(tmp_path / name))
    with pytest.raises(DataError, match="known: hotpotqa, 2wiki, musique, beir, jsonl"):
        read_questions(tmp_path, "squad")
    with pytest.raises(DataError, match="no second file"):
        read_questions(tmp_path, "hotpotqa", beside="x")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\tgood\n")
    with pytest.raises(
        DataError, match="qrels.tsv, line 2: expected query-id, corpus-id and a whole number"
    ):
        read_qrels(tmp_path / "qrels.tsv")


def test_an_answer_without_the_entity_that_its_aliases_need_is_an_error(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "answer_id"} for row in TWO_WIKI]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    assert len(list(read_questions(tmp_path / "train.json", "2wiki"))) == 2
    with pytest.raises(DataError, match=r"record 1 .*'answer_id'.*data_ids"):
        list(read_questions(tmp_path / "train.json", "2wiki", beside=FILES / "id_aliases.json"))


# ------------------------------------------------------------------------------------------------ streaming

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
)


@given(
    st.lists(st.dictionaries(st.text(max_size=5), values, max_size=3), max_size=5),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
    st.integers(1, 40),
)
@settings(max_examples=50, deadline=None)
def test_records_come_out_as_json_reads_them_wherever_the_text_is_cut(
    tmp_path_factory, items, indent, as_lines, piece
):
    path = tmp_path_factory.mktemp("records") / "file.json"
    text = (
        "\n".join(map(json.dumps, items))
        if as_lines
        else json.dumps(items, indent=indent, ensure_ascii=False)
    )
    path.write_bytes(text.encode())
    before, records_module._PIECE = records_module._PIECE, piece
    try:
        assert [dict(record.fields) for record in records(path)] == items
    finally:
        records_module._PIECE = before


def test_a_long_list_is_never_in_memory_as_a_whole(tmp_path):
    row = HOTPOT[0] | {"question": "why " * 500}
    path = tmp_path / "long.json"
    path.write_text("[" + ", ".join([json.dumps(row)] * 8000) + "]")
    size = path.stat().st_size
    tracemalloc.start()
    try:
        assert sum(1 for _ in records(path)) == 8000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 10_000_000 and peak < size / 2.5, (size, peak)


def test_one_record_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(records_module, "LONGEST_RECORD", 3_000_000)
    for text in ('[{"a": "' + "x" * 6_000_000, '{"a": "' + "x" * 6_000_000):
        (tmp_path / "endless.json").write_text(text)
        with pytest.raises(DataError, match="more than 3,000,000 characters and still not whole"):
            list(records(tmp_path / "endless.json"))
