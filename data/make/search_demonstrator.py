"""Who shows how to search, imperfectly on purpose: what the shipped search policy imitates before it learns from rewards.

It knows the way through the world and mostly takes the next step of it. But often it answers with the last name it read,
though that is only a city; searches for what leads nowhere new; reads the wrong name off the last document; or slips in the
format. Each of these costs the answer, or a turn: rewards sort them out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from workbench.values.errors import ConfigError
from workbench.worlds.world_qa import WorldEnv


@dataclass(frozen=True)
class SearchDemonstrator:
    """A turn is the right one, or, with these probabilities, one of the following.

    early    before the way ends: the answer is the last name that was read
    stray    before the way ends: a search for the name before that one or, where there is none, for a word of the question
    misread  at its end: the answer is the name before the last
    slip     at any time: a format slip

    All of these are choices among what stands there. Nothing is invented: a policy that copies letters at random has
    nothing that rewards could sort out.
    """

    early: float = 0.16
    stray: float = 0.10
    misread: float = 0.12
    slip: float = 0.04

    def __post_init__(self) -> None:
        if not 0 <= self.early + self.stray <= 1:
            raise ConfigError(
                f"early + stray are shares of the turns and at most 1, got {self.early} + {self.stray}"
            )

    def action(self, env: WorldEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`. Without the tool it must answer: as well as it can from
        what was found, which is the last name that it has read."""
        path, step = env.path, env.steps_known
        habit = rng.random()
        if env.family.context in ("closed", "rag"):
            return self._slipped(env, path[env.family.context == "rag"], True, rng)
        if step == len(path) - 1:
            return self._slipped(env, path[-2] if habit < self.misread else path[-1], True, rng)
        if habit < self.early:
            return self._slipped(env, path[step], True, rng)
        if habit < self.early + self.stray:
            return self._slipped(env, path[step - 1] if step else "country", False, rng)
        return self._slipped(env, path[step], False, rng)

    def _slipped(self, env: WorldEnv, name: str, answers: bool, rng: np.random.Generator) -> str:
        """The turn as text, or one of the ways to get its format wrong: no tags, tags not closed, another key."""
        right = env.format.write_answer(name) if answers else env.search(name)
        if rng.random() >= self.slip:
            return right
        slips = (
            (name, right.replace("</answer>", ""), f"<answer></answer>{name}")
            if answers
            else (
                name,
                right.replace("</tool_call>", ""),
                env.format.write_call("search", {"name": name}),
                json.dumps({"query": name}),
            )
        )
        return slips[rng.integers(len(slips))]
