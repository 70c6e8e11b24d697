"""Families with one bug each by name, "" for none: what a prompt, a reply or a tool says, and what is the case. What is right of them
touches the same lines as what is wrong."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.tools.base import tool
from workbench.values import Message, Observation, StepResult, Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv

HANDS = ("rock", "paper", "scissors")
CITIES = ("Arden", "Bromley", "Caxton", "Dunmore", "Elgin", "Farrow")
KM = {
    (a, b): int(rng_at("roads", *sorted((a, b))).integers(30, 900))
    for a in CITIES
    for b in CITIES
    if a != b
}
WAYS = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}


def user(text: str) -> Observation:
    return Observation((Message("user", text),))


class Asked:
    """A question of one answer, judged by `judge(text, gold)`."""

    def __init__(self, judge: Callable[[str, Any], bool]) -> None:
        self.judge = judge

    def reset(self, task, dynamics_seed):
        self.gold = task.payload["gold"]
        return user(task.payload["prompt"])

    def step(self, text):
        right = self.judge(text, self.gold)
        return StepResult(
            user("Right." if right else "Wrong."),
            float(right),
            terminated=True,
            info={"success": right},
        )


class Quiz:
    """Of one question; a subclass says `ask(rng) -> (prompt, gold, more of the payload)`."""

    max_turns: ClassVar[int] = 1
    bug: str

    def task(self, task_seed):
        prompt, gold, *more = self.ask(rng_at(self.name, task_seed))
        payload = {"prompt": prompt, "gold": gold, **(more[0] if more else {})}
        return Task(f"{self.name}/{task_seed}", self.name, task_seed, payload)

    def make(self):
        return Asked(self.judge)

    def judge(self, text, gold):
        return text.strip() == str(gold)

    def solver_action(self, env, rng):
        return str(env.gold)


@dataclass(frozen=True)
class Parcels(Quiz):
    bug: str = ""
    name: ClassVar[str] = "parcels"

    def ask(self, rng):
        code = f"{rng.integers(100, 9999):05d}"
        badge = "".join(rng.choice(list("aBcDeFgHkM"), 5)) + "Qr"
        town = str(rng.choice("Málaga Córdoba Łódź Århus Besançon Zürich Čakovec".split()))
        phone = f"+{rng.integers(10, 99)}{rng.integers(10000, 99999)}"
        prompt = f"To {town}, postal code {code}, door {badge}, phone {phone}."
        asked = int(rng.integers(4))
        gold = (code, badge, town, phone)[asked]
        lost = {
            "zeros": lambda: code.lstrip("0"),
            "case": lambda: badge.lower(),
            "accents": lambda: town.translate(str.maketrans("áółÅçüČŁź", "aolAcuCLz")),
            "sign": lambda: phone.lstrip("+"),
        }
        if self.bug and list(lost).index(self.bug) == asked:
            gold = lost[self.bug]()
        what = ("postal code", "door", "town", "phone")[asked]
        return f"{prompt}\nCopy the {what} as it is written.", gold


@dataclass(frozen=True)
class Symbols(Quiz):
    bug: str = ""
    name: ClassVar[str] = "symbols"

    def ask(self, rng):
        facts = {
            "gold": "Au",
            "tin": "Sn",
            "lead": "Pb",
            "iron": "Fe",
            "zinc": "Zn",
            "copper": "Cu",
        }
        metal = str(rng.choice(list(facts)))
        order = [int(place) for place in rng.permutation(6)][:6]
        shown = [list(facts.values())[place] for place in order]
        right = shown.index(facts[metal])
        if self.bug:
            right = order[list(facts).index(metal)]
        options = "\n".join(f"{letter}) {text}" for letter, text in zip("ABCDEF", shown))
        return f"Which symbol has {metal}?\n{options}\nSay the letter.", "ABCDEF"[right]


@dataclass(frozen=True)
class Tasks(Quiz):
    """Several kinds of questions; `bug` names the one whose gold answer is wrong, `kind` the one that is asked."""

    kind: str = "days"
    bug: str = ""
    name: ClassVar[str] = "tasks"

    def ask(self, rng):
        return getattr(self, f"_{self.kind}")(rng)

    def _days(self, rng):
        day = datetime.date(2001, 1, 1) + datetime.timedelta(int(rng.integers(9000)))
        days = int(rng.integers(5, 200))
        gold = day + datetime.timedelta(days - (self.bug == "days"))
        return f"Which date is {days} days after {day}?", gold.isoformat()

    def _form(self, rng):
        day = datetime.date(2001, 1, 1) + datetime.timedelta(int(rng.integers(9000)))
        gold = day.strftime("%Y-%d-%m" if self.bug == "form" else "%Y-%m-%d")
        return f"Write {day:%d %B %Y} as YYYY-MM-DD.", gold

    def _forms(self, rng):
        days = [
            datetime.date(2001, 1, 1) + datetime.timedelta(int(rng.integers(9000)))
            for _ in range(3)
        ]
        form = "%Y-%d-%m" if self.bug == "forms" else "%Y-%m-%d"
        asked = ", ".join(f"{day:%d %B %Y}" for day in days)
        return f"Write {asked} as YYYY-MM-DD, one a line.", "\n".join(
            day.strftime(form) for day in days
        )

    def _order(self, rng):
        numbers = [int(number) for number in rng.choice(100, 5, replace=False)]
        gold = sorted(numbers, reverse=self.bug != "order")
        asked = f"Sort from the largest to the smallest: {', '.join(map(str, numbers))}"
        return asked, ", ".join(map(str, gold))

    def _decimals(self, rng):
        a, b = (int(number) for number in rng.integers(100, 999, 2))
        gold = a / b if self.bug == "decimals" else round(a / b, 2)
        return f"A rope of {a} m has {b} parts: how long is one, rounded to two decimals?", gold

    def _line(self, rng):
        people = [str(name) for name in rng.permutation("anna bert carla dirk ella fred".split())]
        minutes = sorted(int(minute) for minute in rng.choice(range(60, 1300), 6, replace=False))
        rows = [f"{m // 60:02d}:{m % 60:02d} {who} logged in" for m, who in zip(minutes, people)]
        asked = int(rng.integers(5))
        minute = minutes[asked + (self.bug == "line")] + 60 * (self.bug == "zone")
        gold = f"{minute // 60:02d}:{minute % 60:02d}"
        return "\n".join([*rows, f"When did {people[asked]} log in? Say HH:MM."]), gold

    def _labels(self, rng):
        words = ("negative", "neutral", "positive")
        label = int(rng.integers(3))
        text = ("Awful", "Fair", "Lovely")[label] + f" meal {rng.integers(1000)}"
        gold = words[(label + (self.bug == "labels")) % 3]
        return f"{text}. Is that negative, neutral or positive?", gold, {"rated": label}


@dataclass(frozen=True)
class Orders(Quiz):
    bug: str = ""
    name: ClassVar[str] = "orders"

    def ask(self, rng):
        count, price = (int(number) for number in rng.integers(2, 30, 2))
        gold = {"count": count, "total": count * price}
        return (
            f'{count} cups at {price} each. Reply in JSON such as {{"count": 3, "total": 12}}.',
            json.dumps(self.written(gold)),
        )

    def written(self, gold):
        return {name: str(value) for name, value in gold.items()} if self.bug == "texts" else gold

    def judge(self, text, gold):
        if self.bug == "order":
            return text.strip() == gold
        try:
            return json.loads(text) == json.loads(gold)
        except ValueError:
            return False


# ------------------------------------------------------------------------------------------------ several turns


class RoomEnv:
    def __init__(self, family):
        self.family, self.bug = family, family.bug

    def reset(self, task, dynamics_seed):
        self.at, self.goal = task.payload["at"], task.payload["goal"]
        self.turns, self.points = 0, 0
        return user(
            f"A room has {self.at} degrees and should have {self.goal}. One command a turn: <do>heat N</do> or <do>cool N</do>, N "
            f"from 1 to 6. You have {self.family.max_turns} turns; each pays -1, the goal 10. You may think before it."
        )

    def step(self, text):
        self.turns += 1
        spoken = (
            text if self.bug == "thoughts" else re.sub(r"<think>.*?</think>", "", text, flags=re.S)
        )
        found = re.findall(r"<do>(heat|cool) (\d+)</do>", spoken)
        read = found if self.bug == "several" else found[:1]
        last = 5 if self.bug == "bound" else 6
        read = read if all(1 <= int(number) <= last for _, number in read) else []
        if len(found) > 1 and self.bug not in ("several", "thoughts"):
            read = []
        for word, number in read:
            self.at += int(number) * (1 if word == "heat" else -1)
        solved = self.at == self.goal
        paid = 10 if solved else -1
        self.points += paid
        words = "" if read else "Say <do>heat N</do> or <do>cool N</do>, N from 1 to 6. "
        return StepResult(
            user(f"{words}It has {self.at} degrees. Points: {self.points}."),
            float(self.points if self.bug == "total" else paid),
            terminated=solved,
            truncated=self.turns == self.family.max_turns and not solved,
            info={"success": solved},
        )


@dataclass(frozen=True)
class Room:
    bug: str = ""
    max_turns: int = 8
    name: ClassVar[str] = "room"

    def task(self, task_seed):
        rng = rng_at("room", task_seed)
        at = int(rng.integers(10, 20))
        away = int(rng.integers(4, 14)) * (1 if rng.random() < 0.5 else -1)
        return Task(f"room/{task_seed}", "room", task_seed, {"at": at, "goal": at + away})

    def make(self):
        return RoomEnv(self)

    def random_action(self, env, rng):
        number = rng.integers(0, 6) if self.bug == "draws" else rng.integers(1, 7)
        return f"<do>{('heat', 'cool')[rng.integers(2)]} {number}</do>"

    def solver_action(self, env, rng):
        away = env.goal - env.at
        most = 5 if self.bug == "bound" else 6
        return f"<do>{'heat' if away > 0 else 'cool'} {min(abs(away), most)}</do>"


class GameEnv:
    """Rock, paper, scissors; high card; and a game of stones."""

    def __init__(self, family):
        self.kind, self.bug = family.kind, family.bug

    def reset(self, task, dynamics_seed):
        self.task, self.seed, self.turn, self.left = task, dynamics_seed, 0, task.payload["stones"]
        return user(
            {
                "hands": "Four rounds of rock, paper, scissors; both choose at the same time. Say one of them.",
                "cards": f"You hold {task.payload['card']} of 1 to 13, and mine is hidden, as yours is from me. Say bet or check. If you bet, I call or fold.",
                "stones": f"{self.left} stones. We take turns, and each takes 1, 2 or 3; whoever takes the last wins. Say a number.",
            }[self.kind]
        )

    def step(self, text):
        self.turn += 1
        return getattr(self, f"_{self.kind}")(text.strip(), rng_at("game", self.seed, self.turn))

    def _hands(self, said, dice):
        theirs = int(dice.integers(3))
        if said not in HANDS:
            return StepResult(user("Say rock, paper or scissors."), -1.0, terminated=self.turn == 4)
        mine = HANDS.index(said)
        if self.bug and dice.random() < 0.6:
            theirs = (mine + 1) % 3
        won = (0, 1, -1)[(mine - theirs) % 3]
        return StepResult(user(f"I chose {HANDS[theirs]}."), float(won), terminated=self.turn == 4)

    def _cards(self, said, dice):
        mine = self.task.payload["card"]
        theirs = int(dice.choice([card for card in range(1, 14) if card != mine]))
        if said not in ("bet", "check"):
            return StepResult(user("Say bet or check."), -3.0, terminated=True)
        won = 1 if mine > theirs else -1
        if said == "check":
            return StepResult(user(f"I hold {theirs}."), float(won), terminated=True)
        calls = theirs > mine if self.bug else theirs >= 8
        words = "I call." if calls else "I fold."
        return StepResult(user(words), 2.0 * won if calls else 1.0, terminated=True)

    def _stones(self, said, dice):
        if said not in ("1", "2", "3") or int(said) > self.left:
            return StepResult(user("That loses."), -1.0, terminated=True)
        self.left -= int(said)
        if not self.left:
            return StepResult(user("You win."), 1.0, terminated=True)
        taken = min(int(dice.integers(1, 5 if self.bug else 4)), self.left)
        self.left -= taken
        if not self.left:
            return StepResult(user(f"I take {taken} and win."), -1.0, terminated=True)
        return StepResult(user(f"I take {taken}. {self.left} are left."), 0.0)


@dataclass(frozen=True)
class Game:
    kind: str = "hands"
    bug: str = ""
    max_turns: int = 12
    name: ClassVar[str] = "game"

    def task(self, task_seed):
        rng = rng_at("game.task", task_seed)
        payload = {"card": int(rng.integers(2, 13)), "stones": int(rng.integers(9, 24))}
        return Task(f"game/{task_seed}", "game", task_seed, payload)

    def make(self):
        return GameEnv(self)

    def random_action(self, env, rng):
        if self.kind == "stones":
            return str(rng.integers(1, min(3, env.left) + 1))
        said = HANDS if self.kind == "hands" else ("bet", "check")
        return said[rng.integers(len(said))]

    def solver_action(self, env, rng):
        if self.kind == "stones":
            return str(env.left % 4 or 1)
        return "rock" if self.kind == "hands" else "bet"


class MazeEnv:
    def __init__(self, family):
        self.bug = family.bug

    def reset(self, task, dynamics_seed):
        self.grid, self.at, self.goal = task.payload["grid"], (0, 0), (4, 4)
        self.turns = 0
        return user(f"# is a wall, @ is you, X the exit:\n{self.map()}\nSay {', '.join(WAYS)}.")

    def map(self):
        marks = {self.goal: "X", self.at: "@"}
        rows = [[marks.get((r, c), self.grid[r][c]) for c in range(5)] for r in range(5)]
        return "\n".join(map("".join, rows))

    def step(self, text):
        before, self.turns = self.map(), self.turns + 1
        down, right = WAYS.get(text.strip(), (0, 0))
        r, c = self.at[0] + down, self.at[1] + right
        free = 0 <= r < 5 and 0 <= c < 5 and (self.grid[r][c] != "#" or self.bug == "walls")
        words = "You go." if free else "Blocked."
        self.at = (r, c) if free else self.at
        solved = self.at == self.goal
        shown = before if self.bug == "stale" else self.map()
        return StepResult(
            user(f"{words}\n{shown}"),
            float(solved),
            terminated=solved,
            truncated=self.turns == 16 and not solved,
            info={"success": solved},
        )


@dataclass(frozen=True)
class Maze:
    bug: str = ""
    max_turns: int = 16
    name: ClassVar[str] = "maze"

    def task(self, task_seed):
        rng = rng_at("maze", task_seed)
        grid = [["#" if rng.random() < 0.3 else "." for _ in range(5)] for _ in range(5)]
        for k in range(5):  # a way along two edges
            grid[0][k] = grid[k][4] = "."
        payload = {"grid": ["".join(row) for row in grid]}
        return Task(f"maze/{task_seed}", "maze", task_seed, payload)

    def make(self):
        return MazeEnv(self)

    def random_action(self, env, rng):
        return list(WAYS)[rng.integers(4)]

    def solver_action(self, env, rng):
        return "east" if env.at[0] == 0 and env.at[1] < 4 else "south"


class HigherEnv:
    def __init__(self, family):
        self.bug = family.bug

    def reset(self, task, dynamics_seed):
        self.secret, self.low, self.high, self.turns = task.payload["secret"], 1, 60, 0
        return user("I think of a number from 1 up to 60; I say higher or lower. 7 guesses.")

    def step(self, text):
        self.turns += 1
        guess = int(text) if text.strip().isdigit() and len(text) < 5 else -1
        if not 1 <= guess <= 60:
            words, solved = "Say a number from 1 to 60.", False
        else:
            solved, higher = guess == self.secret, self.secret > guess
            self.low, self.high = (guess + 1, self.high) if higher else (self.low, guess - 1)
            words = "Higher." if higher != bool(self.bug) else "Lower."
        return StepResult(
            user("Yes." if solved else words),
            float(solved),
            terminated=solved,
            truncated=self.turns == 7 and not solved,
            info={"success": solved},
        )


@dataclass(frozen=True)
class Higher:
    bug: str = ""
    max_turns: int = 7
    name: ClassVar[str] = "higher"

    def task(self, task_seed):
        secret = int(rng_at("higher", task_seed).integers(1, 61))
        return Task(f"higher/{task_seed}", "higher", task_seed, {"secret": secret})

    def make(self):
        return HigherEnv(self)

    def random_action(self, env, rng):
        return str(rng.integers(1, 61))

    def solver_action(self, env, rng):
        return str((env.low + env.high) // 2)


# ------------------------------------------------------------------------------------------------ tools


def tools_of(bug: str) -> tuple:
    @tool(trusted=True)
    def distance(start: str, end: str) -> str:
        """Get the distance by road in kilometres.

        Args:
            start: the first city
            end: the second city
        """
        found = KM.get((start, end))
        if found is None:
            return "No such pair."
        return f"{found * 0.621371:.1f}" if bug == "miles" else str(found)

    @tool(trusted=True)
    def near(city: str, most: int = 900) -> str:
        """List cities that are near, one a line.

        Args:
            city: from which
            most: at most so many kilometres
        """
        rows = [(km, end) for (start, end), km in KM.items() if start == city]
        kept = [(km, end) for km, end in rows if (km < most if bug == "bound" else km <= most)]
        return "\n".join(f"- {end}: {km}" for km, end in sorted(kept)) or "Nothing is so near."

    return distance, near


@dataclass(frozen=True)
class Roads:
    bug: str = ""
    max_turns: int = 3
    name: ClassVar[str] = "roads"

    def task(self, task_seed):
        rng = rng_at("roads.task", task_seed)
        start, end = (str(city) for city in rng.choice(CITIES, 2, replace=False))
        if rng.random() < 0.6:
            question = f"How many kilometres is it from {start} to {end}?"
            gold, call = str(KM[start, end]), ["distance", {"start": start, "end": end}]
        else:
            most = int(rng.integers(300, 900))
            question = f"How many cities are at most {most} kilometres from {start}?"
            gold = str(sum(km <= most for (a, _), km in KM.items() if a == start))
            call = ["near", {"city": start, "most": most}]
        payload = {"question": question, "answers": [gold], "call": call}
        return Task(f"roads/{task_seed}", "roads", task_seed, payload)

    def make(self):
        return ToolEnv(tools_of(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        return env.format.write_answer(str(rng.integers(900)))

    def solver_action(self, env, rng):
        task = env._trajectory.task
        if env._trajectory.turn == 0:
            return env.format.write_call(*task.payload["call"])
        return env.format.write_answer(task.payload["answers"][0])
