"""Settings that several games have in common, each with its range and meaning."""
from __future__ import annotations

from typing import Annotated

from workbench.types.errors import ConfigError
from workbench.types.settings import Inert, at_least, at_most

MaxMoves = Annotated[int, at_least(1), "moves in the whole attempt"]
MovesPerAction = Annotated[int, at_least(1), "moves carried out of one answer"]
MaxTurns = Annotated[int, at_least(1), "answers in the whole attempt"]
Think = Annotated[bool, "the format: thought and answer, or the answer alone"]
FormatPenalty = Annotated[float, at_most(0, why="more would pay for garbage"), "what an unreadable answer pays"]
ShowRewards = Annotated[bool, "tell the agent what its answer paid; off, no reward is ever in a prompt"]
ReasoningBonus = Annotated[float, at_least(0, why="less would pay for false statements"),
                           "what a turn earns whose thought states only what is true; a false statement costs as much"]


def check_bonus(family: str, bonus: float, think: bool) -> None:
    """Raises ConfigError for a bonus that nothing can earn."""
    if bonus and not think:
        raise ConfigError(f"{family}.reasoning_bonus = {bonus!r} pays for what stands between the think tags, but think "
                          "is false; set think=true, or the bonus to 0")


def inert_moves(max_moves_per_action: int, max_moves: int) -> Inert:
    """A bound on the moves of one answer that the bound on all moves comes before."""
    return Inert("max_moves_per_action", max_moves_per_action > max_moves,
                 "env.max_moves ends the attempt before that many moves are made")
