"""Questions whose searches bring one document or several, drawn for each question: a way from what is known to what is not.

    workbench train search --set env.kind=experiments.mixed_documents:MixedDocuments --set env.documents=2
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from workbench.envs.tools.search import SearchTool
from workbench.envs.world_qa import WorldQA
from workbench.types import Task
from workbench.types.seeds import rng_at
from workbench.types.settings import probability


@dataclass(frozen=True)
class MixedDocuments(WorldQA):
    """`WorldQA` where a question's searches bring `documents` or, in the other questions, one."""

    several: Annotated[float, probability(), "share of the questions whose searches bring `documents`"] = 0.5

    def task_in(self, world_seed: int, task_seed: int) -> Task:
        """The question that `WorldQA` asks, with the number of documents that its searches bring."""
        task = super().task_in(world_seed, task_seed)
        several = rng_at("mixed_documents", task_seed).random() < self.several
        return replace(task, payload={**task.payload, "documents": self.documents if several else 1})

    def search_tool(self, task: Task) -> SearchTool:
        """The search over the corpus of this task's world; it brings as many documents as the task says."""
        return SearchTool(self._searcher(task), k=task.payload.get("documents", self.documents), most_chars=self.most_chars)

    @property
    def label(self) -> str:
        return f"{super().label}, {self.several:.0%} of the questions with more than one document"
