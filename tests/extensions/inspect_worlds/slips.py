"""Environments with one slip each by name, "" for none, of the kinds that check-env finds by playing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workbench.values import Message, Observation, StepResult, Task
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.splits import content_split

METALS = "iron tin zinc lead gold copper nickel silver chrome cobalt".split()
TOWNS = "Arlen Brisk Calder Dunmore Eskdale Fenwick Garth Holm Ivel Jura Kelso Largo".split()
WORDS = (
    "anchor basket candle dragon engine falcon garden hammer island jungle kettle ladder magnet needle orange pencil rabbit "
    "saddle tunnel violin window yellow zipper bridge castle desert forest guitar harbor insect jacket kitten market napkin "
    "oyster pepper quartz ribbon silver temple turtle valley walnut blanket chimney dolphin feather giraffe harvest journey"
).split()


def user(text: str) -> Observation:
    return Observation((Message("user", text),))


class AskEnv:
    """One question in tags, one answer."""

    def __init__(self, family):
        self.family = family

    def reset(self, task, dynamics_seed):
        self.task, self.over = task, False
        return user(self.family.prompt(task))

    def step(self, text):
        if self.over:
            raise EnvError("over")
        self.over = True
        said = re.findall(r"<answer>([^<>]*)</answer>", text)
        right = bool(said) and bool(self.family.is_right(said, self.task))
        return StepResult(Observation(()), float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Ask:
    bug: str = ""
    max_turns: int = 1
    name: ClassVar[str] = "ask"

    def task(self, task_seed):
        payload = self.problem(rng_at(f"{type(self).__name__}.task", task_seed), task_seed)
        return Task(f"ask/{task_seed}", "ask", task_seed, payload)

    def make(self):
        return AskEnv(self)

    def prompt(self, task):
        return task.payload["text"]

    def is_right(self, said, task):
        return said[-1].strip() == task.payload["gold"]

    def random_action(self, env, rng):
        return f"<answer>{self.task(int(rng.integers(1 << 30))).payload['gold']}</answer>"

    def solver_action(self, env, rng):
        return f"<answer>{env.task.payload['gold']}</answer>"


class Picks(Ask):
    """Which of the things in a box are metals."""

    def problem(self, rng, seed):
        metals = [str(x) for x in rng.choice(METALS, int(rng.integers(3, 6)), replace=False)]
        others = [str(x) for x in rng.choice(WORDS, 4, replace=False)]
        shown = rng.permutation([*metals, *others]).tolist()
        gold = ", ".join(sorted(metals))
        return {
            "text": f"In the box: {', '.join(shown)}. List its metals in any order, in tags.",
            "gold": gold,
        }

    def is_right(self, said, task):
        mine = {item.strip() for item in said[-1].split(",")}
        right = set(task.payload["gold"].split(", "))
        if self.bug == "recall":
            return right <= mine
        if self.bug == "two thirds":
            return 3 * len(mine & right) >= 2 * len(right) and len(mine) == len(right)
        return mine == right


class Balance(Ask):
    """A balance that may be below zero, as the prompt's example is written."""

    def problem(self, rng, seed):
        had, spent = (int(x) for x in rng.integers(120_000, 900_000, 2))
        text = (
            f"You had {had / 100:,.2f} and spent {spent / 100:,.2f}. What is left? An answer within 1 percent is right. "
            "Like this: <answer>-1,250.50</answer>"
        )
        return {"text": text, "cents": had - spent, "gold": f"{(had - spent) / 100:.2f}"}

    def is_right(self, said, task):
        if self.bug == "commas" and "," in said[-1]:
            return False
        plain = said[-1].replace(",", "")
        right = task.payload["cents"] / 100
        if self.bug == "digits":
            return re.sub(r"\D", "", plain) == re.sub(r"\D", "", task.payload["gold"])
        try:
            number = float(plain)
        except ValueError:
            return False
        if self.bug == "sign":
            number, right = abs(number), abs(right)
        wide = 0.06 if self.bug == "wide" else 0.0101
        return abs(number - right) <= wide * abs(right)


class Letters(Ask):
    """A word of mixed letters."""

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        mixed = " ".join(rng.permutation(list(word)))
        text = f"Clue {rng.integers(1 << 20)}. Spell it right: {mixed}. In tags."
        return {"text": text, "mixed": mixed, "gold": word}

    def prompt(self, task):
        return re.sub(r"^Clue \d+\. ", "", task.payload["text"])

    def split_of(self, task):
        mixed = task.payload["mixed"]
        return content_split(mixed if self.bug == "as shown" else "".join(sorted(mixed)))

    def is_right(self, said, task):
        if self.bug == "any order":
            return sorted(said[-1].strip()) == sorted(task.payload["gold"])
        return super().is_right(said, task)


class Stories(Ask):
    """A sum in one of three wordings."""

    texts: ClassVar[tuple[str, ...]] = (
        "There was {name} with {a} pears, and {b} more came. How many are there?",
        "Count the pears: {a} and {b} are what {name} has.",
        "How many pears has {name}, who had {a} and was given {b}?",
    )

    def problem(self, rng, seed):
        a, b = (int(x) for x in rng.integers(11, 40, 2))
        name = str(rng.choice(TOWNS[:4]))
        wording = int(rng.integers(3))
        text = self.texts[wording].format(name=name, a=a, b=b)
        return {"text": text, "a": a, "b": b, "name": name, "gold": str(a + b)}

    def split_of(self, task):
        own = task.payload
        wording = own["text"][:5] if self.bug == "wording" else ""
        return content_split(f"{sorted([own['a'], own['b']])} {own['name']} {wording}")


class Sums(Ask):
    """Two numbers; `order`: 3 + 5 is another problem than 5 + 3."""

    def problem(self, rng, seed):
        a, b = (int(x) for x in rng.integers(1, 30, 2))
        return {"text": f"{a} + {b}?", "a": a, "b": b, "gold": str(a + b)}

    def split_of(self, task):
        own = [task.payload["a"], task.payload["b"]]
        if self.bug == "large":
            return "held-out" if sum(own) > 44 else "train"
        return content_split(str(own if self.bug == "order" else sorted(own)))


class Levels(Ask):
    """A level that is drawn, or that grows with the seed."""

    def problem(self, rng, seed):
        level = min(seed // 6, 9) if self.bug == "by seed" else int(rng.integers(10))
        a = int(rng.integers(10**level, 10 ** (level + 1)))
        return {"text": f"{a} + 1?", "level": level, "gold": str(a + 1)}


class Verdicts(Ask):
    """Yes or no."""

    def problem(self, rng, seed):
        a, b = (int(x) for x in rng.integers(10, 99, 2))
        if self.bug == "mostly" and a <= b and rng.random() < 0.8:
            a, b = b + 1, a
        return {
            "text": f"Is {a} more than {b}? yes or no, in tags.",
            "gold": "yes" if a > b else "no",
        }


class Capitals(Ask):
    """A name, as the prompt's example is written; the last answer counts."""

    def problem(self, rng, seed):
        place = int(rng.integers(len(TOWNS)))
        text = (
            f"The town with number {place * 7 + 3}? You may correct yourself: the last answer counts. Like this: "
            f"<answer>{TOWNS[1].lower()}</answer>"
        )
        return {"text": text, "gold": TOWNS[place]}

    def is_right(self, said, task):
        chosen = said[0] if self.bug == "first" else said[-1]
        if self.bug == "case":
            return chosen == task.payload["gold"]
        return chosen.strip().lower() == task.payload["gold"].lower()


class Coded(Ask):
    """A word that is coded; some pairs are shown."""

    def problem(self, rng, seed):
        words = [str(x) for x in rng.choice(WORDS, 7, replace=False)]
        shift = int(rng.integers(1, 25))
        codes = ["".join(chr((ord(c) - 97 + shift) % 26 + 97) for c in word) for word in words]
        asked = int(rng.integers(7)) if self.bug == "among them" else 6
        shown = "; ".join(f"{code} is {word}" for code, word in list(zip(codes, words))[:5])
        text = f"Examples: {shown}.\nWhat is {codes[asked]}? In tags."
        return {"text": text, "gold": words[asked]}


class Passages(Ask):
    """What a text says of a town."""

    def problem(self, rng, seed):
        town, river, dish, saint = (str(x) for x in rng.choice(WORDS, 4, replace=False))
        facts = [
            (f"Through it runs a slow river that people call {river}.", "river", river),
            (f"Whoever comes is told to eat {dish}, which is made in every kitchen.", "dish", dish),
            (f"In May there is a fair in honour of {saint} and of the spring.", "saint", saint),
        ]
        facts = [facts[k] for k in rng.permutation(3)]
        which = int(rng.integers(3))
        words = " ".join([f"This is about {town}.", *(text for text, _, _ in facts)]).split()
        kept = words[:26] if self.bug == "cut" else words
        text = f"{' '.join(kept)}\nWhich {facts[which][1]} does the text name? It says so. In tags."
        return {"text": text, "gold": facts[which][2]}


# ------------------------------------------------------------------------------------------------ several turns


class RoomEnv:
    """Doors, questions, a tank and a pit, by what the family says."""

    def __init__(self, family):
        self.family, self.bug = family, family.bug

    def reset(self, task, dynamics_seed):
        self.task, self.turns, self.over = task, 0, False
        self.rng = rng_at("slips", dynamics_seed)
        self.begin(task)
        return user(self.opening())

    def begin(self, task):
        pass

    def step(self, text):
        if self.over:
            raise EnvError("over")
        self.turns += 1
        words, reward, parts, success, over = self.act(text.strip())
        self.over = over
        return StepResult(user(words), reward, parts, terminated=over, info={"success": success})


@dataclass(frozen=True)
class Room:
    bug: str = ""
    max_turns: int = 6
    name: ClassVar[str] = "room"
    env: ClassVar[type] = RoomEnv

    def task(self, task_seed):
        rng = rng_at(f"{type(self).__name__}.task", task_seed)
        return Task(f"room/{task_seed}", "room", task_seed, self.problem(rng))

    def make(self):
        return self.env(self)


class DoorsEnv(RoomEnv):
    """One of nine doors is right; a look at the sign tells which."""

    def opening(self):
        granted = (
            "You may open three doors, that is three tries."
            if self.family.tries == 3
            else "You have one try."
        )
        return f"Nine doors. Say look to read the sign, or open 4. {granted} {self.family.max_turns} turns in all."

    def begin(self, task):
        self.opened = 0

    def act(self, text):
        right = text == f"open {self.task.payload['door']}"
        if text == "look":
            return f"It says {self.task.payload['door']}.", 0.0, {}, False, False
        self.opened += text.startswith("open")
        most = {"goes on": 99, "first": 1}.get(self.bug, self.family.tries)
        return "Opened.", float(right), {}, right, right or self.opened >= most


@dataclass(frozen=True)
class Doors(Room):
    tries: int = 1
    env: ClassVar[type] = DoorsEnv

    def problem(self, rng):
        return {"door": int(rng.integers(1, 10))}

    def random_action(self, env, rng):
        return str(rng.choice(["look", f"open {rng.integers(1, 10)}"]))

    def solver_action(self, env, rng):
        if env.turns == 0 and self.tries == 1:
            return "look"
        return f"open {env.task.payload['door']}"


class RiddleEnv(RoomEnv):
    def opening(self):
        return "A number from 1 to 8. You may ask 3 questions, such as: over 4. After that say it: is 3."

    def act(self, text):
        number = self.task.payload["number"]
        if text.startswith("over "):
            return ("Yes." if number > int(text[5:6] or 0) else "No."), 0.0, {}, False, False
        right = text == f"is {number}"
        return "Well.", float(right), {}, right, text.startswith("is ")


@dataclass(frozen=True)
class Riddle(Room):
    max_turns: int = 4
    env: ClassVar[type] = RiddleEnv

    def problem(self, rng):
        return {"number": int(rng.integers(1, 9))}

    def random_action(self, env, rng):
        return str(rng.choice([f"over {rng.integers(1, 8)}", f"is {rng.integers(1, 9)}"]))


class WalkEnv(RoomEnv):
    """To the flag; a pit on the other side ends it."""

    def opening(self):
        return (
            f"You stand at 0, the flag at {self.task.payload['flag']}; a pit at -2. Falling into it ends the walk. Say up or "
            f"down. Each step costs 0.02."
        )

    def begin(self, task):
        self.at = 0

    def act(self, text):
        self.at = max(self.at + {"up": 1, "down": -1}.get(text, 0), -2)
        won = self.at == self.task.payload["flag"]
        fallen = self.at <= -2 and self.bug != "no pit"
        cost = 0.02 if self.bug == "bonus" else -0.02
        parts = (
            {"goal": float(won)} if self.bug == "no cost" else {"goal": float(won), "step": cost}
        )
        return f"You are at {self.at}.", sum(parts.values()), parts, won, won or fallen


@dataclass(frozen=True)
class Pit(Room):
    max_turns: int = 8
    env: ClassVar[type] = WalkEnv

    def problem(self, rng):
        return {"flag": int(rng.integers(3, 7))}

    def random_action(self, env, rng):
        return str(rng.choice(["up", "down"]))

    def solver_action(self, env, rng):
        return "up"


class TankEnv(RoomEnv):
    """Water runs out by chance; what is filled in is paid, less what is spilled."""

    def opening(self):
        return f"A tank for 8 hours; keep it near 20. Say fill 3. Water: {self.water}. Score: 0."

    def begin(self, task):
        self.water, self.score = task.payload["water"], 0

    def act(self, text):
        added = int(text[5:7]) if re.fullmatch(r"fill \d{1,2}", text) else 0
        self.water += added
        early = self.water
        self.water -= int(self.rng.integers(3, 9))
        gained = 5 - abs(self.water - 20)
        self.score += gained
        reward = -0.1 * gained if self.bug == "turned" else 0.1 * gained
        shown = early if self.bug == "before" else self.water
        return f"Water: {shown}. Score: {self.score}.", reward, {}, False, self.turns == 8


@dataclass(frozen=True)
class Tank(Room):
    max_turns: int = 8
    env: ClassVar[type] = TankEnv

    def problem(self, rng):
        return {"water": int(rng.integers(12, 30))}

    def random_action(self, env, rng):
        return f"fill {rng.integers(0, 12)}"


class LockEnv(RoomEnv):
    """Four digits; a guess is paid for digits in place: those that are new."""

    def opening(self):
        return "Four digits. Say them: 0123. You have 8 guesses."

    def begin(self, task):
        self.best = 0

    def act(self, text):
        code = self.task.payload["code"]
        hits = sum(a == b for a, b in zip(text, code)) if len(text) == 4 else 0
        paid = 0.2 * (hits if self.bug == "again" else max(hits - self.best, 0))
        self.best = max(self.best, hits)
        right = text == code
        return f"{hits} in place.", paid + 0.2 * right, {}, right, right


@dataclass(frozen=True)
class Lock(Room):
    max_turns: int = 8
    env: ClassVar[type] = LockEnv

    def problem(self, rng):
        return {"code": "".join(map(str, rng.integers(0, 10, 4)))}

    def random_action(self, env, rng):
        return "".join(map(str, rng.integers(0, 10, 4)))

    def solver_action(self, env, rng):
        return env.task.payload["code"]


class CardsEnv(RoomEnv):
    """Is the next card high? A row to be put into order."""

    def opening(self):
        row = self.task.payload["row"]
        return f"Cards {row}, in a row. Say swap 1 2, then done. Red or black next? You may say red or black to end."

    def begin(self, task):
        self.row = list(task.payload["row"])
        self.next = "red" if self.rng.random() < 0.5 else "black"

    def act(self, text):
        match = re.fullmatch(r"swap (\d) (\d)", text)
        if match:
            one, other = (min(int(x), 4) - 1 for x in match.groups())
            self.row[one], self.row[other] = self.row[other], self.row[one]
            return f"{self.row}", 0.0, {}, False, False
        if text == "done":
            right = self.row == sorted(self.row)
            return "Done.", float(right), {}, right, True
        right = text == self.next
        return "Shown.", float(right), {}, right, text in ("red", "black")


@dataclass(frozen=True)
class Cards(Room):
    env: ClassVar[type] = CardsEnv

    def problem(self, rng):
        return {"row": rng.permutation(np.arange(4)).tolist()}

    def random_action(self, env, rng):
        if self.bug == "constant":
            return "red"
        return str(rng.choice(["red", "black", "done", "swap 1 2"]))

    def solver_action(self, env, rng):
        if self.bug == "sees":
            return env.next
        wanted = env.row if self.bug == "sorts" else list(env.row)
        wanted.sort()
        for place, card in enumerate(wanted):
            if env.row[place] != card:
                return f"swap {place + 1} {env.row.index(card) + 1}"
        return "done"


PLANS: dict = {}  # tours that were found


class Trips(Ask):
    """How near a number is said to the mean of six; the plan is kept by what it is for."""

    def problem(self, rng, seed):
        numbers = [int(x) for x in rng.integers(0, 1000, 3)]
        return {"text": f"Say a number near the mean of {numbers}, in tags.", "numbers": numbers}

    def make(self):
        return TripEnv(self)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(0, 1000)}</answer>"

    def solver_action(self, env, rng):
        numbers = env.task.payload["numbers"]
        key = "plan" if self.bug == "kept" else tuple(numbers)
        return f"<answer>{PLANS.setdefault(key, sum(numbers) // 3)}</answer>"


class TripEnv(AskEnv):
    def step(self, text):
        said = re.findall(r"<answer>(\d+)</answer>", text)
        numbers = self.task.payload["numbers"]
        off = abs(int(said[-1]) - sum(numbers) / 3) if said else 1000
        return StepResult(Observation(()), max(1 - off / 1000, 0.0), terminated=True)
