"""Settings that several games have in common, each with its range and meaning."""

from __future__ import annotations

from typing import Annotated, Any

from workbench.basics.settings import at_least, at_most, check_settings
from workbench.values.errors import ConfigError

MaxMoves = Annotated[int, at_least(1, most=1_000_000), "moves in the whole trajectory"]
MovesPerAction = Annotated[int, at_least(1, most=1_000_000), "moves carried out of one answer"]
MaxTurns = Annotated[int, at_least(1, most=10_000), "answers in the whole trajectory"]
Think = Annotated[bool, "the format: thought and answer, or the answer alone"]
FormatPenalty = Annotated[
    float, at_most(0, why="more would pay for garbage"), "what an unreadable answer pays"
]
ShowRewards = Annotated[
    bool, "tell the agent what its answer paid; off, no reward is ever in a prompt"
]
ReasoningBonus = Annotated[
    float,
    at_least(0, why="less would pay for false statements"),
    "what a turn earns whose thought states only what is true; a false statement costs as much",
]


def check_game(family: Any) -> None:
    """Raises ConfigError for a setting outside its range, and for a bonus that nothing can earn."""
    check_settings(family)
    if family.reasoning_bonus and not family.think:
        raise ConfigError(
            f"{type(family).__name__}.reasoning_bonus = {family.reasoning_bonus!r} pays for what stands "
            "between the think tags, but think is false; set think=true, or the bonus to 0"
        )
