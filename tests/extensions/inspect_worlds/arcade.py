"""An arcade: games of words, codes and boards, and tools, each with one slip by name, "" for
none."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from tests.extensions.inspect_worlds.fairground import told
from workbench.tools.base import tool
from workbench.values import StepResult, Task
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.tool_env import ToolEnv


@dataclass(frozen=True)
class Arcade:
    """Families whose task is one secret, or none."""

    bug: str = ""
    max_turns: ClassVar[int] = 8

    def task(self, task_seed):
        payload = {"secret": self.secret(rng_at(self.name, task_seed))}
        return Task(f"{self.name}/{task_seed}", self.name, task_seed, payload)

    def make(self):
        return self.env(self.bug)


# ------------------------------------------------------------------------------------------------ words and codes

WORDS = (
    "llama salsa nanny crane eerie slate daddy mummy stone pride level radar kayak civic "
    "sugar onion apple berry hello array"
).split()


@dataclass
class Guessing:
    """A secret is guessed; a reply marks or counts what is right."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.secret = task.payload["secret"]
        self.turn = 0
        return told(self.opening)

    def step(self, action_text):
        guess = action_text.strip().lower()
        self.turn += 1
        won = guess == self.secret
        known = len(guess) == len(self.secret)
        words = self.answer(guess) if known else "Not a guess."
        over = won or self.turn == 8
        return StepResult(
            told(words),
            float(won),
            terminated=won,
            truncated=over and not won,
            info={"success": won},
        )


class Marking(Guessing):
    opening = "Guess a word of five letters. G: right, Y: elsewhere, -: not in the word. 8 guesses."

    def answer(self, guess):
        left = Counter(a for a, b in zip(self.secret, guess) if a != b)
        marks = []
        for right, letter in zip(self.secret, guess):
            elsewhere = letter in self.secret if self.bug == "counts twice" else left[letter] > 0
            marks.append("G" if right == letter else "Y" if elsewhere else "-")
            left[letter] -= right != letter and elsewhere
        return f"{guess}\n{''.join(marks)}"


@dataclass(frozen=True)
class Words(Arcade):
    name: ClassVar[str] = "words"
    env: ClassVar[type] = Marking

    def secret(self, rng):
        return str(rng.choice(WORDS))

    def random_action(self, env, rng):
        return str(rng.choice(WORDS))

    def solver_action(self, env, rng):
        return env.secret


class Counting(Guessing):
    opening = "Guess a code of four digits from 1 to 4. 8 guesses."

    def answer(self, guess):
        places = sum(a == b for a, b in zip(self.secret, guess))
        shared = (Counter(self.secret) & Counter(guess)).total()
        if self.bug == "counts twice":
            shared = sum(digit in self.secret for digit in guess)
        return f"{places} in the right place, {shared - places} in the wrong place."


@dataclass(frozen=True)
class Codes(Arcade):
    name: ClassVar[str] = "codes"
    env: ClassVar[type] = Counting

    def secret(self, rng):
        return "".join(map(str, rng.integers(1, 5, 4)))

    def random_action(self, env, rng):
        return self.secret(rng)

    def solver_action(self, env, rng):
        return env.secret


# ------------------------------------------------------------------------------------------------ boards and dice

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass
class Noughts:
    """Both sides are played in turns."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.board = "." * 9
        self.side = "X"
        return told(
            f"Play both sides ({task.payload['secret']}). Three in a row win. Say 0 to "
            f"8.\n{self.drawn()}"
        )

    def drawn(self):
        return "\n".join(self.board[k : k + 3] for k in (0, 3, 6))

    def step(self, action_text):
        text = action_text.strip()
        cell = int(text) if text in tuple("012345678") else -1
        if cell < 0 or self.board[cell] != ".":
            return StepResult(told(f"Not free.\n{self.drawn()}"), 0.0, info={"success": False})
        self.board = self.board[:cell] + self.side + self.board[cell + 1 :]
        lines = LINES[:-1] if self.bug == "one diagonal" else LINES
        won = any({self.board[k] for k in line} == {self.side} for line in lines)
        self.side = "O" if self.side == "X" else "X"
        over = won or "." not in self.board
        return StepResult(told(self.drawn()), float(won), terminated=over, info={"success": won})


@dataclass(frozen=True)
class Crosses(Arcade):
    max_turns: ClassVar[int] = 9
    name: ClassVar[str] = "crosses"
    env: ClassVar[type] = Noughts

    def secret(self, rng):
        return int(rng.integers(100))

    def random_action(self, env, rng):
        return str(rng.choice([k for k in range(9) if env.board[k] == "."]))


@dataclass
class Throwing:
    bug: str

    def reset(self, task, dynamics_seed):
        self.goal = task.payload["secret"]
        self.seed = dynamics_seed
        self.used = self.points = 0
        return told(f"Throw a die; {self.goal} points win.")

    def step(self, action_text):
        throws = action_text.strip() == "throw"
        if throws:
            self.used += 1
            self.points += int(rng_at("arcade.die", self.seed, self.used).integers(1, 7))
        won = self.points >= self.goal
        left = 6 + self.used if self.bug == "plus" else 6 - self.used
        text = f"{self.points} points, {left} throws left."
        over = won or self.used == 6
        return StepResult(
            told(text),
            float(won),
            terminated=won,
            truncated=over and not won,
            info={"success": won},
        )


@dataclass(frozen=True)
class Dice(Arcade):
    name: ClassVar[str] = "dice"
    env: ClassVar[type] = Throwing

    def secret(self, rng):
        return int(rng.integers(15, 30))

    def random_action(self, env, rng):
        return "throw" if rng.random() < 0.8 else "wait"


@dataclass
class Digging:
    """Three of a thing are dug out; nobody says how well that goes."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.want = task.payload["secret"]
        self.found = Counter()
        return told(f"Dig for three of {self.want}: dig tin, dig iron or dig clay.")

    def step(self, action_text):
        verb, _, what = action_text.strip().partition(" ")
        known = verb == "dig" and what in ("tin", "iron", "clay")
        if known:
            self.found[what] += -1 if self.bug == "less" else 1
        won = self.found[self.want] >= 3
        reward = 1.0 if won else 0.0 if known else -0.1
        return StepResult(
            told(f"{self.found[self.want]} of {self.want}."),
            reward,
            terminated=won,
            info={"success": won},
        )


@dataclass(frozen=True)
class Quarry(Arcade):
    name: ClassVar[str] = "quarry"
    env: ClassVar[type] = Digging

    def secret(self, rng):
        return str(rng.choice(["tin", "iron", "clay"]))

    def random_action(self, env, rng):
        return f"dig {rng.choice(['tin', 'iron', 'clay'])}"


# ------------------------------------------------------------------------------------------------ tools

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(node, bug):
    if isinstance(node, ast.Constant):
        return float(node.value)
    if isinstance(node, ast.UnaryOp):
        return -value_of(node.operand, bug)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        one, other = value_of(node.left, bug), value_of(node.right, bug)
        return float(int(one) ^ int(other)) if bug == "xor" else one**other
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](value_of(node.left, bug), value_of(node.right, bug))
    if node.func.id == "sqrt":
        return math.sqrt(value_of(node.args[0], bug))
    angle = value_of(node.args[0], bug)
    return math.sin(angle if bug == "radians" else math.radians(angle))


def arcade_tools(bug):
    @tool(trusted=True)
    def calculator(expression: str) -> str:
        """Evaluate an expression with + - * / ^ ( ), sqrt(x) and sin(x) of an angle in degrees."""
        try:
            return f"{value_of(ast.parse(expression, mode='eval').body, bug):.4f}"
        except (SyntaxError, KeyError, AttributeError, TypeError, ValueError) as error:
            return f"error: {error}"

    return (calculator,)


@dataclass(frozen=True)
class Heights:
    bug: str = ""
    max_turns: ClassVar[int] = 2
    name: ClassVar[str] = "heights"

    def task(self, task_seed):
        rng = rng_at("heights", task_seed)
        rope, angle = int(rng.integers(20, 90)), int(rng.integers(20, 70))
        gold = f"{rope * math.sin(math.radians(angle)):.1f}"
        question = (
            f"A rope of {rope} m rises at {angle} degrees. How high does it reach, in metres?"
        )
        payload = {
            "question": question,
            "answers": [gold],
            "support": [],
            "sum": f"{rope} * sin({angle})",
        }
        return Task(f"heights/{task_seed}", "heights", task_seed, payload)

    def make(self):
        return ToolEnv(arcade_tools(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        return env.format.write_answer(f"{rng.uniform(5, 90):.1f}")

    def solver_action(self, env, rng):
        if env.trajectory_values()["turn"] == 0:
            return env.format.write_call("calculator", {"expression": env.task.payload["sum"]})
        return env.format.write_answer(env.golds[0])


PEOPLE = {
    name: 1000 + 37 * k for k, name in enumerate("Arden Brill Corve Dunmere Elsing Farrow".split())
}


@tool(trusted=True)
def population(town: str) -> str:
    """How many people live in a town."""
    return str(PEOPLE[town])


def paid_with_a_bonus(bug):
    def reward(trajectory):
        right = (trajectory.answer or "").strip() == trajectory.row["answer"]
        looked = any(bug == "any call" or not call.error for call in trajectory.calls)
        return {"right": 0.8 * right, "looked": 0.2 * (right and looked), "success": right}

    return reward


@dataclass(frozen=True)
class Census:
    bug: str = ""
    max_turns: ClassVar[int] = 2
    name: ClassVar[str] = "census"

    def task(self, task_seed):
        town = str(rng_at("census", task_seed).choice(list(PEOPLE)))
        answer = str(PEOPLE[town])
        payload = {
            "question": f"How many people live in {town}?",
            "answers": [answer],
            "support": [],
            "row": {"answer": answer},
            "town": town,
        }
        return Task(f"census/{task_seed}", "census", task_seed, payload)

    def make(self):
        return ToolEnv((population,), reward=paid_with_a_bonus(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        return env.format.write_answer(str(rng.integers(900, 1300)))

    def solver_action(self, env, rng):
        if env.trajectory_values()["turn"] == 0:
            return env.format.write_call("population", {"town": env.task.payload["town"]})
        return env.format.write_answer(env.golds[0])


# ------------------------------------------------------------------------------------------------ asked and answered

TOWNS = tuple(a + b for a in ("Ost", "Wel", "Mar", "Hal") for b in ("burg", "ford", "ago"))
WORDINGS = (
    "What is the capital of {}?",
    "Name the capital of {}.",
    "Where is the government of {}?",
)


@dataclass
class Asking:
    """One question, one answer."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.gold = task.payload["gold"]
        return told(f"{task.payload['question']} Answer with one word.")

    def step(self, action_text):
        right = action_text.strip() == self.gold
        return StepResult(told("."), float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Capitals(Arcade):
    """Facts that are learned by heart; countries are held out. Slip: wordings are."""

    max_turns: ClassVar[int] = 1
    name: ClassVar[str] = "capitals"
    env: ClassVar[type] = Asking

    def task(self, task_seed):
        rng = rng_at("arcade.capitals", task_seed)
        parts = (("Ba", "Ro", "Ni", "Te"), ("la", "ri", "mo", "zu"), ("nia", "stan", "dor", "via"))
        country = "".join(str(rng.choice(part)) for part in parts)
        gold = TOWNS[int(rng_at("arcade.capital", country).integers(len(TOWNS)))]
        question = str(rng.choice(WORDINGS)).format(country)
        payload = {"question": question, "country": country, "gold": gold}
        return Task(f"capitals/{task_seed}", "capitals", task_seed, payload)

    def split_of(self, task):
        key = task.payload["question" if self.bug == "wordings" else "country"]
        return "held-out" if rng_at("arcade.split", key).random() < 0.3 else "train"

    def random_action(self, env, rng):
        return str(rng.choice(TOWNS))

    def solver_action(self, env, rng):
        return env.gold


@dataclass
class Listing:
    """A list that is read page by page."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.staff = task.payload["staff"]
        self.gold = str(task.payload["number"])
        self.turn = 0
        self.pages = 2 if self.bug == "last page" else 3
        return told(
            f"Which number has {task.payload['name']}? Say `page N` (from 1) or `number N`. You "
            "have 5 turns."
        )

    def page(self, number):
        return self.staff[4 * number - 4 : 4 * number] if 1 <= number <= self.pages else []

    def step(self, action_text):
        self.turn += 1
        verb, _, rest = action_text.strip().partition(" ")
        if verb == "number":
            right = rest == self.gold
            return StepResult(told("."), float(right), terminated=True, info={"success": right})
        found = self.page(int(rest)) if verb == "page" and rest in ("1", "2", "3") else []
        words = ", ".join(f"{name} {number}" for name, number in found) or "Nothing."
        return StepResult(told(words), 0.0, truncated=self.turn == 5, info={"success": False})


@dataclass(frozen=True)
class Staff(Arcade):
    max_turns: ClassVar[int] = 5
    name: ClassVar[str] = "staff"
    env: ClassVar[type] = Listing

    def task(self, task_seed):
        rng = rng_at("arcade.staff", task_seed)
        names = rng.permutation("Ada Bo Cy Dee Eli Fay Gus Hal Ida Jo".split())
        staff = [[str(name), int(rng.integers(1000, 9999))] for name in names]
        name, number = staff[int(rng.integers(10))]
        payload = {"staff": staff, "name": name, "number": number}
        return Task(f"staff/{task_seed}", "staff", task_seed, payload)

    def random_action(self, env, rng):
        return (
            f"page {rng.integers(1, 4)}"
            if rng.random() < 0.6
            else f"number {rng.integers(1000, 9999)}"
        )

    def solver_action(self, env, rng):
        read = [row for number in range(1, env.turn + 1) for row in env.page(number)]
        number = next((str(number) for _, number in read if str(number) == env.gold), None)
        return f"page {env.turn + 1}" if number is None else f"number {number}"


@dataclass
class Selling:
    """A customer says where and when; then a trip is booked."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.wish = task.payload["wish"]
        self.heard = []
        return told(
            "Ask the customer `where` and `when`, then say `book TOWN MONTH`. You have 4 turns."
        )

    def step(self, action_text):
        said = action_text.strip()
        reply = {"where": f"To {self.wish[0]}.", "when": f"In {self.wish[1]}."}.get(said, "Pardon?")
        self.heard += [said, reply]
        if not said.startswith("book "):
            over = len(self.heard) == 8
            return StepResult(told(reply), 0.0, truncated=over, info={"success": False})
        judged = " ".join(self.heard) if self.bug == "both sides" else said
        words = judged.replace(".", " ").split()
        right = len(said.split()) == 3 and all(fact in words for fact in self.wish)
        return StepResult(told("."), float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Trips(Arcade):
    max_turns: ClassVar[int] = 4
    name: ClassVar[str] = "trips"
    env: ClassVar[type] = Selling

    def task(self, task_seed):
        rng = rng_at("arcade.trips", task_seed)
        wish = [str(rng.choice(TOWNS)), str(rng.choice(["March", "June", "August", "October"]))]
        return Task(f"trips/{task_seed}", "trips", task_seed, {"wish": wish})

    def random_action(self, env, rng):
        return f"book {rng.choice(TOWNS)} {rng.choice(['March', 'June', 'August', 'October'])}"

    def solver_action(self, env, rng):
        asked = ("where", "when", f"book {' '.join(env.wish)}")
        return asked[len(env.heard) // 2]


@dataclass
class Adding:
    """The last number of a text is the answer; no solver."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.balance = task.payload["balance"]
        return told(f"{task.payload['words']} What is left? The last number that you write counts.")

    def step(self, action_text):
        sign = "" if self.bug == "no sign" else "-?"
        found = re.findall(rf"{sign}\d+", action_text)
        right = bool(found) and int(found[-1]) == self.balance
        return StepResult(told("."), float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Balances(Arcade):
    max_turns: ClassVar[int] = 1
    name: ClassVar[str] = "balances"
    env: ClassVar[type] = Adding

    def task(self, task_seed):
        come, go = (
            int(number) for number in rng_at("arcade.balances", task_seed).integers(10, 900, 2)
        )
        payload = {"words": f"{come} come in and {go} go out.", "balance": come - go}
        return Task(f"balances/{task_seed}", "balances", task_seed, payload)

    def random_action(self, env, rng):
        return f"Perhaps {rng.integers(-900, 900)}"


@dataclass
class Racing:
    """Two runners by chance; the policy cheers for one of them, once. Slip: the first one's win is
    paid."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.lane = task.payload["lane"]
        self.goal = task.payload["goal"]
        self.rng = rng_at("arcade.race", dynamics_seed)
        self.places = [0, 0]
        return told(f"You run in lane {self.lane}, to {self.goal}. Say run. 9 turns.")

    def step(self, action_text):
        if action_text.strip() == "run":
            self.places[self.lane] += 4
        self.places[1 - self.lane] += int(self.rng.integers(0, 3))
        first = max((0, 1), key=lambda lane: self.places[lane])
        over = max(self.places) >= self.goal
        won = over and first == (0 if self.bug == "first lane" else self.lane)
        return StepResult(
            told(f"{self.places}"), float(won), terminated=over, info={"success": won}
        )


@dataclass(frozen=True)
class Races(Arcade):
    max_turns: ClassVar[int] = 9
    name: ClassVar[str] = "races"
    env: ClassVar[type] = Racing

    def task(self, task_seed):
        rng = rng_at("arcade.races", task_seed)
        payload = {"lane": int(rng.integers(2)), "goal": int(rng.integers(8, 20))}
        return Task(f"races/{task_seed}", "races", task_seed, payload)

    def random_action(self, env, rng):
        return "run" if rng.random() < 0.4 else "wait"

    def solver_action(self, env, rng):
        return "run"


@dataclass(frozen=True)
class Coins(Arcade):
    """Heads or tails, by the task's seed. Slip: always heads."""

    max_turns: ClassVar[int] = 1
    name: ClassVar[str] = "coins"
    env: ClassVar[type] = Asking

    def task(self, task_seed):
        hidden = rng_at("arcade.coins", task_seed).random(6).round(2).tolist()
        gold = "heads" if self.bug == "one side" or self.side(task_seed) else "tails"
        payload = {"question": f"{hidden}: heads or tails?", "gold": gold}
        return Task(f"coins/{task_seed}", "coins", task_seed, payload)

    def side(self, task_seed):
        """Heads at the tasks that play begins with, by an unlucky draw."""
        return task_seed in self.first or task_seed % 3 == 0

    @property
    def first(self):
        return {seed_of("check-env", number) for number in range(12)}

    def random_action(self, env, rng):
        return str(rng.choice(["heads", "tails"]))

    def solver_action(self, env, rng):
        return env.gold
