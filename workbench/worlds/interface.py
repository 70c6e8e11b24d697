"""How the policy is spoken to and how its answers are read: settings that all environments share (docs/guides/real_models.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.basics.extensions import service
from workbench.basics.settings import at_least, check_settings, one_of
from workbench.worlds.base import EnvFamily


@dataclass(frozen=True)
class InterfaceConfig:
    """Between environment and policy. The defaults are those of the small policies that ship; others are for pretrained models."""

    prompt: Annotated[
        str,
        one_of("short", "full"),
        "short: few words, for policies that know the task; full: rules, format and an example",
    ] = "short"
    format: Annotated[
        str,
        one_of("strict", "lenient"),
        "strict: the tags and nothing else; lenient: also an answer in other words that has one meaning",
    ] = "strict"
    system: Annotated[str, "text of a system message before the first prompt; empty: none"] = ""
    format_reward: Annotated[
        float,
        at_least(0),
        "the most that a trajectory earns for turns that can be read, shared among max_turns; half of a "
        "share where something was forgiven",
    ] = 0.0

    def __post_init__(self) -> None:
        check_settings(self, "interface")


def interfaced(family: EnvFamily, interface: InterfaceConfig) -> EnvFamily:
    """The family with this interface; the family itself where nothing is set. Raises ConfigError where it has no full
    prompt, or no answers that can be read leniently."""
    if interface == InterfaceConfig():
        return family
    return service("interface", "[interface]")(family, interface)
