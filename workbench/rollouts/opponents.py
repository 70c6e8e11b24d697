"""Opponents that are models: a server's, or a policy of this machine through an engine of its own.

Both are called as `envs.opponents.OpponentEnv` calls an opponent: `opponent(observation, rng) -> str`. In settings they are
named, and made, by a text, as the opponent of a TextArena game is:

    env.opponent = "workbench.rollouts.opponents:policy(search-tiny)"                  by name, or by folder
    env.opponent = "workbench.rollouts.opponents:endpoint(http://127.0.0.1:8000/v1 MODEL)"

Of a run, `workbench export RUN FOLDER` writes such a folder: training against an earlier self is a run whose opponent is
that folder. The weights that are being trained cannot be the opponent: environments know no learner, and may live in
other processes. Nor is an opponent's seat ever trained, as its turns are no trajectory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from workbench.chat import ChatFormat
from workbench.engines import open_engine
from workbench.engines.base import Request
from workbench.engines.config import TransformersEngineConfig
from workbench.engines.endpoint import Endpoint, Reply
from workbench.engines.policy import load_policy
from workbench.values import Observation
from workbench.values.errors import ConfigError, EngineError


@dataclass(frozen=True)
class EndpointOpponent:
    """A model behind an OpenAI-compatible server. Its words have no address: the same trajectory may go another way."""

    endpoint: Endpoint
    temperature: float = 1.0
    max_tokens: int = 256

    converses: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False

    def __call__(self, observation: Observation, rng: np.random.Generator) -> str:
        messages = [
            {"role": message.role, "content": message.text} for message in observation.messages
        ]
        pieces = self.endpoint.stream(
            messages, temperature=self.temperature, top_p=1.0, max_tokens=self.max_tokens
        )
        for piece in pieces:
            if isinstance(piece, Reply):
                return piece.text
        raise EngineError(f"{self.endpoint.url} ended without a reply")


@dataclass
class PolicyOpponent:
    """A policy by its name or folder, in an engine of its own; its weights never change. Opened with its first reply."""

    policy: str
    temperature: float = 1.0
    max_tokens: int = 64
    _opened: list[Any] = field(default_factory=list, repr=False)
    # an engine has one caller
    _one_caller: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    converses: ClassVar[bool] = True

    def __call__(self, observation: Observation, rng: np.random.Generator) -> str:
        with self._one_caller:
            return self._reply(observation, int(rng.integers(2**62)))

    def _reply(self, observation: Observation, seed: int) -> str:
        if not self._opened:
            policy = load_policy(self.policy)
            self._opened = [
                ChatFormat.from_tokenizer(policy.tokenizer),
                open_engine(TransformersEngineConfig(), policy.model),
            ]
        chat, engine = self._opened
        prompt_ids = np.concatenate([span.token_ids for span in chat.open(observation)])
        engine.submit(
            Request(
                id=0,
                session="opponent",
                prompt_ids=prompt_ids,
                seed=seed,
                max_new_tokens=self.max_tokens,
                stop_ids=chat.stop_ids,
                temperature=self.temperature,
            )
        )
        done = []
        while not done:
            done = engine.poll()
        engine.release("opponent")
        if done[0].finish == "error":
            raise EngineError(f"the opponent {self.policy} gave no reply: {done[0].error}")
        return chat.action_text(done[0].token_ids)


def policy(name: str) -> PolicyOpponent:
    """An opponent by the name or the folder of a policy, at temperature 1."""
    return PolicyOpponent(name)


def endpoint(where: str) -> EndpointOpponent:
    """An opponent by "URL MODEL", or "URL MODEL VARIABLE" with the environment variable that holds the server's key."""
    words = where.split()
    if len(words) not in (2, 3):
        raise ConfigError(
            f"an endpoint as opponent is endpoint(URL MODEL) or endpoint(URL MODEL VARIABLE), got {where!r}"
        )
    url, model = words[:2]
    key_env = words[2] if len(words) == 3 else ""
    return EndpointOpponent(Endpoint(url, model, key_env))
