"""Files of questions and documents, opened once a process: checked, read, and made searchable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from workbench.basics.extensions import service
from workbench.basics.plugins import load_called, load_named
from workbench.tools.retrieval import Bm25, Corpus, Searcher
from workbench.values.errors import ConfigError
from workbench.worlds.qa.files import (
    FileQuestion,
    pooled,
    read_corpus,
    read_questions,
    resolved,
    title_ids,
    without_paragraphs,
)

OWN = "contexts"  # in place of a corpus file: the paragraphs of all questions


@dataclass(frozen=True)
class QuestionFiles:
    """Which files; as in `FileQA`."""

    questions: str
    format: str
    beside: str
    heldout: str
    corpus: str


@dataclass(frozen=True, eq=False)
class QuestionPool:
    """The content of the files: questions with known answers, and documents."""

    train: tuple[FileQuestion, ...]
    heldout: tuple[FileQuestion, ...]
    corpus: Corpus

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """Titles of documents, for the random policy."""
        return tuple(document.title for document in self.corpus.documents if document.title)


def check_files(files: QuestionFiles) -> None:
    if not files.questions:
        raise ConfigError(
            "env.questions names no file; for HotpotQA, say --set env.questions=hotpot_train_v1.1.json"
        )
    for name in ("questions", "heldout", "beside", "corpus"):
        path = getattr(files, name)
        if path and path != OWN and not Path(path).is_file():
            raise no_file(name, path)


def no_file(name: str, path: str) -> ConfigError:
    return ConfigError(
        f"env.{name}: there is no file {path!r} (looked for in {Path.cwd()}); fetch it, or name it where it "
        'is. docs/guides/search.md, "Questions from files", says where the data sets are published'
    )


@lru_cache(maxsize=4)
def _read(files: QuestionFiles) -> QuestionPool:
    check_files(files)
    sources = [
        (path, read_questions(path, files.format, beside=files.beside))
        for path in (files.questions, files.heldout)
        if path
    ]
    origin: list[int] = []  # of every question: the number of its file

    def all_questions() -> Iterator[FileQuestion]:
        for number, (path, questions) in enumerate(sources):
            for question in questions:
                origin.append(number)
                yield question
            if number not in origin:
                raise ConfigError(f"{path} holds no questions; expected the format {files.format}")

    if files.corpus == OWN:
        questions, corpus = pooled(all_questions())
        if not len(corpus):
            raise ConfigError(
                f"the questions of {files.questions} come without paragraphs; name the documents to search "
                "in env.corpus"
            )
    else:
        questions = [without_paragraphs(question) for question in all_questions()]
        corpus = Corpus(tuple(read_corpus(files.corpus)) if files.corpus else ())
    by_title = title_ids(corpus)
    splits: list[list[FileQuestion]] = [[] for _ in sources]
    for number, question in zip(origin, questions, strict=True):
        if question.answers:
            splits[number].append(resolved(question, corpus, by_title))
    for (path, _), answered in zip(sources, splits):
        if not answered:
            raise ConfigError(
                f"no question of {path} has a known answer, so that nothing could be scored; name another file"
            )
    return QuestionPool(tuple(splits[0]), tuple(splits[1]) if len(splits) > 1 else (), corpus)


@lru_cache(maxsize=8)
def open_files(files: QuestionFiles, needs_support: str) -> QuestionPool:
    """`needs_support`: "gold" (all documents of every question must be known), "process" (those of some), or ""."""
    opened = _read(files)
    if needs_support:
        questions = opened.train + opened.heldout
        known = 0
        for question in questions:
            known += bool(question.support) and len(question.support) >= question.hops
        if known < (len(questions) if needs_support == "gold" else 1):
            asks = "env.context = 'gold'" if needs_support == "gold" else "env.rewards.process"
            raise ConfigError(
                f"{asks} needs the documents that support an answer, but only {known:,} of {len(questions):,} "
                f"questions have all of theirs in env.corpus = {files.corpus!r}; take env.corpus = 'contexts', "
                "or a corpus with their titles"
            )
    return opened


@lru_cache(maxsize=2)
def open_searcher(corpus: Corpus, encoder: str, index: str) -> Searcher:
    if not encoder:
        return Bm25(corpus)
    # By name: it needs a tensor library, which this package does without.
    encode = load_called(encoder, "env.encoder")
    dense = service("dense_search", "env.searcher = 'dense'")
    if index:
        return dense.load(index, corpus, encode, encoder=encoder)
    return dense(corpus, encode, encoder=encoder)


@lru_cache(maxsize=2)
def own_searcher(corpus: Corpus, name: str) -> Searcher:
    """Call "module:name" with the corpus; the searcher that it gives. Raises ConfigError."""
    made = load_named(name, "env.searcher")(corpus)
    if not callable(getattr(made, "search", None)):
        raise ConfigError(
            f"env.searcher {name!r} gave {made!r:.80}, which has no search(query, k) -> list[Hit]"
        )
    return made
