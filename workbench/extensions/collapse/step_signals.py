"""The signals of a step that may warn of a collapse: a pure function of its trajectories and its line of metrics.

Nothing is drawn, timed or remembered, so the same numbers come out while a run trains and, bit for bit, from its folder
(invariant 13). What they are worth as alarms is measured: docs/evidence/collapse.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from workbench.run.store import Run
from workbench.values import CreditTable, Group, Trajectory, trajectories_of

PIECE = 4  # words of a repeated piece: calls and sentences share three easily
WORD = re.compile(r"\w+|[^\w\s]")
# Signal -> its name among the metrics.
OF_METRICS = {
    "entropy": "entropy",
    "kl": "kl_ref",
    "update_kl": "approx_kl",
    "clipped": "clip_fraction",
    "ratio_max": "ratio_max",
    "gradient": "grad_norm",
    "information": "prompt_information",
    "retrieval": "prompt_retrieval",
    "chance": "prompt_chance",
    "snr": "gradient_snr",
}


class StepSignals(NamedTuple):
    """One step before its update. None: not computed, which is not zero (invariant 5).

    Of trajectories: `success`, `reward`, `turns`, `tokens` are means, counted as the metrics of these names are (one whose
    success nobody knows did not succeed, where it is known of others); `valid` the share of turns in the right format;
    `reward_spread`, `success_spread` and `format_spread` the mean over groups of the standard deviation inside a group
    (n - 1, as GRPO divides by) of the reward, of success, and of a trajectory's share of valid turns. `flat_won`, `flat_lost`,
    `flat_same`: shares of groups whose trajectories all earned the same, by side. Of replies: `repetition` is the mean
    share of four-word pieces that came before in the same reply, `commonest` the share of the step's commonest reply.

    Of the updates, as the learner wrote them: `entropy`, `kl` (to the start, where the algorithm has a reference),
    `update_kl` (of the old policy to the new), `clipped` (share of tokens), `ratio_max`, `gradient` (norm). `won_shift`,
    `lost_shift`: by how many nats per token of positive (negative) advantage became likelier before the step's last update,
    mean; a step of one update has neither. That won tokens become unlikelier is lazy likelihood displacement (arXiv
    2512.04220). `information`, `retrieval` and its `chance`: how much replies say about their prompts; `snr`: signal over
    noise of the step's gradient; where `train.information_every` measures them.
    """

    step: int
    success: float | None
    reward: float | None
    turns: float | None
    tokens: float | None
    valid: float | None
    reward_spread: float | None
    success_spread: float | None
    format_spread: float | None
    flat_won: float | None
    flat_lost: float | None
    flat_same: float | None
    repetition: float | None
    commonest: float | None
    entropy: float | None
    kl: float | None
    update_kl: float | None
    clipped: float | None
    ratio_max: float | None
    gradient: float | None
    won_shift: float | None
    lost_shift: float | None
    information: float | None
    retrieval: float | None
    chance: float | None
    snr: float | None


SIGNALS = StepSignals._fields[1:]


def last_credit(run: Run, step: int) -> CreditTable | None:
    """What the last update of a step of several used; None where there was at most one: nothing had moved before it."""
    updates = run.updates(step)
    return run.credit(step, updates[-1]) if len(updates) > 1 else None


def step_signals(
    step: int, groups: Sequence[Group], metrics: Mapping[str, Any], last: CreditTable | None = None
) -> StepSignals:
    """The signals of one step: of its groups as they were sampled, of what the learner wrote into `metrics`, and of what its
    last update used."""
    trajectories = trajectories_of(groups)
    replies = list(_replies(trajectories))
    rewards = [_known_values(trajectory.reward for trajectory in group) for group in groups]
    wins = [_known_values(trajectory.success for trajectory in group) for group in groups]
    formats = [_known_values(map(_valid_share, group)) for group in groups]
    sides = [group.flat for group in groups]
    return StepSignals(
        step,
        success=_mean(bool(t.success) for t in trajectories) if any(wins) else None,
        reward=_mean(chain.from_iterable(rewards)),
        turns=_mean(len(trajectory.turns) for trajectory in trajectories),
        tokens=_mean(trajectory.num_sampled for trajectory in trajectories),
        valid=_mean(chain.from_iterable(map(_valid_turns, trajectories))),
        reward_spread=_spread(rewards),
        success_spread=_spread(wins),
        format_spread=_spread(formats),
        flat_won=_mean(side == "all won" for side in sides),
        flat_lost=_mean(side == "all lost" for side in sides),
        flat_same=_mean(side == "all the same" for side in sides),
        repetition=_mean(map(repeated_share, replies)),
        commonest=max(Counter(replies).values()) / len(replies) if replies else None,
        won_shift=_shift(last, 1),
        lost_shift=_shift(last, -1),
        **{name: _known(metrics.get(key)) for name, key in OF_METRICS.items()},
    )


def _replies(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            yield turn.text


def _known_values(values: Iterable[float | bool | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _valid_turns(trajectory: Trajectory) -> list[bool]:
    """Whether each turn was in the right format, where the environment says."""
    facts = [turn.info for turn in trajectory.turns]
    return [info["valid_format"] for info in facts if "valid_format" in info]


def _valid_share(trajectory: Trajectory) -> float | None:
    """The share of turns in the right format; None where the environment does not say."""
    return _mean(_valid_turns(trajectory))


def repeated_share(reply: str) -> float:
    """The share of a reply's pieces of four words that stood in it before; 0 where it is shorter than that."""
    words = WORD.findall(reply)
    pieces = [tuple(words[at : at + PIECE]) for at in range(len(words) - PIECE + 1)]
    return 1 - len(set(pieces)) / len(pieces) if pieces else 0.0


def _shift(table: CreditTable | None, sign: int) -> float | None:
    """The mean change of logprob, in nats, of the tokens whose advantage has this sign, as far as this update trains them."""
    if table is None or not table.update:
        return None
    pushed = table["used"] & (table["weight"] != 0) & (np.sign(table["advantage"]) == sign)
    change = table["new_logp"][pushed].astype(np.float64) - table["old_logp"][pushed]
    return _mean(change)


def _spread(groups: Iterable[Sequence[float]]) -> float | None:
    """The mean of the standard deviations (n - 1) inside the groups that have one."""
    return _mean(np.std(group, ddof=1) for group in groups if len(group) > 1)


def _mean(values: Iterable[float]) -> float | None:
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _known(value: float | None) -> float | None:
    """A metric; None where it was not computed."""
    return None if value is None or math.isnan(value) else float(value)
