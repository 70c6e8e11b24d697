"""Environments of OpenEnv, which live behind a server of their own: one session of its WebSocket for each trajectory.

    python -m my_env.server.app                          the server, wherever it runs
    workbench train frozenlake --set env.kind=openenv --set env.url=http://127.0.0.1:8000 --set env.action=message

What is spoken is the protocol of `openenv`'s own client; the package itself is not needed here, and could not be
installed beside this one (it insists on mcp below 2). The answer's text goes into the field `action` of the action, or
is the whole action, a JSON object. Of the observation the fields in `shown` are shown, or all of it.

What a trajectory earns is what the server says. A step for which it names no reward pays nothing, and a trajectory that was
told none at all, though it acted, is unscored. Success is a declared rule, `success_reward`. An action that the server's
own model refuses pays `format_penalty` and changes nothing; what its code raises ends the trajectory as a fault.

Seeds (invariant 7): the server's reset takes the task's seed as `seed`; where an argument of it takes the dynamics seed, say
which, else trajectories of a group share their dice. Whether it does the same again from the same seeds, nobody can see from
here: `deterministic` says so. The lint replays trajectories where it does, and where the server is on this machine.
Source: github.com/huggingface/OpenEnv (openenv 0.10).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import above, check_settings
from workbench.extensions.adapters.openenv_session import (
    SAID,
    ActionRefused,
    OpenEnvSession,
    address_of,
)
from workbench.extensions.adapters.packages import SEEDS, refused
from workbench.tools.action_format import format_action, parse_answer, user_message
from workbench.values import Observation, StepResult, Task, Text
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.game_settings import FormatPenalty, MaxTurns, Think

MOST_CHARACTERS = 20_000  # that are shown of an observation


@dataclass(frozen=True)
class OpenEnv:
    """One server's environment. The fields are the only configuration."""

    url: Annotated[str, "of the server: http://HOST:PORT, or https, ws, wss"] = (
        "http://127.0.0.1:8000"
    )
    action: Annotated[
        str,
        "field of the action that takes the answer's text; empty: the answer is the action, a JSON "
        "object",
    ] = "message"
    fields: Annotated[Mapping[str, Any], "other fields of the action, the same in every step"] = (
        field(default_factory=dict)
    )
    shown: Annotated[
        tuple[str, ...],
        "fields of the observation that are shown, as a.b where one lies in another; none: all "
        "of it, as JSON",
    ] = ()
    instructions: Annotated[str, "your words before the first observation"] = ""
    options: Annotated[Mapping[str, Any], "other arguments of the server's reset"] = field(
        default_factory=dict
    )
    seed: Annotated[
        str, "argument of the server's reset that takes the task's seed; empty: none does"
    ] = "seed"
    dynamics_seed: Annotated[
        str,
        "argument of it that takes the trajectory's dynamics seed; empty: none does, and a group "
        "shares its dice",
    ] = ""
    deterministic: Annotated[
        bool, "the server does the same again from the same seeds and actions"
    ] = False
    success_reward: Annotated[
        float | None, "success: some step pays at least this; none: not known"
    ] = None
    moves: Annotated[
        tuple[str, ...], "answers that random play draws from; none: there is no random play"
    ] = ()
    deadline_s: Annotated[
        float, above(0), "of connecting and of each answer, in seconds of the wall clock"
    ] = 30.0
    max_turns: MaxTurns = 20
    think: Think = True
    format_penalty: FormatPenalty = -0.1

    name: ClassVar[str] = "openenv"
    holds_session: ClassVar[bool] = True  # of which a server has so many

    def __post_init__(self) -> None:
        check_settings(self)
        if address_of(self.url) is None:
            raise ConfigError(
                f"env.url is http://HOST:PORT of an OpenEnv server (or https, ws, wss), got {self.url!r}"
            )
        seeds = {self.seed, self.dynamics_seed} - {""}
        is_taken = bool(seeds & set(self.options)) or self.action in self.fields
        if is_taken or self.seed and self.seed == self.dynamics_seed:
            raise ConfigError(
                f"what a server is told has one source: env.action = {self.action!r} and env.fields, or env.seed "
                f"= {self.seed!r}, env.dynamics_seed = {self.dynamics_seed!r} and env.options, name a field twice"
            )

    @property
    def remote(self) -> bool:
        """Whether it is somebody else's server, or may be: only one of this machine is asked by the lint."""
        host = address_of(self.url).hostname
        try:
            return host != "localhost" and not ip_address(host).is_loopback
        except ValueError:
            return True

    @property
    def label(self) -> str:
        return f"OpenEnv: {self.url}"

    def check_files(self) -> None:
        """Raises ConfigError where no OpenEnv server answers."""
        session = OpenEnvSession(self.url, self.deadline_s)
        try:
            session.open()
            session.ask("state", None, "state")
        except EnvError as error:
            raise ConfigError(f"env.url: {error}") from error
        finally:
            session.close()

    def task(self, task_seed: int) -> Task:
        return Task(
            f"openenv/{task_seed}", self.name, int(task_seed), {"seed": int(task_seed) % SEEDS}
        )

    def make(self) -> OpenEnvEnv:
        return OpenEnvEnv(self)

    @property
    def random_action(self) -> Callable[[OpenEnvEnv, np.random.Generator], str]:
        """AttributeError, so none known, where nothing says what may be drawn."""
        if not self.moves:
            raise AttributeError("an OpenEnv server lists no actions; name answers in env.moves")
        return lambda env, rng: format_action(
            [self.moves[rng.integers(len(self.moves))]], think=self.think
        )

    def action_of(self, answer: str) -> Mapping[str, Any] | None:
        """What the server is sent; None where the answer should be a JSON object, and is none."""
        if self.action:
            return {**self.fields, self.action: answer.strip()}
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        return {**self.fields, **value} if isinstance(value, dict) else None


class OpenEnvEnv:
    """One trajectory, in a session of its own."""

    def __init__(self, family: OpenEnv) -> None:
        self.family = family
        self.session = OpenEnvSession(family.url, family.deadline_s)
        self.acted = False
        self.finished = True
        self.success = False
        self.turns = 0
        self.paid = False
        self._seen = ""

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        family = self.family
        arguments = {
            **family.options,
            family.seed: task.payload["seed"],
            family.dynamics_seed: int(dynamics_seed) % SEEDS,
        }
        arguments.pop("", None)  # of a seed that no argument takes
        self.session.open()
        data = self.session.ask("reset", arguments)
        if data["done"]:
            raise EnvError(
                f"{family.url}: task {task.id!r} is over before it began: reset answered with done = true"
            )
        self.finished = False
        self.success = False
        self.acted = False
        self.turns = 0
        self.paid = data["reward"] is not None
        self._seen = shown_observation(data["observation"], family.shown)
        words = f"{family.instructions}\n\n" if family.instructions else ""
        form = (
            f"One answer a turn, {family.max_turns} answers at most. Answer like this: "
            f"{self._example}\n\n"
        )
        return user_message(Text(words), Text(form, trusted=True), Text(self._seen))

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        self.turns += 1
        parsed = parse_answer(action_text, think=self.family.think)
        answer = parsed.moves[0] if parsed.valid else ""
        action = self.family.action_of(answer) if parsed.valid else None
        complaint = parsed.complaint
        if not complaint and action is None:
            complaint = "The answer is no JSON object."
        known = {} if self.family.success_reward is None else {"success": self.success}
        quote = parsed.quote
        if not complaint:
            data, quote = self._taken(action)
            if not quote:
                return self._result(data, answer, known)
            complaint = "The environment does not take this action."
        penalty = float(self.family.format_penalty)
        result = refused(complaint, quote, self._example, penalty, self._seen, known)
        return replace(result, reward=None, reward_parts={}) if self._unscored else result

    def _taken(self, action: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """(what came of the action, "") or (nothing, why the server's model of an action refuses it)."""
        try:
            return self.session.ask("step", action), ""
        except ActionRefused as refusal:
            own = self.family.action
            for error in refusal.errors:
                is_of_another = (error.get("loc") or [own])[0] != own
                if own and (is_of_another or error.get("type") == "missing"):
                    raise EnvError(
                        f"{self.family.url} takes other fields in an action than {', '.join(action)}: {refusal}. "
                        "Name them in env.action and env.fields"
                    ) from refusal
            reasons = "; ".join(str(error.get("msg", "")) for error in refusal.errors)
            return {}, reasons[:SAID] or "not valid"

    def _result(self, data: Mapping[str, Any], answer: str, known: dict[str, Any]) -> StepResult:
        reward = data["reward"]
        self.finished = data["done"]
        self._seen = shown_observation(data["observation"], self.family.shown)
        self.acted = True
        self.paid = self.paid or reward is not None
        if known:
            self.success |= reward is not None and reward >= self.family.success_reward
            known = {"success": self.success}
        if reward is None and not self._unscored:
            reward = 0.0
        info = {**known, "valid_format": True, "complaint": "", "moves": [answer.strip()]}
        parts = {} if reward is None else {"reward": reward, "format": 0.0}
        return StepResult(user_message(Text(self._seen)), reward, parts, self.finished, info=info)

    def close(self) -> None:
        self.finished = True
        self.session.close()

    @property
    def _unscored(self) -> bool:
        """Whether it is over, and of all that it did nothing was told a reward."""
        is_over = self.finished or self.turns >= self.family.max_turns
        return self.acted and not self.paid and is_over

    @property
    def _example(self) -> str:
        moves = ["your action"] if self.family.action else ['{"field": "value"}']
        return format_action(moves, think=self.family.think, thought="plan")


def shown_observation(seen: Mapping[str, Any], names: Sequence[str]) -> str:
    """An observation as text: the named fields, one below the other, or all but empty metadata as JSON."""

    def value_of(name: str) -> Any:
        try:
            return reduce(lambda value, part: value[part], name.split("."), seen)
        except (KeyError, TypeError):
            raise EnvError(
                f"env.shown: the observation has no {name!r}; it has {', '.join(sorted(seen))}"
            ) from None

    values = [value_of(name) for name in names]
    if not names:
        values = [{name: value for name, value in seen.items() if value != {}}]
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in values
    ]
    return "\n".join(texts)[:MOST_CHARACTERS]
