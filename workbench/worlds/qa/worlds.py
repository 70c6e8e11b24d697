"""Invented worlds: people, firms, cities and countries that exist nowhere else, one short sentence a document.

A question can be answered neither from what a model knows nor by a single search: it names a person, the answer is a
country, and every document gives one step of the way.

    In which country does Zumi live?       Zumi lives in Rapoke.  Rapoke lies in Bedu.
    In which country does Tavo work?       Tavo works for Nike.  Nike sits in Rapoke.  Rapoke lies in Bedu.

Names are split by content: a name is for training worlds or for held-out worlds, by its hash, whatever it is the name
of. So nothing in a held-out world (person, firm, city or country) was ever named in training. A tiny model memorises a
fixed set of names instead of learning to copy them, hence worlds without end: a seed each.

Two shapes. `plain`: one fact a subject, so that its name finds its only document. `hard`: several facts a subject, so
that one must choose which of several documents the question is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from types import MappingProxyType

import numpy as np

from workbench.tools.retrieval.base import Corpus, Document
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at, seed_of

SYLLABLES = tuple(map("".join, product("bdfgklmnprstvz", "aeiou")))
HELD_OUT_WORLDS = 8  # worlds 0 to 7 are held out, all others are for training
_HELD_OUT_NAMES = 4  # one name in so many is for held-out worlds


@dataclass(frozen=True)
class Relation:
    """`subject` and `object` are kinds of entities; `sentence` tells the fact, with the two names put in in order."""

    subject: str
    object: str
    sentence: str


@dataclass(frozen=True)
class Chain:
    """A kind of question: the relations that lead from the one named to the answer. `hops` documents are needed."""

    question: str
    relations: tuple[str, ...]

    @property
    def hops(self) -> int:
        return len(self.relations)


@dataclass(frozen=True)
class Shape:
    """The make-up of worlds of a kind: how many of each kind of entity, which facts, which questions."""

    counts: Mapping[str, int]
    relations: Mapping[str, Relation]
    chains: Mapping[str, Chain]


_SHARED = {
    "sits": Relation("firm", "city", "{} sits in {}."),
    "lies": Relation("city", "country", "{} lies in {}."),
    "borders": Relation("country", "country", "{} borders {}."),  # leads past the answer
}
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "plain": Shape(
            {"resident": 440, "worker": 160, "firm": 220, "city": 60, "country": 24},
            {
                "lives": Relation("resident", "city", "{} lives in {}."),
                "works": Relation("worker", "firm", "{} works for {}."),
                **_SHARED,
            },
            {
                "lives": Chain("In which country does {} live?", ("lives", "lies")),
                "works": Chain("In which country does {} work?", ("works", "sits", "lies")),
            },
        ),
        "hard": Shape(
            {"person": 200, "firm": 60, "city": 40, "country": 24},
            {
                "lives": Relation("person", "city", "{} lives in {}."),
                "born": Relation("person", "city", "{} was born in {}."),
                "works": Relation("person", "firm", "{} works for {}."),
                "teacher": Relation("person", "person", "{} learned from {}."),
                "grew": Relation("firm", "city", "{} was founded in {}."),
                **_SHARED,
            },
            {
                "lives": Chain("In which country does {} live?", ("lives", "lies")),
                "born": Chain("In which country was {} born?", ("born", "lies")),
                "works": Chain("In which country does {} work?", ("works", "sits", "lies")),
                "teacher": Chain(
                    "In which country does the teacher of {} live?", ("teacher", "lives", "lies")
                ),
            },
        ),
    }
)


def _words_of_shapes() -> Iterator[str]:
    """The words of all questions and sentences, capitalized."""
    for shape in SHAPES.values():
        texts = [chain.question for chain in shape.chains.values()]
        texts += [relation.sentence for relation in shape.relations.values()]
        for text in texts:
            yield from map(str.capitalize, text.rstrip("?.").split())


_TAKEN = frozenset(_words_of_shapes())


@dataclass(frozen=True)
class Question:
    """`path`: the names from the one asked about to the answer; `support`: the documents that tell its steps."""

    text: str
    kind: str
    path: tuple[str, ...]
    support: tuple[str, ...]

    @property
    def answer(self) -> str:
        return self.path[-1]

    @property
    def hops(self) -> int:
        return len(self.support)


@dataclass(frozen=True, eq=False)
class World:
    """One invented world. `names`: kind -> names; `facts`: relation -> subject -> object.

    Documents are named `relation/subject` (their title is the subject) and stand in an order that tells nothing.
    """

    shape: Shape
    seed: int
    names: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, Mapping[str, str]]

    @property
    def split(self) -> str:
        return split_of_world(self.seed)

    def question(self, kind: str, number: int) -> Question:
        """The question of a kind about entity `number` (taken modulo how many there are)."""
        chain = self.shape.chains[kind]
        asked = self.names[self.shape.relations[chain.relations[0]].subject]
        path = [asked[number % len(asked)]]
        support = []
        for relation in chain.relations:
            support.append(f"{relation}/{path[-1]}")
            path.append(self.facts[relation][path[-1]])
        return Question(chain.question.format(path[0]), kind, tuple(path), tuple(support))

    def corpus(self) -> Corpus:
        """Every fact as a document of one sentence."""
        documents = []
        for relation, facts in self.facts.items():
            sentence = self.shape.relations[relation].sentence
            for subject, thing in facts.items():
                text = sentence.format(subject, thing)
                documents.append(Document(f"{relation}/{subject}", subject, text))
        order = rng_at("world.order", self.seed).permutation(len(documents))
        return Corpus(tuple(documents[index] for index in order))


def split_of_world(seed: int) -> str:
    """ "held-out" for the first HELD_OUT_WORLDS seeds, else "train"."""
    return "held-out" if 0 <= seed < HELD_OUT_WORLDS else "train"


def split_of_name(name: str) -> str:
    """Which worlds a name is for: "held-out" or "train", by its hash, whatever it is the name of."""
    return "held-out" if seed_of("world.name", name) % _HELD_OUT_NAMES == 0 else "train"


@lru_cache(maxsize=96)  # all that training and evaluation ask about
def world(kind: str, seed: int) -> World:
    """The world of this shape and seed, the same in every process."""
    if kind not in SHAPES:
        raise ConfigError(f"no worlds of shape {kind!r}; known: {', '.join(SHAPES)}")
    shape = SHAPES[kind]
    rng = rng_at("world", kind, seed)
    invented = iter(invented_names(sum(shape.counts.values()), split_of_world(seed), rng))
    names = {kind: tuple(islice(invented, count)) for kind, count in shape.counts.items()}
    facts = {name: _facts(relation, names, rng) for name, relation in shape.relations.items()}
    return World(shape, seed, MappingProxyType(names), MappingProxyType(facts))


def _facts(
    relation: Relation, names: Mapping[str, tuple[str, ...]], rng: np.random.Generator
) -> Mapping[str, str]:
    """An object for each subject, never itself; every object about equally often, so that guessing does not pay."""
    subjects = names[relation.subject]
    objects = names[relation.object]
    if relation.subject == relation.object:  # around a circle in random order
        circle = [subjects[index] for index in rng.permutation(len(subjects))]
        return MappingProxyType(dict(zip(circle, circle[1:] + circle[:1])))
    dealt = rng.permutation(np.arange(len(subjects)) % len(objects))
    return MappingProxyType({subject: objects[index] for subject, index in zip(subjects, dealt)})


def invented_names(count: int, split: str, rng: np.random.Generator) -> list[str]:
    """`count` different names of two or three syllables, all of one split: `Zoru`, `Mipake`. No word of a question or a
    sentence is a name: a person called Live would be found by every question about where a person lives."""
    names: dict[str, None] = {}
    while len(names) < count:
        for first, second, third, is_long in rng.integers((70, 70, 70, 2), size=(2 * count, 4)):
            name = SYLLABLES[first] + SYLLABLES[second]
            if is_long:
                name += SYLLABLES[third]
            name = name.capitalize()
            if name not in _TAKEN and split_of_name(name) == split:
                names[name] = None
    return list(names)[:count]
