"""Which tokens each term of the loss is taken over: sampled ones (R10), and the same ones for every trajectory (R11).

Both read the declared mask switches, so that an ablation is no error.

Axis letters: N trajectories · K turns (flat) · T tokens (flat).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.learn.algorithms.settings import setting_of
from workbench.linting.alignment import differences_of_batch
from workbench.linting.credit import columns_of, has_plain_credit, severity_of_a_choice
from workbench.linting.evidence import Evidence
from workbench.linting.expected import WEIGHT_COLUMNS
from workbench.linting.messages import each_row, run_length
from workbench.linting.plain_trajectories import TrajectoryTable
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Source, StopReason

# The mask switch that widens each term.
SWITCHES = {
    "policy": "loss_over",
    "entropy": "entropy_over",
    "kl": "kl_loss_over",
    "critic": "critic_over",
}


def active_terms(algorithm: Any, columns: Mapping[str, np.ndarray]) -> list[str]:
    """The terms of the loss by the algorithm's settings; without one, those that the columns know of."""
    is_on = {
        "policy": algorithm is not None,
        "entropy": bool(getattr(algorithm, "entropy_coef", 0)),
        "critic": "value_T" in getattr(algorithm, "requires", ()),
        "kl": bool(setting_of(algorithm, "reference.kl_coef", 0))
        and setting_of(algorithm, "reference.kl_in", "loss") == "loss",
    }
    return [term for term, column in WEIGHT_COLUMNS.items() if is_on[term] or column in columns]


def allowed_T(evidence: Evidence, trajectories: TrajectoryTable, term: str) -> np.ndarray:
    """bool [T]: where a term may be taken, as declared."""
    recipe = evidence.plain_recipe.recipe
    if recipe is not None and SWITCHES[term] in recipe.widened:
        return trajectories.response_T
    named = evidence.credit is not None and evidence.credit.widened is not None
    if named and not has_plain_credit(evidence):
        return np.ones(
            trajectories.num_tokens, bool
        )  # supervised fine-tuning, say: it gives its reason itself
    return trajectories.sampled_T


# ------------------------------------------------------------------------------------------------ R10


def _only_sampled(evidence: Evidence) -> Iterator[RuleResult]:
    trajectories = evidence.plain_trajectories
    sources = [("", columns_of(evidence))] if evidence.credit is not None else []
    sources += [
        (f"update {update.table.update}: ", dict(update.table.columns))
        for update in evidence.updates
    ]
    if trajectories is None or not sources:
        yield NotChecked(
            "trajectories or a batch"
            if trajectories is None
            else "the credit, or the credit table of an update"
        )
        return
    for where, columns in sources:
        if any(len(values_T) != trajectories.num_tokens for values_T in columns.values()):
            yield Finding(f"{where}its columns are not one number per token of the trajectories")
            continue
        yield Checked(int((~trajectories.sampled_T).sum()))
        everywhere_T = np.zeros(trajectories.num_tokens, bool)
        for term in active_terms(evidence.algorithm, columns):
            may_T = allowed_T(evidence, trajectories, term)
            everywhere_T |= may_T
            weight_T = columns.get(WEIGHT_COLUMNS[term], columns["weight"])
            yield from _strays(
                evidence,
                trajectories,
                (weight_T != 0) & ~may_T,
                f"{where}counts in the {term} term",
            )
        yield from _strays(
            evidence,
            trajectories,
            ~np.isnan(columns["advantage"])
            & (columns["advantage"] != 0)
            & ~allowed_T(evidence, trajectories, "policy"),
            f"{where}has an advantage",
        )
        if "used" in columns:
            yield from _strays(
                evidence, trajectories, columns["used"] & ~everywhere_T, f"{where}was trained"
            )


def _strays(
    evidence: Evidence, trajectories: TrajectoryTable, stray_T: np.ndarray, what: str
) -> Iterator[Finding]:
    at = np.flatnonzero(stray_T)
    if not len(at):
        return
    first = int(at[0])
    source = Source(int(trajectories.source_T[first])).name
    who = "shown again, not sampled here" if source == "POLICY" else "not sampled by the policy"
    yield Finding(
        f"{what}, but it is {source}, {who} ({len(at)} such tokens in all, in "
        f"{len(np.unique(trajectories.row_T[at]))} trajectories), and no mask switch says so",
        trajectories.place(first, run_length(at)),
        count=len(at),
    )


# ------------------------------------------------------------------------------------------------ R11


def _treated_alike(evidence: Evidence) -> Iterator[RuleResult]:
    trajectories = evidence.plain_trajectories
    if trajectories is None:
        yield NotChecked("trajectories or a batch")
        return
    if evidence.groups:
        yield from _limits(evidence, trajectories)
    columns = columns_of(evidence)
    if columns is None or any(
        len(values_T) != trajectories.num_tokens for values_T in columns.values()
    ):
        yield NotChecked("the credit, or the credit table of an update", "terms of the loss")
        return
    yield Checked(trajectories.num_trajectories, "terms of the loss")
    yield from _same_terms(evidence, trajectories, columns)
    yield from _nobody_left_out(evidence, trajectories, columns)


def _limits(evidence: Evidence, trajectories: TrajectoryTable) -> Iterator[RuleResult]:
    """Flags of the batch against stop reasons; stop reasons against what is declared of limits."""
    yield Checked(trajectories.num_trajectories, "stop reasons, flags and limits")
    batch = evidence.batch
    if batch is not None and batch.num_trajectories == trajectories.num_trajectories:
        yield from differences_of_batch(evidence, ("terminated_N", "truncated_N", "context_full_N"))
    most = getattr(evidence.family, "max_turns", None)
    for n, t in enumerate(evidence.trajectories):
        if t.stop_reason is StopReason.MAX_TURNS and most is not None and len(t.turns) != most:
            yield Finding(
                f"ended by max_turns after {len(t.turns)} turns; the limit is {most}",
                evidence.place(n),
            )
        elif most is not None and len(t.turns) > most:
            yield Finding(f"has {len(t.turns)} turns; the limit is {most}", evidence.place(n))
        if t.stop_reason.is_fault and t.scored:
            yield Finding(
                f"ended by {t.stop_reason.value} and counts as scored: what broke earned nothing, not zero",
                evidence.place(n),
            )
        elif (
            not t.scored
            and not t.stop_reason.is_fault
            and t.error is None
            and t.turns
            and all(turn.reward is not None for turn in t.turns)
        ):
            # Of our own collecting only: elsewhere the scoring of an outcome may have failed.
            yield Finding(
                f"ended by {t.stop_reason.value}, every turn has its reward, nothing broke, yet it counts as "
                "unscored: it leaves baseline and loss",
                evidence.place(n),
                ERROR if evidence.collect is not None and t.outcome is None else NOTE,
            )
        elif t.stop_reason is StopReason.TERMINATED and not t.turns:
            yield Finding("ended as if its task were over, without a turn", evidence.place(n))


def _same_terms(
    evidence: Evidence, trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """A trajectory counts in every term of the loss, or in none; token by token where terms are taken per token."""
    weight_T = columns["weight"]
    algorithm = evidence.algorithm
    counted_N = _any_by_row(trajectories, weight_T)
    chosen = severity_of_a_choice(evidence)
    for term in active_terms(algorithm, columns)[1:]:
        other_T = columns.get(WEIGHT_COLUMNS[term], weight_T)
        if term == "critic":  # which may be fitted at one token of a turn only
            wrong = np.flatnonzero(
                (_any_by_row(trajectories, other_T) != counted_N) & trajectories.acted_N
            )
            places = [(int(n), trajectories.place_of_row(int(n)), 1) for n in wrong]
        else:
            at = np.flatnonzero(trajectories.sampled_T & ((other_T != 0) != (weight_T != 0)))
            places = [
                (n, trajectories.place(int(own[0])), len(own))
                for n, own in each_row(at, trajectories.row_T)
            ]
        for n, place, count in places:
            cut = " (a limit ended this trajectory)" if trajectories.truncated_N[n] else ""
            counts = "does not count" if counted_N[n] else "counts"
            yield Finding(
                f"{counts} in the {term} term, unlike in the policy's{cut}: {count} sampled tokens",
                place,
                chosen,
                count,
            )


def _any_by_row(trajectories: TrajectoryTable, weight_T: np.ndarray) -> np.ndarray:
    at = trajectories.sampled_T & (weight_T != 0)
    return np.bincount(trajectories.row_T[at], minlength=trajectories.num_trajectories) > 0


def _nobody_left_out(
    evidence: Evidence, trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Scored trajectories of one group weigh the same, unless a declared filter chooses among them."""
    algorithm = evidence.algorithm
    if (
        algorithm is None
        or getattr(getattr(algorithm, "filter", None), "keep", "all") == "within_group"
    ):
        return
    counted_N = _any_by_row(trajectories, columns["weight"])
    compared_N = trajectories.scored_N & trajectories.acted_N
    kept_G = (
        np.bincount(
            trajectories.group_of_trajectory_N[compared_N & counted_N],
            minlength=trajectories.num_groups,
        )
        > 0
    )
    for n in np.flatnonzero(
        compared_N & ~counted_N & kept_G[trajectories.group_of_trajectory_N]
    ).tolist():
        why = "a limit ended it" if trajectories.truncated_N[n] else "no limit ended it"
        if evidence.groups:
            why = f"it ended by {evidence.trajectories[n].stop_reason.value}"
        yield Finding(
            f"is scored and weighs nothing, while others of its group are trained ({why}); no declared "
            "filter chooses among the trajectories of a group",
            trajectories.place_of_row(n),
            severity_of_a_choice(evidence),
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R10",
        "only sampled tokens count in loss, KL, entropy and critic",
        means="the policy is trained to write what the environment or the template wrote, or is pulled by a divergence "
        "at tokens that it never chose: the KL term explodes, the reward collapses later.",
        mend="weigh every term by what was sampled in this segment; if observation tokens are to take part, say so by "
        "the switches of algorithm.masks.",
        needs=(),
        check=_only_sampled,
        threads=(
            "Search-R1#21",
            "RAGEN#54",
            "unsloth#5673",
            "slime#1370",
            "verl#2337",
            "SkyRL#710",
        ),
    ),
    Rule(
        "R11",
        "trajectories that a limit cut short are treated like others",
        means="a trajectory counts in one term of the loss and not in another, or silently not at all: what is learned "
        "about running out of room is decided by a mask that nobody chose.",
        mend="take every mask from one weight per trajectory; where overlong trajectories are to be left out, do it by a "
        "filter or a reward that is declared; keep stop reasons, flags and finish as they were recorded.",
        needs=(),
        check=_treated_alike,
        threads=("trl#4976", "OpenRLHF#1243", "OpenRLHF#1252"),
    ),
)
