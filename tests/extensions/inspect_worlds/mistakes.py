"""Small environments, each with one mistake that `workbench check-env` must name, and their correct counterparts.

`MISTAKES`: class -> (the check meant for it, what it says, how severe). `CORRECT` are right and must be passed by.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.splits import content_split

ANSWER = re.compile(r"\s*<answer>\s*(\d{1,9})\s*</answer>\s*")


def user(text: str, role: str = "user") -> Observation:
    return Observation((Message(role, text),))


class NumberEnv:
    """Guess a number: too low, too high, right."""

    def __init__(self, family):
        self.family, self.turns, self.over = family, 0, True

    def reset(self, task, dynamics_seed):
        self.task, self.number, self.turns, self.over = task, task.payload["number"], 0, False
        self.rng = rng_at("numbers", dynamics_seed)
        return user(self.prompt())

    def prompt(self):
        low, high = self.task.payload["low"], self.task.payload["high"]
        return (
            f"Guess my number, {low} to {high}. You have {self.family.max_turns} guesses.\n"
            "Answer like this: <answer>7</answer>"
        )

    def step(self, action_text):
        if self.over:
            raise EnvError("this trajectory is over")
        self.turns += 1
        guess = self.guess(action_text)
        right = guess == self.number
        self.over = self.ends(right)
        return StepResult(
            self.reply(guess, right, action_text),
            self.reward(guess, right, action_text),
            terminated=self.over,
            info=self.info(right),
        )

    def guess(self, action_text):
        found = ANSWER.fullmatch(action_text)
        return int(found[1]) if found else None

    def reply(self, guess, right, action_text):
        words = (
            "Right."
            if right
            else "That is no number in tags."
            if guess is None
            else ("Too low." if guess < self.number else "Too high.")
        )
        return user(words)

    def reward(self, guess, right, action_text):
        return float(right)

    def ends(self, right):
        return right

    def info(self, right):
        return {"success": right}


@dataclass(frozen=True)
class Numbers:
    """The right one."""

    max_turns: int = 4
    name: ClassVar[str] = "numbers"
    env: ClassVar[type] = NumberEnv

    def task(self, task_seed):
        rng = rng_at("numbers.task", task_seed)
        low = int(rng.integers(400))
        payload = {"low": low, "high": low + 90, "number": int(rng.integers(low, low + 91))}
        return Task(f"numbers/{task_seed}", self.name, task_seed, payload)

    def make(self):
        return self.env(self)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(env.task.payload['low'], env.task.payload['high'] + 1)}</answer>"

    def solver_action(self, env, rng):
        return f"<answer>{env.number}</answer>"


class WalkEnv:
    """Three steps forward on ground that slips."""

    dice: Any = None

    def __init__(self, family):
        self.family, self.place, self.over = family, 0, True

    def reset(self, task, dynamics_seed):
        self.task, self.seed, self.place, self.turns, self.over = task, dynamics_seed, 0, 0, False
        self.dice = self.dice_of(task, dynamics_seed)
        return user(
            f"Walk {task.payload['way']} steps. Each slips now and then. You have {self.family.max_turns} turns. Say go or wait."
        )

    def dice_of(self, task, dynamics_seed):
        return rng_at("walk", dynamics_seed)

    def drawn(self):
        return self.dice.random()

    def step(self, action_text):
        if self.over:
            raise EnvError("this trajectory is over")
        self.turns += 1
        self.place += action_text.strip() == "go" and self.drawn() < 0.6
        won = self.place >= self.task.payload["way"]
        self.over = won or self.turns >= self.family.max_turns
        return StepResult(
            user(f"You are at {self.place}."),
            float(won),
            terminated=won,
            truncated=self.over and not won,
            info={"success": won},
        )


@dataclass(frozen=True)
class Walk:
    """The right one, with chance."""

    max_turns: int = 8
    name: ClassVar[str] = "walk"
    env: ClassVar[type] = WalkEnv

    def task(self, task_seed):
        return Task(f"walk/{task_seed}", self.name, task_seed, {"way": 3 + task_seed % 3})

    def make(self):
        return self.env(self)

    def random_action(self, env, rng):
        return ("go", "wait")[rng.integers(2)]


class AnyNumbers(Numbers):
    """A correct one without solver, random play and success."""

    random_action = solver_action = None

    class env(NumberEnv):
        def info(self, right):
            return {"success": right}


class SplitNumbers(Numbers):
    """A correct one with splits by content."""

    def split_of(self, task):
        return content_split(str(dict(task.payload)))


class Bounded(Numbers):
    """A correct one that states its bounds."""

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)


class Timed(Numbers):
    """A correct one that notes in `info` how long it took."""

    class env(NumberEnv):
        def info(self, right):
            return {**super().info(right), "seconds": time.perf_counter()}


@dataclass(frozen=True)
class Cutting(Numbers):
    """A correct one with a limit of its own, which the prompt states."""

    max_turns: int = 9

    class env(NumberEnv):
        def prompt(self):
            return super().prompt().replace("9 guesses", "3 guesses")

        def ends(self, right):
            return right or self.turns >= 3


class Threaded(Numbers):
    """A correct one with a thread that ends."""

    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            self.stop = threading.Event()
            threading.Thread(target=self.stop.wait).start()
            return super().reset(task, dynamics_seed)

        def close(self):
            self.stop.set()


CORRECT = (Numbers, Walk, AnyNumbers, SplitNumbers, Bounded, Timed, Cutting, Threaded)
MISTAKES: dict[type, tuple[str, str, str]] = {}


def mistake(check: str, words: str, severity: str = "error"):
    def listed(cls):
        MISTAKES[cls] = (check, words, severity)
        return cls

    return listed


# ------------------------------------------------------------------------------------------------ tasks


@mistake("E1", "another one each time")
class TasksAtRandom(Numbers):
    def task(self, task_seed):
        return Task(
            f"numbers/{task_seed}",
            self.name,
            task_seed,
            {"low": 0, "high": 90, "number": random.randint(0, 90)},
        )


@mistake("E1", "task_seed")
class AnotherSeed(Numbers):
    def task(self, task_seed):
        return super().task(task_seed % 1000)


@mistake("E1", "have the id")
class OneId(Numbers):
    def task(self, task_seed):
        made = super().task(task_seed)
        return Task("numbers", self.name, task_seed, made.payload)


@mistake("E1", "cannot be stored")
class NotStored(Numbers):
    def task(self, task_seed):
        made = super().task(task_seed)
        return Task(made.id, self.name, task_seed, {**made.payload, "numbers": {1, 2}})


@mistake("E18", "in a worker process")
class TasksByHash(Numbers):
    def task(self, task_seed):
        low = hash(f"low {task_seed}") % 400
        return Task(
            f"numbers/{task_seed}",
            self.name,
            task_seed,
            {"low": low, "high": low + 90, "number": low + 5 + task_seed % 80},
        )


@mistake("E2", "trained on")
class SplitBySeed(Numbers):
    def task(self, task_seed):
        number = task_seed % 12
        return Task(
            f"numbers/{task_seed}",
            self.name,
            task_seed,
            {"low": 0, "high": 11 + number, "number": number},
        )

    def split_of(self, task):
        return "held-out" if task.task_seed // 12 % 2 else "train"


# ------------------------------------------------------------------------------------------------ chance


@mistake("E3", "depends on dynamics_seed")
class BeginsByChance(Walk):
    class env(WalkEnv):
        def reset(self, task, dynamics_seed):
            super().reset(task, dynamics_seed)
            return user(
                f"Walk {task.payload['way']} steps from {dynamics_seed % 7}. You have 8 turns. Say go or wait."
            )


@mistake("E3", "random (global)")
class GlobalDice(Walk):
    class env(WalkEnv):
        def drawn(self):
            return random.random()


@mistake("E3", "numpy.random (global)")
class GlobalNumpy(Walk):
    class env(WalkEnv):
        def drawn(self):
            return np.random.rand()


@mistake("E3", "os.urandom")
class SystemDice(Walk):
    class env(WalkEnv):
        def drawn(self):
            return os.urandom(1)[0] / 256


@mistake("E4", "all trajectories of a group share these dice")
class DiceOfTheTask(Walk):
    class env(WalkEnv):
        def dice_of(self, task, dynamics_seed):
            return np.random.default_rng(task.task_seed % 2**32)


@mistake("E4", "all trajectories of a group share these dice")
class DiceByTurn(Walk):
    class env(WalkEnv):
        def drawn(self):
            return rng_at("walk", self.task.id, self.turns).random()


@mistake("E3", "played twice")
class DiceOfTheClass(Walk):
    class env(WalkEnv):
        shared = np.random.default_rng(0)

        def dice_of(self, task, dynamics_seed):
            return self.shared


@mistake("E5", "stepped in turns")
class SeedsTheGlobalDice(Walk):
    class env(WalkEnv):
        def reset(self, task, dynamics_seed):
            random.seed(dynamics_seed)
            return super().reset(task, dynamics_seed)

        def drawn(self):
            return random.random()


# ------------------------------------------------------------------------------------------------ isolation


@mistake("E5", "stepped in turns")
class StateOfTheClass(Numbers):
    class env(NumberEnv):
        state: ClassVar[dict] = {}

        def reset(self, task, dynamics_seed):
            self.state["asked"] = 0
            return super().reset(task, dynamics_seed)

        def reply(self, guess, right, action_text):
            self.state["asked"] += 1
            said = super().reply(guess, right, action_text)
            return user(f"{said.messages[0].text} Guess {self.state['asked']}.")


@mistake("E5", "in common")
class CountsInTheClass(Numbers):
    class env(NumberEnv):
        seen: ClassVar[list] = []

        def guess(self, action_text):
            self.seen.append(len(action_text))
            return super().guess(action_text)


@mistake("E5", "reset() leaves something")
class NotReset(Numbers):
    class env(NumberEnv):
        def __init__(self, family):
            super().__init__(family)
            self.said = []

        def reply(self, guess, right, action_text):
            self.said.append(guess)
            return user(
                f"{super().reply(guess, right, action_text).messages[0].text} That was guess {len(self.said)}."
            )


# ------------------------------------------------------------------------------------------------ what is shown


@mistake("E6", "ANSI")
class Coloured(Numbers):
    class env(NumberEnv):
        def prompt(self):
            return f"\x1b[1mGuess\x1b[0m: {super().prompt()}"


@mistake("E6", "control character")
class Bell(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            return user(f"\x07{super().reply(guess, right, action_text).messages[0].text}")


@mistake("E7", "is empty")
class Mute(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            return user(
                "" if guess is None else super().reply(guess, right, action_text).messages[0].text
            )


@mistake("E7", "a message by 'environment'")
class OwnRole(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            return user(super().reply(guess, right, action_text).messages[0].text, "environment")


@mistake("E7", "the role of the assistant")
class SpeaksForThePolicy(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            return Observation(
                (Message("assistant", action_text or "..."), Message("user", "Go on."))
            )


@mistake("E8", "does not fit")
class TooLong(Numbers):
    class env(NumberEnv):
        def prompt(self):
            return "Think about it well. " * 2000 + super().prompt()


@mistake("E9", "holds the answer")
class TellsInThePrompt(Numbers):
    class env(NumberEnv):
        def prompt(self):
            return f"{super().prompt()}\n(debug: target={self.number})"


@mistake("E9", "the reply to")
class TellsAfterAnything(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            return user("Right." if right else f"Wrong, it is {self.number}. Try again.")


@mistake("E9", "of the gold answer")
class TellsTheGold(Numbers):
    def task(self, task_seed):
        made = super().task(task_seed)
        return Task(
            made.id,
            self.name,
            task_seed,
            {**made.payload, "question": "What is my word?", "answer": f"word{task_seed % 991}x"},
        )

    class env(NumberEnv):
        def prompt(self):
            return f"{super().prompt()}\nHint: {self.task.payload['answer']}"


# ------------------------------------------------------------------------------------------------ success and reward


@mistake("E10", "not known", "note")
class NoSuccess(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {}


@mistake("E10", "missing")
class SuccessAtTheEnd(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {"success": True} if right else {}


@mistake("E10", "expected true or false")
class SuccessIsANumber(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {"success": int(right)}


@mistake("E10", "success")
class SuccessTurned(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {"success": not right}


@mistake("E10", "trajectories succeed")
class SuccessAlways(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {"success": True}


@mistake("E10", "succeeds at none")
class SuccessNever(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {"success": False}


@mistake("E10", "success and reward disagree")
class SuccessByParity(Numbers):
    class env(NumberEnv):
        def info(self, right):
            return {
                "success": right
                and self.number % 3 > 0
                or not right
                and self.turns == self.family.max_turns
            }


@mistake("E11", "expected a finite number")
class NotANumber(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return float("nan") if guess is None else float(right)


@mistake("E11", "states rewards from 0 to 1")
class Beyond(Numbers):
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 10.0 * right


@mistake("E11", "its parts")
class WrongSum(Numbers):
    class env(NumberEnv):
        def step(self, action_text):
            result = super().step(action_text)
            return StepResult(
                result.observation,
                result.reward,
                {"answer": result.reward, "format": 0.1},
                result.terminated,
                info=result.info,
            )


# ------------------------------------------------------------------------------------------------ farming


@mistake("E12", "fails and earns")
class PaysForTags(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 1.0 if right else 0.6 * ("<answer>" in action_text and self.turns == 1)


@mistake("E12", "the empty answer fails and earns")
class PaysForNothing(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 1.0 if right else 0.8 * (guess is None and self.turns == 1)


@mistake("E12", "paid for again in every turn")
class PaysForTurns(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 1.0 if right else 0.25


@mistake("E12", "grows with length")
class PaysForLength(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 1.0 if right else min(len(action_text) / 1000, 0.9)


@mistake("E12", "every answer at once")
class LooksForIt(Numbers):
    def task(self, task_seed):
        made = super().task(task_seed)
        low = made.payload["low"] % 50
        return Task(
            made.id,
            self.name,
            task_seed,
            {"low": low, "high": low + 90, "number": low + made.payload["number"] % 91},
        )

    class env(NumberEnv):
        def guess(self, action_text):
            return (
                self.number
                if f"<answer>{self.number}</answer>" in action_text
                else super().guess(action_text)
            )


@mistake("E12", "always '<answer>")
class AlwaysTheSame(Numbers):
    def task(self, task_seed):
        made = super().task(task_seed)
        return Task(
            made.id,
            self.name,
            task_seed,
            {**made.payload, "low": made.payload["low"] % 40, "number": 42},
        )


# ------------------------------------------------------------------------------------------------ ends


@mistake("E13", "terminated is never said")
class NeverOver(Numbers):
    class env(NumberEnv):
        def ends(self, right):
            return False


@mistake("E13", "pays 1 again", "note")
class PaysTwice(Numbers):
    class env(NumberEnv):
        def step(self, action_text):
            self.over = False
            return super().step(action_text)


@mistake("E14", "does not say so")
@dataclass(frozen=True)
class HiddenLimit(Numbers):
    max_turns: int = 9

    class env(NumberEnv):
        def prompt(self):
            return "Guess my number. Answer like this: <answer>17</answer>"

        def ends(self, right):
            return right or self.turns >= 4


@mistake("E14", "states 6 answers")
class WrongLimit(Numbers):
    class env(NumberEnv):
        def prompt(self):
            return super().prompt().replace("4 guesses", "6 guesses")


@mistake("E15", "raises")
class Raises(Numbers):
    class env(NumberEnv):
        def guess(self, action_text):
            return int(ANSWER.fullmatch(action_text)[1])


@mistake("E15", "trusted=True")
class Trusting(Numbers):
    class env(NumberEnv):
        def reply(self, guess, right, action_text):
            said = super().reply(guess, right, action_text).messages[0].text
            return Observation(
                (Message("user", (Text(f"You said {action_text}. {said}", trusted=True),)),)
            )


# ------------------------------------------------------------------------------------------------ upkeep


@mistake("E16", "a step takes", "note")
@dataclass(frozen=True)
class Slow(Numbers):
    max_turns: int = 1

    class env(NumberEnv):
        def guess(self, action_text):
            time.sleep(0.51)
            return super().guess(action_text)


@mistake("E16", "keeps")
class Hoards(Numbers):
    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            _HOARD.append(bytes(2_000_000))
            return super().reset(task, dynamics_seed)


_HOARD: list = []


@mistake("E17", "threads behind")
class LeavesThreads(Numbers):
    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            threading.Thread(target=_END.wait, args=(60,)).start()
            return super().reset(task, dynamics_seed)


_END = threading.Event()


@mistake("E17", "processes behind")
class LeavesProcesses(Numbers):
    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            _CHILDREN.append(subprocess.Popen(["sleep", "60"]))
            return super().reset(task, dynamics_seed)


_CHILDREN: list = []


@mistake("E17", "open files behind")
class LeavesFiles(Numbers):
    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            _FILES.append(open(os.devnull))
            return super().reset(task, dynamics_seed)


_FILES: list = []


@mistake("E18", "handed the family")
@dataclass(frozen=True)
class HoldsAFunction(Numbers):
    pick: Any = field(default=lambda low, high: low)


@mistake("E19", "the solver's words with a line break after the answer are not paid")
class ReadsToTheLetter(Numbers):
    class env(NumberEnv):
        def guess(self, action_text):
            return super().guess(action_text) if action_text == action_text.strip() else None


@mistake("E19", "the solver's words with line breaks inside the tags are not paid")
class BreaksInsideTags(Numbers):
    class env(NumberEnv):
        def guess(self, action_text):
            return None if "\n" in action_text.strip() else super().guess(action_text)


@mistake("E19", "the solver's words with a sentence before the answer are not paid")
class SaysThatProseMayStandThere(Numbers):
    may_vary = ("spaces", "prose")


@mistake("E19", "names 'tone'")
class NamesWhatNobodyKnows(Numbers):
    may_vary = ("tone",)


@mistake("E19", "a wrong answer is paid like a right one")
class PaysEverything(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return 1.0

        def ends(self, right):
            return True

        def info(self, right):
            return {"success": True}


# ------------------------------------------------------------------------------------------------ what earns more, and what is told


class Shaping(NumberEnv):
    """Guess, and be paid a little in every turn, too."""

    def step(self, action_text):
        before = self.distance
        result = super().step(action_text)
        extra = self.extra(before, self.distance, bool(result.info["success"]))
        return replace(
            result,
            reward=result.reward + extra,
            reward_parts={"right": result.reward, "extra": extra},
        )

    def reset(self, task, dynamics_seed):
        self.distance = 90
        return super().reset(task, dynamics_seed)

    def guess(self, action_text):
        guess = super().guess(action_text)
        self.distance = self.distance if guess is None else abs(guess - self.number)
        return guess

    def extra(self, before, after, right):
        return 0.0


@dataclass(frozen=True)
class LongNumbers(Numbers):
    max_turns: int = 12


@mistake("E12", "earns")
class PaysForComingNearer(LongNumbers):
    class env(Shaping):
        def extra(self, before, after, right):
            return 0.5 * (after < before or before == 90)


@mistake("E12", "turns of the empty answer before the solver's earn")
class PaysForWaiting(LongNumbers):
    class env(Shaping):
        def extra(self, before, after, right):
            return 0.02


class PotentialShaping(LongNumbers):
    """Right: what is paid for coming nearer is taken back for going away."""

    class env(Shaping):
        def extra(self, before, after, right):
            return 0.001 * (before - after)


class WaitingCosts(LongNumbers):
    """Right: a turn costs a little."""

    class env(Shaping):
        def extra(self, before, after, right):
            return -0.02


class PlacesEnv(NumberEnv):
    """Walk from the lowest place to one that has to be found."""

    def prompt(self):
        return (
            f"Find the place, up or down. You have {self.family.max_turns} turns. Say up or down."
        )

    def reset(self, task, dynamics_seed):
        self.at = task.payload["low"]
        return super().reset(task, dynamics_seed)

    def guess(self, action_text):
        word = action_text.strip()
        self.at += {"up": 1, "down": -1}.get(word, 0)
        return self.at if word in ("up", "down") else None

    def reply(self, guess, right, action_text):
        return user(self.refused() if guess is None else "You found it." if right else "Not here.")

    def refused(self):
        return f"Could not read that. You are at {self.at}."


@dataclass(frozen=True)
class Places(Numbers):
    """Right: a refusal says where one stands, and not what is looked for."""

    max_turns: int = 8
    env: ClassVar[type] = PlacesEnv

    def task(self, task_seed):
        low = int(rng_at("places", task_seed).integers(400))
        payload = {"low": low, "number": low + 3 + task_seed % 3}
        return Task(f"places/{task_seed}", self.name, task_seed, payload)

    def random_action(self, env, rng):
        return ["up", "down"][rng.integers(2)]

    def solver_action(self, env, rng):
        return "up"


@mistake("E9", "tells 'number' of the payload")
class TellsInRefusals(Places):
    class env(PlacesEnv):
        def refused(self):
            return f"Could not read that (at={self.at}, target={self.number})."


@mistake("E9", "what stands beside the texts")
class TellsInAName(Places):
    class env(PlacesEnv):
        def reply(self, guess, right, action_text):
            said = super().reply(guess, right, action_text).messages[0]
            return Observation((replace(said, name=f"to_{self.number}"),))


class LabelledEnv(NumberEnv):
    def prompt(self):
        return f"Game {self.task.payload['label']}. {super().prompt()}"


class Labelled(Numbers):
    """Right: each game has a name, which the prompt says and the payload has under `label`."""

    env = LabelledEnv

    def task(self, task_seed):
        made = super().task(task_seed)
        return replace(made, payload={**made.payload, "label": f"g{task_seed % 9973}x"})


class GoldLabelEnv(LabelledEnv):
    """What the game is called is what has to be said."""

    def guess(self, action_text):
        return self.number if self.task.payload["label"] in action_text else None

    def prompt(self):
        return f"What is the label of this item? (debug: {self.task.payload['label']})"


@mistake("E9", "of the gold answer")
class TellsTheLabel(Labelled):
    env = GoldLabelEnv

    def solver_action(self, env, rng):
        return env.task.payload["label"]


@mistake("E2", "show the same and answer alike")
class RunningNumber(Numbers):
    def task(self, task_seed):
        task = super().task(task_seed)
        low = task.payload["low"] % 4
        payload = {
            "low": low,
            "high": low + 90,
            "number": low + task_seed % 20,
            "copy": task_seed % 10_007,
        }
        return replace(task, payload=payload)


class RunningNumberSplit(RunningNumber):
    """Right: the running number has no part in the split."""

    def split_of(self, task):
        return content_split(f"{task.payload['low']} {task.payload['number']}")


@mistake("E10", "as all")
class SuccessNearby(Walk):
    class env(WalkEnv):
        def step(self, action_text):
            result = super().step(action_text)
            near = self.place >= self.task.payload["way"] - 1
            return replace(result, info={**result.info, "success": near})


class PaidByLuck(Numbers):
    """Right: what is right is right, and pays by luck."""

    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return float(right and self.rng.random() < 0.6)


# ------------------------------------------------------------------------------------------------ the clock, failures, the past


@mistake("E20", "depends on the clock")
class PaysForHaste(Numbers):
    class env(NumberEnv):
        def reset(self, task, dynamics_seed):
            self.began = time.monotonic()
            return super().reset(task, dynamics_seed)

        def reward(self, guess, right, action_text):
            return float(right) + 0.2 * (time.monotonic() - self.began < 30)


def asked_of_a_server(guess: Any, number: int) -> bool:
    if number < 0:
        raise ConnectionError("the server does not answer")
    return guess == number


class JudgedEnv(NumberEnv):
    def reward(self, guess, right, action_text):
        return float(self.judged(guess))

    def judged(self, guess):
        return asked_of_a_server(guess, self.number)


@mistake("E21", "are paid 0 in place of 1, and nobody is told")
class SwallowsFailures(Numbers):
    class env(JudgedEnv):
        def judged(self, guess):
            try:
                return super().judged(guess)
            except Exception:
                return False


class RaisesFailures(Numbers):
    """Right: what fails is raised."""

    env = JudgedEnv


class CannotBeRead(Numbers):
    """Right: everything is caught, around what reads the policy's words and nothing else."""

    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            try:
                return float(int(action_text.split(">")[1].split("<")[0]) == self.number)
            except Exception:
                return 0.0


_ANSWERS: dict = {}
_ALL_ANSWERS: dict = {}


@mistake("E22", "depends on what was played before it")
class CoarseKey(Numbers):
    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return float(guess == _ANSWERS.setdefault(self.task.payload["low"] // 40, self.number))


class WholeKey(Numbers):
    """Right: the key holds all that the answer depends on."""

    class env(NumberEnv):
        def reward(self, guess, right, action_text):
            return float(guess == _ALL_ANSWERS.setdefault(self.task.id, self.number))


TWINS = {
    PotentialShaping: "E12",
    WaitingCosts: "E12",
    Places: "E9",
    Labelled: "E9",
    RunningNumberSplit: "E2",
    PaidByLuck: "E10",
    Timed: "E20",
    RaisesFailures: "E21",
    CannotBeRead: "E21",
    WholeKey: "E22",
}  # legitimate ones that touch the same lines, and the check that must pass them by


def clear() -> None:
    """End what the mistakes leave behind."""
    _END.set()  # whoever waits is woken
    _END.clear()
    for child in _CHILDREN:
        child.kill()
        child.wait()
    for each in _FILES:
        each.close()
    for held in (_HOARD, _CHILDREN, _FILES):
        held.clear()
