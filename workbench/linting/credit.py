"""Credit: every sampled token carries its trajectory's (R6).

The credit that is about to be trained on, token by token, against the reference implementation of the algorithm, computed from spans,
turns and settings. Without a reference implementation, what must hold for any algorithm: nothing where nothing is trained, one weight per
trajectory, finite numbers, and no credit against the rewards of its own group.

Axis letters: N trajectories · T tokens (flat).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.learn.algorithms.settings import setting_of
from workbench.linting.evidence import Evidence
from workbench.linting.expected import (
    WEIGHT_COLUMNS,
    ExpectedCredit,
    declares,
    expected_credit,
    rounding_of_credit,
)
from workbench.linting.messages import at_first, each_row, many, run_length
from workbench.linting.plain_trajectories import TrajectoryTable
from workbench.linting.rule import Rule, RuleResult
from workbench.plain.credit import Recipe

NEAR = 1e-9  # relative: two ways of adding up
NUMBERS = "the credit's numbers"
UNDECIDED = 1e-4  # relative: where rounding of the rewards moves credit by more than this, it decides something
SLACK = 1e-9  # of rewards and advantages that are compared with each other
CREDIT_PARTS = {
    "estimator",
    "critic",
    "masks",
    "rewards",
    "filter",
    "reference",
}  # of an algorithm: they give credit


def columns_of(evidence: Evidence) -> dict[str, np.ndarray] | None:
    """The credit of a step, by column [T]: of the credit, else of the first update's table; None: neither."""
    if evidence.credit is not None:
        credit = evidence.credit
        tensors = {
            "advantage": credit.advantage_T,
            "weight": credit.weight_T,
            "return": credit.return_T,
            "entropy_weight": credit.entropy_weight_T,
            "kl_weight": credit.kl_weight_T,
            "critic_weight": credit.critic_weight_T,
        }
        return {
            name: values_T.numpy() for name, values_T in tensors.items() if values_T is not None
        }
    if not evidence.updates:
        return None
    columns = evidence.updates[0].table.columns
    return {
        name: columns[name]
        for name in ("advantage", "return", *WEIGHT_COLUMNS.values())
        if name in columns
    }


def facts_of(evidence: Evidence) -> dict[str, np.ndarray]:
    """The numbers of models about a step, by the names of `plain.rewards.TrajectoryTokens`, from its batch, else from the
    first update's table."""
    batch = evidence.batch
    if batch is not None:
        known = {
            "old_logp": batch.old_logp_T,
            "ref_logp": batch.ref_logp_T,
            "value": batch.value_T,
            "final_value": batch.final_value_N,
        }
        if any(fact is not None for fact in known.values()) or not evidence.updates:
            return {name: fact.double().numpy() for name, fact in known.items() if fact is not None}
    if not evidence.updates:
        return {}
    columns = evidence.updates[0].table.columns
    facts = {
        name: columns[name].astype(np.float64)
        for name in ("old_logp", "ref_logp", "value")
        if name in columns
    }
    if "final_value" in columns and evidence.plain_trajectories is not None:
        facts["final_value"] = np.full(evidence.plain_trajectories.num_trajectories, np.nan)
        ends = np.flatnonzero(~np.isnan(columns["final_value"]))
        facts["final_value"][columns["trajectory"][ends]] = columns["final_value"][ends]
    return facts


def has_plain_credit(evidence: Evidence) -> bool:
    """Whether the algorithm brings a reference implementation of how it gives credit. Where it brings none, it may leave tokens or
    trajectories out on purpose."""
    return not CREDIT_PARTS & set(evidence.plain_recipe.missing)


def severity_of_a_choice(evidence: Evidence) -> str:
    """The severity of tokens or trajectories that are left out or weigh less: a note where an algorithm without such a reference implementation chose."""
    return NOTE if evidence.algorithm is not None and not has_plain_credit(evidence) else ERROR


# ------------------------------------------------------------------------------------------------ the rule


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    trajectories = evidence.plain_trajectories
    columns = columns_of(evidence)
    algorithm = evidence.algorithm
    if trajectories is None or columns is None:
        yield NotChecked(
            "trajectories or a batch"
            if trajectories is None
            else "the credit, or the credit table of an update"
        )
        return
    if wrong := sorted(
        {len(values_T) for values_T in columns.values()} - {trajectories.num_tokens}
    ):
        yield Finding(
            f"credit for {wrong[0]} tokens, but the trajectories have {trajectories.num_tokens}"
        )
        return
    facts = facts_of(evidence)
    if wrong := [
        name
        for name, fact in facts.items()
        if len(fact)
        != (trajectories.num_trajectories if name == "final_value" else trajectories.num_tokens)
    ]:
        yield Finding(
            f"{', '.join(wrong)} of the batch belong to other trajectories: their number is another one"
        )
        return
    if (missing := _missing_evidence(evidence, facts)) is not None:
        yield missing
        yield Checked(trajectories.num_tokens, "what holds of any credit")
        yield from _of_any_algorithm(evidence, trajectories, columns)
        if algorithm is not None and not has_plain_credit(evidence):
            yield from _alike_in_a_turn(evidence, trajectories, columns)
            yield from _against_the_rewards(evidence, trajectories, columns)
        return
    expected = expected_credit(trajectories, evidence.plain_recipe.recipe, facts)
    yield from _compare(evidence, trajectories, columns, expected, facts)


def _missing_evidence(evidence: Evidence, facts: Mapping[str, np.ndarray]) -> NotChecked | None:
    """Name what is missing to compute the credit once more."""
    algorithm = evidence.algorithm
    if algorithm is None:
        return NotChecked("the algorithm, whose settings say what the credit is to be", NUMBERS)
    if not has_plain_credit(evidence):
        return NotChecked(f"a reference implementation of the credit of {algorithm.name}", NUMBERS)
    recipe = evidence.plain_recipe.recipe
    names = ["old_logp_T", "ref_logp_T"] if recipe.kl_coef and recipe.kl_in == "reward" else []
    names += [name for name in ("value_T", "final_value_N") if name in algorithm.requires]
    if lacking := [
        name for name in names if name.removesuffix("_T").removesuffix("_N") not in facts
    ]:
        return NotChecked(f"{', '.join(lacking)}, of which the credit was made", NUMBERS)
    return None


def _compare(
    evidence: Evidence,
    trajectories: TrajectoryTable,
    columns: Mapping[str, np.ndarray],
    expected: ExpectedCredit,
    facts: Mapping[str, np.ndarray],
) -> Iterator[RuleResult]:
    """Token by token; one finding per trajectory and column."""
    recipe = evidence.plain_recipe.recipe
    wanted = dict(expected.columns)
    if "return" in wanted and "return" not in columns:
        yield Finding(
            "the algorithm has a critic, but the credit says nothing that it could be fitted to (return)"
        )
        del wanted["return"], wanted["critic_weight"]
    given = {name: columns.get(name, columns["weight"]) for name in wanted}
    near = _tolerances(trajectories, recipe, facts, wanted, given)
    if near is None:
        yield NotChecked(
            "a spread of rewards that is clearly rounding, or clearly more than that", NUMBERS
        )
        return
    yield Checked(int(trajectories.sampled_T.sum()))
    unlike_T = _differ(wanted["weight"], columns["weight"], 0.0)
    for name in sorted(wanted, key=ORDER.index):
        wrong_T = _differ(wanted[name], given[name], near[name])
        if name == "advantage":  # a token without its weight has no advantage either: said once
            wrong_T &= ~unlike_T
        yield from _by_row(evidence, trajectories, name, wanted[name], given[name], wrong_T)
    minibatches = None if evidence.credit is None else evidence.credit.minibatches
    if minibatches not in (None, expected.minibatches):
        yield Finding(
            f"{minibatches} updates per pass, but {expected.minibatches} are what "
            f"{recipe.minibatch_size} trajectories per update make of this step"
        )


def _tolerances(
    trajectories: TrajectoryTable,
    recipe: Recipe,
    facts: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    given: Mapping[str, np.ndarray],
) -> dict[str, Any] | None:
    """How far apart two ways of adding up may be, by column; None where rounding of the rewards decides something."""
    scale = 1 + float(np.abs(wanted["advantage"]).max(initial=0.0))
    near = dict.fromkeys(wanted, NEAR * scale)
    if not any(_differ(wanted[name], given[name], near[name]).any() for name in wanted):
        return near
    rounding = rounding_of_credit(trajectories, recipe, facts)
    if any((rounding[name] > UNDECIDED * scale).any() for name in wanted):
        return None
    return {name: near[name] + 10 * rounding[name] for name in wanted}


ORDER = ("weight", "advantage", "entropy_weight", "kl_weight", "return", "critic_weight")


def _differ(wanted_T: np.ndarray, got_T: np.ndarray, near: float | np.ndarray) -> np.ndarray:
    close_T = np.abs(wanted_T - got_T) <= near
    return ~(close_T | (np.isnan(wanted_T) & np.isnan(got_T)))


def _by_row(
    evidence: Evidence,
    trajectories: TrajectoryTable,
    name: str,
    wanted_T: np.ndarray,
    got_T: np.ndarray,
    wrong_T: np.ndarray,
) -> Iterator[Finding]:
    for row, own in each_row(np.flatnonzero(wrong_T), trajectories.row_T):
        first = int(own[0])
        sampled_T = trajectories.sampled_T & (trajectories.row_T == row)
        yield Finding(
            f"{name} {got_T[first]:.6g}, but its trajectory's settings and rewards make it {wanted_T[first]:.6g} "
            f"(so at {many(len(own))} of this trajectory, which sampled {int(sampled_T.sum())})"
            + _hint(wanted_T[sampled_T], got_T[sampled_T]),
            trajectories.place(first, run_length(own)),
            count=len(own),
        )


def _hint(wanted: np.ndarray, got: np.ndarray) -> str:
    """Name what the wrong numbers look like."""
    if len(wanted) < 2 or np.isnan(got).any() or np.isnan(wanted).any():
        return ""
    if not got.any():
        return "; nothing in it carries any"
    for by, words in ((1, "the token before"), (-1, "the token after")):
        moved = np.roll(wanted, by)
        inner = slice(1, None) if by == 1 else slice(None, -1)
        if np.ptp(wanted) and np.allclose(moved[inner], got[inner], rtol=1e-6, atol=1e-9):
            return f"; each has what belongs to {words}"
    both = (wanted != 0) & (got != 0)
    if both.any():
        ratio = got[both] / wanted[both]
        if (
            np.ptp(ratio) <= 1e-6 * abs(ratio[0])
            and both.sum() == (got != 0).sum() == (wanted != 0).sum()
        ):
            return f"; all of it is {ratio[0]:.6g} times what it should be"
    return ""


# ------------------------------------------------------------------------------------------------ of any algorithm


def _of_any_algorithm(
    evidence: Evidence, trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Find what no algorithm may do."""
    weight_T = columns["weight"]
    advantage_T = columns["advantage"]
    recipe = evidence.plain_recipe.recipe
    widened = evidence.credit is not None and evidence.credit.widened is not None
    widened |= (
        recipe is not None and "loss_over" in recipe.widened
    )  # tokens that were not sampled, on purpose
    faults = [
        (
            "weight {:.6g} in a trajectory that is not scored",
            weight_T,
            (weight_T != 0) & ~trajectories.scored_N[trajectories.row_T],
        ),
        ("advantage {:.6g}, no finite number", advantage_T, ~np.isfinite(advantage_T)),
        ("weight {:.6g}, no finite number", weight_T, ~np.isfinite(weight_T)),
        (
            "advantage {:.6g} on a token that is not trained (weight 0)",
            advantage_T,
            (weight_T == 0) & (advantage_T != 0) & np.isfinite(advantage_T),
        ),
    ]
    if not widened:
        faults.append(
            (
                "weight {:.6g} on a token that the policy did not sample here",
                weight_T,
                (weight_T != 0) & ~trajectories.sampled_T,
            )
        )
    for words, values_T, wrong_T in faults:
        count = int(wrong_T.sum())
        yield from at_first(
            wrong_T, lambda t: words.format(values_T[t]) + f" ({count} in all)", trajectories.place
        )
    if not widened:
        yield from _one_weight(evidence, trajectories, weight_T)


def _one_weight(
    evidence: Evidence, trajectories: TrajectoryTable, weight_T: np.ndarray
) -> Iterator[Finding]:
    """All sampled tokens of a trajectory weigh the same."""
    highest_N = np.full(trajectories.num_trajectories, -np.inf)
    np.maximum.at(
        highest_N, trajectories.row_T[trajectories.sampled_T], weight_T[trajectories.sampled_T]
    )
    short_T = trajectories.sampled_T & (weight_T != highest_N[trajectories.row_T])
    for row, own in each_row(np.flatnonzero(short_T), trajectories.row_T):
        yield Finding(
            f"weight {weight_T[own[0]]:.6g}, but other sampled tokens of the same trajectory weigh "
            f"{highest_N[row]:.6g} ({len(own)} tokens)",
            trajectories.place(int(own[0]), run_length(own)),
            severity_of_a_choice(evidence),
            len(own),
        )


def _alike_in_a_turn(
    evidence: Evidence, trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """A note where the tokens of one turn are worth different things, by an estimator that does not go token by token:
    it may tell them apart on purpose."""
    if getattr(evidence.algorithm, "has_timeline", True):
        return
    at = np.flatnonzero(trajectories.sampled_T & (columns["weight"] != 0))
    row_at = trajectories.row_T[at]
    turn_at = trajectories.turn_T[at]
    value_at = columns["advantage"][at]
    same = (row_at[1:] == row_at[:-1]) & (turn_at[1:] == turn_at[:-1])
    broken = np.flatnonzero(same & (np.abs(np.diff(value_at)) > NEAR * (1 + np.abs(value_at[1:]))))
    for _, own in each_row(broken, row_at):
        yield Finding(
            f"advantage {value_at[own[0] + 1]:.6g} after {value_at[own[0]]:.6g}, though all tokens of one "
            "turn are worth the same by this algorithm",
            trajectories.place(int(at[own[0] + 1])),
            NOTE,
            len(own),
        )


def _against_the_rewards(
    evidence: Evidence, trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Credit that runs against the rewards of its own group, unless the algorithm may."""
    if _may_run_against(evidence.algorithm):
        return
    tokens_N, mean_N, one_number_N = _mean_credit(trajectories, columns)
    together = 0.0
    for group in np.unique(trajectories.group_of_trajectory_N).tolist():
        own = np.flatnonzero((trajectories.group_of_trajectory_N == group) & (tokens_N > 0))
        if len(own) > 1:
            reward = trajectories.reward_N[own] - trajectories.reward_N[own].mean()
            credit = mean_N[own] - mean_N[own].mean()
            together += float((reward * credit).sum())
        own = own[one_number_N[own]]
        for low, high in out_of_order(trajectories.reward_N[own], mean_N[own], SLACK):
            n = int(own[high])
            other = int(own[low])
            yield Finding(
                f"it earned {trajectories.reward_N[n]:.6g} and is credited with {mean_N[n]:+.6g}, while "
                f"{trajectories.names_N[other]} of its group earned {trajectories.reward_N[other]:.6g} and is "
                f"credited with {mean_N[other]:+.6g}",
                trajectories.place_of_row(n),
            )
    if together < -SLACK:
        yield Finding(
            "credit runs against the rewards: taken over all groups, who earned more than its group is "
            "credited with less. An estimator that means it says against_rewards = True"
        )


def _mean_credit(
    trajectories: TrajectoryTable, columns: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By trajectory: how many of its tokens count, their mean credit, and whether each of them has it."""
    count = trajectories.num_trajectories
    counts_T = (
        trajectories.sampled_T
        & (columns["weight"] != 0)
        & trajectories.scored_N[trajectories.row_T]
    )
    row_at = trajectories.row_T[counts_T]
    credit_at = columns["advantage"][counts_T]
    tokens_N = np.bincount(row_at, minlength=count)
    mean_N = np.bincount(row_at, credit_at, count) / np.maximum(tokens_N, 1)
    strays = ~np.isclose(credit_at, mean_N[row_at], rtol=NEAR, atol=NEAR)
    one_number_N = np.bincount(row_at[strays], minlength=count) == 0
    return tokens_N, mean_N, one_number_N


def _may_run_against(algorithm: Any) -> bool:
    """An estimator may say that its credit runs against rewards; one may lean on a critic, or pay for leaving the
    reference."""
    if declares(algorithm, "against_rewards") or "value_T" in algorithm.requires:
        return True
    pays = setting_of(algorithm, "reference.kl_coef", 0)
    return bool(pays) and setting_of(algorithm, "reference.kl_in", "loss") == "reward"


def out_of_order(
    rewards: Sequence[float], credits: Sequence[float], slack: float
) -> list[tuple[int, int]]:
    """(low, high): neighbours in the order of rewards, of which `high` earned more and is credited with less."""
    rising = np.argsort(rewards, kind="stable").tolist()
    return [
        (low, high)
        for low, high in zip(rising, rising[1:])
        if rewards[high] > rewards[low] + slack and credits[high] < credits[low] - slack
    ]


RULES: tuple[Rule, ...] = (
    Rule(
        "R6",
        "every sampled token carries its trajectory's credit",
        means="tokens are pushed by another amount than the rewards and the algorithm's settings say: some turns learn "
        "nothing, or learn from another turn's, another trajectory's or another group's success. Training goes on and "
        "the reward may still rise.",
        mend="recompute the credit of the trajectory named here by hand (wb.edit_step shows every number); then look at "
        "how a value per trajectory or turn is laid onto its tokens: all segments, the right mask, no shift by one.",
        needs=(),
        check=_check,
        threads=(
            "SkyRL#1492",
            "SkyRL#201",
            "AReaL#1666",
            "verl#7300",
            "verl#7278",
            "verl#2337",
            "PipelineRL#54",
            "trl#5902",
        ),
    ),
)
