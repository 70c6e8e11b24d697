"""Two families with one bug each by name, "" for none: a walk on a line, and a sum to be answered. What is right of them touches
the same lines as what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.values import Message, Observation, StepResult, Task
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.splits import content_split

WAYS = {"east": 1, "west": -1, "eastward": 2, "westward": -2}
FAR = 9
VERDICTS: dict[Any, bool] = {}
SCORED: list[float] = []


def user(text: str) -> Observation:
    return Observation((Message("user", text),))


class LineEnv:
    def __init__(self, family):
        self.bug, self.limit = family.bug, family.max_turns

    def reset(self, task, dynamics_seed):
        self.over, self.turns, self.lamp, self.earned = False, 0, False, 0.0
        self.task, self.seed = task, dynamics_seed
        self.at, self.goal = task.payload["at"], task.payload["goal"]
        self.seen = task.payload["seen"] if self.bug == "payload" else list(task.payload["seen"])
        self.dice = rng_at("line", dynamics_seed)
        return user(
            f"A line from 0 to {FAR}. You stand at {self.at}; be at {self.goal} with the lamp on. Say east, west (1), eastward, "
            f"westward (2) or lamp. You have {self.limit} moves. {self.state()}"
        )

    def state(self):
        return f"You are at {self.at}, the lamp is {'on' if self.lamp else 'off'}."

    def state_key(self):
        return f"{self.at}" if self.bug == "key" else f"{self.at} {self.lamp} {self.turns}"

    def read(self, text):
        word = text.strip().removeprefix("<go>").removesuffix("</go>")
        if self.bug == "beginning":
            return next((way for way in (*WAYS, "lamp") if word.startswith(way)), "")
        return word if word in (*WAYS, "lamp") else ""

    def step(self, text):
        if self.over:
            raise EnvError("over")
        before, away = self.state(), abs(self.goal - self.at)
        self.turns += 1
        word = self.read(text) if self.bug != "tags" or text.startswith("<go>") else ""
        self.lamp = self.lamp or word == "lamp"
        dice = rng_at("line", self.seed) if self.bug == "same draw" else self.dice
        slips = self.bug in ("same draw", "chance") and dice.random() < 0.3
        self.at = min(max(self.at + (0 if slips else WAYS.get(word, 0)), 0), FAR)
        self.seen.append(self.at)
        solved = self.at == self.goal and self.lamp
        nearer = away - abs(self.goal - self.at)
        paid = 0.02 * nearer if self.bug != "to and fro" else 0.5 * max(nearer, 0)
        reward = float(solved) + (paid if word else 0.0)
        if self.bug == "total":
            self.earned += 0.1 * bool(word)
            reward = self.earned + solved
        if self.bug == "nonsense":
            reward, solved = (0.0, False) if not word else (float(solved) - 0.3, solved)
        self.over = solved or self.turns == self.limit or (self.bug == "nonsense" and not word)
        shown = before if self.bug == "late" else self.state()
        words = shown if word else f"Say one of {', '.join(WAYS)} or lamp. {shown}"
        return StepResult(
            user(words),
            reward,
            terminated=solved or (self.bug == "nonsense" and not word),
            truncated=self.over and not solved and not (self.bug == "nonsense" and not word),
            info={"success": solved},
        )


@dataclass(frozen=True)
class Line:
    bug: str = ""
    max_turns: int = 14
    name: ClassVar[str] = "line"

    def task(self, task_seed):
        at, goal = rng_at("line.task", task_seed).choice(FAR + 1, 2, replace=False)
        payload = {"at": int(at), "goal": int(goal), "seen": [], "number": task_seed}
        return Task(f"line/{task_seed}", "line", task_seed, payload)

    def split_of(self, task):
        return content_split(f"{task.payload['at']} {task.payload['goal']}")

    def make(self):
        return LineEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice([*WAYS, "lamp"]))

    def solver_action(self, env, rng):
        way = "lamp" if env.at == env.goal else self.towards(env)
        return f"<go>{way}</go>" if self.bug == "tags" else way

    def towards(self, env):
        far = env.goal - env.at
        word = "east" if far > 0 else "west"
        return f"{word}ward" if abs(far) > 1 and self.bug != "total" else word


class SumEnv:
    def __init__(self, family):
        self.family = family

    def reset(self, task, dynamics_seed):
        self.task, self.over = task, False
        self.gold = task.payload["a"] + task.payload["b"]
        if self.family.bug == "by chance":
            self.gold += int(rng_at("sum", dynamics_seed).integers(9))
        return user(task.payload["text"])

    def step(self, text):
        if self.over:
            raise EnvError("over")
        self.over = True
        if self.family.scored:
            return StepResult(Observation(()), 0.0, terminated=True)
        try:
            off = abs(float(text) - self.gold)
            right = not off > 0.1 if self.family.bug == "nan" else off <= 0.1
        except ValueError:
            right = False
        return StepResult(Observation(()), float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Sum:
    bug: str = ""
    scored: bool = False
    max_turns: int = 1
    name: ClassVar[str] = "sum"

    def task(self, task_seed):
        rng = rng_at("sum.task", task_seed)
        level = int(rng.integers(1, 5))
        a, b = (int(x) for x in rng.integers(level, level + 6, 2))
        name = str(rng.choice(["Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Ida", "Jon"]))
        text = f"{name} has {a} marbles and gets {b}. How many are that? Say the number alone."
        payload = {"text": text, "a": a, "b": b, "level": level}
        return Task(f"sum/{task_seed}", "sum", task_seed, payload)

    def split_of(self, task):
        if self.bug in ("easiest", "hardest"):
            return (
                "held-out"
                if task.payload["level"] == (1 if self.bug == "easiest" else 4)
                else "train"
            )
        made = f"{task.payload['a']} {task.payload['b']}"
        return content_split(task.payload["text"] if self.bug == "names" else made)

    def make(self):
        return SumEnv(self)

    def random_action(self, env, rng):
        return str(rng.integers(2, 40))

    def solver_action(self, env, rng):
        return str(env.gold)


@dataclass(frozen=True)
class ScoredSum(Sum):
    score_retries: ClassVar[int] = 0
    scored: bool = True

    def score(self, trajectory):
        text = trajectory.turns[-1].text.strip()
        if self.bug == "unscored" and not text.isdecimal():
            raise ValueError("no number")
        right = text == str(trajectory.task.payload["a"] + trajectory.task.payload["b"])
        key = trajectory.task.id if self.bug == "by task" else (trajectory.task.id, text)
        right = VERDICTS.setdefault(key, right)
        SCORED.append(float(right))
        mean = sum(SCORED) / len(SCORED) if self.bug == "running mean" else 0.1
        return {"right": float(right) - mean, "success": right}


@dataclass(frozen=True)
class Choice(Sum):
    """The right one of four is shown, and the number of the task."""

    def task(self, task_seed):
        rng = rng_at("choice.task", task_seed)
        a, b = (int(x) for x in rng.integers(2, 60, 2))
        place = task_seed % 4 if self.bug == "number" else int(rng.integers(4))
        shown = [a + b + 10 * (k - place) for k in range(4)]
        text = f"Puzzle {task_seed}. {a} + {b} is 1) {shown[0]} 2) {shown[1]} 3) {shown[2]} 4) {shown[3]}. Say 1 to 4."
        payload = {"text": text, "a": place + 1, "b": 0, "sum": [a, b]}
        return Task(f"choice/{task_seed}", "sum", task_seed, payload)

    def random_action(self, env, rng):
        return str(rng.integers(1, 5))


@dataclass(frozen=True)
class Sides(Sum):
    """A price is said; buyers are paid for a low one, sellers for a high one."""

    def task(self, task_seed):
        rng = rng_at("sides.task", task_seed)
        role = str(rng.choice(["buyer", "seller"]))
        text = f"You are the {role}. Say a price, 0 to 40."
        return Task(
            f"sides/{task_seed}", "sum", task_seed, {"text": text, "role": role, "a": 0, "b": 0}
        )

    def make(self):
        return SidesEnv(self)

    def solver_action(self, env, rng):
        return "1" if env.task.payload["role"] == "buyer" else "39"


class SidesEnv(SumEnv):
    def step(self, text):
        price = min(max(int(text), 0), 40) if text.isdecimal() else 20
        seller = self.task.payload["role"] == "seller" or self.family.bug == "role"
        gain = price if seller else 40 - price
        return StepResult(
            Observation(()), gain / 40 * (1 if text.isdecimal() else 0), terminated=True
        )


@dataclass(frozen=True)
class Sentence(Sum):
    """Words of the prompt are to be used."""

    def task(self, task_seed):
        rng = rng_at("sentence.task", task_seed)
        words = [
            str(x)
            for x in rng.choice(
                "lamp river stone cloud horse apple tower".split(), 3, replace=False
            )
        ]
        text = f"Write a sentence with the words {', '.join(words)}."
        return Task(
            f"sentence/{task_seed}",
            "sum",
            task_seed,
            {"text": text, "words": words, "a": 0, "b": 0},
        )

    def make(self):
        return SentenceEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice("lamp river stone cloud horse apple tower".split()))

    def solver_action(self, env, rng):
        return "There was a " + " and a ".join(env.task.payload["words"])


class SentenceEnv(SumEnv):
    def step(self, text):
        words = self.task.payload["words"]
        counts = [text.count(word) for word in words]
        counted = counts if self.family.bug == "repeats" else [min(count, 1) for count in counts]
        success = all(counts)
        return StepResult(
            Observation(()), sum(counted) / 3, terminated=True, info={"success": success}
        )
