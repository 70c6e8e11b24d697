"""The data sets of reasoning-gym: a question a task, one answer, scored by the data set's own scorer.

The solver is the data set's own answer, and random play the answer of another of its questions; a data set that has
none (several answers are right) has neither here. The reward is the score, from 0 to 1, and success is a score of 1. Where the scorer raises an
exception on an answer, the reward is unscored, not 0.

The scorer reads what the policy wrote. A few (countdown, simple_equations ...) hand it to sympy's parser, which
evaluates Python: run those in worker processes (`collect.env_runner = "processes"`). Source: github.com/open-
thought/reasoning-gym.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import check_settings
from workbench.extensions.adapters.packages import SEEDS, package
from workbench.tools.action_format import format_action, parse_answer, user_message
from workbench.values import Observation, StepResult, Task, Text
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.game_settings import Think

LONGEST_ANSWER = 20_000  # characters that are scored


@dataclass(frozen=True)
class ReasoningGym:
    """Questions of one data set. `options` are the fields of the data set's own configuration."""

    dataset: Annotated[str, "its name in reasoning-gym"] = "chain_sum"
    options: Annotated[Mapping[str, Any], "of the data set's own configuration"] = field(
        default_factory=dict
    )
    think: Think = True

    name: ClassVar[str] = "reasoning_gym"
    max_turns: ClassVar[int] = 1
    solver_name: ClassVar[str] = "the data set's answer"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def label(self) -> str:
        settings = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"reasoning-gym: {self.dataset}{settings}"

    @property
    def example(self) -> str:
        return format_action(["the answer"], think=self.think, thought="plan")

    def entry(self, task_seed: int) -> tuple[Any, Mapping[str, Any]]:
        """(data set, its one entry) of a seed. Raises ConfigError for a name or options that the package refuses."""
        gym = package("reasoning_gym", "reasoning-gym")
        try:
            dataset = gym.create_dataset(
                self.dataset, size=1, seed=task_seed % SEEDS, **self.options
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(
                f"reasoning-gym refuses the data set {self.dataset!r} with the options "
                f"{dict(self.options)}: {error}"
            ) from error
        return dataset, dataset[0]

    def task(self, task_seed: int) -> Task:
        entry = self.entry(task_seed)[1]
        return Task(
            f"{self.dataset}/{task_seed}",
            self.name,
            int(task_seed),
            {"question": entry["question"]},
        )

    def make(self) -> ReasoningGymEnv:
        return ReasoningGymEnv(self)

    @property
    def solver_action(self) -> Callable[[ReasoningGymEnv, np.random.Generator], str]:
        """AttributeError, so none known, where the data set has no answer of its own."""
        self._needs_answers()
        return lambda env, rng: format_action([str(env.entry["answer"])], think=self.think)

    @property
    def random_action(self) -> Callable[[ReasoningGymEnv, np.random.Generator], str]:
        """What is right by chance alone: the answer of another question, drawn as tasks are. AttributeError like the
        solver's."""
        self._needs_answers()

        def answer_of_another(env: ReasoningGymEnv, rng: np.random.Generator) -> str:
            _, entry = self.entry(int(rng.integers(SEEDS)))
            return format_action([str(entry["answer"])], think=self.think)

        return answer_of_another

    def _needs_answers(self) -> None:
        if self.entry(0)[1]["answer"] is None:
            raise AttributeError(f"{self.dataset} has no answer of its own")


class ReasoningGymEnv:
    """One trajectory."""

    def __init__(self, family: ReasoningGym) -> None:
        self.family = family
        self.dataset: Any = None
        self.entry: Mapping[str, Any] = {}

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.dataset, self.entry = self.family.entry(task.task_seed)
        if self.entry["question"] != task.payload.get("question"):
            raise EnvError(
                f"reasoning-gym makes another question of seed {task.task_seed} than the one of task "
                f"{task.id!r}; was it made by another version, or with other options?"
            )
        return user_message(
            Text(f"{self.entry['question']}\n"),
            Text(f"Answer like this: {self.family.example}", trusted=True),
        )

    def step(self, action_text: str) -> StepResult:
        if self.dataset is None:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        parsed = parse_answer(action_text, think=self.family.think)
        answer = parsed.moves[0].strip() if parsed.valid else ""
        score = 0.0
        error = ""
        if parsed.valid and len(answer) <= LONGEST_ANSWER:
            try:
                score = float(self.dataset.score_answer(answer, self.entry))
            except Exception as raised:  # the scorer's own fault, whatever it is
                score = None
                error = f"{type(raised).__name__}: {raised}"
        self.dataset = None
        info = {
            "success": score is not None and score >= 1.0,
            "valid_format": parsed.valid,
            "complaint": parsed.complaint,
            "moves": [answer] if parsed.valid else [],
            "gold": str(self.entry["answer"]),
        } | ({"scorer_error": error} if error else {})
        over = user_message(Text("The trajectory is over."))
        return StepResult(over, score, {"score": score}, terminated=True, info=info)
