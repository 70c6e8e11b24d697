"""Environments written with openenv's own classes, and served by its own server. python openenv_server.py KIND [SESSIONS]

It prints the port that it listens on, which the system chooses. Runs where openenv is installed.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    number: int = Field(ge=0, le=99)
    loud: bool = False


class Heard(Observation):
    words: str
    inner: dict[str, int] = {}


class Numbers(Environment):
    """Guess the number, 1 to 20; a lie one time in five. Six guesses pay 1.0 at most, and the first reward is told with the
    first guess."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self.dice, self.secret = State(), random.Random(), 0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        dice: int | None = None,
        most: int = 20,
        **kwargs: Any,
    ) -> Heard:
        self.secret = random.Random(seed).randint(1, most)
        self.dice, self._state = random.Random(dice), State(episode_id=episode_id)
        return Heard(words=f"A number from 1 to {most}.", inner={"left": 6})

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        if action.number == 77:
            raise RuntimeError("seventy-seven breaks it")
        if action.number == 66:
            time.sleep(2.0)
        self._state.step_count += 1
        left = 6 - self._state.step_count
        if action.number == self.secret or left == 0:
            return Heard(
                words="Over.",
                inner={"left": left},
                done=True,
                reward=float(action.number == self.secret),
            )
        higher = (self.secret > action.number) != (self.dice.random() < 0.2)
        return Heard(
            words=f"{'HIGHER' if action.loud else 'higher'}" if higher else "lower",
            inner={"left": left},
            reward=0,
        )

    @property
    def state(self) -> State:
        return self._state


class Say(Action):
    text: str


class Echo(Environment):
    """Says what it hears and names no reward, but for "paid"; one session at a time, as environments are by default."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        over: bool = False,
        **kwargs: Any,
    ) -> Heard:
        return Heard(words="Speak.", done=over)

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        return Heard(
            words=f"You said: {action.text}",
            reward=True if action.text == "paid" else None,
            done=action.text == "bye",
        )

    @property
    def state(self) -> State:
        return self._state


class Go(Action):
    way: str


class Board(Observation):
    board: str


class Ways(Environment):
    """One step on a lake's board: the way to the goal pays."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self.way = State(), ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Board:
        self.way = random.Random(seed).choice(("Left", "Right"))
        return Board(board="G P _ _" if self.way == "Left" else "_ _ P G")

    def step(self, action: Go, timeout_s: float | None = None, **kwargs: Any) -> Board:
        return Board(board="Over.", done=True, reward=float(action.way == self.way))

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    kind, sessions = sys.argv[1], int(sys.argv[2])
    made, action, observation = {
        "numbers": (Numbers, Guess, Heard),
        "echo": (Echo, Say, Heard),
        "ways": (Ways, Go, Board),
    }[kind]
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    served = HTTPEnvServer(made, action, observation, max_concurrent_envs=sessions)
    app = FastAPI()
    served.register_routes(app)
    app.get("/sessions")(lambda: {"active": served.active_sessions})
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
