"""Questions from files, documents from files: HotpotQA, 2WikiMultihopQA, MuSiQue, BEIR, or lines of one's own.

Like `world_qa`, with the same four ways to put a question (`context`), but about whatever the files hold. What is searched
is a corpus file, or the paragraphs that came with all questions together ("contexts"), or whatever a server has.

Files are read once a process, when the first task is asked for, and not when a config is loaded: a config names them on
machines that lack them. Tasks are drawn with replacement; a question without a known answer is never drawn.

The split: questions of `heldout` are held out; without such a file, one question in five, by its text.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from workbench.basics.extensions import service
from workbench.basics.plugins import is_named
from workbench.basics.settings import Inert, at_least, check_settings, one_of
from workbench.tools.retrieval import Corpus, Searcher
from workbench.tools.search import SearchTool
from workbench.values import Task
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.qa.contexts import Context, QuestionEnv, QuestionFamily, Turns
from workbench.worlds.qa.files import FORMATS
from workbench.worlds.qa.opened import (
    OWN,
    QuestionFiles,
    QuestionPool,
    check_files,
    no_file,
    open_files,
    open_searcher,
    own_searcher,
)
from workbench.worlds.splits import content_split
from workbench.worlds.tool_env import CallSettings

_OPENING = threading.RLock()  # a large file is read by one thread; the others wait for what it made


@dataclass(frozen=True)
class FileQA(QuestionFamily):
    """A family of questions from files. The fields are its only configuration."""

    questions: Annotated[str, "file of the questions to train on"] = ""
    format: Annotated[str, one_of(*FORMATS), "of that file"] = "hotpotqa"
    beside: Annotated[
        str, "second file of a format: id_aliases.json (2wiki) or the judgements, qrels (beir)"
    ] = ""
    heldout: Annotated[
        str,
        "file of the questions to evaluate on, of the same format; empty: one in five of the "
        "questions",
    ] = ""
    corpus: Annotated[
        str,
        "contexts: the paragraphs of all questions; or a file of documents, as BEIR's corpus.jsonl; "
        "empty: none, where a server is searched and nothing needs to know which documents support an "
        "answer",
    ] = OWN
    searcher: Annotated[
        str,
        "bm25, dense, the URL of a server (workbench retriever), or module:name, called with the corpus "
        "(workbench/tools/retrieval/base.py)",
    ] = "bm25"
    encoder: Annotated[
        str,
        "of dense search: module:attribute(argument), called with the argument, gives (texts, query) "
        "-> vectors; workbench.extensions.servers.encoder:encoder(BAAI/bge-large-en-v1.5), for one",
    ] = ""
    index: Annotated[
        str, "of dense search: a file with the index; empty: it is made when the files are opened"
    ] = ""
    tools: Annotated[tuple[str, ...], "in a search: search, calculator, or module:name"] = (
        "search",
    )
    context: Context = "search"
    documents: Annotated[int, at_least(1, most=10_000), "that one search brings"] = 3
    most_chars: Annotated[
        int, at_least(1, most=100_000_000), "characters of what one search brings"
    ] = 2000
    turns: Turns = 5
    calls: CallSettings = field(default_factory=CallSettings)
    rewards: AnswerRewards = field(default_factory=AnswerRewards)

    name: ClassVar[str] = "file_qa"
    solver_name: ClassVar[str] = "oracle (is told the answer)"

    def __post_init__(self) -> None:
        check_settings(self, "env")
        if not self.tools and self.context == "search":
            raise ConfigError(
                "env.tools is empty; a trajectory without tools is env.context = 'closed'"
            )
        if self.is_remote:
            self._remote_searcher()  # a URL that is none is refused here
        elif self.searcher not in ("bm25", "dense") and not is_named(self.searcher):
            raise ConfigError(
                f"env.searcher is 'bm25', 'dense', an URL, or module:name of your own, got {self.searcher!r}"
            )
        elif not self.corpus:
            raise ConfigError(
                "env.corpus is empty; name a file of documents, or 'contexts': the questions' own paragraphs"
            )
        is_dense = self.searcher == "dense"
        if is_dense != bool(self.encoder) or self.index and not is_dense:
            raise ConfigError(
                f"env.encoder, and if need be env.index, go with env.searcher = 'dense'; got encoder "
                f"{self.encoder!r}, index {self.index!r} and searcher {self.searcher!r}"
            )
        if self.beside and self.format not in ("2wiki", "beir"):
            raise ConfigError(
                f"env.beside is the second file of format 2wiki or beir; {self.format} has none"
            )
        if not self.corpus and (self.context == "gold" or self.rewards.process):
            raise ConfigError(
                "env.context = 'gold' and env.rewards.process need to know which documents support an answer: "
                "name env.corpus, the documents that the server searches"
            )

    def inert_settings(self) -> list[Inert]:
        return [
            *super().inert_settings(),
            Inert("most_chars", self.context == "closed", "no documents are shown"),
            Inert("searcher", self.context in ("closed", "gold"), "nothing is searched"),
        ]

    # -------------------------------------------------------------------------------------------- files

    def check_files(self) -> None:
        """Raise ConfigError for a file that is not there, ToolError for a tool. Quick: nothing is read."""
        super().check_files()
        check_files(self._files)
        if self.index and not Path(self.index).is_file():
            raise no_file("index", self.index)

    def open(self) -> QuestionPool:
        """Questions and corpus, read once a process. Raises ConfigError and DataError."""
        needs_support = "process" if self.rewards.process else ""
        if self.context == "gold":
            needs_support = "gold"
        with _OPENING:
            return open_files(self._files, needs_support)

    @property
    def _files(self) -> QuestionFiles:
        return QuestionFiles(self.questions, self.format, self.beside, self.heldout, self.corpus)

    def open_searcher(self) -> Searcher:
        """What is searched; an index is made once a process. Raises ConfigError and DataError."""
        if self.is_remote:
            # A little less than a call's deadline, so that the agent reads what was wrong.
            return self._remote_searcher(deadline_s=0.9 * self.calls.deadline_s)
        corpus = self.open().corpus
        with _OPENING:
            if is_named(self.searcher):
                return own_searcher(corpus, self.searcher)
            return open_searcher(corpus, self.encoder, self.index)

    def search_tool(self, task: Task | None = None) -> SearchTool:
        """The search that an agent is offered, the same for all tasks."""
        return SearchTool(self.open_searcher(), k=self.documents, most_chars=self.most_chars)

    def corpus_of(self, task: Task) -> Corpus:
        return self.open().corpus

    # -------------------------------------------------------------------------------------------- tasks

    def _remote_searcher(self, **limits: float) -> Searcher:
        return service("search_client", "env.searcher = an URL")(self.searcher, **limits)

    @property
    def is_remote(self) -> bool:
        return "://" in self.searcher

    @property
    def remote(self) -> bool:
        """Whether a server outside is asked: a trajectory that is replayed may get other answers."""
        return self.is_remote and self.context in ("search", "rag")

    def task(self, task_seed: int) -> Task:
        """A question: from a file of its own for held-out ones in half of the draws. The same in every process that has
        the same files."""
        opened = self.open()
        rng = rng_at("file_qa.task", task_seed)
        held_out = bool(opened.heldout) and rng.random() < 0.5
        pool = opened.heldout if held_out else opened.train
        question = pool[int(rng.integers(len(pool)))]
        if opened.heldout:
            split = "held-out" if held_out else "train"
        else:
            split = content_split(question.question)
        payload = {
            "question": question.question,
            "answers": list(question.answers),
            "support": list(question.support),
            "hops": question.hops,
            "kind": question.kind,
            "id": question.id,
        }
        task_id = f"file_qa/{question.id}/{task_seed}"
        return Task(task_id, self.name, int(task_seed), payload, {"split": split})

    def question_task(self, text: str, task_seed: int = 0) -> Task:
        """A person's question, without a gold answer."""
        payload = {
            "question": text,
            "answers": [],
            "support": [],
            "hops": 0,
            "kind": "asked",
            "id": "asked",
        }
        task_id = f"file_qa/asked/{task_seed}"
        return Task(task_id, self.name, int(task_seed), payload, {"split": "asked"})

    def split_of(self, task: Task) -> str:
        return task.metadata["split"]

    def make(self) -> FileEnv:
        return FileEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: FileEnv, rng: np.random.Generator) -> str:
        """A search for any document's title (where there are any), or the answer of any question of the files."""
        opened = self.open()
        if env.can_search and opened.titles and rng.random() < 0.5:
            return env.search(opened.titles[int(rng.integers(len(opened.titles)))])
        pool = opened.train + opened.heldout
        answers = pool[int(rng.integers(len(pool)))].answers
        return env.format.write_answer(answers[0])

    def solver_action(self, env: FileEnv, rng: np.random.Generator) -> str:
        """An oracle, no solver: it searches for the supporting documents by their titles, as long as there are turns, and
        answers with the gold answer, which it is handed. No real solver of such questions is known."""
        if env.unsearched:
            document = self.open().corpus[env.unsearched[0]]
            return env.search((document.title or document.text)[:200])
        return env.format.write_answer(env.golds[0] if env.golds else "nobody knows")

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        by = "a server" if self.is_remote else self.searcher
        way = {
            "search": f"{', '.join(self.tools)} ({by}, {self.documents} documents each, {self.turns} turns)",
            "closed": "no tool",
            "rag": f"one search for the question's words ({by}, {self.documents} found)",
            "gold": "handed the supporting documents",
        }[self.context]
        return f"File QA, {self.format}: {Path(self.questions).name or 'no file yet'}, {way}"


# ------------------------------------------------------------------------------------------------ one trajectory


class FileEnv(QuestionEnv):
    """One trajectory of a question of the files."""

    def __init__(self, family: FileQA) -> None:
        self.can_search = family.context == "search" and "search" in family.tools
        super().__init__(family, family.search_tool() if self.can_search else None)

    @property
    def unsearched(self) -> list[str]:
        """Supporting documents that are left to search for, one a turn, while a turn remains for the answer."""
        if not self.can_search or self._trajectory.turn + 1 >= self.max_turns:
            return []
        return list(self._trajectory.task.payload["support"])[self._trajectory.turn :]
