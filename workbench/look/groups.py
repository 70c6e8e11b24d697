"""All trajectories of one task, side by side.

group_view(group)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.look import doc, words
from workbench.look.grid import Tile, find_grid, squares
from workbench.look.html import view_from
from workbench.look.looks import LILAC_INK, LILAC_PAPER, LINE, PLAIN, Look, red_blue
from workbench.look.trajectory import moves_of, outcome_badge
from workbench.values import Group, Trajectory, Turn, View

FLAT = "Zero-variance group: every trajectory earned the same, so a group baseline makes every advantage zero."
NUMBERS = ("attempt", "reward", "reward − group mean", "turns", "tokens")  # columns of numbers
MOST_TURNS = 40  # of a trajectory, drawn in colour


def group_view(
    group: Group,
    *,
    max_trajectories: int = 64,
    tiles: Mapping[str, Tile] | None = None,
    kept: Sequence[bool | None] | None = None,
    remarks: Sequence[str] = (),
) -> View:
    """All trajectories of one task.

    You will see one row per trajectory: success, reward, how far the reward lies from the mean of the group (what GRPO
    learns from), turns, tokens, why it stopped, and the reward of each turn (red below zero, blue above). Unscored
    trajectories stand outside of mean and standard deviation (invariant 5). The deviation is the sample one (n - 1). With `kept`
    (one per trajectory; None: there was nothing to keep) also which ones a filter left in. `remarks` are lines above.
    """
    spread = _spread(group)
    messages = group[0].first_observation.messages
    start = find_grid(messages[-1].text, tiles) if messages else None
    columns = ["attempt", "", *NUMBERS[1:], "stopped", "reward by turn"]
    if kept is not None:
        columns.insert(4, "kept")
    rows = []
    for number, trajectory in enumerate(group[:max_trajectories]):
        marks = [] if kept is None else [_kept(kept[number])]
        rows.append(_row(trajectory, spread, marks))
    flat = len(spread.scored) > 1 and spread.std == 0
    return view_from(
        doc.Heading(f"group {words.name_of(group.task.id)}"),
        doc.Note(_facts(group, spread)),
        *map(doc.Note, remarks),
        squares(start, size=20) if start else None,
        doc.Table([doc.Column(name, name in NUMBERS) for name in columns], rows),
        doc.Note(FLAT) if flat else None,
        doc.first_shown(max_trajectories, len(group), "trajectories"),
    )


@dataclass(frozen=True, eq=False)
class _Spread:
    """The rewards of the scored trajectories, their mean and deviation, and the largest reward of a turn."""

    scored: np.ndarray
    mean: float | None
    std: float | None
    turn_scale: float

    @property
    def largest(self) -> float:
        """The largest distance from the mean."""
        return 0.0 if self.mean is None else float(np.abs(self.scored - self.mean).max())


def _spread(group: Group) -> _Spread:
    rewards = [t.reward for t in group]
    scored = np.array([reward for reward in rewards if reward is not None], float)
    by_turn: list[float] = []
    for t in group:
        by_turn += [abs(turn.reward) for turn in t.turns if not words.missing(turn.reward)]
    return _Spread(
        scored,
        float(scored.mean()) if len(scored) else None,
        float(scored.std(ddof=1)) if len(scored) > 1 else None,
        max(by_turn, default=0.0),
    )


def _facts(group: Group, spread: _Spread) -> str:
    succeeded = sum(1 for t in group if t.success)
    known = sum(1 for t in group if t.success is not None)
    unscored = len(group) - len(spread.scored)
    facts = [
        words.count(len(group), "trajectory", "trajectories"),
        f"{succeeded} of {known} succeeded" if known else "success not known",
        f"reward mean {words.signed(spread.mean)}, std (n - 1) {words.fixed(spread.std)}",
        *([f"{unscored} not scored (outside of mean and std)"] if unscored else []),
    ]
    return " · ".join(facts)


def _row(t: Trajectory, spread: _Spread, kept: Sequence[doc.Cell]) -> list[str | doc.Cell]:
    away = None if t.reward is None or spread.mean is None else t.reward - spread.mean
    look = PLAIN if away is None else Look(*red_blue(away, spread.largest))
    turns = [_turn_reward(turn, spread.turn_scale) for turn in t.turns[:MOST_TURNS]]
    if len(t.turns) > MOST_TURNS:
        turns.append(doc.Styled(f"… {len(t.turns) - MOST_TURNS} more turns"))
    return [
        str(t.attempt),
        doc.Cell(words.success_mark(t.success), parts=(outcome_badge(t),)),
        words.signed(t.reward),
        doc.Cell(words.signed(away), look),
        *kept,
        str(len(t.turns)),
        str(t.num_sampled),
        t.stop_reason.value,
        doc.Cell(" ".join(words.signed(turn.reward) for turn in t.turns), parts=tuple(turns)),
    ]


def _turn_reward(turn: Turn, scale: float) -> doc.Styled:
    colours = (None, None) if words.missing(turn.reward) else red_blue(turn.reward, scale)
    edge = f"1px solid {LINE}"
    return doc.Styled(
        f" {words.signed(turn.reward)} ",
        Look(*colours, mono=True, top=edge, below=edge, left=edge, right=edge),
        title=f"turn {turn.index}: {', '.join(moves_of(turn))}",
    )


def _kept(mark: bool | None) -> doc.Cell:
    word = {True: "yes", False: "filtered", None: "—"}[mark]
    return doc.Cell(word, Look(LILAC_PAPER, LILAC_INK) if mark is False else PLAIN)
