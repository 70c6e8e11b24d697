"""What the checks look at: the tasks of an environment, and trajectories of them by several ways to play.

random, solver     the family's own, where it has them
""                 the empty answer
constants          one text, whatever is asked: the solver's most frequent action, each legal one, the prompt's example
everything         one text that lists all answers at once
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np

from workbench.basics.findings import Finding, RuleResult
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    ShownResult,
    Spent,
    opening_of,
    play,
    replay,
    same,
    shown_results,
    text_of,
    unplayable,
)
from workbench.extensions.scripted_play.words import TextPath
from workbench.values import Observation, Task
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.baselines import known

MOST_CONSTANTS = 18
MOST_LEGAL = 12  # different actions of random play that count as all that are legal
EXAMPLE = re.compile(r"(?:<think>[^<]*</think>\s*)?<answer>[^<]*</answer>")
MOST_BUDGETS = 6  # of one way to play, for all fixed ones together
SLOW_S = 0.2  # of a step: then less is played again
CHANCES = 12  # dynamics seeds of one trajectory
PLAIN_GUESSES = ("nan", "inf", "yes", "no", "0", "1", "A", "B")
EMPTY = "the empty answer"
NONSENSE = "zq ??"  # no answer, in no world
# An example that stands for an answer and is none.
PLACEHOLDER = re.compile(
    r"\b(?:answers?|names?|words?|texts?|values?|numbers?|your|titles?|place|result|solution|letters?|something|item)\b|[<>{}\[\]_]|\.\.\.",
    re.IGNORECASE,
)
EVERYTHING = "every answer at once"
WORDS = 40  # of the solver's text, each of which is left out once
SEEDLIKE = ("seed", "task_seed", "id", "index", "row", "number_of_draw")


@dataclass(frozen=True, eq=False)
class CheckInput:
    """An environment as every check takes it. `count_tokens`: of a prompt that begins with an observation, by the tokenizer of the policy
    that is named; None where none is. `max_context`, `max_turn_tokens`: of `collect`. `budget_s`: of playing, for each way."""

    family: EnvFamily
    count_tokens: Callable[[Observation], int] | None = None
    max_context: int | None = None
    max_turn_tokens: int = 0
    num_tasks: int = 12
    budget_s: float = 3.0
    way: TextPath = TextPath()  # from a policy's words to the world
    _cache: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def seeds(self) -> list[int]:
        return self.task_seeds(self.num_tasks)

    def task_seeds(self, count: int, *what: str) -> list[int]:
        """Seeds of training tasks; by `what` they are drawn for, others than `seeds`."""
        if hasattr(self.family, "task_seeds"):
            return list(self.family.task_seeds("train", 0, count, 0))
        return [seed_of("check-env", *what, number) for number in range(count)]

    def further_tasks(self, count: int, what: str) -> Iterator[Task]:
        """Training tasks that are drawn for `what`, one after the other."""
        return map(self.family.task, self.task_seeds(count, what))

    def once(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made by the first check that asks for it."""
        if what not in self._cache:
            self._cache[what] = make()
        return self._cache[what]

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
    ) -> tuple[PlayedTrajectory, ...]:
        """Trajectories by one way to play, as many as the budget allows, two at least."""
        played: list[PlayedTrajectory] = []
        spent = Spent()
        for number in range(chances):
            for task in self.tasks if tasks is None else tasks:
                if spent.seconds > self.budget_s and len(played) >= 2:
                    return tuple(played)
                rng = rng_at("check-env", policy, task.id, number)
                seed = seed_of("check-env", "dynamics", task.id, number)
                played.append(
                    play(self.family, task, seed, lambda env: act(env, rng), policy=policy)
                )
        return tuple(played)

    @cached_property
    def own(self) -> dict[str, tuple[PlayedTrajectory, ...]]:
        """By the family's own random play and solver."""
        return {
            name: self.play(name, getattr(self.family, f"{name}_action"), chances=2)
            for name in self.baselines
        }

    def acted(self, *names: str) -> list[PlayedTrajectory]:
        """Of the family's own play (by `names`, or all of it): what said something and raised nothing."""
        played = chain.from_iterable(self.own.get(name, ()) for name in names or self.own)
        return [one for one in played if one.texts and not one.error]

    def answer_to(self, start: Script, text: str) -> ShownResult | None:
        """What is answered to one more text; None where nothing is."""
        again = replay(self.family, start.then(text))
        if again.error or len(again.results) != len(start.texts) + 1:
            return None
        return shown_results(again)[-1]

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
    def fixed(self) -> dict[str, tuple[PlayedTrajectory, ...]]:
        """By constants, on other tasks than those that they were chosen on."""
        spent = Spent()
        played = {}
        others = self.tasks[len(self.tasks) // 3 :]
        for name in sorted(
            self.constants, key=lambda name: not name.startswith((EMPTY, EVERYTHING))
        ):
            text = self.constants[name]
            if spent.seconds < MOST_BUDGETS * self.budget_s or len(played) < 3:
                played[name] = self.play(name, lambda env, rng, text=text: text, others)
        return played

    @cached_property
    def step_seconds(self) -> list[float]:
        """Seconds of every step that was played."""
        seconds: list[float] = []
        for played in self.played:
            seconds += played.seconds[1:]
        return seconds

    @property
    def step_s(self) -> float:
        """Seconds of a step, on average."""
        return float(np.mean(self.step_seconds)) if self.step_seconds else 0.0

    @cached_property
    def plays(self) -> dict[str, tuple[PlayedTrajectory, ...]]:
        return {**self.own, **self.fixed}

    @cached_property
    def by_chance(self) -> bool:
        """Whether what comes of the same actions depends on the dynamics seed."""
        spent = Spent()
        for trajectories in self.own.values():
            for played in trajectories[:4]:
                one = replay(self.family, played.script).answers
                for number in range(CHANCES):
                    if spent.seconds > self.budget_s:
                        return False
                    seed = seed_of("check-env", "chance", number)
                    other = replay(self.family, played.script._replace(seed=seed)).answers
                    if not same(one, other):
                        return True
        return False

    def why_not_played(self, *, baselines: bool = False) -> str | None:
        """What is missing to play it again and again and compare; with `baselines` some play of its own, too. None: nothing."""
        if (why := unplayable(self.family)) is not None:
            return why
        if baselines and not self.baselines:
            return "random play or a solver"
        return f"steps that take less than {SLOW_S:g} s" if self.step_s > SLOW_S else None

    def common_actions(self, most: int) -> list[str]:
        """The texts that random play and the solver say most often."""
        common: Counter[str] = Counter()
        for played in chain.from_iterable(self.own.values()):
            common.update(played.texts)
        return [text for text, _ in common.most_common(most)]

    def solved_once(self, least_turns: int = 1) -> list[PlayedTrajectory]:
        """One trajectory a task that the solver did not fail."""
        solved = [
            one for one in self.own.get("solver", ()) if one.success is not False and not one.error
        ]
        long = [one for one in reversed(solved) if len(one.texts) >= least_turns]
        return list({one.task.id: one for one in long}.values())[::-1]

    def solved_anew(self, what: str, count: int, share: float) -> list[PlayedTrajectory]:
        """What the solver solves of `count` training tasks that are drawn for `what`, within a share of the budget."""
        spent = Spent()
        solved = []
        for task in self.further_tasks(count, what):
            if spent.seconds > share * self.budget_s:
                break
            rng = rng_at("check-env", what, task.id)
            one = play(
                self.family, task, 0, lambda env, rng=rng: self.family.solver_action(env, rng)
            )
            if one.success and not one.error:
                solved.append(one)
        return solved

    @property
    def played(self) -> list[PlayedTrajectory]:
        return list(chain.from_iterable(self.plays.values()))

    @cached_property
    def problems(self) -> list[str]:
        """The problem of each task, without the names of its seed: tasks that are alike in it are one problem."""
        return [problem_of(task, self.openings.get(task.id)) for task in self.tasks]

    @cached_property
    def openings(self) -> dict[str, Observation]:
        return {
            played.task.id: played.opening for played in self.played if played.opening is not None
        }

    @cached_property
    def scripts(self) -> list[Script]:
        """The longest trajectories of each way to play, for what is played again; two at the first task."""
        longest: list[Script] = []
        for trajectories in self.plays.values():
            played = max(trajectories, key=lambda played: len(played.texts), default=None)
            if played is not None and played.texts:
                longest.append(played.script)
        chosen = sorted(longest, key=lambda script: -len(script.texts))[:3]
        if self.step_s > SLOW_S:
            chosen = [script._replace(texts=script.texts[:3]) for script in chosen[:1]]
        for script in chosen[:1]:
            chosen.append(script._replace(seed=seed_of("check-env", "other", script.seed)))
        return chosen

    def _candidates(self) -> Iterator[str]:
        probing = self.tasks[: len(self.tasks) // 3]
        solved: Counter[str] = Counter()
        for played in self.own.get("solver", ()):
            if played.task in probing:
                solved.update(played.texts)
        yield from (text for text, _ in solved.most_common(3))
        legal: Counter[str] = Counter()
        for played in self.own.get("random", ()):
            legal.update(played.texts)
        most = MOST_LEGAL if len(legal) <= MOST_LEGAL else 2
        yield from (text for text, _ in legal.most_common(most))
        example = EXAMPLE.search(self.first_prompt)
        if example is not None:
            yield example[0]
        yield from map(self.as_answer, PLAIN_GUESSES)
        yield self.as_answer("")

    @cached_property
    def first_prompt(self) -> str:
        """The prompt of the first task; "" where it cannot be begun."""
        return text_of(opening_of(self.family, self.tasks[0], 0))

    def as_answer(self, words: str) -> str:
        """In the form that the prompt's example, or the solver's actions, have."""
        known_texts = [self.first_prompt]
        for trajectories in self.own.values():
            for played in trajectories[:2]:
                known_texts += played.texts[:1]
        example = next(filter(None, map(EXAMPLE.search, known_texts)), None)
        if example is None:
            return words
        return re.sub(r"<answer>[^<]*</answer>", lambda _: f"<answer>{words}</answer>", example[0])

    def _everything(self) -> dict[str, str]:
        """One text that holds all answers that were seen, and all small numbers: whoever looks for the right one in it
        finds it."""
        seen: dict[str, None] = {}
        for trajectories in self.own.values():
            for played in trajectories:
                seen |= dict.fromkeys(played.texts)
        bare = [EXAMPLE.sub(lambda match: inside(match[0]), text) for text in seen]
        listed = [*bare, *map(str, range(200)), "yes", "no", "A", "B", "C", "D"]
        if "answer>" not in self.as_answer("x"):
            return {EVERYTHING: " ".join(listed)}
        return {
            EVERYTHING: self.as_answer(" ".join(listed)),
            f"{EVERYTHING}, each in tags": " ".join(map(self.as_answer, listed)),
        }


def until_a_finding(
    looks: Iterable[Callable[..., Iterator[RuleResult]]], *at: Any
) -> Iterator[RuleResult]:
    """What each look at the same says, up to the first that finds something."""
    for look in looks:
        results = list(look(*at))
        yield from results
        if any(isinstance(result, Finding) for result in results):
            return


def needs_given_words(given: CheckInput) -> bool:
    """Whether tasks ask for a text that uses several words of their prompts: then a list of all words does what is asked. So
    it is where the solver's text needs two of the prompt's words or more, and could do without others that it has."""
    solved = [
        played
        for played in given.own.get("solver", ())
        if played.success and len(played.texts) == 1
    ]
    asked = solved[:3]
    for played in asked:
        words = re.findall(r"\w+", played.texts[0])
        shown = set(re.findall(r"\w+", text_of(played.opening).lower()))
        without = {
            word: replay(
                given.family,
                played.script._replace(texts=(re.sub(rf"\b{word}\b", " ", played.texts[0]),)),
            )
            for word in dict.fromkeys(words[:WORDS])
        }
        needed = [word for word, again in without.items() if not again.success]
        given_words = [word for word in needed if word.lower() in shown]
        if len(given_words) < 2 or len(given_words) < len(needed) or len(needed) == len(without):
            return False
    return len(asked) == 3


def inside(text: str) -> str:
    """The text between the answer tags; else all of it."""
    match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (match[1] if match else text).strip()


def without_its_seed(task: Task) -> dict[str, Any]:
    """The payload but for the task's number."""
    return {
        name: value
        for name, value in task.payload.items()
        if name.lower() not in SEEDLIKE and value != task.task_seed
    }


def problem_of(task: Task, opening: Observation | None) -> str:
    payload = without_its_seed(task)
    return f"{text_of(opening)}\n{json.dumps(payload, sort_keys=True, default=str)}"
