"""Invented worlds: names that never meet, questions with one way to the answer, which no single search finds."""

from __future__ import annotations

from collections import Counter

import pytest

from workbench.tools.retrieval import Bm25
from workbench.tools.retrieval.bm25 import words_of
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds import PRESETS, tasks
from workbench.worlds.qa.worlds import (
    HELD_OUT_WORLDS,
    SHAPES,
    SYLLABLES,
    invented_names,
    split_of_name,
    split_of_world,
    world,
)
from workbench.worlds.world_qa import TRAINING_WORLDS

KINDS = sorted(SHAPES)


def names_of(kind, seed):
    return {name for names in world(kind, seed).names.values() for name in names}


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_is_a_function_of_its_seed(kind):
    here = world(kind, 12)
    world.cache_clear()
    again = world(kind, 12)
    assert again is not here and again.names == here.names and again.facts == here.facts
    assert again.corpus().digest == here.corpus().digest != world(kind, 13).corpus().digest


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_at_least_900_documents_of_one_sentence_each(kind):
    here = world(kind, 3)
    documents = here.corpus().documents
    assert (
        len(documents)
        == sum(here.shape.counts[r.subject] for r in here.shape.relations.values())
        >= 900
    )
    assert all(
        document.text.count(".") == 1 and document.text.startswith(document.title)
        for document in documents
    )
    assert len(names_of(kind, 3)) == sum(here.shape.counts.values())  # nobody shares a name


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_of_a_held_out_world_occurs_in_any_world_of_training(kind):
    held_out = set().union(*(names_of(kind, seed) for seed in range(HELD_OUT_WORLDS)))
    trained = set().union(
        *(names_of(kind, HELD_OUT_WORLDS + seed) for seed in range(TRAINING_WORLDS))
    )
    assert not held_out & trained and len(held_out) > 2_000
    said = {
        word
        for seed in range(HELD_OUT_WORLDS)
        for document in world(kind, seed).corpus().documents
        for word in document.text.rstrip(".").split()
        if word[0].isupper()
    }
    assert said <= held_out  # what the documents say is all there is to know
    assert (
        {split_of_name(name) for name in held_out}
        == {"held-out"}
        == {split_of_world(HELD_OUT_WORLDS - 1)}
    )
    assert (
        {split_of_name(name) for name in trained} == {"train"} == {split_of_world(HELD_OUT_WORLDS)}
    )


def test_a_name_belongs_to_its_split_whatever_it_names():
    names = invented_names(2_000, "train", rng_at("test")) + invented_names(
        500, "held-out", rng_at("test")
    )
    assert len(set(names)) == 2_500 and "Live" not in invented_names(
        1_000, split_of_name("Live"), rng_at("test")
    )
    for name in names:
        low = name.lower()
        assert name == low.capitalize() and len(low) in (4, 6)
        assert all(low[at : at + 2] in SYLLABLES for at in range(0, len(low), 2))


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_has_one_way_to_its_answer(kind):
    here, corpus = world(kind, 5), world(kind, 5).corpus()
    for asked, chain in here.shape.chains.items():
        for number in range(40):
            question = here.question(asked, number)
            assert question.hops == chain.hops == len(question.support) == len(question.path) - 1
            assert question.path[0] in question.text and question.answer in here.names["country"]
            assert question.answer not in question.text
            for start, end, document in zip(question.path, question.path[1:], question.support):
                told = corpus[document]
                assert (
                    told.title == start and words_of(told.text)[-1] == end.lower()
                )  # one fact, from start to end
            assert (
                len(
                    {
                        d.id
                        for d in corpus.documents
                        if d.id.split("/")[0] == question.support[0].split("/")[0]
                        and d.title == question.path[0]
                    }
                )
                == 1
            )


def test_guessing_a_country_does_not_pay():
    held = tasks(PRESETS["world-qa"], "held-out", 512)
    by_world = Counter((task.payload["world"], task.payload["answers"][0]) for task in held)
    worlds = Counter(task.payload["world"] for task in held)
    always = sum(max(n for (w, _), n in by_world.items() if w == each) for each in worlds) / 512
    assert (
        len(worlds) == HELD_OUT_WORLDS and always < 0.2
    )  # even for one who knows the best guess of each world


@pytest.mark.parametrize("preset", ["world-qa", "world-qa-hard"])
def test_searching_the_words_of_a_question_finds_its_answer_in_fewer_than_one_of_twenty(preset):
    family, found, along = PRESETS[preset], 0, 0
    held = tasks(family, "held-out", 256)
    for task in held:
        said = words_of(family.search_tool(task).call({"query": task.payload["question"]}).text)
        found += task.payload["answers"][0].lower() in said
        along += task.payload["support"][0].split("/")[1].lower() in said
    assert found / len(held) < 0.05
    assert along == len(held)  # negative control: the search works, it finds where the way begins


def test_in_the_plain_world_a_name_finds_its_only_document():
    here = world("plain", 2)
    index = Bm25(here.corpus())
    for kind in ("resident", "worker", "firm", "city"):
        for name in here.names[kind][:30]:
            (hit,) = index.search(name, 1)
            assert hit.document.title == name


def test_in_the_hard_world_a_name_has_several_documents():
    here = world("hard", 2)
    titles = Counter(document.title for document in here.corpus().documents)
    assert {titles[name] for name in here.names["person"]} == {4}
    assert (
        sum(
            len(chain.relations) > 1 and chain.relations[0] in ("lives", "born", "works", "teacher")
            for chain in here.shape.chains.values()
        )
        == 4
    )


def test_an_unknown_shape_names_the_known_ones():
    with pytest.raises(ConfigError, match="plain, hard"):
        world("flat", 0)
