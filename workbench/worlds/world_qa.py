"""Questions about invented worlds, to be answered by searching: the demo's environment.

    user       In which country does Zumi live?
    assistant  <tool_call>{"name": "search", "arguments": {"query": "Zumi"}}</tool_call>
    tool       Zumi: Zumi lives in Rapoke.
    assistant  <tool_call>{"name": "search", "arguments": {"query": "Rapoke"}}</tool_call>
    tool       Rapoke: Rapoke lies in Bedu.
    assistant  <answer>Bedu</answer>

The same question can be put in four ways (`context`): with the tool; without any; beside what one search for the
question's own words brings, as naive retrieval does; and beside all documents that it takes, which shows what reading
alone is worth. The last three have one turn.

Held-out tasks are about held-out worlds, of which no name occurs in training (`workbench.worlds.qa.worlds`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import at_least, check_settings, one_of, probability
from workbench.tools.retrieval import Bm25, Corpus
from workbench.tools.search import SearchTool
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.qa.contexts import Context, QuestionEnv, QuestionFamily, Turns
from workbench.worlds.qa.worlds import HELD_OUT_WORLDS, SHAPES, World, split_of_world, world
from workbench.worlds.tool_env import CallSettings

TRAINING_WORLDS = 64  # that the tasks of training are about; held-out worlds come on top

_WORDS = {
    "search": "Search, then answer",
    "closed": "Answer",
    "rag": "Read, then answer",
    "gold": "Read, then answer",
}


@dataclass(frozen=True)
class WorldQA(QuestionFamily):
    """A family of questions about invented worlds. The fields are its only configuration.

    Beside the search, or in its place, tools of your own may be offered by "module:name". A function of yours may take
    the trajectory's Task, whose world it may then search.
    """

    world: Annotated[
        str,
        one_of(*SHAPES),
        "plain: one fact a subject; hard: several (see workbench.worlds.qa.worlds)",
    ] = "plain"
    context: Context = "search"
    documents: Annotated[int, at_least(1, most=10_000), "that one search brings"] = 1
    turns: Turns = 5
    long_share: Annotated[
        float, probability(), "share of the questions that take three documents instead of two"
    ] = 0.2
    tools: Annotated[
        tuple[str, ...],
        "with the tool: search, or module:name for what is offered beside it or in its place",
    ] = ("search",)
    calls: CallSettings = field(default_factory=CallSettings)
    rewards: AnswerRewards = field(default_factory=AnswerRewards)

    most_chars: ClassVar[int] = 400
    name: ClassVar[str] = "world_qa"
    solver_name: ClassVar[str] = "knows the way"

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.tools and self.context == "search":
            raise ConfigError(
                "WorldQA.tools is empty; a trajectory without tools is context='closed'"
            )

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """A question about one of the worlds: in half of the draws a held-out one."""
        rng = rng_at("world_qa.world", task_seed)
        is_held_out = rng.random() < 0.5
        if is_held_out:
            seed = rng.integers(HELD_OUT_WORLDS)
        else:
            seed = HELD_OUT_WORLDS + rng.integers(TRAINING_WORLDS)
        return self.task_in(int(seed), task_seed)

    def task_in(self, world_seed: int, task_seed: int) -> Task:
        """A question about this world, the same in every process."""
        here = world(self.world, world_seed)
        rng = rng_at("world_qa.task", task_seed)
        hops = 3 if rng.random() < self.long_share else 2
        kinds = [kind for kind, chain in here.shape.chains.items() if chain.hops == hops]
        kind = kinds[rng.integers(len(kinds))]
        question = here.question(kind, int(rng.integers(10_000)))
        payload = {
            "question": question.text,
            "answers": [question.answer],
            "support": list(question.support),
            "hops": question.hops,
            "kind": question.kind,
            "world": world_seed,
        }
        task_id = f"world_qa/{self.world}/{world_seed}/{task_seed}"
        return Task(task_id, self.name, int(task_seed), payload)

    def question_task(self, text: str, task_seed: int = 0) -> Task:
        """A person's question, without a gold answer, about the first held-out world that knows a name in it; where none
        does, about the one that `task_seed` chooses."""
        words = set(re.findall(r"\w+", text))
        number = task_seed % HELD_OUT_WORLDS
        for held_out in range(HELD_OUT_WORLDS):
            names = world(self.world, held_out).names
            if not words.isdisjoint(chain.from_iterable(names.values())):
                number = held_out
                break
        payload = {
            "question": text,
            "answers": [],
            "support": [],
            "hops": 0,
            "kind": "asked",
            "world": number,
        }
        return Task(f"world_qa/{self.world}/{number}/asked", self.name, int(task_seed), payload)

    def split_of(self, task: Task) -> str:
        """By the world, whose names are all of one split."""
        return split_of_world(task.payload["world"])

    def world_of(self, task: Task) -> World:
        return world(self.world, task.payload["world"])

    def search_tool(self, task: Task) -> SearchTool:
        """The search over the corpus of this task's world."""
        return SearchTool(self._searcher(task), k=self.documents, most_chars=self.most_chars)

    def corpus_of(self, task: Task) -> Corpus:
        return self._searcher(task).corpus

    def _searcher(self, task: Task) -> Bm25:
        return _searcher(self.world, task.payload["world"])

    def make(self) -> WorldEnv:
        return WorldEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: WorldEnv, rng: np.random.Generator) -> str:
        """A search for any name of the world, or any country as the answer."""
        names = self.world_of(env.task).names
        if self.context == "search" and rng.random() < 0.5:
            everything = list(chain.from_iterable(names.values()))
            return env.search(everything[rng.integers(len(everything))])
        countries = names["country"]
        return env.format.write_answer(countries[rng.integers(len(countries))])

    def solver_action(self, env: WorldEnv, rng: np.random.Generator) -> str:
        """Searches for name after name on the way to the answer, which it knows, and which no prompt tells."""
        if self.context == "search" and env.steps_known < len(env.path) - 1:
            return env.search(env.path[env.steps_known])
        return env.format.write_answer(env.path[-1])

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        documents = f"{self.documents} document{'s' * (self.documents > 1)}"
        way = {
            "search": f"search ({documents} each, {self.turns} turns)",
            "closed": "no tool",
            "rag": f"one search for the question's words ({self.documents} found)",
            "gold": "handed the documents it takes",
        }[self.context]
        return f"World QA, {self.world}, {way}, {self.long_share:.0%} of three hops"

    @property
    def instructions(self) -> str:
        """Few words: a tiny policy pays for every one of them in every trajectory."""
        return f"{_WORDS[self.context]} like this: <answer>name</answer>\n"


@lru_cache(maxsize=TRAINING_WORLDS + 2 * HELD_OUT_WORLDS)
def _searcher(kind: str, seed: int) -> Bm25:
    """The index of a world: a few hundredths of a second to make, so it is kept in this process."""
    return Bm25(world(kind, seed).corpus())


@dataclass(frozen=True)
class WorldSearch:
    """Search over the corpus of whichever world the task is about."""

    family: WorldQA
    name: str = "search"
    description: str = "Find documents."
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        }
    )
    trusted: bool = True
    stateful: bool = False

    def call(self, arguments: Mapping[str, Any]) -> Any:
        raise EnvError(
            "which world is searched is known when a trajectory begins: call for_trajectory(task) first"
        )

    def for_trajectory(self, task: Task) -> SearchTool:
        return self.family.search_tool(task)


class WorldEnv(QuestionEnv):
    """One trajectory, which also says how far along the way it is, for solvers and demonstrators."""

    def __init__(self, family: WorldQA) -> None:
        super().__init__(family, WorldSearch(family), instructions=family.instructions)

    @property
    def path(self) -> tuple[str, ...]:
        """The names from the one asked about to the answer."""
        payload = self.task.payload
        names = [document.split("/")[1] for document in payload["support"]]
        return (*names, *payload["answers"])

    @property
    def steps_known(self) -> int:
        """Documents of the way, from its beginning without a gap, that were found so far."""
        support = self.task.payload["support"]
        if self.family.context == "gold":
            return len(support)
        known = takewhile(lambda document: document in self._trajectory.paid, support)
        return sum(1 for _ in known)

    def privileged(self) -> str:
        """For a critic: the names from the one asked about to the answer, and how many documents of that way were found."""
        return f"Way: {', '.join(self.path)}. Found: {self.steps_known}"


PRESETS: Mapping[str, WorldQA] = MappingProxyType(
    {
        "world-qa": WorldQA(),
        "world-qa-two-hops": WorldQA(long_share=0.0),
        "world-qa-half-long": WorldQA(long_share=0.5),
        "world-qa-hard": WorldQA(world="hard", documents=4, long_share=0.5, turns=6),
    }
)
