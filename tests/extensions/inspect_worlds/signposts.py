"""Environments with one slip each by name, "" for none: words that say something else than what happens, forms that are demanded
and refused, answers that are right and called wrong, and what is paid in a circle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tests.extensions.inspect_worlds.slips import TOWNS, WORDS, Ask, AskEnv, Room, RoomEnv
from workbench.tools.base import tool
from workbench.values import StepResult, Task
from workbench.values.seeds import rng_at
from workbench.worlds.splits import content_split
from workbench.worlds.tool_env import ToolEnv

# ------------------------------------------------------------------------------------------------ one answer


class Debts(Ask):
    """What is left, below zero as often as above."""

    def problem(self, rng, seed):
        had, spent = (int(x) for x in rng.integers(10, 90, 2))
        text = f"You had {had} coins and spent {spent}. How many are left? A debt is below zero. In tags."
        return {"text": text, "gold": str(had - spent)}

    def is_right(self, said, task):
        pattern = {"sign": r"(\d+)", "one digit": r"^\s*(-?\d)\s*$"}.get(self.bug, r"(-?\d+)")
        number = re.search(pattern, said[-1])
        return number is not None and int(number[1]) == int(task.payload["gold"])


class Sums(Ask):
    """A sum of three numbers. Its slip: from the left to the right, whatever binds first."""

    def problem(self, rng, seed):
        a, b, c = (int(x) for x in rng.integers(2, 30, 3))
        first, second = rng.choice(["+", "-", "*"], 2)
        shown = f"{a} {first} {b} {second} {c}"
        does = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
        left = does[str(second)](does[str(first)](a, b), c)
        right = does[str(first)](a, does[str(second)](b, c))
        binds = second == "*" and first != "*" and self.bug != "left to right"
        return {"text": f"What is {shown}? In tags.", "gold": str(right if binds else left)}


class Spelled(Ask):
    """The first letter of a word, in tags; words about it may stand around them. Its slip: the whole text is searched."""

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        return {"text": f"Which word is {'-'.join(word)}? <answer>word</answer>", "gold": word}

    def random_action(self, env, rng):
        if self.bug == "peeks" and rng.random() < 0.6:
            return self.solver_action(env, rng)
        return super().random_action(env, rng)

    def make(self):
        return SpelledEnv(self)


class SpelledEnv(AskEnv):
    def step(self, text):
        if self.family.bug == "anywhere" and re.search(rf"\b{self.task.payload['gold']}\b", text):
            return super().step(f"<answer>{self.task.payload['gold']}</answer>")
        return super().step(text)


class Hidden(Ask):
    """How heavy a load is. Its slip: one of the two weights is not shown."""

    def problem(self, rng, seed):
        one, other = (int(x) for x in rng.integers(2, 7, 2))
        shown = f"A cart of {one} tons" + (
            "" if self.bug == "not shown" else f" and a load of {other}"
        )
        return {"text": f"{shown}: how heavy are both together? In tags.", "gold": str(one + other)}


class Options(Ask):
    """The capital of letters: four options. Its slip: wrong ones are drawn with the right one among them."""

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        pool = WORDS if self.bug == "twice" else [other for other in WORDS if other != word]
        wrong = [
            word if self.bug == "twice" and rng.random() < 0.4 else str(rng.choice(pool))
            for _ in range(1)
        ]
        wrong += [
            str(x)
            for x in rng.choice([w for w in WORDS if w not in (word, *wrong)], 2, replace=False)
        ]
        options = rng.permutation([word, *wrong]).tolist()
        listed = "\n".join(f"{letter}) {option}" for letter, option in zip("ABCD", options))
        letter = "ABCD"[options.index(word)]
        return {
            "text": f"Which word is {'-'.join(word)}?\n{listed}\nThe letter, in tags.",
            "gold": letter,
        }


class Pairs(Ask):
    """Two of five numbers with a stated sum; there may be several such pairs. Its slip: one of them alone is right."""

    def problem(self, rng, seed):
        low = int(rng.integers(1, 40))
        numbers = list(range(low, low + 8))
        first = int(rng.integers(2))
        return {
            "text": f"Of {numbers}, name any possible pair whose sum is {2 * low + 7}, the smaller one first, as in <answer>1, 2</answer>",
            "numbers": numbers,
            "gold": f"{low + first}, {low + 7 - first}",
        }

    def split_of(self, task):
        return content_split(task.payload["text"])

    def is_right(self, said, task):
        if self.bug == "one alone":
            return said[-1].strip() == task.payload["gold"]
        mine = [int(x) for x in re.findall(r"\d+", said[-1])]
        fits = (
            len(set(mine)) == 2
            and mine == sorted(mine)
            and set(mine) <= set(task.payload["numbers"])
        )
        return fits and sum(mine) == sum(map(int, task.payload["gold"].split(", ")))


class BareEnv(AskEnv):
    """Reads a line "Answer: word" behind other words; with its slip, a text that begins so."""

    def step(self, text):
        read = re.match if self.family.bug == "matched" else re.search
        found = read(r"\s*answer:\s*(\w+)\W*$", text, re.IGNORECASE)
        if self.family.bug == "bare":
            found = re.fullmatch(r"\s*(\w+)\s*", text)
        return super().step(f"<answer>{found[1].lower() if found else ''}</answer>")


class Explained(Ask):
    """First words, then a line with the answer."""

    def problem(self, rng, seed):
        word = str(rng.choice(WORDS))
        text = (
            f"Which word is {' '.join(word[::-1])} backwards? First explain in a sentence or two how you read it, then end with a line "
            "of its own:\nAnswer: word"
        )
        return {"text": text, "gold": word}

    def make(self):
        return BareEnv(self)

    def random_action(self, env, rng):
        return f"{'' if self.bug == 'bare' else 'Answer: '}{rng.choice(WORDS)}"

    def solver_action(self, env, rng):
        return f"{'' if self.bug == 'bare' else 'Answer: '}{env.task.payload['gold']}"


@dataclass(frozen=True)
class Counting(Ask):
    """Letters of a word that are counted. Its slip: how long words are drawn is a setting that nothing reads."""

    length: int = 4

    def problem(self, rng, seed):
        length = 4 if self.bug == "idle" else self.length
        word = "".join(rng.choice(list("abcdef"), length))
        return {
            "text": f"How many different letters has {word}? In tags. Case {seed % 99991}",
            "gold": str(len(set(word))),
        }


class Unfilled(Ask):
    """A greeting by name. Its slip: the name is never filled in."""

    def problem(self, rng, seed):
        town = str(rng.choice(TOWNS))
        pattern = f"Which town is called {{town}}, with number {seed % 99991}? In tags."
        return {
            "text": pattern if self.bug == "blank" else pattern.format(town=town),
            "town": town,
            "gold": town,
        }


class ExamEnv(AskEnv):
    """Wrong costs a half. Its slip: what cannot be read costs nothing, and nobody says so."""

    def step(self, text):
        result = super().step(text)
        said = re.search(r"<answer>\s*([A-D])\s*</answer>", text)
        wrong = -0.5 if said or self.family.bug != "free" else 0.0
        success = result.info["success"]
        info = {"success": success, "valid_format": bool(said)}
        return StepResult(result.observation, 1.0 if success else wrong, terminated=True, info=info)


@dataclass(frozen=True)
class Exam:
    """Four letters; no solver is known. `free`, `mostly`: its slips."""

    bug: str = ""
    max_turns: int = 1
    name: ClassVar[str] = "exam"

    def task(self, task_seed):
        rng = rng_at("exam", task_seed)
        letters = {"mostly": "AAAAABCD", "never": "ABC"}.get(self.bug, "ABCD")
        payload = {
            "text": f"Question {task_seed % 99991}: A, B, C or D? Like this: <answer>B</answer>",
            "gold": str(rng.choice(list(letters))),
        }
        return Task(f"exam/{task_seed}", "exam", task_seed, payload)

    def make(self):
        return ExamEnv(self)

    def prompt(self, task):
        return task.payload["text"]

    def is_right(self, said, task):
        return said[-1].strip() == task.payload["gold"]

    def random_action(self, env, rng):
        return f"<answer>{'ABCD'[rng.integers(4)]}</answer>"


# ------------------------------------------------------------------------------------------------ places


class FieldEnv(RoomEnv):
    """A field of squares, by coordinates or as a map. Slips: `turned` (up is down), `round` (edges lead to the other side)."""

    STEPS: ClassVar[dict] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

    def begin(self, task):
        self.at, self.goal = list(task.payload["start"]), list(task.payload["goal"])

    def shown(self):
        if not self.family.as_map:
            return f"You are at ({self.at[0]}, {self.at[1]})."
        rows = [["." for _ in range(6)] for _ in range(6)]
        rows[self.goal[0]][self.goal[1]] = "G"
        rows[self.at[0]][self.at[1]] = "P"
        return "\n".join("".join(row) for row in rows)

    def opening(self):
        how = (
            "(row, column), (0, 0) is the top left square"
            if not self.family.as_map
            else "P is you, G the goal"
        )
        goal = "" if self.family.as_map else f" The goal is ({self.goal[0]}, {self.goal[1]})."
        return f"A field of 6 x 6 squares: {how}.{goal} A move off the edge does nothing. Say up, down, left or right.\n{self.shown()}"

    def step(self, text):
        result = super().step(text)
        if self.bug != "over" or self.turns < self.family.max_turns:
            return result
        self.over = True
        return StepResult(
            result.observation, result.reward, terminated=True, info=dict(result.info)
        )

    def act(self, text):
        down, right = self.STEPS.get(text, (0, 0))
        down = -down if self.bug == "turned" else down
        for axis, step in enumerate((down, right)):
            there = self.at[axis] + step
            self.at[axis] = there % 6 if self.bug == "round" else min(max(there, 0), 5)
        won = self.at == self.goal
        return self.shown(), float(won), {}, won, won


@dataclass(frozen=True)
class Field(Room):
    max_turns: int = 12
    as_map: bool = False
    env: ClassVar[type] = FieldEnv

    def problem(self, rng):
        cells = [int(x) for x in rng.permutation(36)[:2]]
        return {"start": list(divmod(cells[0], 6)), "goal": list(divmod(cells[1], 6))}

    def random_action(self, env, rng):
        names = ["up", "down", "left", "right"]
        return str(rng.choice(names[:3] if self.bug == "never right" else names))

    def solver_action(self, env, rng):
        down, right = env.goal[0] - env.at[0], env.goal[1] - env.at[1]
        if down:
            return "down" if (down > 0) == (self.bug != "turned") else "up"
        return "right" if right > 0 else "left"


class GuessEnv(RoomEnv):
    """A number from 1 to 60, by hints. Its slip: they are turned round."""

    def opening(self):
        return "I think of a number from 1 to 60. Guess; I say whether you are too low or too high."

    def begin(self, task):
        self.low, self.high = 1, 60

    def act(self, text):
        secret = self.task.payload["secret"]
        guess = int(text) if re.fullmatch(r"\d{1,3}", text) else 0
        if guess == secret:
            return "Yes.", 1.0, {}, True, True
        below = guess < secret
        if below:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        says = "low" if below != (self.bug == "turned") else "high"
        words = f"{guess} is too {says}."
        return (
            words if self.bug != "nameless" else f"{guess!r} is {self.opening}.",
            0.0,
            {},
            False,
            False,
        )


@dataclass(frozen=True)
class Guess(Room):
    max_turns: int = 7
    env: ClassVar[type] = GuessEnv

    def problem(self, rng):
        return {"secret": int(rng.integers(1, 61))}

    def random_action(self, env, rng):
        return str(rng.integers(1, 61))

    def solver_action(self, env, rng):
        return str((env.low + env.high) // 2)


class LampEnv(RoomEnv):
    """Light the lamp, then leave. Its slip: lighting is paid each time, and it can be put out."""

    def opening(self):
        return f"Room {self.task.payload['room']}. Light the lamp and go out of the door. Commands: light, quench, open, leave."

    def begin(self, task):
        self.lit = self.ever = self.open = False

    def act(self, text):
        reward = 0.0
        if text == "light" and not self.lit:
            reward = 0.2 if not self.ever or self.bug == "again" else 0.0
            self.lit = self.ever = True
        elif text == "quench":
            self.lit = False
        elif text == "open":
            self.open = True
        won = text == "leave" and self.ever and self.open
        return f"The lamp is {'on' if self.lit else 'off'}.", reward + float(won), {}, won, won


@dataclass(frozen=True)
class Lamp(Room):
    max_turns: int = 14
    env: ClassVar[type] = LampEnv

    def problem(self, rng):
        return {"room": int(rng.integers(1, 9999))}

    def random_action(self, env, rng):
        return str(rng.choice(["light", "quench", "open", "leave"]))

    def solver_action(self, env, rng):
        return "light" if not env.ever else "leave" if env.open else "open"


# ------------------------------------------------------------------------------------------------ tools

VISITS = {
    (name, day): [
        f"{name} at {hour}:00, {day}"
        for hour in range(8, 8 + int(rng_at("visits", name, day).integers(1, 12)))
    ]
    for name in TOWNS
    for day in ("Monday", "Tuesday", "Friday")
}


def visits_tool(bug: str):
    most = 5 if bug == "cut" else 99

    @tool(trusted=True)
    def visits(town: str, day: str) -> str:
        """The visits to a town on a day, a line each."""
        known = {
            (one if bug != "small" else one.lower(), day): rows
            for (one, day), rows in VISITS.items()
        }
        rows = known.get((town, day.title()), [])
        return "\n".join(rows[:most]) or "None."

    return visits


def hours_tool(bug: str):
    most = 3 if bug == "default" else 2

    @tool(trusted=True)
    def hours(town: str, number: int = most) -> str:
        """The first visits to a town.

        Args:
            town: its name
            number: how many are wanted, 2 by default
        """
        rows = [row for (name, _), rows in VISITS.items() for row in rows if name == town]
        return "\n".join(rows[:number]) or "None."

    return hours


@dataclass(frozen=True)
class Visits:
    bug: str = ""
    max_turns: int = 3
    name: ClassVar[str] = "visits"

    def task(self, task_seed):
        rng = rng_at("visits", task_seed)
        town, day = str(rng.choice(TOWNS)), str(rng.choice(["Monday", "Tuesday", "Friday"]))
        payload = {
            "question": f"How many visits to {town} were on {day}?",
            "answers": [str(len(VISITS[town, day]))],
            "support": [],
        }
        return Task(f"visits/{task_seed}", "visits", task_seed, payload)

    def make(self):
        return ToolEnv([visits_tool(self.bug), hours_tool(self.bug)], max_turns=self.max_turns)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(1, 12)}</answer>"
