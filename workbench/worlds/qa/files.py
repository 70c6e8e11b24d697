"""Questions and documents from files in the formats in which they are published.

    hotpotqa   hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json, hotpot_dev_fullwiki_v1.json
    2wiki      train.json, dev.json; id_aliases.json beside them holds other names of the answers
    musique    musique_ans_v1.0_train.jsonl ...; what cannot be answered (musique_full) is passed over
    beir       queries.jsonl with qrels/*.tsv beside it, and corpus.jsonl: no gold answers, unless the metadata has one
    jsonl      lines {"question": ..., "answers": [...]}, anything else may be missing

Whatever the format, a question comes out the same, and its paragraphs are documents whose ids are their titles. A field
that is not as published is an error that names file, record and field: half a data set trains half a policy.

Sources: Yang et al. 2018 (arXiv 1809.09600), Ho et al. 2020 (arXiv 2011.01060), Trivedi et al. 2022 (arXiv 2108.00573),
Thakur et al. 2021 (arXiv 2104.08663).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from workbench.tools.retrieval.base import Corpus, Document
from workbench.values.errors import DataError
from workbench.worlds.qa.records import Record, records, rows

_TITLED = "a list of [title, [sentences]]"
_FACTS = "a list of [title, number of the sentence]"
_NO_GOLD = "; the test split has none, so take train or dev"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph that came with a question: a title and a text."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """A question as a file tells it.

    answers      the gold answer, then other names of it; () where the file knows none
    support      the paragraphs that the answer rests on, in hop order: each a place in `paragraphs`, or the title (beir:
                 the id) of a document that is not among them
    paragraphs   what the file shows with the question, distractors included
    hops         how many documents the answer rests on; 0 where that is not known
    kind         as the data set calls it: comparison, bridge, 3hop1 ...
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    support: tuple[int | str, ...] = ()
    paragraphs: tuple[Paragraph, ...] = ()
    hops: int = 0
    kind: str = ""


# ------------------------------------------------------------------------------------------------ the formats


def read_hotpotqa(path: Path | str) -> Iterator[FileQuestion]:
    """HotpotQA v1.1, train or either dev set. The paragraphs of the full-wiki set need not hold the answer."""
    return map(_hotpot_question, records(path))


def read_2wiki(path: Path | str, aliases: Path | str | None = None) -> Iterator[FileQuestion]:
    """2WikiMultihopQA. `aliases`: id_aliases.json; then aliases and demonyms of the answer's entity are right too, as in
    the official script (v1.1)."""
    names = read_2wiki_aliases(aliases) if aliases else {}
    for record in records(path):
        question = _hotpot_question(record)
        if not isinstance(record.fields.get("evidences", []), list):
            raise record.wrong("evidences", "a list of [subject, relation, object]")
        answer_id = record.fields.get("answer_id")
        if names and "answer_id" not in record.fields:
            raise record.wrong(
                "answer_id",
                "the answer's entity, as in the files that came with id_aliases.json (data_ids)",
            )
        if answer_id is not None and not isinstance(answer_id, str):
            raise record.wrong("answer_id", "text or null")
        others = [name for name in names.get(answer_id, ()) if name not in question.answers]
        yield replace(question, answers=(*question.answers, *dict.fromkeys(others)))


def read_2wiki_aliases(path: Path | str) -> dict[str, tuple[str, ...]]:
    """{entity id: its other names} of id_aliases.json, which holds a record a line."""
    return {
        record.text("Q_id"): (*record.texts("aliases"), *record.texts("demonyms"))
        for record in records(path, id_field="Q_id")
    }


def read_musique(path: Path | str) -> Iterator[FileQuestion]:
    """MuSiQue, v1.0. Questions that are marked as not answerable are passed over: they have no right answer."""
    for record in records(path, id_field="id"):
        answerable = record.fields.get("answerable", True)
        if not isinstance(answerable, bool):
            raise record.wrong("answerable", "true or false")
        if answerable:
            yield _musique_question(record)


def read_beir(path: Path | str, qrels: Path | str | None = None) -> Iterator[FileQuestion]:
    """queries.jsonl of BEIR. `qrels`: a file of judgements; then only judged queries are read, and those judged above 0
    are the support, best first."""
    judged = None if qrels is None else read_qrels(qrels)
    for record in records(path):
        name = record.text("_id")
        metadata = record.fields.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise record.wrong("metadata", "an object")
        if judged is None or name in judged:
            answer = metadata.get("answer", [])
            answers = tuple([answer] if isinstance(answer, str) else answer)
            if not all(isinstance(text, str) for text in answers):
                raise record.wrong("metadata", "an object whose answer is text")
            relevant = () if judged is None else tuple(judged[name])
            yield FileQuestion(name, record.text("text"), answers, relevant, hops=len(relevant))


def read_qrels(path: Path | str) -> dict[str, list[str]]:
    """{query id: ids of the documents judged above 0, best first} of BEIR's query-id, corpus-id, score."""
    scores: dict[str, dict[str, int]] = {}
    for line, row in rows(path):
        if line == 1 and row[0] in ("query-id", "query_id"):
            continue
        if len(row) != 3 or not re.fullmatch(r"-?\d+", row[2]):
            raise DataError(
                f"{path}, line {line}: expected query-id, corpus-id and a whole number, with tabs between; "
                f"found {row!r:.100}"
            )
        scores.setdefault(row[0], {})[row[1]] = int(row[2])
    return {query: _best_first(judged) for query, judged in scores.items()}


def _best_first(scores: Mapping[str, int]) -> list[str]:
    """Ids of the documents that scored above 0."""
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return [document for document, score in ranked if score > 0]


def read_plain(path: Path | str) -> Iterator[FileQuestion]:
    """Lines {"question": ..., "answers": [...]}; `id`, `support` (titles or document ids), `hops` and `kind` may be there."""
    for record in records(path, id_field="id"):
        hops = record.fields.get("hops", 0)
        if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
            raise record.wrong("hops", "a whole number")
        name = record.fields.get("id", str(record.number))
        support = record.texts("support", optional=True)
        if not isinstance(name, (str, int)):
            raise record.wrong("id", "text")
        yield FileQuestion(
            str(name),
            record.text("question"),
            record.texts("answers"),
            support,
            hops=hops or len(support),
            kind=record.text("kind", ""),
        )


FORMATS: Mapping[str, Callable[..., Iterator[FileQuestion]]] = MappingProxyType(
    {
        "hotpotqa": read_hotpotqa,
        "2wiki": read_2wiki,
        "musique": read_musique,
        "beir": read_beir,
        "jsonl": read_plain,
    }
)


def read_questions(
    path: Path | str, format: str, *, beside: Path | str | None = None
) -> Iterator[FileQuestion]:
    """The questions of a file. `beside`: the second file of a format that has one (2wiki: id_aliases.json; beir: qrels).
    Raises DataError for an unknown format, an unfitting second file, and whatever is wrong in the files."""
    if format not in FORMATS:
        raise DataError(f"there is no format {format!r} of questions; known: {', '.join(FORMATS)}")
    if not beside:
        return FORMATS[format](path)
    if format not in ("2wiki", "beir"):
        raise DataError(
            f"questions of format {format!r} have no second file; found {str(beside)!r}"
        )
    return FORMATS[format](path, beside)


def read_corpus(path: Path | str) -> Iterator[Document]:
    """Documents of BEIR's corpus.jsonl ({_id, title, text}), or of any lines with `id` and `text` or `contents` (whose
    first line is then the title, in quotes, as Search-R1 has it)."""
    for record in records(path):
        key = "_id" if "_id" in record.fields or "id" not in record.fields else "id"
        name = record.fields.get(key)
        if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
            raise record.wrong(key, "text")
        if "text" not in record.fields and "contents" in record.fields:
            title, _, text = record.text("contents").partition("\n")
            title = title.strip().strip('"')
        else:
            title = record.text("title", "", empty=True)
            text = record.text("text", empty=True)
        yield Document(str(name), title, text)


# ------------------------------------------------------------------------------------------------ their documents


def pooled(questions: Iterable[FileQuestion]) -> tuple[list[FileQuestion], Corpus]:
    """The questions without their paragraphs, and all these paragraphs as one corpus, each once, in the order in which
    they come first. No text is held twice.

    A document's id is its title; a second text under the same title is "TITLE #2", and so on. A question's support are
    ids now (what was no paragraph of its own stays as it was).
    """
    documents: dict[Paragraph, Document] = {}
    numbers: dict[str, int] = {}
    taken: set[str] = set()

    def document_of(paragraph: Paragraph) -> Document:
        if paragraph not in documents:
            title = paragraph.title or "(untitled)"
            name = title
            while name in taken:
                numbers[title] = numbers.get(title, 1) + 1
                name = f"{title} #{numbers[title]}"
            taken.add(name)
            documents[paragraph] = Document(name, paragraph.title, paragraph.text)
        return documents[paragraph]

    kept = []
    for question in questions:
        names = [document_of(paragraph).id for paragraph in question.paragraphs]
        kept.append(_supported_by(question, names))
    return kept, Corpus(tuple(documents.values()))


def without_paragraphs(question: FileQuestion) -> FileQuestion:
    """The question for another corpus than its own paragraphs: its support are titles (or ids) now."""
    return _supported_by(question, [paragraph.title for paragraph in question.paragraphs])


def _supported_by(question: FileQuestion, names: Sequence[str]) -> FileQuestion:
    """The question without its paragraphs, which are called `names` in its support."""
    support = [names[place] if isinstance(place, int) else place for place in question.support]
    return replace(question, support=tuple(dict.fromkeys(support)), paragraphs=())


def resolved(question: FileQuestion, corpus: Corpus, by_title: Mapping[str, str]) -> FileQuestion:
    """The question with the ids in `corpus` of its support, as far as they are there: named by their id, or by a title
    that one document has (`title_ids`)."""
    ids = [name if name in corpus.index_of else by_title.get(name) for name in question.support]
    known = [name for name in ids if name is not None]
    return replace(question, support=tuple(dict.fromkeys(known)))


def title_ids(corpus: Corpus) -> dict[str, str]:
    """{title: document id} of the titles that exactly one document has."""
    ids: dict[str, str | None] = {}
    for document in corpus.documents:
        ids[document.title] = None if document.title in ids else document.id
    return {title: name for title, name in ids.items() if name is not None and title}


# ------------------------------------------------------------------------------------------------ a record each


def _hotpot_question(record: Record) -> FileQuestion:
    answer = record.fields.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        raise record.wrong("answer", f"text that is not empty{_NO_GOLD}")
    paragraphs = []
    for title, sentences in record.pairs("context", list, _TITLED):
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise record.wrong("context", _TITLED)
        # HotpotQA's sentences begin with their own space, 2Wiki's do not.
        paragraphs.append(Paragraph(title, " ".join(sentence.strip() for sentence in sentences)))
    places: dict[str, int] = {}  # the first paragraph of each title
    for place, paragraph in enumerate(paragraphs):
        places.setdefault(paragraph.title, place)
    titles = dict.fromkeys(title for title, _ in record.pairs("supporting_facts", int, _FACTS))
    return FileQuestion(
        record.text("_id"),
        record.text("question"),
        (answer,),
        tuple(places.get(title, title) for title in titles),
        tuple(paragraphs),
        len(titles),
        record.text("type", ""),
    )


def _musique_question(record: Record) -> FileQuestion:
    answer = record.fields.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        raise record.wrong("answer", f"text that is not empty{_NO_GOLD}")
    places = {}
    paragraphs = []
    entries = record.objects("paragraphs", "a list of {idx, title, paragraph_text, is_supporting}")
    for place, entry in enumerate(entries):
        number = entry.fields.get("idx")
        if isinstance(number, bool) or not isinstance(number, int) or number in places:
            raise entry.wrong(
                "idx", f"a whole number of its own in paragraph {place} of 'paragraphs'"
            )
        places[number] = place
        title = entry.text("title", empty=True)
        paragraphs.append(Paragraph(title, entry.text("paragraph_text", empty=True)))
    support = []
    hops = record.objects(
        "question_decomposition", "a list of {id, question, answer, paragraph_support_idx}"
    )
    for hop in hops:
        number = hop.fields.get("paragraph_support_idx")
        if not isinstance(number, int) or number not in places:
            raise hop.wrong("paragraph_support_idx", "the idx of one of the paragraphs")
        support.append(places[number])
    name = record.text("id")
    return FileQuestion(
        name,
        record.text("question"),
        tuple(dict.fromkeys((answer, *record.texts("answer_aliases")))),
        tuple(dict.fromkeys(support)),
        tuple(paragraphs),
        len(support),
        name.partition("__")[0],
    )
