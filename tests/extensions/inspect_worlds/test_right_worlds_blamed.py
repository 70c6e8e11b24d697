"""Right environments that a check once called wrong, each beside the wrong one that it must go on naming."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from workbench.extensions.inspect_worlds.checks import check_family
from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.seeds import rng_at

RIVERS = ["Onda", "Virel", "Sarm", "Tolba", "Quint", "Besko", "Ulmen", "Drav", "Ilster", "Mohn"]
FILLER = "The town is old and quiet, and its people bake bread and mend nets all the year round. "


def errors_of(family, rule):
    (answer,) = check_family(family, tasks=8, only=(rule,), budget_s=0.3).findings
    return [found.what for found in answer.findings if found.severity == "error"]


@dataclass
class Once:
    """One answer, judged by the family."""

    family: object

    def reset(self, task, dynamics_seed):
        self.task = task
        self.over = False
        return Observation((Message("user", self.family.opening(task)),))

    def step(self, action_text):
        self.over = True
        words = action_text.strip().removeprefix("<answer>").removesuffix("</answer>").strip()
        reward = self.family.judge(self.task, words)
        info = {"success": reward == self.family.best(self.task)}
        return StepResult(Observation(()), reward, terminated=True, info=info)


@dataclass(frozen=True)
class Asked:
    max_turns: ClassVar[int] = 1

    def make(self):
        return Once(self)

    def solver_action(self, env, rng):
        return f"<answer>{self.solution(env.task)}</answer>"

    def best(self, task):
        return 1.0


@dataclass(frozen=True)
class Reading(Asked):
    """What river a town is on. `told`: by the passage that is to be read, or by the author's own words."""

    told: str = "passage"
    name: ClassVar[str] = "reading"

    def task(self, task_seed):
        river = RIVERS[task_seed % len(RIVERS)]
        return Task(f"reading/{task_seed}", "reading", task_seed, {"answer": river, "n": task_seed})

    def opening(self, task):
        says = f"It lies on the {task.payload['answer']}. "
        passage = FILLER * 2 + (says if self.told == "passage" else "")
        hint = "" if self.told == "passage" else says
        asked = f"{hint}Town {task.payload['n']}: which river is it on? <answer>river</answer>"
        return (Text(passage), Text(asked, trusted=True))

    def solution(self, task):
        return task.payload["answer"]

    def judge(self, task, words):
        return float(words == task.payload["answer"])

    def random_action(self, env, rng):
        return f"<answer>{rng.choice(RIVERS)}</answer>"


def test_a_passage_may_hold_the_answer_and_a_hint_may_not():
    assert errors_of(Reading(), "E9") == []
    assert errors_of(Reading(told="hint"), "E9")


@dataclass(frozen=True)
class Stock(Asked):
    """How much to order. `long`: more words are paid more; else an order that cannot be read is none, and costs nothing."""

    long: bool = False
    name: ClassVar[str] = "stock"

    def task(self, task_seed):
        needed = random.Random(task_seed).randrange(40, 60)
        return Task(f"stock/{task_seed}", "stock", task_seed, {"needed": needed})

    def opening(self, task):
        return f"{task.payload['needed']} will be sold. Order: <answer>number</answer>"

    def solution(self, task):
        return task.payload["needed"]

    def judge(self, task, words):
        bonus = 0.01 * len(words.split()) if self.long else 0.0
        number = words.split("</answer>")[0]
        if not self.long and not words.isdigit():
            return 0.5
        apart = abs(int(number) - task.payload["needed"]) if number.isdigit() else 60
        return 1.0 - apart / 60 + bonus

    def best(self, task):
        return 1.0

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(0, 20)}</answer>"


def test_an_order_that_is_not_read_costs_less_than_a_bad_one_and_length_is_not_what_is_paid():
    def by_length(family):
        return [what for what in errors_of(family, "E12") if "grows with length" in what]

    assert by_length(Stock()) == []
    assert by_length(Stock(long=True))


@dataclass(frozen=True)
class Tour(Asked):
    """A round trip through six places: as long the other way round."""

    name: ClassVar[str] = "tour"

    def task(self, task_seed):
        rng = random.Random(task_seed)
        places = {letter: [rng.random(), rng.random()] for letter in "ABCDEF"}
        return Task(f"tour/{task_seed}", "tour", task_seed, {"places": places})

    def opening(self, task):
        return f"Visit all and come back: {task.payload['places']}. <answer>letters</answer>"

    def length(self, task, letters):
        places = [task.payload["places"][letter] for letter in (*letters, letters[0])]
        return sum(map(math.dist, places, places[1:]))

    def solution(self, task):
        left = sorted(task.payload["places"])
        tour = [left.pop(0)]
        while left:
            here = task.payload["places"][tour[-1]]
            nearest = min(left, key=lambda one: math.dist(here, task.payload["places"][one]))
            left.remove(nearest)
            tour.append(nearest)
        return " ".join(tour)

    def judge(self, task, words):
        letters = words.split()
        if sorted(letters) != sorted(task.payload["places"]):
            return 0.0
        return round(self.length(task, self.solution(task).split()) / self.length(task, letters), 6)

    def random_action(self, env, rng):
        return f"<answer>{' '.join(rng.permutation(list('ABCDEF')))}</answer>"


def test_a_tour_the_other_way_round_is_no_error():
    assert errors_of(Tour(), "E27") == []


@dataclass
class Noted(Once):
    """It keeps what it told under a name that is an optional method of ours."""

    told: list = field(default_factory=list)

    def step(self, action_text):
        self.told.append(action_text)
        return super().step(action_text)


@dataclass(frozen=True)
class Notes(Reading):
    def make(self):
        return Noted(self)


@pytest.mark.parametrize("rule", ["E5", "E18"])
def test_an_attribute_called_told_is_no_exception(rule):
    assert errors_of(Notes(), rule) == []


ROOMS = ("kitchen", "cellar", "attic", "hall")


@dataclass
class Store:
    """It tells how much lies in a room, as a tool that makes its data when it is asked, or as dice."""

    address: str

    def reset(self, task, dynamics_seed):
        self.task = task
        self.turn = 0
        return Observation((Message("user", f"Room {task.payload['room']}: look there, and say."),))

    def step(self, action_text):
        keys = {"data": (action_text,), "dice": (self.task.task_seed, self.turn)}[self.address]
        self.turn += 1
        amount = int(rng_at("store", *keys).integers(9))
        said = Observation((Message("user", f"{amount} things"),))
        return StepResult(said, 0.0, terminated=self.turn == 3, info={"success": False})


@dataclass(frozen=True)
class Stores:
    address: str = "data"
    name: ClassVar[str] = "stores"
    max_turns: ClassVar[int] = 3

    def task(self, task_seed):
        room = ROOMS[task_seed % 4]
        return Task(f"stores/{task_seed}", "stores", task_seed, {"room": room, "n": task_seed})

    def make(self):
        return Store(self.address)

    def random_action(self, env, rng):
        return ROOMS[rng.integers(4)]


def test_data_that_are_drawn_when_they_are_asked_for_are_no_dice():
    assert errors_of(Stores(), "E4") == []
    assert errors_of(Stores("dice"), "E4")


@dataclass
class Guesses:
    """A coin is guessed in each turn. `form`: what is written like a guess is paid, right or wrong."""

    form: bool

    def reset(self, task, dynamics_seed):
        self.coins = task.payload["coins"]
        self.turn = self.hits = 0
        told = f"Each of 4 coins is guessed: heads or tails. 1/4 is paid for each. {task.task_seed}"
        return Observation((Message("user", told),))

    def step(self, action_text):
        right = action_text == self.coins[self.turn]
        paid = action_text in ("heads", "tails") if self.form else right
        self.turn += 1
        self.hits += right
        over = self.turn == 4
        told = Observation((Message("user", "Right." if right else "Wrong."),))
        return StepResult(told, paid / 4, terminated=over, info={"success": self.hits == 4})


@dataclass(frozen=True)
class Coins:
    form: bool = False
    name: ClassVar[str] = "coins"
    max_turns: ClassVar[int] = 4

    def task(self, task_seed):
        coins = list(rng_at("coins", task_seed).permutation(["heads", "tails"] * 2))
        return Task(f"coins/{task_seed}", "coins", task_seed, {"coins": coins})

    def make(self):
        return Guesses(self.form)

    def random_action(self, env, rng):
        return ("heads", "tails")[rng.integers(2)]

    def solver_action(self, env, rng):
        return env.coins[env.turn]


def test_a_guess_that_is_right_now_and_then_is_paid_its_share_and_its_form_is_not():
    def again(family):
        return [what for what in errors_of(family, "E12") if "again in every turn" in what]

    assert again(Coins()) == []
    assert again(Coins(form=True))


@dataclass(frozen=True)
class Paying(Asked):
    """Coins that make an amount, or places from which a thing is fetched and to which it is brought."""

    asks: str = "Pay {amount} exactly with coins of 1 to 50: <answer>5 2 1</answer>"
    name: ClassVar[str] = "paying"

    def task(self, task_seed):
        drawn = rng_at("paying", task_seed).choice([1, 2, 5, 10, 20, 50], 4, replace=False)
        coins = sorted(map(int, drawn), reverse=True)
        payload = {"answer": " ".join(map(str, coins)), "n": task_seed}
        return Task(f"paying/{task_seed}", "paying", task_seed, payload)

    def opening(self, task):
        amount = sum(map(int, task.payload["answer"].split()))
        return self.asks.format(amount=amount) + f" ({task.payload['n']})"

    def solution(self, task):
        return task.payload["answer"]

    def judge(self, task, words):
        return float(sorted(words.split()) == sorted(task.payload["answer"].split()))

    def random_action(self, env, rng):
        return "<answer>1</answer>"


def test_coins_in_another_order_are_the_same_coins_unless_an_order_is_asked_for():
    assert errors_of(Paying(), "E27") == []
    assert errors_of(
        Paying("Sort these in descending order, they add up to {amount}: <answer>5 2 1</answer>"),
        "E27",
    )


@dataclass
class Hidden:
    """Behind one door or two of forty there is a prize."""

    decided_by: str

    def reset(self, task, dynamics_seed):
        self.doors = task.payload[self.decided_by]
        self.turn = 0
        told = f"Doors 0 to 39, some have a prize. Open two. You stand at {task.payload['at']}."
        return Observation((Message("user", told),))

    def step(self, action_text):
        self.turn += 1
        won = action_text in map(str, self.doors)
        told = Observation((Message("user", "The prize." if won else "Nothing."),))
        return StepResult(told, float(won), terminated=won or self.turn == 2, info={"success": won})


@dataclass(frozen=True)
class Doors:
    """`decided_by`: the field of the payload that decides; a second prize is in "all" alone."""

    decided_by: str = "all"
    name: ClassVar[str] = "doors"
    max_turns: ClassVar[int] = 2

    def task(self, task_seed):
        rng = rng_at("doors", task_seed)
        first, second, at = (int(rng.integers(*some)) for some in ((0, 2), (2, 40), (0, 20)))
        payload = {"at": at, "first": [first], "all": [first, second]}
        return Task(f"doors/{task_seed}", "doors", task_seed, payload)

    def make(self):
        return Hidden(self.decided_by)

    def random_action(self, env, rng):
        return str(rng.integers(40))

    def solver_action(self, env, rng):
        return str(env.doors[0])


def test_hidden_places_behind_one_prompt_are_other_tasks_and_a_running_number_is_none():
    def alike(family):
        return [what for what in errors_of(family, "E2") if "answer alike" in what]

    assert alike(Doors()) == []
    assert alike(Doors("first"))
