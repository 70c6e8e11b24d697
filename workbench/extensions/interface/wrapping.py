"""A family whose environments speak and read as `[interface]` says; whatever else they do is their own.

What is sampled is stored and trained as it is: the lenient text goes to the environment alone, and the turn's `info` says
what was forgiven (`forgiven`, a list) or why a text with several meanings was not read (`doubt`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.extensions.interface import answers, prompts, turns
from workbench.extensions.interface.reading import Reading
from workbench.tools.awaiting import is_async
from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.errors import ConfigError
from workbench.worlds import ENVS
from workbench.worlds.base import EnvFamily, Wrapped
from workbench.worlds.interface import InterfaceConfig
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

PAGE = "docs/guides/real_models.md"
FORGIVEN_SHARE = 0.5  # of what a turn earns for its format that one earns which was read leniently


@dataclass(frozen=True)
class EnvInterface:
    """What a kind of environment can do besides: `prompt(family, env)` is its full prompt, `ask(family, env)` what a prompt
    ends with, `read(family, env, text)` its lenient reader."""

    prompt: Callable[[Any, Any], list[Text]]
    ask: Callable[[Any, Any], list[Text]]
    read: Callable[[Any, Any, str], Reading]


def _moves(family: Any, env: Any, text: str) -> Reading:
    return answers.read_moves(text, family.moves, think=family.think)


def _arms(family: Any, env: Any, text: str) -> Reading:
    return answers.read_moves(text, env.arms, think=family.think)


def _actions(family: Any, env: Any, text: str) -> Reading:
    return answers.read_moves(text, env.names, think=family.think)


def _expression(family: Any, env: Any, text: str) -> Reading:
    return answers.read_expression(text, think=family.think)


def _command(family: Any, env: Any, text: str) -> Reading:
    return answers.read_command(text, think=family.think)


def _bracketed(family: Any, env: Any, text: str) -> Reading:
    return answers.read_bracketed(text, think=family.think)


def _free(family: Any, env: Any, text: str) -> Reading:
    return answers.read_free(text, think=family.think)


def _turn(family: Any, env: Any, text: str) -> Reading:
    return turns.read_turn(text, env.format, env.tools)


def _program(family: Any, env: Any, text: str) -> Reading:
    return turns.read_turn(text, env.format, env.tools, programs=True)


TOOLS = EnvInterface(prompts.tools, prompts.ask_for_turn, _turn)
# By the kind that a configuration names.
MANNERS: Mapping[str, EnvInterface] = {
    "bandit": EnvInterface(prompts.bandit, prompts.ask_arm, _arms),
    "frozenlake": EnvInterface(prompts.frozen_lake, prompts.ask_moves, _moves),
    "sokoban": EnvInterface(prompts.sokoban, prompts.ask_moves, _moves),
    "countdown": EnvInterface(prompts.countdown, prompts.ask_expression, _expression),
    "shop": EnvInterface(prompts.shop, prompts.ask_command, _command),
    "world_qa": TOOLS,
    "file_qa": TOOLS,
    "tools": TOOLS,
    "code": EnvInterface(prompts.tools, prompts.ask_for_turn, _program),
    "reasoning_gym": EnvInterface(prompts.reasoning_gym, prompts.ask_nothing, _free),
    "textarena": EnvInterface(prompts.textarena, prompts.ask_action, _bracketed),
    "gymnasium": EnvInterface(prompts.gymnasium, prompts.ask_action, _actions),
}


def interfaced_family(family: EnvFamily, interface: InterfaceConfig) -> EnvFamily:
    """The family with this interface. Raises ConfigError for one that has no prompt or reader of the kind asked for."""
    return InterfacedFamily(family, interface, manner_of(family, interface))


def has_full_prompt(family: EnvFamily) -> bool:
    """Whether interface.prompt = 'full' says more than the family itself does, as far as can be told without an environment."""
    own = hasattr(family, "full_instructions") or hasattr(family, "calls")
    return own or ENVS.name_for(type(family)) in MANNERS


def manner_of(family: EnvFamily, interface: InterfaceConfig) -> EnvInterface:
    """That of its kind, or of a family of one's own: its `full_instructions` and its `lenient(env, text)`."""
    name = getattr(family, "name", type(family).__name__)
    if getattr(family, "serves_many", False):
        raise ConfigError(
            f"[interface] stands around one trajectory, and {name!r} serves many by one object; leave [interface] out"
        )
    kind = ENVS.name_for(type(family))
    if kind in MANNERS:
        return MANNERS[kind]
    env = made(family)
    if is_async(env):
        raise ConfigError(
            f"[interface] stands around plain environments, and those of {name!r} are coroutines; leave [interface] out"
        )
    has_tools = isinstance(env, ToolEnv)
    if interface.prompt == "full" and not has_tools and not hasattr(family, "full_instructions"):
        raise ConfigError(
            f"interface.prompt = 'full': {name!r} has no full prompt; give its family full_instructions, the text in place "
            f"of its first instructions ({PAGE}), or set interface.prompt = 'short'"
        )
    if interface.format == "lenient" and not has_tools and not hasattr(family, "lenient"):
        raise ConfigError(
            f"interface.format = 'lenient': {name!r} has no lenient reader; give its family lenient(env, text), which "
            f"returns a Reading ({PAGE}), or set interface.format = 'strict'"
        )
    read = _own_reader if hasattr(family, "lenient") else _turn
    if hasattr(family, "full_instructions"):
        return EnvInterface(_own_prompt, prompts.ask_nothing, read)
    return EnvInterface(prompts.tools, prompts.ask_for_turn, read)


def _own_prompt(family: Any, env: Any) -> list[Text]:
    return [Text(family.full_instructions, trusted=True)]


def _own_reader(family: Any, env: Any, text: str) -> Reading:
    return family.lenient(env, text)


class InterfacedFamily(Wrapped):
    """A family whose environments have the interface. Baselines play through it like policies."""

    def __init__(self, inside: EnvFamily, interface: InterfaceConfig, manner: EnvInterface) -> None:
        super().__init__(inside)
        self.interface = interface
        self.manner = manner

    def make(self) -> InterfacedEnv:
        return InterfacedEnv(self._inside.make(), self._inside, self.interface, self.manner)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, InterfacedFamily) and self.interface == other.interface
        return same and self._inside == other._inside

    def __hash__(self) -> int:
        return hash((self.interface, self._inside.name))


class InterfacedEnv(Wrapped):
    """One trajectory. It holds no state of its own: a snapshot is that of the environment inside."""

    def __init__(
        self, inside: Any, family: EnvFamily, interface: InterfaceConfig, manner: EnvInterface
    ) -> None:
        super().__init__(inside)
        self._family = family
        self._interface = interface
        self._manner = manner

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        observation = self._inside.reset(task, dynamics_seed)
        messages = list(observation.messages)
        if self._interface.prompt == "full":
            prompt = self._manner.prompt(self._family, self._inside)
            messages[0] = _with_prompt(messages[0], prompt)
            messages = self._asked(messages)
        if self._interface.system:
            text = Text(self._interface.system, trusted=True)
            messages.insert(0, Message("system", (text,)))
        return replace(observation, messages=tuple(messages))

    def step(self, action_text: str) -> StepResult:
        reading = Reading(action_text)
        if self._interface.format == "lenient":
            reading = self._manner.read(self._family, self._inside, action_text)
        result = self._inside.step(reading.text)
        if self._interface.prompt == "full":
            result = self._reminded(result)
            if not (result.terminated or result.truncated or isinstance(self._inside, ToolEnv)):
                asked = self._asked(list(result.observation.messages))
                observation = replace(result.observation, messages=tuple(asked))
                result = replace(result, observation=observation)
        info = dict(result.info)
        if reading.forgiven:
            info["forgiven"] = list(reading.forgiven)
        if reading.doubt:
            info["doubt"] = reading.doubt
        return self._paid(replace(result, info=info), bool(reading.forgiven))

    def _asked(self, messages: list[Message]) -> list[Message]:
        """The messages, with what to do now at their end."""
        if not messages or messages[-1].role != "user":
            return messages
        ask = self._manner.ask(self._family, self._inside)
        return [*messages[:-1], replace(messages[-1], content=(*messages[-1].content, *ask))]

    def _reminded(self, result: StepResult) -> StepResult:
        """With how a tool is called, where a turn was refused that could have called one."""
        messages = result.observation.messages
        called = not result.info.get("complaint") or getattr(result, "tool_calls", ())
        tools = isinstance(self._inside, ToolEnv) and self._inside.tools
        if called or not tools or not messages or messages[-1].role != "user":
            return result
        words = (Text("Or call a tool like this:\n", trusted=True),)
        words += tuple(prompts.example_call(self._inside.format, tools[0]))
        last = replace(messages[-1], content=(*messages[-1].content, *words))
        return replace(
            result, observation=replace(result.observation, messages=(*messages[:-1], last))
        )

    def _paid(self, result: StepResult, forgiven: bool) -> StepResult:
        """With what the turn earns for its format. A reward that is not known stays unknown (invariant 5)."""
        if not self._interface.format_reward or result.reward is None:
            return result
        share = self._interface.format_reward / self._family.max_turns
        if not result.info.get("valid_format", False):
            share = 0.0
        elif forgiven:
            share *= FORGIVEN_SHARE
        parts = {**result.reward_parts, "readable": share}
        return replace(result, reward=float(result.reward + share), reward_parts=parts)


def _with_prompt(message: Message, prompt: list[Text]) -> Message:
    """The message with the prompt in place of its author's own instructions: its first trusted part, else the first."""
    parts = list(message.content)
    numbers = [number for number, part in enumerate(parts) if part.trusted]
    place = numbers[0] if numbers else 0
    return replace(message, content=(*parts[:place], *prompt, *parts[place + 1 :]))
