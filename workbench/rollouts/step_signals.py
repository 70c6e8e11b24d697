"""The signals of a step that may warn of a collapse: a pure function of its attempts and its line of metrics.

Nothing is drawn, timed or remembered, so the same numbers come out while a run trains and, bit for bit, from its folder
(law 13). What they are worth as alarms is measured: docs/evidence/collapse.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.types import CreditTable, Group
from workbench.types.monitored import StepSignals
from workbench.types.spreads import flat_side

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


def step_signals(
    step: int, groups: Sequence[Group], metrics: Mapping[str, Any], last: CreditTable | None = None
) -> StepSignals:
    """The signals of one step: of its groups as they were sampled, of what the learner wrote into `metrics`, and of what its
    last update used."""
    attempts = [attempt for group in groups for attempt in group]
    replies = [turn.text for attempt in attempts for turn in attempt.turns]
    rewards = [
        [attempt.reward for attempt in group if attempt.reward is not None] for group in groups
    ]
    wins = [
        [float(attempt.success) for attempt in group if attempt.success is not None]
        for group in groups
    ]
    shares = [
        [
            _mean(
                turn.info["valid_format"] for turn in attempt.turns if "valid_format" in turn.info
            )
            for attempt in group
        ]
        for group in groups
    ]  # None where the environment does not say
    formats = [[share for share in group if share is not None] for group in shares]
    sides = [
        flat_side([(attempt.reward, attempt.success) for attempt in group]) for group in groups
    ]
    valid = [
        turn.info["valid_format"]
        for attempt in attempts
        for turn in attempt.turns
        if "valid_format" in turn.info
    ]
    return StepSignals(
        step,
        success=_mean(won for group in wins for won in group),
        reward=_mean(each for group in rewards for each in group),
        turns=_mean(len(attempt.turns) for attempt in attempts),
        tokens=_mean(attempt.num_sampled for attempt in attempts),
        valid=_mean(valid),
        reward_spread=_spread(rewards),
        success_spread=_spread(wins),
        format_spread=_spread(formats),
        flat_won=_mean(side == "all won" for side in sides),
        flat_lost=_mean(side == "all lost" for side in sides),
        flat_same=_mean(side == "all the same" for side in sides),
        repetition=_mean(map(repeated_share, replies)),
        commonest=max(Counter(replies).values()) / len(replies) if replies else None,
        **{name: _known(metrics.get(key)) for name, key in OF_METRICS.items()},
        **{name: _shift(last, sign) for name, sign in (("won_shift", 1), ("lost_shift", -1))},
    )


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
    return _mean(np.std(group) for group in groups if len(group))


def _mean(values: Iterable[float]) -> float | None:
    found = [float(value) for value in values]
    return math.fsum(found) / len(found) if found else None


def _known(value: float | None) -> float | None:
    """A metric; None where it was not computed."""
    return None if value is None or math.isnan(value) else float(value)
