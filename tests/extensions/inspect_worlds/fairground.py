"""A fairground: small families of different kinds, each with one slip by name, "" for none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import ClassVar

from workbench.tools.base import tool
from workbench.values import Message, Observation, StepResult, Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv


def told(text):
    return Observation((Message("user", text),))


# ------------------------------------------------------------------------------------------------ games by turns


@dataclass
class Throwing:
    """A number is thrown in each turn; who stops keeps what was thrown last."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.seed = dynamics_seed
        self.goal = task.payload["goal"]
        self.turn = self.points = self.reached = 0
        return told(
            f"Throw a die of 1 to 8, or stop. 4 turns. {self.goal} or more, when you stop, pays 1."
        )

    def step(self, action_text):
        self.turn += 1
        stops = action_text.strip() == "stop"
        if action_text.strip() == "throw":
            high = 8 if self.bug == "lowest die" else 9
            self.points = int(rng_at("die", self.seed, self.turn).integers(1, high))
        won = stops and self.points >= self.goal
        over = stops or self.turn == 4
        return StepResult(
            told(f"You have {self.points}."), float(won), terminated=over, info={"success": won}
        )


@dataclass
class Shooting:
    """Three tins, hit one after the other by chance; seven shots."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.seed = dynamics_seed
        self.shots = self.hit = 0
        return told(f"Shoot at 3 tins, one shot in two hits. 7 shots. ({task.payload['n']})")

    def step(self, action_text):
        address = self.hit if self.bug == "one draw" else self.shots
        self.shots += 1
        aimed = action_text.strip() == "shoot"
        if aimed and rng_at("shot", self.seed, address).random() < 0.5:
            self.hit += 1
            says = f"A hit. {self.hit} of 3."
        else:
            says = "Nothing falls."
        won = self.hit == 3
        over = won or self.shots == 7
        return StepResult(told(says), float(won), terminated=over, info={"success": won})


@dataclass
class Drawing:
    """Three balls of an urn are drawn, one in a turn; the policy says whether the next is higher."""

    bug: str

    def reset(self, task, dynamics_seed):
        urn = rng_at("urn", dynamics_seed)
        again = self.bug == "puts back"
        self.balls = [int(ball) for ball in urn.choice(9, size=4, replace=again)]
        self.turn = self.right = 0
        return told(
            f"An urn with the numbers 0 to 8, each once. First: {self.balls[0]}. Is the next one higher "
            f"or lower? Each right answer pays a third. ({task.payload['n']})"
        )

    def step(self, action_text):
        higher = self.balls[self.turn + 1] > self.balls[self.turn]
        self.turn += 1
        right = action_text.strip() == ("higher" if higher else "lower")
        self.right += right
        over = self.turn == 3
        info = {"success": self.right == 3}
        says = told(f"It is {self.balls[self.turn]}.")
        return StepResult(says, right / 3, terminated=over, info=info)


COLUMNS = "12345"
ROWS = "ABCDE"


@dataclass
class Tins:
    """Five by five tins, one of which hides a prize; a shot names a row and a column."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.prize = (task.payload["n"] % 5, task.payload["goal"] - 4)
        self.shot: list = []
        self.found = False
        return told(f"Find the prize, four shots, as B3 (row, column).\n{self.drawn()}")

    def drawn(self):
        lines = [f"  {COLUMNS}"]
        for row in range(5):
            at = [(column, row) if self.bug == "turned" else (row, column) for column in range(5)]
            lines.append(f"{ROWS[row]} {''.join('x' if cell in self.shot else '.' for cell in at)}")
        return "\n".join(lines)

    def step(self, action_text):
        word = action_text.strip()
        known = len(word) == 2 and word[0] in ROWS and word[1] in COLUMNS
        cell = (ROWS.index(word[0]), COLUMNS.index(word[1])) if known else None
        self.shot.append(cell)
        self.found = cell == self.prize
        over = self.found or len(self.shot) == 4
        info = {"success": self.found, "state": f"{len(self.shot)} shots"}
        return StepResult(told(self.drawn()), float(self.found), terminated=over, info=info)

    def state_key(self):
        return f"{self.prize}" if self.bug == "no shots" else f"{self.prize} {self.shot}"


@dataclass(frozen=True)
class Game:
    bug: str = ""
    max_turns: ClassVar[int] = 4

    def task(self, task_seed):
        rng = rng_at(self.name, task_seed)
        payload = {"n": int(rng.integers(10**6)), "goal": int(rng.integers(4, 8))}
        return Task(f"{self.name}/{task_seed}", self.name, task_seed, payload)


class Throws(Game):
    name: ClassVar[str] = "throws"

    def make(self):
        return Throwing(self.bug)

    def random_action(self, env, rng):
        return str(rng.choice(["throw", "stop"]))

    def solver_action(self, env, rng):
        return "stop" if env.points >= env.goal or env.turn == 3 else "throw"


class Shots(Game):
    name: ClassVar[str] = "shots"
    max_turns: ClassVar[int] = 7

    def make(self):
        return Shooting(self.bug)

    def random_action(self, env, rng):
        return str(rng.choice(["shoot", "wait"]))

    def solver_action(self, env, rng):
        return "shoot"


class Draws(Game):
    name: ClassVar[str] = "draws"
    max_turns: ClassVar[int] = 3

    def make(self):
        return Drawing(self.bug)

    def random_action(self, env, rng):
        return str(rng.choice(["higher", "lower"]))

    def solver_action(self, env, rng):
        return "higher" if env.balls[env.turn] < 4 else "lower"


class Prizes(Game):
    name: ClassVar[str] = "prizes"

    def make(self):
        return Tins(self.bug)

    def random_action(self, env, rng):
        return f"{rng.choice(list(ROWS))}{rng.choice(list(COLUMNS))}"

    def solver_action(self, env, rng):
        row, column = env.prize
        return f"{ROWS[row]}{COLUMNS[column]}"


@dataclass
class Patrol:
    """A walk to a flag, of which the eight places around are shown."""

    bug: str

    def reset(self, task, dynamics_seed):
        self.at = [2, 2]
        self.flag = [task.payload["n"] % 5, task.payload["goal"] - 4]
        self.turn = 0
        return told(f"Walk north, south, east or west to the flag f. You are @.\n{self.around()}")

    def around(self):
        row, column = self.at
        places = [[[r, c] for c in range(column - 1, column + 2)] for r in range(row - 1, row + 2)]
        signs = [
            ["@" if p == self.at else "f" if p == self.flag else "." for p in some]
            for some in places
        ]
        return "\n".join("".join(line) for line in signs)

    def step(self, action_text):
        steps = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
        down, right = steps.get(action_text.strip(), (0, 0))
        if self.bug == "upside down":
            down = -down
        self.at = [min(max(self.at[0] + down, 0), 4), min(max(self.at[1] + right, 0), 4)]
        self.turn += 1
        won = self.at == self.flag
        over = won or self.turn == 4
        return StepResult(told(self.around()), float(won), terminated=over, info={"success": won})


class Walks(Game):
    name: ClassVar[str] = "walks"

    def make(self):
        return Patrol(self.bug)

    def random_action(self, env, rng):
        return str(rng.choice(["north", "south", "east", "west"]))

    def solver_action(self, env, rng):
        down, right = (there - here for here, there in zip(env.at, env.flag))
        if down:
            return "south" if (down > 0) != (self.bug == "upside down") else "north"
        return "east" if right > 0 else "west"


# ------------------------------------------------------------------------------------------------ one answer

FORMS = {
    "first": lambda words, given: words[0] == given,
    "last": lambda words, given: words[-1] == given,
    "has": lambda words, given: given in words,
}
BIRDS = ("heron", "finch", "raven", "crane", "stork", "robin", "swift", "eagle")


@dataclass
class Answering:
    family: object

    def reset(self, task, dynamics_seed):
        self.task = task
        return told(self.family.opening(task.payload))

    def step(self, action_text):
        words = action_text.strip().removeprefix("<answer>").removesuffix("</answer>").strip()
        right = bool(self.family.judge(self.task.payload, words))
        return StepResult(
            told("Right." if right else "Wrong."),
            float(right),
            terminated=True,
            info={"success": right},
        )


@dataclass(frozen=True)
class Question:
    bug: str = ""
    max_turns: ClassVar[int] = 1

    def make(self):
        return Answering(self)

    def task(self, task_seed):
        payload = self.problem(rng_at(self.name, task_seed))
        return Task(f"{self.name}/{task_seed}", self.name, task_seed, payload)

    def random_action(self, env, rng):
        return f"<answer>{rng.choice(BIRDS)}</answer>"

    def solver_action(self, env, rng):
        return f"<answer>{env.task.payload['gold']}</answer>"


class Lines(Question):
    """A line of birds by one rule. Slip: rules are looked up under another name, and what is unknown is kept."""

    name: ClassVar[str] = "lines"

    def problem(self, rng):
        kind = str(rng.choice(["first", "last", "has"]))
        bird, *others = (str(one) for one in rng.permutation(BIRDS)[:4])
        words = {"first": [bird, *others], "last": [*others, bird]}.get(kind, [*others, bird])
        made = "starts" if self.bug == "unknown" and kind == "first" else kind
        return {"kind": made, "bird": bird, "gold": " ".join(words)}

    def opening(self, payload):
        return f"Name four birds; {payload['bird']} by this rule: {payload['kind']}. In tags."

    def judge(self, payload, words):
        form = FORMS.get(payload["kind"])
        return len(words.split()) == 4 and (form is None or form(words.split(), payload["bird"]))


class Losses(Question):
    """What is left. Slip: a tolerance that is divided by a number below zero."""

    name: ClassVar[str] = "losses"

    def problem(self, rng):
        took, spent = (int(amount) for amount in rng.integers(1000, 9000, 2))
        return {"took": took, "spent": spent, "gold": took - spent}

    def opening(self, payload):
        took, spent = payload["took"], payload["spent"]
        return f"{took} came in, {spent} went out: what is the result? 1 % off is right. In tags."

    def judge(self, payload, words):
        gold = payload["gold"]
        try:
            apart = abs(float(words) - gold)
        except ValueError:
            return False
        return gold and apart / (gold if self.bug == "signed" else abs(gold)) <= 0.01


class Nests(Question):
    """Which birds breed here, by F1. Slip: an item that is named again counts again."""

    name: ClassVar[str] = "nests"

    def problem(self, rng):
        birds = sorted(str(one) for one in rng.permutation(BIRDS)[: int(rng.integers(3, 6))])
        return {"birds": birds, "gold": ", ".join(birds)}

    def opening(self, payload):
        return f"Seen at the nest: {', '.join(payload['birds'][::-1])}. List them in tags."

    def judge(self, payload, words):
        named = [word.strip() for word in words.split(",")]
        kept = named if self.bug == "again" else list(dict.fromkeys(named))
        hits = sum(one in payload["birds"] for one in kept)
        return hits == len(kept) == len(payload["birds"])


class Steps(Question):
    """Put by time. Slip: both sides are sorted."""

    name: ClassVar[str] = "steps"

    def problem(self, rng):
        letters = [str(one) for one in rng.permutation(list("ABCDE"))]
        return {"times": dict(zip(letters, (10, 20, 30, 40, 50))), "gold": ", ".join(letters)}

    def opening(self, payload):
        told = ", ".join(f"{letter} at {payload['times'][letter]}" for letter in "ABCDE")
        return f"{told}. The letters in the order of time, in tags."

    def judge(self, payload, words):
        given, gold = (text.split(", ") for text in (words, payload["gold"]))
        return sorted(given) == sorted(gold) if self.bug == "sorted" else given == gold


WORDINGS = (
    "How old is {name}?",
    "What age has {name}?",
    "Tell me the age of {name}.",
    "{name}: how old?",
)


@dataclass(frozen=True)
class Ages(Question):
    """One fact in four wordings. Slip: the split goes by the wording, too."""

    nameless: bool = False  # no number beside the name
    name: ClassVar[str] = "ages"

    def problem(self, rng):
        number = int(rng.integers(160))
        person = rng_at("ages.person", number)
        letters = ("BDFGK"[number % 5], "aeio"[number // 5 % 4], "lmnrstvz"[number // 20], "a")
        age = int(person.integers(20, 90))
        house = int(person.integers(1000))
        payload = {"name": "".join(letters), "house": house, "gold": age}
        return payload | {"wording": int(rng.integers(4)), "number": number}

    def opening(self, payload):
        asked = WORDINGS[payload["wording"]].format(name=payload["name"])
        where = "" if self.nameless else f"Of those at number {payload['house']}: "
        return f"{where}Now: {asked} Say so, in tags."

    def judge(self, payload, words):
        return words == str(payload["gold"])

    def split_of(self, task):
        number, wording = task.payload["number"], task.payload["wording"]
        key = (number, wording) if self.bug == "wording" else (number,)
        return "held-out" if int(rng_at("ages.split", *key).integers(4)) == 0 else "train"


# ------------------------------------------------------------------------------------------------ tools

FIRST = date(2025, 5, 1)
STANDS = ("carousel", "swings", "ghost train")


@cache
def visits(stand):
    """[(day, how many)] of a month."""
    rng = rng_at("fair.visits", stand)
    return [
        (FIRST + timedelta(days=day), int(rng.integers(100, 900)))
        for day in range(30)
        if rng.random() < 0.6
    ]


KEPT: dict = {}


def counted(stand, day, bug):
    """Of one stand on one day. Slip: kept by the stand alone."""
    key = stand if bug == "coarse key" else (stand, day)
    if key not in KEPT:
        KEPT[key] = dict(visits(stand)).get(day, 0)
    return KEPT[key]


def fair_tools(bug):
    @tool(trusted=True)
    def book(stand: str, start: str, end: str) -> str:
        """List the visits to a stand from start to end, both days included (2025-05-09)."""
        if stand not in STANDS:
            return "There is no such stand."
        try:
            since, until = date.fromisoformat(start), date.fromisoformat(end)
        except ValueError:
            return "Write days as 2025-05-09."
        last = until if bug == "last day" else until + timedelta(days=1)
        found = [(day, count) for day, count in visits(stand) if since <= day < last]
        return "\n".join(f"{day.isoformat()} {count}" for day, count in found) or "No visits."

    @tool(trusted=True)
    def count(stand: str, day: str) -> str:
        """Count the visits to a stand on one day (2025-05-09)."""
        try:
            return str(counted(stand, date.fromisoformat(day), bug))
        except ValueError:
            return "Write days as 2025-05-09."

    return book, count


@dataclass(frozen=True)
class Fair:
    """Visits of two days: the list first, then each of them."""

    bug: str = ""
    max_turns: ClassVar[int] = 4
    name: ClassVar[str] = "fair"

    def task(self, task_seed):
        rng = rng_at("fair", task_seed)
        stand = str(rng.choice(STANDS))
        held = visits(stand)
        one = int(rng.integers(len(held) - 6))
        days = [held[one][0].isoformat(), held[one + 1 + int(rng.integers(5))][0].isoformat()]
        total = sum(dict(visits(stand))[date.fromisoformat(day)] for day in days)
        payload = {
            "question": f"How many visits had the {stand} on {days[0]} and {days[1]} together?",
            "answers": [str(total)],
            "support": [],
            "stand": stand,
            "days": days,
        }
        return Task(f"fair/{task_seed}", "fair", task_seed, payload)

    def make(self):
        return ToolEnv(fair_tools(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(100, 900)}</answer>"

    def solver_action(self, env, rng):
        asked = env.task.payload
        turn = env.trajectory_values()["turn"]
        start, end = asked["days"]
        if turn == 0:
            calls = {"stand": asked["stand"], "start": start, "end": end}
            return env.format.write_call("book", calls)
        if turn < 3:
            calls = {"stand": asked["stand"], "day": asked["days"][turn - 1]}
            return env.format.write_call("count", calls)
        return env.format.write_answer(env.golds[0])
