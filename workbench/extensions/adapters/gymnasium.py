"""Gymnasium environments with a discrete action space, as text: FrozenLake-v1, Taxi-v4, Blackjack-v1, BabyAI ...

Seeds (invariant 7): a board comes from the task's seed (`reset(seed=...)`), the chance of playing from the dynamics seed: the
environment's generator is seeded anew after the reset, else all trajectories of a group would share their dice. Of an
environment that keeps generators of its own beside `np_random`, that is not true.

What is shown: the grid of a minigrid environment with its mission; else what it renders as text, where it can; else the
observation itself. Colors of a terminal become words, as they may carry what no letter says: {red:S} is an S in red.

Actions have the names that the environment gives them, or `actions`, or numbers; one an answer. Success is a declared
rule, `success_reward`: some step paid at least that; without one success is not known, and policies are compared by
return. Random play draws actions uniformly. The solver is there where the environment has its table of transitions
(`P`): the best action for the answers that are left, by dynamic programming.

Source: gymnasium.farama.org, minigrid.farama.org.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import check_settings
from workbench.extensions.adapters.packages import SEEDS, package, refused
from workbench.tools.action_format import format_action, parse_action, user_message
from workbench.values import Observation, StepResult, Task, Text
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.game_settings import FormatPenalty, MaxTurns, Think

# Names that the packages' documentation, not their code, gives to actions.
ACTIONS: dict[str, tuple[str, ...]] = {
    "FrozenLake": ("Left", "Down", "Right", "Up"),
    "CliffWalking": ("Up", "Right", "Down", "Left"),
    "Taxi": ("South", "North", "East", "West", "Pickup", "Dropoff"),
    "Blackjack": ("Stick", "Hit"),
}
_MINIGRID = ("MiniGrid-", "BabyAI-")
_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
MOST_CHARACTERS = 8_000  # of what is shown of a state


@dataclass(frozen=True)
class Gymnasium:
    """One environment of Gymnasium's registry, or of minigrid's. The fields are the only configuration."""

    id: Annotated[str, "in the registry"] = "FrozenLake-v1"
    options: Annotated[Mapping[str, Any], "handed to gymnasium.make"] = field(default_factory=dict)
    actions: Annotated[
        tuple[str, ...], "names of the actions, in order; none: the environment's own"
    ] = ()
    success_reward: Annotated[
        float | None, "success: some step pays at least this; none: not known"
    ] = None
    max_turns: MaxTurns = 50
    think: Think = True
    format_penalty: FormatPenalty = -0.1

    name: ClassVar[str] = "gymnasium"
    solver_name: ClassVar[str] = "optimal"

    def __post_init__(self) -> None:
        check_settings(self)
        if ":" in self.id:
            raise ConfigError(
                f"env.id names an environment of the registry; {self.id!r} would import code. Write a family "
                "of your own that imports it: subclass Gymnasium and name it module:Name in env.kind"
            )

    @property
    def label(self) -> str:
        return f"Gymnasium: {self.id}{''.join(f', {name} {value}' for name, value in self.options.items())}"

    def opened(self) -> Any:
        """The environment itself, new. Raises ConfigError for what the registry refuses."""
        gym = package("gymnasium", "gymnasium")
        if self.id.startswith(_MINIGRID):
            package("minigrid", "minigrid")  # registers them
        try:
            spec = gym.spec(self.id)
            text = {}
            if not self.id.startswith(_MINIGRID) and "ansi" in _modes(spec):
                text = {"render_mode": "ansi"}
            env = gym.make(self.id, disable_env_checker=True, **text, **self.options)
        except (gym.error.Error, TypeError) as error:
            raise ConfigError(
                f"gymnasium cannot make {self.id!r} with {dict(self.options)}: {error}"
            ) from error
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise ConfigError(
                f"{self.id} has the action space {env.action_space}; only Discrete ones are played"
            )
        return env

    def names_of(self, env: Any) -> tuple[str, ...]:
        """The names of its actions."""
        count = int(env.action_space.n)
        known = ACTIONS.get(self.id.split("-")[0], ())
        own = []
        if self.id.startswith(_MINIGRID):
            own = [action.name for action in getattr(env.unwrapped, "actions", ())]
        names = tuple(self.actions or own or known or map(str, range(count)))
        if len(names) != count or len({name.lower() for name in names}) != count:
            raise ConfigError(
                f"{self.id} has {count} actions, and needs as many different names; env.actions has {names}"
            )
        return names

    # -------------------------------------------------------------------------------------------- tasks and baselines

    def task(self, task_seed: int) -> Task:
        return Task(
            f"{self.id}/{task_seed}", self.name, int(task_seed), {"seed": int(task_seed) % SEEDS}
        )

    def make(self) -> GymnasiumEnv:
        return GymnasiumEnv(self)

    def random_action(self, env: GymnasiumEnv, rng: np.random.Generator) -> str:
        return format_action([env.names[rng.integers(len(env.names))]], think=self.think)

    @property
    def solver_action(self) -> Callable[[GymnasiumEnv, np.random.Generator], str]:
        """AttributeError, so none known, where the environment has no table of transitions."""
        if not hasattr(self.opened().unwrapped, "P"):
            raise AttributeError(f"{self.id} has no table of transitions")
        return lambda env, rng: format_action([env.names[env.best_action()]], think=self.think)


class GymnasiumEnv:
    """One trajectory."""

    def __init__(self, family: Gymnasium) -> None:
        self.family = family
        self.env = family.opened()
        self.names = family.names_of(self.env)
        self.turns = 0
        self.success = False
        self.finished = True

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        seen, _ = self.env.reset(seed=task.payload["seed"])
        self.env.unwrapped.np_random = np.random.Generator(np.random.PCG64(dynamics_seed))
        self.turns = 0
        self.success = False
        self.finished = False
        names = ", ".join(self.names)
        instructions = (
            f"You play {self.family.id}. Actions: {names}. One action an answer, {self.family.max_turns} "
            f"answers.\nAnswer like this: {self._example}\n\n"
        )
        self._shown = shown_state(self.env, seen)
        return user_message(Text(instructions), Text(self._shown))

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        self.turns += 1
        parsed = parse_action(action_text, self.names, think=self.family.think)
        complaint = parsed.complaint
        if not complaint and len(parsed.moves) > 1:
            complaint = "The answer names more than one action."
        known = {} if self.family.success_reward is None else {"success": self.success}
        if complaint:
            penalty = float(self.family.format_penalty)
            return refused(complaint, parsed.quote, self._example, penalty, self._shown, known)
        action = self.names.index(parsed.moves[0]) + int(self.env.action_space.start)
        seen, reward, terminated, truncated, _ = self.env.step(action)
        self.finished = bool(terminated or truncated)
        self._shown = shown_state(self.env, seen)
        if known:
            self.success |= float(reward) >= self.family.success_reward
            known = {"success": self.success}
        info = {
            **known,
            "moves": list(parsed.moves),
            "valid_format": True,
            "complaint": "",
            "effective": True,
        }
        return StepResult(
            user_message(Text(self._shown)),
            float(reward),
            {"reward": float(reward), "format": 0.0},
            bool(terminated),
            bool(truncated),
            info,
        )

    def best_action(self) -> int:
        """Of an environment with a table of transitions, for the answers that are left."""
        left = max(self.family.max_turns - self.turns, 1)
        return best_actions(self.family)[left][int(self.env.unwrapped.s)]

    def close(self) -> None:
        self.env.close()

    @property
    def _example(self) -> str:
        return format_action([self.names[0]], think=self.family.think, thought="plan")


def shown_state(env: Any, seen: Any) -> str:
    """A state as text, printable."""
    core = env.unwrapped
    if hasattr(core, "pprint_grid"):
        text = f"{getattr(core, 'mission', '')}\n{core.pprint_grid()}"
    else:
        text = env.render() if env.render_mode == "ansi" else str(_plain(seen))
    return _CONTROL.sub("", colors_as_words(str(text)))[:MOST_CHARACTERS]


def colors_as_words(text: str) -> str:
    """{red:S} for a red S; two colors where the letter has one and the ground behind it another."""
    first, *rest = _STYLE.split(text)
    words = [first]
    colors = []
    for codes, piece in zip(rest[::2], rest[1::2]):
        for code in (int(code or 0) for code in codes[:40].split(";")):
            if not code:
                colors = []
            elif code // 10 in (3, 4) and code % 10 < len(_COLORS):
                # 30 to 37 the letter, 40 to 47 the ground.
                colors = [*colors, _COLORS[code % 10]]
        words.append(f"{{{' '.join(colors)}:{piece}}}" if colors and piece else piece)
    return "".join(words)


def _plain(value: Any) -> Any:
    """Without numpy's types, which print their names."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return type(value)(map(_plain, value)) if isinstance(value, (tuple, list)) else value


def _modes(spec: Any) -> Sequence[str]:
    module, _, name = str(spec.entry_point).partition(":")
    if not name:
        return ()
    return getattr(package(module, "gymnasium"), name).metadata.get("render_modes", ())


_PLANS: dict[str, list[list[int]]] = {}


def best_actions(family: Gymnasium) -> list[list[int]]:
    """[answers left][state] -> the action that earns most on average, exactly."""
    key = repr(family)
    if key not in _PLANS:
        table = family.opened().unwrapped.P
        values = np.zeros(len(table))
        plans = [[0] * len(table)]
        for _ in range(family.max_turns):
            states = [table[state] for state in range(len(table))]
            worth = np.array([_worth_of_actions(actions, values) for actions in states])
            plans.append(worth.argmax(axis=1).tolist())
            values = worth.max(axis=1)
        _PLANS[key] = plans
    return _PLANS[key]


def _worth_of_actions(actions: Mapping[int, Sequence[Any]], values: np.ndarray) -> list[float]:
    """What each action of a state earns on average, what follows it included."""
    worths = []
    for transitions in actions.values():
        worth = 0
        for chance, after, reward, done in transitions:
            worth += chance * (reward + (0.0 if done else values[after]))
        worths.append(worth)
    return worths
