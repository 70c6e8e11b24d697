"""The rules that are measured: single signs, each with a threshold of its own, and whatever says most of several.

They were written down after the few runs by which the bench's settings were found, and before the bench was run (the two
on won and lost tokens: after a third of it; the last three: after the others were known); only thresholds are chosen, and
on half of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.extensions.collapse.alarms import (
    AlarmRule,
    Scores,
    Steps,
    below_best,
    fall,
    level,
    minus,
    rise,
)


def largest(rules: Sequence[AlarmRule]) -> Callable[[Steps], Scores]:
    """Whatever says most, of rules whose threshold is 1."""

    def scores(steps: Steps) -> Scores:
        rows = zip(*(rule.scores(steps) for rule in rules), strict=True)
        return [max((value for value in row if value is not None), default=None) for row in rows]

    return scores


SINGLE: tuple[AlarmRule, ...] = (
    AlarmRule("success falls below its best", below_best("success")),
    AlarmRule("success falls", fall("success")),
    AlarmRule("valid format falls below its best", below_best("valid")),
    AlarmRule("spread of the reward falls", fall("reward_spread")),
    AlarmRule("spread of success falls", fall("success_spread")),
    AlarmRule("spread of format rises", rise("format_spread")),
    AlarmRule("groups flat, all lost", level("flat_lost")),
    AlarmRule("groups flat, all won", level("flat_won")),
    AlarmRule("repetition inside replies", level("repetition")),
    AlarmRule("replies alike", level("commonest")),
    AlarmRule("turns fall", fall("turns")),
    AlarmRule("turns rise", rise("turns")),
    AlarmRule("tokens fall", fall("tokens")),
    AlarmRule("tokens rise", rise("tokens")),
    AlarmRule("entropy falls", fall("entropy")),
    AlarmRule("entropy rises", rise("entropy")),
    AlarmRule("gradient rises", rise("gradient")),
    AlarmRule("KL of an update rises", rise("update_kl")),
    AlarmRule("clipped share", level("clipped")),
    AlarmRule("largest ratio", level("ratio_max")),
    AlarmRule("won tokens become unlikelier", minus("won_shift")),
    AlarmRule("lost tokens become unlikelier", minus("lost_shift")),
    AlarmRule("replies say less about their prompts", fall("information")),
    AlarmRule("retrieval falls", fall("retrieval")),
    AlarmRule("signal over noise of the gradient falls", fall("snr")),
)
