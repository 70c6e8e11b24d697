"""Games of TextArena, for one player or against opponents.

What a player writes is the game's own business: the action is the answer's text as it stands, such as `[4]`. In games
for several, the other seats are played by `opponent`: "random", or a function of the user's, package.module:name,
called with (what the game says to that player, a numpy generator) for its action's text; or another policy, or a model
behind a server (`workbench.rollouts.opponents`), which is shown all that the game said to its seat and what it answered,
in the policy's own format, and whose unreadable answers go to the game as they stand. Opponents are part of the
environment: what they say comes to the policy as the game tells it, and is never trained.

Random play, the policy's and an opponent's, draws one of the moves in brackets that the game lists as available, or
one of `moves` where it lists none; a game without either has no random play. No game has a solver here. What a
trajectory earns is the game's reward for the policy's seat, paid at its end; success is a reward of 1, which is
TextArena's for a game won.

Seeds (invariant 7): the games draw from Python's global generator. It is theirs only while they run: seeded by the task for
the start, by the dynamics seed from then on, and put back as it was after every call, so that trajectories share no dice.
Source: Guertler et al. 2025 (TextArena, arXiv 2504.11442).
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.plugins import load_called
from workbench.basics.settings import at_least, check_settings
from workbench.extensions.adapters.packages import SEEDS, package
from workbench.tools.action_format import format_action, parse_answer, refusal, user_message
from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.game_settings import FormatPenalty, MaxTurns, Think

_GLOBAL = threading.Lock()  # Python's generator belongs to one game at a time
_MOVE = re.compile(r"\[[^\[\]\n]{1,30}\]")
_MOST_REPLIES = 500  # of opponents in a row
MOST_CHARACTERS = 20_000  # of what a game says in a turn


@dataclass(frozen=True)
class TextArena:
    """One game. The fields are the only configuration."""

    id: Annotated[str, "in TextArena's registry"] = "GuessTheNumber-v0"
    options: Annotated[Mapping[str, Any], "handed to textarena.make"] = field(default_factory=dict)
    players: Annotated[int, at_least(1, most=1_000), "of the game"] = 1
    seat: Annotated[int, at_least(0, most=1_000), "that the policy plays"] = 0
    opponent: Annotated[
        str,
        "who plays the other seats: random, package.module:function, or another policy: "
        "workbench.rollouts.opponents:policy(NAME OR FOLDER)",
    ] = "random"
    moves: Annotated[tuple[str, ...], "that random play draws from where the game lists none"] = ()
    max_turns: MaxTurns = 20
    think: Think = True
    format_penalty: FormatPenalty = -0.1

    name: ClassVar[str] = "textarena"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.seat >= self.players:
            raise ConfigError(
                f"env.seat = {self.seat} is not one of the {self.players} seats, which count from 0"
            )
        if self.opponent != "random" and ":" not in self.opponent:
            raise ConfigError(
                f"env.opponent is random or package.module:function, got {self.opponent!r}"
            )

    @property
    def deterministic(self) -> bool:
        """Not where an opponent says that it is not: a model behind a server."""
        return self.players == 1 or getattr(opponent_of(self), "deterministic", True)

    @property
    def label(self) -> str:
        against = ""
        if self.players > 1:
            against = f", {self.players} players, seat {self.seat}, against {self.opponent}"
        return f"TextArena: {self.id}{against}"

    def task(self, task_seed: int) -> Task:
        return Task(
            f"{self.id}/{task_seed}", self.name, int(task_seed), {"seed": int(task_seed) % SEEDS}
        )

    def make(self) -> TextArenaEnv:
        return TextArenaEnv(self)

    @property
    def random_action(self) -> Callable[[TextArenaEnv, np.random.Generator], str]:
        """AttributeError, so none known, where no moves are known to draw from."""
        if not self.moves:
            env = self.make()
            env.reset(self.task(0), 0)
            if not listed_moves(env.said):
                raise AttributeError(f"{self.id} lists no moves; name them in env.moves")
        return lambda env, rng: format_action(
            [random_move(env.said, rng, self.moves)], think=self.think
        )


class TextArenaEnv:
    """One trajectory."""

    def __init__(self, family: TextArena) -> None:
        arena = package("textarena", "textarena")
        self.family = family
        opponent_of(family)  # said now, where there is none
        self._talks: dict[int, list[Message]] = {}
        try:
            self.game = arena.make(f"{family.id}-raw", **family.options)  # only what is new is said
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"TextArena cannot make {family.id!r} with {dict(family.options)}: {error}"
            ) from error
        self.said = ""
        self.turns = 0
        self.finished = True
        self._dice = random.Random(0).getstate()
        self._over = True  # the game; in the opening it can be before the policy's first turn, which then ends the trajectory

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        seed = task.payload["seed"]
        self._talks = {}
        self._over = False
        self._dice = random.Random(seed).getstate()
        with self._own_dice():
            self.game.reset(num_players=self.family.players, seed=seed)
        if not self._is_my_turn():  # what opponents do before the first turn belongs to the task
            self._others_play(rng_at("textarena.opening", seed))
        self._dice = random.Random(dynamics_seed).getstate()
        self._rng = rng_at("textarena.opponent", dynamics_seed)
        self.turns = 0
        self.finished = False
        self.said = self._heard(self.family.seat)
        return user_message(self._manner, Text(self.said))

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        self.turns += 1
        parsed = parse_answer(action_text, think=self.family.think)
        moves = [part.strip() for part in parsed.moves]
        info = {
            "success": False,
            "valid_format": parsed.valid,
            "complaint": parsed.complaint,
            "moves": moves,
        }
        if not parsed.valid:
            words = refusal(parsed.complaint, parsed.quote, self._example)
            penalty = float(self.family.format_penalty)
            parts = {"game": 0.0, "format": penalty}
            return StepResult(user_message(*words, Text(self.said)), penalty, parts, info=info)
        if not self._over:
            with self._own_dice():
                self._over = bool(self.game.step(moves[0])[0])
        if not self._over and not self._is_my_turn():
            self._others_play(self._rng)
        self.finished = self._over
        reward = self._reward() if self.finished else 0.0
        self.said = self._heard(self.family.seat) or "The game is over." * self.finished
        info["success"] = self.finished and reward >= 1.0
        parts = {"game": reward, "format": 0.0}
        return StepResult(user_message(Text(self.said)), reward, parts, self.finished, info=info)

    def close(self) -> None:
        self.finished = True

    @property
    def _example(self) -> str:
        return format_action(["your action"], think=self.family.think, thought="plan")

    @property
    def _manner(self) -> Text:
        return Text(
            f"One answer a turn, {self.family.max_turns} answers at most. Answer like this: {self._example}\n\n",
            trusted=True,
        )

    def _is_my_turn(self) -> bool:
        return self.game.state.current_player_id == self.family.seat

    def _others_play(self, rng: np.random.Generator) -> None:
        """Until it is the policy's turn, or the game is over."""
        for _ in range(_MOST_REPLIES):
            action = self._action_of(self.game.state.current_player_id, rng)
            with self._own_dice():
                self._over = bool(self.game.step(action)[0])
            if self._over or self._is_my_turn():
                return
        raise EnvError(
            f"{self.family.id}: {_MOST_REPLIES} actions of opponents, and it is still not the policy's turn"
        )

    def _action_of(self, seat: int, rng: np.random.Generator) -> str:
        """Of an opponent. One that converses is shown its whole conversation."""
        opponent = opponent_of(self.family)
        heard = self._heard(seat)
        if not getattr(opponent, "converses", False):
            return str(opponent(heard, rng))
        talk = self._talks.setdefault(seat, [])
        talk.append(Message("user", (Text(heard),) if talk else (self._manner, Text(heard))))
        text = opponent(Observation(tuple(talk)), rng)
        talk.append(Message("assistant", text))
        answer = parse_answer(text, think=self.family.think)
        return answer.moves[0].strip() if answer.valid else text

    def _heard(self, seat: int) -> str:
        """What the game says to a seat and has not said before."""
        heard = self.game.state.observations[seat]
        self.game.state.observations[seat] = []
        lines = [str(message) for _, message, *_ in heard or ()]
        return "\n".join(lines)[-MOST_CHARACTERS:].strip()

    def _reward(self) -> float:
        rewards, _ = self.game.close()
        return float((rewards or {}).get(self.family.seat, 0.0))

    @contextmanager
    def _own_dice(self) -> Iterator[None]:
        with _GLOBAL:
            before = random.getstate()
            random.setstate(self._dice)
            try:
                yield
            finally:
                self._dice = random.getstate()
                random.setstate(before)


def listed_moves(said: str) -> list[str]:
    """The moves in brackets behind the last "available" in what a game says."""
    place = said.lower().rfind("available")
    return _MOVE.findall(said[place:]) if place >= 0 else []


def random_move(said: str, rng: np.random.Generator, otherwise: tuple[str, ...] = ()) -> str:
    """One of the moves that the game lists, or one of `otherwise`; "" where there is neither."""
    moves = listed_moves(said) or list(otherwise)
    return moves[rng.integers(len(moves))] if moves else ""


def opponent_of(family: TextArena) -> Callable[..., str]:
    """Who plays the other seats. Raises ConfigError for one that cannot be had."""
    if family.opponent == "random":
        return lambda said, rng: random_move(said, rng, family.moves)
    return _named(family.opponent)


@lru_cache(maxsize=8)
def _named(opponent: str) -> Callable[..., str]:
    """Made once in a process: a policy is loaded for all trajectories."""
    return load_called(opponent, "env.opponent")
