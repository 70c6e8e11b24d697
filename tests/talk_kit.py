"""A family of questions with one tool, and talks with engines that follow a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.talk.talk import Talk
from workbench.rollouts.config import CollectConfig
from workbench.tools.base import tool
from workbench.values import Task
from workbench.worlds.tool_env import CallSettings, ToolEnv

CAPITALS = {"Austria": "Vienna", "Peru": "Lima"}
CALL = '<tool_call>\n{"name": "capital", "arguments": {"country": "Austria"}}\n</tool_call>'


@tool(trusted=True)
def capital(country: str) -> str:
    """The capital of a country."""
    return CAPITALS[country]


@dataclass(frozen=True)
class Asking:
    """Questions that a person types."""

    turns: int = 4
    calls: CallSettings = field(default_factory=CallSettings)
    name: str = "asking"

    @property
    def max_turns(self) -> int:
        return self.turns

    def question_task(self, text: str, task_seed: int = 0) -> Task:
        return Task(f"asked/{text}", self.name, task_seed, {"question": text, "answers": []})

    def task(self, task_seed: int) -> Task:
        return Task(
            f"asking/{task_seed}",
            self.name,
            task_seed,
            {"question": "The capital of Austria?", "answers": ["Vienna"]},
        )

    def make(self) -> ToolEnv:
        return ToolEnv([capital], max_turns=self.turns, calls=self.calls)


@cache
def chat_and_tokenizer():
    tokenizer = load_tokenizer("frozenlake-tiny")
    return ChatFormat.from_tokenizer(tokenizer), tokenizer


def engine_saying(turns, **settings) -> ScriptedEngine:
    """Says these turns one after the other: texts (ended by the end of turn) or ids as they are."""
    chat, tokenizer = chat_and_tokenizer()
    said = iter(turns)

    def script(_request):
        turn = next(said)
        return (
            [*tokenizer.encode(turn, add_special_tokens=False), chat.end_of_turn]
            if isinstance(turn, str)
            else turn
        )

    return ScriptedEngine(script, **settings)


def talk_saying(
    turns, *, family=Asking(), collect=CollectConfig(max_turn_tokens=400), engine=None, **settings
) -> Talk:
    """A talk whose policy says these turns."""
    session = SimpleNamespace(
        engine=engine or engine_saying(turns, trickle=True), chat=chat_and_tokenizer()[0]
    )
    config = SimpleNamespace(env=family, family=family, collect=collect, seed=3)
    return Talk(config, session, **settings)
