"""What the checks look at: the tasks of an environment, and attempts at them by several ways to play.

random, solver     the family's own, where it has them
""                 the empty answer
constants          one text, whatever is asked: the solver's most frequent action, each legal one, the prompt's example
everything         one text that lists all answers at once
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from workbench.envs.base import EnvFamily
from workbench.envs.baselines import known
from workbench.envs.checks.playing import PlayedAttempt, clocks, play, same, spent, text_of
from workbench.envs.checks.scripts import Script, played_alone
from workbench.types import Observation, Task
from workbench.types.seeds import rng_at, seed_of

MOST_CONSTANTS = 16
MOST_LEGAL = 12  # different actions of random play that count as all that are legal
EXAMPLE = re.compile(r"(?:<think>[^<]*</think>\s*)?<answer>[^<]*</answer>")
MOST_BUDGETS = 6  # of one way to play, for all fixed ones together
SLOW_S = 0.2  # of a step: then less is played again
CHANCES = 12  # dynamics seeds of one attempt
PLAIN_GUESSES = ("yes", "no", "0", "1", "A", "B")
EMPTY, EVERYTHING = "the empty answer", "every answer at once"
SEEDLIKE = ("seed", "task_seed", "id", "index", "row", "number_of_draw")


@dataclass(frozen=True, eq=False)
class CheckInput:
    """What every check looks at. `count_tokens`: of a prompt that begins with an observation, by the tokenizer of the policy
    that is named; None where none is. `max_context`, `max_turn_tokens`: of `collect`. `budget_s`: of playing, for each way."""

    family: EnvFamily
    count_tokens: Callable[[Observation], int] | None = None
    max_context: int | None = None
    max_turn_tokens: int = 0
    num_tasks: int = 12
    budget_s: float = 3.0
    _cache: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def seeds(self) -> list[int]:
        if hasattr(self.family, "task_seeds"):
            return list(self.family.task_seeds("train", 0, self.num_tasks, 0))
        return [seed_of("check-env", number) for number in range(self.num_tasks)]

    @cached_property
    def tasks(self) -> list[Task]:
        return [self.family.task(seed) for seed in self.seeds]

    @cached_property
    def baselines(self) -> tuple[str, ...]:
        return known(self.family)

    def play(
        self,
        policy: str,
        act: Callable[[Any, np.random.Generator], str],
        tasks: Sequence[Task] | None = None,
        chances: int = 1,
    ) -> tuple[PlayedAttempt, ...]:
        """Attempts by one way to play, as many as the budget allows, two at least."""
        found: list[PlayedAttempt] = []
        began = clocks()
        for number in range(chances):
            for task in self.tasks if tasks is None else tasks:
                if spent(began) > self.budget_s and len(found) >= 2:
                    return tuple(found)
                rng = rng_at("check-env", policy, task.id, number)
                seed = seed_of("check-env", "dynamics", task.id, number)
                found.append(play(self.family, task, seed, policy, lambda env: act(env, rng)))
        return tuple(found)

    @cached_property
    def own(self) -> dict[str, tuple[PlayedAttempt, ...]]:
        """By the family's own random play and solver."""
        return {
            name: self.play(name, getattr(self.family, f"{name}_action"), chances=2)
            for name in self.baselines
        }

    @cached_property
    def constants(self) -> dict[str, str]:
        """Name -> text, of ways to play that look at nothing."""
        listed = dict.fromkeys(
            islice((text for text in self._candidates() if isinstance(text, str)), MOST_CONSTANTS)
        )
        return (
            {EMPTY: ""}
            | {f"always {text!r:.60}": text for text in listed if text}
            | self._everything()
        )

    @cached_property
    def fixed(self) -> dict[str, tuple[PlayedAttempt, ...]]:
        """By constants, on other tasks than those that they were chosen on."""
        began, found = clocks(), {}
        for name, text in sorted(
            self.constants.items(), key=lambda way: not way[0].startswith((EMPTY, EVERYTHING))
        ):
            if spent(began) < MOST_BUDGETS * self.budget_s or len(found) < 3:
                found[name] = self.play(
                    name, lambda env, rng, text=text: text, self.tasks[len(self.tasks) // 3 :]
                )
        return found

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step, on average."""
        steps = [second for each in self.attempts for second in each.seconds[1:]]
        return float(np.mean(steps)) if steps else 0.0

    @cached_property
    def plays(self) -> dict[str, tuple[PlayedAttempt, ...]]:
        return {**self.own, **self.fixed}

    @cached_property
    def by_chance(self) -> bool:
        """Whether what comes of the same actions depends on the dynamics seed."""
        began = clocks()
        for script in [each.script for attempts in self.own.values() for each in attempts[:4]]:
            one = played_alone(self.family, script)
            for number in range(CHANCES):
                if spent(began) > self.budget_s:
                    return False
                other = played_alone(
                    self.family, script._replace(seed=seed_of("check-env", "chance", number))
                )
                if not same(one, other):
                    return True
        return False

    @property
    def attempts(self) -> list[PlayedAttempt]:
        return [attempt for attempts in self.plays.values() for attempt in attempts]

    @cached_property
    def problems(self) -> list[str]:
        """What each task asks, without the names of its seed: tasks that are alike in it are one problem."""
        return [problem_of(task, self.openings.get(task.id)) for task in self.tasks]

    @cached_property
    def openings(self) -> dict[str, Observation]:
        return {each.task.id: each.opening for each in self.attempts if each.opening is not None}

    @cached_property
    def scripts(self) -> list[Script]:
        """The longest attempts of each way to play, for what is played again; two at the first task."""
        by_way = [
            sorted(attempts, key=lambda each: -len(each.texts)) for attempts in self.plays.values()
        ]
        first = [each.script for attempts in by_way for each in attempts[:1] if each.texts]
        ordered = sorted(first, key=lambda script: -len(script.texts))[:3]
        if self.step_s > SLOW_S:
            ordered = [script._replace(texts=script.texts[:3]) for script in ordered[:1]]
        return [
            *ordered,
            *(
                script._replace(seed=seed_of("check-env", "other", script.seed))
                for script in ordered[:1]
            ),
        ]

    def _candidates(self) -> Iterator[str]:
        probing = self.tasks[: len(self.tasks) // 3]
        solved, tried = (
            [text for each in self.own.get(name, ()) if each.task in probing for text in each.texts]
            for name in ("solver", "random")
        )
        yield from (text for text, _ in Counter(solved).most_common(3))
        legal = Counter(text for each in self.own.get("random", ()) for text in each.texts)
        yield from (
            text for text, _ in legal.most_common(MOST_LEGAL if len(legal) <= MOST_LEGAL else 2)
        )
        prompt = text_of(next(iter(self.openings_of_one.values()), None))
        example = EXAMPLE.search(prompt)
        yield from [example[0]] if example else []
        yield from (self.as_answer(guess) for guess in PLAIN_GUESSES)
        yield self.as_answer("")

    @cached_property
    def openings_of_one(self) -> dict[str, Observation]:
        attempt = play(self.family, self.tasks[0], 0, EMPTY, lambda env: "", 1)
        return {} if attempt.opening is None else {attempt.task.id: attempt.opening}

    def as_answer(self, words: str) -> str:
        """In the form that the prompt's example, or the solver's actions, have."""
        known_texts = [text_of(each) for each in self.openings_of_one.values()]
        known_texts += [
            text for each in self.own.values() for attempt in each[:2] for text in attempt.texts[:1]
        ]
        example = next((found[0] for text in known_texts if (found := EXAMPLE.search(text))), "")
        if not example:
            return words
        return re.sub(r"<answer>[^<]*</answer>", lambda _: f"<answer>{words}</answer>", example)

    def _everything(self) -> dict[str, str]:
        """One text that holds all answers that were seen, and all small numbers: whoever looks for the right one in it
        finds it."""
        said = dict.fromkeys(
            text for attempts in self.own.values() for each in attempts for text in each.texts
        )
        bare = [EXAMPLE.sub(lambda found: inside(found[0]), text) for text in said]
        listed = [*bare, *map(str, range(200)), "yes", "no", "A", "B", "C", "D"]
        return (
            {
                EVERYTHING: self.as_answer(" ".join(listed)),
                f"{EVERYTHING}, each in tags": " ".join(self.as_answer(each) for each in listed),
            }
            if "answer>" in self.as_answer("x")
            else {EVERYTHING: " ".join(listed)}
        )


def inside(text: str) -> str:
    """What stands between the answer tags; else the text."""
    found = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (found[1] if found else text).strip()


def problem_of(task: Task, opening: Observation | None) -> str:
    payload = {
        name: value
        for name, value in task.payload.items()
        if name.lower() not in SEEDLIKE and value != task.task_seed
    }
    return f"{text_of(opening)}\n{json.dumps(payload, sort_keys=True, default=str)}"
