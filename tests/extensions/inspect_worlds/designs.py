"""Right environments of many designs, in which no check may find an error: partial pay, costs, scales, ties, tiny worlds, chance,
limits, tools that fail, strict or foreign words, games without a solver."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar

from tests.extensions.inspect_worlds.slips import (
    METALS,
    TOWNS,
    WORDS,
    Ask,
    AskEnv,
    Room,
    RoomEnv,
    user,
)
from workbench.tools.base import tool
from workbench.values import Observation, StepResult, Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv

# ------------------------------------------------------------------------------------------------ one answer


class PaidEnv(AskEnv):
    """Pays what the family says of the words in tags; success is the most that can be had, or what it says."""

    def step(self, text):
        super().step(text)
        said = re.findall(r"<answer>([^<>]*)</answer>", text)
        reward = self.family.paid(said[-1].strip() if said else None, self.task)
        success = self.family.succeeds(reward)
        info = {} if success is None else {"success": success, "valid_format": bool(said)}
        return StepResult(Observation(()), reward, terminated=True, info=info)


class Paid(Ask):
    best: ClassVar[float] = 1.0

    def make(self):
        return PaidEnv(self)

    def is_right(self, said, task):
        return False

    def succeeds(self, reward):
        return reward >= self.best - 1e-9

    def paid(self, said, task):
        return float(said == task.payload["gold"])


class Shares(Paid):
    """A share for each right metal, none for wrong ones."""

    def problem(self, rng, seed):
        metals = [str(x) for x in rng.choice(METALS, 4, replace=False)]
        shown = rng.permutation([*metals, *rng.choice(WORDS, 4, replace=False)]).tolist()
        text = f"In the box: {', '.join(shown)}. Which are metals, in any order? Each right one earns a share, in tags."
        return {"text": text, "gold": ", ".join(sorted(metals))}

    def paid(self, said, task):
        mine = {item.strip() for item in (said or "").split(",")}
        right = set(task.payload["gold"].split(", "))
        return max(len(mine & right) - len(mine - right), 0) / len(right)


class Rounds(Paid):
    """A short round; longer ones earn less, and any round of all earns something."""

    def problem(self, rng, seed):
        places = {name: int(rng.integers(100)) for name in "ABCD"}
        order = sorted(places, key=places.get)
        shown = ", ".join(f"{name} at {at}" for name, at in places.items())
        return {
            "text": f"Start at 0 on a road: {shown}. Visit all by a short way, as <answer>B A D C</answer>",
            "places": places,
            "gold": " ".join(order),
        }

    def paid(self, said, task):
        order = (said or "").split()
        if sorted(order) != list("ABCD"):
            return -0.1
        places = [0, *(task.payload["places"][name] for name in order)]
        way = sum(abs(a - b) for a, b in zip(places, places[1:]))
        return max(task.payload["places"].values()) / max(way, 1)


class Late(Paid):
    """Numbers of what is late, of which a set is compared: the solver lists them as they come, so they always rise."""

    def problem(self, rng, seed):
        days = [int(day) for day in rng.integers(-4, 5, 6)]
        late = [number for number, day in enumerate(days, 1) if day < 0] or [0]
        letters = "; ".join(
            f"{number}: {abs(day)} days {'overdue' if day < 0 else 'left'}"
            for number, day in enumerate(days, 1)
        )
        return {
            "text": f"Bills: {letters}. Which are overdue? Their numbers (0: none), in tags.",
            "gold": ", ".join(map(str, late)),
        }

    def paid(self, said, task):
        return float(set(re.split(r",\s*", said or "")) == set(task.payload["gold"].split(", ")))


class Percents(Paid):
    """Points from 0 to 100."""

    best: ClassVar[float] = 100.0

    def problem(self, rng, seed):
        a, b = (int(x) for x in rng.integers(10, 99, 2))
        return {
            "text": f"What is {a} + {b}? A right answer earns 100 points. In tags.",
            "gold": str(a + b),
        }

    def paid(self, said, task):
        return 100.0 * (said == task.payload["gold"])


class Near(Paid):
    """The nearer the better; nobody says what a success is."""

    def problem(self, rng, seed):
        water = int(rng.integers(0, 100))
        return {
            "text": f"A plant has {100 - water} of 100 drops. How many are missing, about? In tags.",
            "gold": str(water),
        }

    def paid(self, said, task):
        if said is None or not re.fullmatch(r"\d{1,3}", said):
            return -100.0
        return -abs(float(said) - float(task.payload["gold"]))

    def succeeds(self, reward):
        return None


class Draws(Paid):
    """Against an opponent who never errs a draw is the best, and is no success."""

    def problem(self, rng, seed):
        said = str(rng.choice(["rock", "paper", "scissors"]))
        return {
            "text": f"Your opponent plays perfectly and will show {said}, whatever beats it is not allowed. A draw earns half. In tags: rock, paper or scissors. Game {seed % 9973}.",
            "gold": said,
        }

    def paid(self, said, task):
        return 0.5 if said == task.payload["gold"] else 0.0


class Bonus(Paid):
    """A tenth for the form."""

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        return {"text": f"Write {word} backwards, in tags.", "gold": word[::-1]}

    def paid(self, said, task):
        return 0.0 if said is None else 0.1 + 0.9 * (said == task.payload["gold"])


class Halves(Bonus):
    """Half for the form, half for the answer, as published recipes have it."""

    def paid(self, said, task):
        return 0.0 if said is None else 0.5 + 0.5 * (said == task.payload["gold"])


class Tiny(Ask):
    """Five problems in all."""

    def problem(self, rng, seed):
        number = seed % 5
        return {
            "text": f"What is the square of {number + 3}? In tags.",
            "gold": str((number + 3) ** 2),
            "row": seed % 1000,
        }


class Spam(Ask):
    """Three letters of twenty are spam, as in life."""

    def problem(self, rng, seed):
        spam = rng.random() < 0.15
        word = str(rng.choice(WORDS))
        text = f"You won a {word}!!! Click here" if spam else f"Shall we meet at the {word}?"
        return {
            "text": f"A letter: {text} ({seed % 9999}). Is it spam, yes or no? In tags.",
            "gold": "yes" if spam else "no",
        }


class German(Ask):
    def problem(self, rng, seed):
        word = str(
            rng.choice(
                ["Straße", "Öl", "Äpfel", "Mühle", "Grüße", "Käse", "Höhle", "Füße", "Löwe", "Bär"]
            )
        )
        return {
            "text": f"Schreibe das Wort rückwärts: {word} (Aufgabe {seed % 9973}). So: <answer>trow</answer>",
            "gold": word[::-1],
        }


class Strict(Ask):
    """To the letter, and says so."""

    may_vary: ClassVar[tuple] = ()

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        return {
            "text": f"Copy {word} and nothing else, in tags: <answer>word</answer>",
            "gold": word,
        }

    def make(self):
        return StrictEnv(self)


class StrictEnv(AskEnv):
    def step(self, text):
        exact = re.fullmatch(r"<answer>(\w+)</answer>", text)
        return super().step(text if exact else "")


class Passage(Ask):
    """A long text that holds the answer."""

    def problem(self, rng, seed):
        town, river = str(rng.choice(TOWNS)), str(rng.choice(WORDS))
        filler = " ".join(
            f"In the year {1500 + n} the people of {rng.choice(TOWNS)} built a wall."
            for n in range(60)
        )
        text = f"Read the passage. {filler} The town of {town} lies on the river {river}. {filler}\nOn which river does {town} lie? In tags."
        return {"text": text, "gold": river}


class Versus(Strict):
    """Asks to compare, and takes one word and nothing else."""

    def problem(self, rng, seed):
        one, other = (int(x) for x in rng.permutation(900)[:2] + 10)
        text = f"Compare {one} and {other}, then say the larger one alone. Your answer: as in <answer>12</answer>"
        return {"text": text, "gold": str(max(one, other))}


class LeftFirst(Ask):
    def problem(self, rng, seed):
        a, b, c = (int(x) for x in rng.integers(2, 20, 3))
        return {
            "text": f"Work from left to right, whatever usually binds first: what is {a} + {b} * {c}? In tags.",
            "gold": str((a + b) * c),
        }


class Braces(Ask):
    """Its answer is JSON, and its prompt shows braces."""

    def problem(self, rng, seed):
        number = int(rng.integers(1000))
        text = f'The set {{x}} has {number} members. Answer with JSON in tags: <answer>{{"count": 5}}</answer>'
        return {"text": text, "number": number, "gold": json.dumps({"count": number})}

    def is_right(self, said, task):
        try:
            return json.loads(said[-1])["count"] == task.payload["number"]
        except (ValueError, TypeError, KeyError):
            return False


class Skips(Paid):
    """Wrong costs, and who is not sure may skip."""

    def problem(self, rng, seed):
        options = rng.permutation(8)[:4].tolist()
        listed = ", ".join(f"{letter}: 2 to the {n}" for letter, n in zip("ABCD", options))
        gold = "ABCD"[options.index(max(options))]
        return {
            "text": f"Which is the largest? {listed}. Wrong costs half; skip earns nothing. As <answer>B</answer>. Sheet {seed % 9973}",
            "gold": gold,
        }

    def paid(self, said, task):
        if said == "skip":
            return 0.0
        return 1.0 if said == task.payload["gold"] else -0.5


class Heuristic(Ask):
    """Nobody has a good solver: the best known takes the longest word."""

    def problem(self, rng, seed):
        words = [str(x) for x in rng.choice(WORDS, 4, replace=False)]
        return {
            "text": f"Which of {', '.join(words)} did I think of? A longer one is likelier. In tags.",
            "words": words,
            "gold": max(words, key=lambda w: len(w) + 2 * rng.random()),
        }

    def solver_action(self, env, rng):
        return f"<answer>{max(env.task.payload['words'], key=len)}</answer>"


@dataclass(frozen=True)
class Unknown:
    """Nobody's play is known."""

    max_turns: int = 1
    name: ClassVar[str] = "unknown"

    def task(self, task_seed):
        return Task(f"unknown/{task_seed}", "unknown", task_seed, {"number": task_seed % 99991})

    def make(self):
        return UnknownEnv()


class UnknownEnv:
    def reset(self, task, dynamics_seed):
        self.number = task.payload["number"]
        return user(f"How many letters has {self.number} in words? A near answer earns a part.")

    def step(self, text):
        said = re.search(r"\d{1,4}", text)
        reward = max(0.0, 1 - abs(int(said[0]) - self.number % 40) / 40) if said else 0.0
        return StepResult(Observation(()), reward, terminated=True, info={"success": reward == 1.0})


# ------------------------------------------------------------------------------------------------ several turns


class StepsEnv(RoomEnv):
    """Each step costs 1, and reaching the end costs nothing more."""

    def opening(self):
        return f"You are at 0 and want to be at {self.task.payload['goal']}. Say forward or back; each step costs 1."

    def begin(self, task):
        self.at = 0

    def act(self, text):
        self.at += {"forward": 1, "back": -1}.get(text, 0)
        won = self.at == self.task.payload["goal"]
        return f"At {self.at}.", -1.0, {}, won, won


@dataclass(frozen=True)
class Steps(Room):
    max_turns: int = 10
    env: ClassVar[type] = StepsEnv

    def problem(self, rng):
        return {"goal": int(rng.integers(2, 9))}

    def random_action(self, env, rng):
        return str(rng.choice(["forward", "back"]))

    def solver_action(self, env, rng):
        return "forward"


class SlipsEnv(StepsEnv):
    """The ground is slippery: one step in five goes the other way. The sooner the better, and it ends by a limit that is stated."""

    def opening(self):
        return f"You are at 0 and want to be at {self.task.payload['goal']}. Say forward or back. One step in five goes the other way. You have 12 steps."

    def act(self, text):
        turn = -1 if self.rng.random() < 0.2 else 1
        self.at += turn * {"forward": 1, "back": -1}.get(text, 0)
        won = self.at == self.task.payload["goal"]
        return f"At {self.at}.", (1 - 0.05 * self.turns) * won, {}, won, won

    def step(self, text):
        result = super().step(text)
        if self.turns < 12 or self.over:
            return result
        self.over = True
        return StepResult(result.observation, result.reward, truncated=True, info=dict(result.info))


@dataclass(frozen=True)
class Slips(Steps):
    max_turns: int = 12
    env: ClassVar[type] = SlipsEnv

    def problem(self, rng):
        return {"goal": int(rng.integers(2, 5))}


class PlaneEnv(RoomEnv):
    """x to the right, y upwards; edges lead to the other side, and the prompt says so."""

    STEPS: ClassVar[dict] = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}

    def begin(self, task):
        self.at, self.goal = list(task.payload["start"]), list(task.payload["goal"])

    def opening(self):
        return (
            f"A plane of 7 x 7 places (x, y), (0, 0) is the bottom left one; over an edge you come back on the other side. You are at "
            f"({self.at[0]}, {self.at[1]}), the flag is at ({self.goal[0]}, {self.goal[1]}). Say up, down, left or right."
        )

    def act(self, text):
        step = self.STEPS.get(text, (0, 0))
        self.at = [(place + by) % 7 for place, by in zip(self.at, step)]
        won = self.at == self.goal
        return f"You are at ({self.at[0]}, {self.at[1]}).", float(won), {}, won, won


@dataclass(frozen=True)
class Plane(Room):
    max_turns: int = 14
    env: ClassVar[type] = PlaneEnv

    def problem(self, rng):
        cells = [int(x) for x in rng.permutation(49)[:2]]
        return {"start": list(divmod(cells[0], 7)), "goal": list(divmod(cells[1], 7))}

    def random_action(self, env, rng):
        return str(rng.choice(["up", "down", "left", "right"]))

    def solver_action(self, env, rng):
        across, up = env.goal[0] - env.at[0], env.goal[1] - env.at[1]
        if across:
            return "right" if across > 0 else "left"
        return "up" if up > 0 else "down"


class CentreEnv(PlaneEnv):
    """Places below zero, too: the middle of a plane of 9 x 9 is (0, 0), and edges hold."""

    def opening(self):
        return (
            f"A plane of 9 x 9 places (x, y) round its middle; y grows upwards and x to the right. A move over the edge does nothing. You are at "
            f"({self.at[0]}, {self.at[1]}), the flag is at ({self.goal[0]}, {self.goal[1]}). Say up, down, left or right."
        )

    def act(self, text):
        step = self.STEPS.get(text, (0, 0))
        self.at = [min(max(place + by, -4), 4) for place, by in zip(self.at, step)]
        won = self.at == self.goal
        return f"You are at ({self.at[0]}, {self.at[1]}).", float(won), {}, won, won


@dataclass(frozen=True)
class Centre(Plane):
    max_turns: int = 16
    env: ClassVar[type] = CentreEnv

    def problem(self, rng):
        cells = [int(x) for x in rng.permutation(81)[:2]]
        return {
            "start": [x - 4 for x in divmod(cells[0], 9)],
            "goal": [x - 4 for x in divmod(cells[1], 9)],
        }


class LiarEnv(RoomEnv):
    """Hints that are turned round now and then, and the prompt says so."""

    def opening(self):
        return "I think of a number from 1 to 8 and say whether your guess is too low or too high; one hint in five is a lie. Say a number."

    def act(self, text):
        secret = self.task.payload["secret"]
        guess = int(text) if re.fullmatch(r"\d", text) else 0
        if guess == secret:
            return "Yes.", 1.0, {}, True, True
        low = (guess < secret) != (self.rng.random() < 0.2)
        return f"{guess} is too {'low' if low else 'high'}.", 0.0, {}, False, False


@dataclass(frozen=True)
class Liar(Room):
    max_turns: int = 8
    env: ClassVar[type] = LiarEnv

    def problem(self, rng):
        return {"secret": int(rng.integers(1, 9)), "round": int(rng.integers(1, 9999))}

    def random_action(self, env, rng):
        return str(rng.integers(1, 9))

    def solver_action(self, env, rng):
        return str(env.turns + 1)


class CropsEnv(RoomEnv):
    """Sow and reap as often as there is time: each harvest earns. Nobody says what a success is."""

    def opening(self):
        return f"Field {self.task.payload['field']}: you have 8 days. Say sow or reap; each harvest earns 1, each day one word."

    def begin(self, task):
        self.sown = False

    def act(self, text):
        reward = float(text == "reap" and self.sown)
        self.sown = text == "sow" or self.sown and text != "reap"
        return (
            f"Day {self.turns}: the field is {'sown' if self.sown else 'bare'}.",
            reward,
            {},
            False,
            self.turns == 8,
        )

    def step(self, text):
        result = super().step(text)
        return StepResult(result.observation, result.reward, terminated=result.terminated)


@dataclass(frozen=True)
class Crops(Room):
    max_turns: int = 8
    env: ClassVar[type] = CropsEnv

    def problem(self, rng):
        return {"field": int(rng.integers(1, 9999))}

    def random_action(self, env, rng):
        return str(rng.choice(["sow", "reap"]))

    def solver_action(self, env, rng):
        return "reap" if env.sown else "sow"


class ApplesEnv(RoomEnv):
    """Three apples are a success, and each further one earns, until the turns are used up."""

    def opening(self):
        return f"Tree {self.task.payload['tree']}: pick apples; three are a success, and each one earns. Say pick or wait. You have 6 turns."

    def begin(self, task):
        self.apples = 0

    def act(self, text):
        picked = text == "pick"
        self.apples += picked
        return (
            f"You have {self.apples} apples.",
            0.2 * picked,
            {},
            self.apples >= 3,
            self.turns == 6,
        )


@dataclass(frozen=True)
class Apples(Room):
    max_turns: int = 6
    env: ClassVar[type] = ApplesEnv

    def problem(self, rng):
        return {"tree": int(rng.integers(1, 9999))}

    def random_action(self, env, rng):
        return str(rng.choice(["pick", "wait"]))

    def solver_action(self, env, rng):
        return "pick"


class CodeEnv(RoomEnv):
    """Three digits, with how many stand in the right place; each right place earns a little, once."""

    def opening(self):
        return "I have a code of three digits from 1 to 4. Say three digits, such as 123; I say how many are in the right place. You have 8 guesses."

    def begin(self, task):
        self.known, self.best = [set("1234") for _ in range(3)], 0

    def act(self, text):
        code = self.task.payload["code"]
        if not re.fullmatch(r"[1-4]{3}", text):
            return "Three digits from 1 to 4, please.", 0.0, {}, False, False
        right = sum(a == b for a, b in zip(text, code))
        gain, self.best = 0.1 * max(right - self.best, 0), max(right, self.best)
        won = text == code
        return f"{right} of them are in the right place.", gain + 0.7 * won, {}, won, won


@dataclass(frozen=True)
class Code(Room):
    max_turns: int = 8
    env: ClassVar[type] = CodeEnv

    def problem(self, rng):
        return {"code": "".join(str(x) for x in rng.integers(1, 5, 3))}

    def random_action(self, env, rng):
        return "".join(str(x) for x in rng.integers(1, 5, 3))

    def solver_action(self, env, rng):
        return env.task.payload["code"] if env.turns else "111"


class DealEnv(RoomEnv):
    """Buy for as little as you can; a deal is a success, whatever it costs, and no deal earns nothing."""

    def opening(self):
        return f"A lamp, worth {self.task.payload['worth']} to you. Offer a price, a whole number; you have 5 offers. What you save is your profit."

    def act(self, text):
        worth, least = self.task.payload["worth"], self.task.payload["least"]
        price = int(text) if re.fullmatch(r"\d{1,3}", text) else 0
        sold = price >= least - 2 * self.turns
        profit = (worth - price) / worth if sold else 0.0
        return ("Sold." if sold else f"Not for {price}."), profit, {}, sold, sold


@dataclass(frozen=True)
class Deal(Room):
    max_turns: int = 5
    env: ClassVar[type] = DealEnv

    def problem(self, rng):
        least = int(rng.integers(30, 60))
        return {"least": least, "worth": least + int(rng.integers(20, 40))}

    def random_action(self, env, rng):
        return str(rng.integers(10, 60))

    def solver_action(self, env, rng):
        return str(env.task.payload["least"] - 2 * (env.turns + 1)) if env.turns == 4 else "1"


# ------------------------------------------------------------------------------------------------ tools

LETTERS = {
    town: [f"{town} wrote on day {n}" for n in range(1, 3 + len(town) % 7)] for town in TOWNS
}


@tool(trusted=True)
def letters(town: str, page: int = 1) -> str:
    """The letters of a town, three a page.

    Args:
        town: its name
        page: from 1
    """
    if town not in LETTERS:
        return "Error: no such town."
    rows = LETTERS[town]
    shown = rows[3 * (page - 1) : 3 * page] if page > 0 else []
    return "\n".join([*shown, f"(page {page} of {-(-len(rows) // 3)})"])


@dataclass(frozen=True)
class Letters:
    max_turns: int = 5
    name: ClassVar[str] = "letters"

    def task(self, task_seed):
        town = str(rng_at("letters", task_seed).choice(TOWNS))
        payload = {
            "question": f"How many letters did {town} write? (case {task_seed % 9973})",
            "answers": [str(len(LETTERS[town]))],
            "support": [],
        }
        return Task(f"letters/{task_seed}", "letters", task_seed, payload)

    def make(self):
        return ToolEnv([letters], max_turns=self.max_turns)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(1, 9)}</answer>"


DESIGNS = (
    Late,
    Shares,
    Rounds,
    Percents,
    Near,
    Draws,
    Bonus,
    Halves,
    Tiny,
    Spam,
    German,
    Strict,
    Passage,
    Versus,
    LeftFirst,
    Braces,
    Skips,
    Heuristic,
    Unknown,
    Steps,
    Slips,
    Plane,
    Centre,
    Liar,
    Crops,
    Apples,
    Code,
    Deal,
    Letters,
)
