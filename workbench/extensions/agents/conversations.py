"""Conversations of one trajectory: how each gets its name, and which of them are trained.

model = "policy:judge"                    the client says it: what stands behind the colon of the model's name
[env.names]
judge = "You are a strict judge"          else by the first words of the conversation's first message
main, conversation 2, conversation 3      else by the order in which they began

A call that shows turns of the policy, and says no name, belongs to the conversation that they are of.

[env]
trains = ["first"]                        "all" (the default), "first", or names
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.extensions.agents.messages import AskedCall, normal_text
from workbench.values.errors import ConfigError

SAID = "policy:"  # begins a model's name that names a conversation
ALL = "all"
FIRST = "first"
LONGEST_NAME = 60  # characters of a name that a program says


@dataclass(frozen=True)
class ConversationRules:
    """What a run says of conversations.

    trains  "all", "first" (that of the trajectory's first call), or names
    names   a conversation's name -> the words that its first message begins with
    """

    trains: tuple[str, ...] = (ALL,)
    names: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ConfigError for settings that could do nothing."""
        if not self.trains:
            raise ConfigError(
                'env.trains names no conversation, so nothing would be trained; it is ["all"], ["first"], or names'
            )
        if len(self.trains) > 1 and ALL in self.trains:
            raise ConfigError(
                f'env.trains = {list(self.trains)} has "all" beside others; "all" alone says the same'
            )
        silent = [name for name, words in self.names.items() if not normal_text(words)]
        if silent:
            raise ConfigError(
                f"env.names.{silent[0]} is the beginning of a conversation's first message, and it is empty"
            )

    def name_of(self, asked: AskedCall) -> str | None:
        """The name that a call says or that its first message has; None: it goes by order."""
        name = asked.model.removeprefix(SAID).strip()[:LONGEST_NAME]
        if asked.model.startswith(SAID) and name:
            return name
        first = normal_text(asked.messages[0].text)
        for known, words in self.names.items():
            if first.startswith(normal_text(words)):
                return known
        return None

    def left_out(self, name: str, first: str) -> str:
        """Why a conversation is not trained; "" where it is. `first`: the name of the trajectory's first one."""
        if ALL in self.trains or name in self.trains or (FIRST in self.trains and name == first):
            return ""
        return f"conversation {name!r} is not trained"


# ------------------------------------------------------------------------------------------------ excerpts

BEFORE = 12  # characters that are kept of both texts, before the first that differs
BEHIND = 36  # ... and from it on


def excerpt(text: str, at: int) -> str:
    """A few characters around the place `at`."""
    start = max(0, at - BEFORE)
    end = at + BEHIND
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
