"""The bi-arm bandit: one choice, a safe arm that pays little and a risky one that pays more on average, but rarely.

    safe arm    pays `safe_payout` always (0.15 in the paper, 0.1 in the published code: both are presets)
    risky arm   pays 1.0 with probability `risky_chance` (0.25), else 0.0

Success means that the risky arm, whose mean is higher, was chosen, whatever it happened to pay. The arms' names hint at
their nature; `reversed_names` swaps them, so that the hint misleads. The order of the names is drawn per task.

Seeds (invariant 7): `task_seed` picks names and their order, hence the prompt; the payout is drawn from `dynamics_seed`, so
trajectories of one task share the prompt and differ in luck.

Source: RAGEN (arXiv 2504.20073), whose paper and scripts disagree on the safe payout and on which name of a pair is the
risky one; here a pair is always (safe, risky) by the meaning of the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import at_least, probability
from workbench.tools.action_format import format_action, parse_action, refusal, user_message
from workbench.values import Observation, StepResult, Task, Text, sum_of
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds import reasoning
from workbench.worlds.game_settings import (
    FormatPenalty,
    ReasoningBonus,
    ShowRewards,
    Think,
    check_game,
)
from workbench.worlds.splits import content_split

Pairs = tuple[tuple[str, str], ...]

PAPER_NAMES: Pairs = (("Teacher", "Engineer"),)
PAPER_HELDOUT_NAMES: Pairs = (("Librarian", "Trader"),)
CODE_NAMES: Pairs = (("Phoenix", "Dragon"),)
TRAIN_NAMES: Pairs = (
    ("Teacher", "Engineer"),
    ("Clerk", "Gambler"),
    ("Baker", "Diver"),
    ("Nurse", "Pilot"),
    ("Farmer", "Prospector"),
    ("Tailor", "Smuggler"),
    ("Gardener", "Racer"),
    ("Cook", "Explorer"),
)
HELDOUT_NAMES: Pairs = (
    ("Librarian", "Trader"),
    ("Postman", "Inventor"),
    ("Shepherd", "Pirate"),
    ("Weaver", "Climber"),
)


@dataclass(frozen=True)
class Bandit:
    """A family of two-armed bandits. The fields are its only configuration.

    The bonus for reasoning is earned by a thought that says of an arm truly whether it is the safe or the bold one. That
    pays for what no prompt tells: it names the better arm.
    """

    safe_payout: Annotated[float, "what the safe arm always pays"] = 0.15
    risky_chance: Annotated[
        float, probability(), "that the risky arm pays 1.0; must make it the better one"
    ] = 0.25
    names: Annotated[Pairs, "(safe, risky) pairs of the training tasks"] = TRAIN_NAMES
    heldout_names: Annotated[
        Pairs, "pairs of the held-out tasks; none, or the same ones: known names, drawn anew"
    ] = HELDOUT_NAMES
    reversed_names: Annotated[bool, "swap the roles within every pair"] = False
    max_turns: Annotated[
        int,
        at_least(1, most=10_000),
        "answers; 1: an unreadable answer ends the trajectory without a pull",
    ] = 1
    think: Think = True
    format_penalty: FormatPenalty = -0.1
    show_rewards: ShowRewards = False
    reasoning_bonus: ReasoningBonus = 0.0

    name: ClassVar[str] = "bandit"
    solver_name: ClassVar[str] = "optimal"

    def __post_init__(self) -> None:
        check_game(self)
        for field in ("names", "heldout_names"):
            pairs = tuple(map(tuple, getattr(self, field)))
            if any(len(pair) != 2 or pair[0].lower() == pair[1].lower() for pair in pairs):
                raise ConfigError(
                    f"Bandit.{field} holds pairs of two different names, got {getattr(self, field)!r}"
                )
            if not all(map(_is_name, chain.from_iterable(pairs))):
                raise ConfigError(
                    f"Bandit.{field}: a name is a word without < > | or outer spaces, got {pairs!r}"
                )
            object.__setattr__(self, field, pairs)
        shared = set(self.names) & set(self.heldout_names)
        if not self.names or (shared and self.names != self.heldout_names):
            raise ConfigError(
                "Bandit.names holds at least one pair, and heldout_names other pairs (or none, or all of "
                f"the same ones, on purpose); got {self.names}, {self.heldout_names}"
            )
        if not self.safe_payout < self.risky_chance:
            raise ConfigError(
                f"success means choosing the risky arm, so it must pay more on average: risky_chance "
                f"{self.risky_chance!r} must exceed safe_payout {self.safe_payout!r}"
            )

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """A pair of names, from all of them, and their order."""
        pairs = self.names + self.heldout_names
        rng = rng_at("bandit.task", task_seed)
        number = int(rng.integers(len(pairs)))
        safe, risky = reversed(pairs[number]) if self.reversed_names else pairs[number]
        arms = [safe, risky] if rng.random() < 0.5 else [risky, safe]
        split = "train" if number < len(self.names) else "held-out"
        if not self.heldout_names:
            split = content_split(f"bandit/{task_seed}")
        return Task(
            f"bandit/{task_seed}",
            self.name,
            int(task_seed),
            {"arms": arms, "risky": risky},
            {"split": split},
        )

    def split_of(self, task: Task) -> str:
        """By the names, where some are held out; else by the seed: then held-out tasks are new draws of known names."""
        return task.metadata["split"]

    def make(self) -> BanditEnv:
        return BanditEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: BanditEnv, rng: np.random.Generator) -> str:
        return format_action([env.arms[rng.integers(2)]], think=self.think)

    def solver_action(self, env: BanditEnv, rng: np.random.Generator) -> str:
        """The risky arm: it knows the names' roles, which no prompt tells."""
        return format_action([env.risky], think=self.think)

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        names = "reversed names, " if self.reversed_names else ""
        return (
            f"Bandit, {names}safe {self.safe_payout:.3g}, risky 1 with probability {self.risky_chance:.3g}"
            f"{reasoning.label(self.reasoning_bonus)}"
        )

    @property
    def instructions(self) -> str:
        chances = "You have one answer."
        if self.max_turns > 1:
            chances = f"You have {self.max_turns} answers for one pull."
        return (
            "Pull one of two arms. Each pays in the manner of its name. "
            f"Choose the arm that pays more on average. {chances}\nAnswer like this: {self.example}\n\n"
        )

    @property
    def example(self) -> str:
        return format_action(["name"], think=self.think, thought="plan")


def _is_name(word: str) -> bool:
    return bool(word) and word == word.strip() and not set(word) & set("<>|")


class BanditEnv:
    """One trajectory. Picklable, and rebuilt by (family, task, dynamics_seed)."""

    def __init__(self, family: Bandit) -> None:
        self.family = family
        self.arms: tuple[str, ...] = ()
        self.risky = ""
        self.finished = True
        self.dynamics_seed = 0

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.arms = tuple(task.payload["arms"])
        self.risky = task.payload["risky"]
        if len(self.arms) != 2 or self.risky not in self.arms:
            raise EnvError(
                f"a bandit task has two arms, one of them risky; task {task.id!r} has {dict(task.payload)}"
            )
        self.finished = False
        self.dynamics_seed = int(dynamics_seed)
        return user_message(Text(self.family.instructions, trusted=True), Text(self._state_words()))

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        parsed = parse_action(action_text, self.arms, think=self.family.think)
        complaint = parsed.complaint
        if len(parsed.moves) > 1:
            complaint = "The answer names more than one arm."
        if complaint:
            return self._refuse(complaint, parsed.quote)
        self.finished = True
        arm = parsed.moves[0]
        agreement = ""
        if self.family.think:
            statements = reasoning.bandit_statements(parsed.thought, self.arms, self.risky)
            agreement = reasoning.verdict(statements)
        parts = self._parts(agreement, payout=self._payout(arm), format=0.0)
        words = [Text(f"You pulled {arm}.")]
        if self.family.show_rewards:
            words.append(Text(f"\nReward: {sum_of(parts.values()):g}"))
        info = self._info([arm], "")
        if agreement:
            info["reasoning"] = agreement
        reward = sum_of(parts.values())
        return StepResult(user_message(*words), reward, parts, terminated=True, info=info)

    def snapshot(self) -> dict[str, Any]:
        return {
            "arms": list(self.arms),
            "risky": self.risky,
            "finished": self.finished,
            "dynamics_seed": self.dynamics_seed,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.arms = tuple(snapshot["arms"])
        self.risky = snapshot["risky"]
        self.finished = snapshot["finished"]
        self.dynamics_seed = snapshot["dynamics_seed"]

    def state_key(self) -> str:
        return f"{'/'.join(self.arms)} {'pulled' if self.finished else 'open'}"

    def draw(self) -> str:
        return f"Arms: {self.arms[0]}, {self.arms[1]}"

    def _payout(self, arm: str) -> float:
        if arm != self.risky:
            return float(self.family.safe_payout)
        draw = rng_at("bandit.payout", self.dynamics_seed).random()
        return 1.0 if draw < self.family.risky_chance else 0.0

    def _refuse(self, complaint: str, quote: str) -> StepResult:
        penalty = float(self.family.format_penalty)
        words = refusal(complaint, quote, self.family.example)
        if self.family.show_rewards:
            words.append(Text(f"Reward: {penalty:g}\n"))
        return StepResult(
            user_message(*words, Text(self._state_words())),
            penalty,
            self._parts("", payout=0.0, format=penalty),
            info=self._info([], complaint),
        )

    def _parts(self, agreement: str, **paid: float) -> dict[str, float]:
        bonus = self.family.reasoning_bonus
        if bonus:
            paid["reasoning"] = reasoning.payment(agreement, bonus)
        return paid

    def _info(self, moves: list[str], complaint: str) -> dict[str, Any]:
        return {
            "success": moves == [self.risky],
            "moves": moves,
            "effective": bool(moves),
            "valid_format": not complaint,
            "complaint": complaint,
            "state": self.draw(),
        }

    def _state_words(self) -> str:
        return self.draw()


PRESETS: Mapping[str, Bandit] = MappingProxyType(
    {
        "bandit": Bandit(),
        "bandit-paper": Bandit(
            safe_payout=0.15, names=PAPER_NAMES, heldout_names=PAPER_HELDOUT_NAMES
        ),
        "bandit-code": Bandit(safe_payout=0.1, names=CODE_NAMES, heldout_names=()),
        "bandit-rev": Bandit(
            safe_payout=0.15,
            names=PAPER_NAMES,
            heldout_names=PAPER_HELDOUT_NAMES,
            reversed_names=True,
        ),
        "bandit-test": Bandit(names=HELDOUT_NAMES, heldout_names=()),
    }
)
