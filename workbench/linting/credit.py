"""Credit: every sampled token carries its trajectory's (R6).

The credit that is about to be trained on, token by token, against the plain twin of the algorithm, computed from spans,
turns and settings. Without a twin, what must hold for any algorithm: nothing where nothing is trained, one weight per
attempt, finite numbers, and no credit against the rewards of its own group.

Axis letters: N trajectories · T tokens (flat).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from workbench.linting.attempts import Attempts
from workbench.linting.evidence import Evidence
from workbench.linting.messages import at_first, each_row, many, run_length
from workbench.linting.rule import Rule, RuleResult
from workbench.linting.twin import (
    WEIGHT_COLUMNS,
    ExpectedCredit,
    declares,
    expected_credit,
    rounding_of_credit,
)
from workbench.types.findings import ERROR, NOTE, Checked, Finding, NotChecked

NEAR = 1e-9  # relative: two ways of adding up
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
    """What a step is credited with, by column [T]: of the credit, else of the first update's table; None: neither."""
    if evidence.credit is not None:
        credit = evidence.credit
        found = {
            "advantage": credit.advantage_T,
            "weight": credit.weight_T,
            "return": credit.return_T,
            "entropy_weight": credit.entropy_weight_T,
            "kl_weight": credit.kl_weight_T,
            "critic_weight": credit.critic_weight_T,
        }
        return {name: values_T.numpy() for name, values_T in found.items() if values_T is not None}
    if not evidence.updates:
        return None
    columns = evidence.updates[0].table.columns
    return {
        name: columns[name]
        for name in ("advantage", "return", *WEIGHT_COLUMNS.values())
        if name in columns
    }


def facts_of(evidence: Evidence) -> dict[str, np.ndarray]:
    """What the models said of the step, by the names of `plain.rewards.AttemptTokens`, from its batch, else from the
    first update's table."""
    batch = evidence.batch
    if batch is not None:
        found = {
            "old_logp": batch.old_logp_T,
            "ref_logp": batch.ref_logp_T,
            "value": batch.value_T,
            "final_value": batch.final_value_N,
        }
        if any(fact is not None for fact in found.values()) or not evidence.updates:
            return {name: fact.double().numpy() for name, fact in found.items() if fact is not None}
    if not evidence.updates:
        return {}
    columns = evidence.updates[0].table.columns
    facts = {
        name: columns[name].astype(np.float64)
        for name in ("old_logp", "ref_logp", "value")
        if name in columns
    }
    if "final_value" in columns and evidence.attempts is not None:
        facts["final_value"] = np.full(evidence.attempts.num_trajectories, np.nan)
        ends = np.flatnonzero(~np.isnan(columns["final_value"]))
        facts["final_value"][columns["trajectory"][ends]] = columns["final_value"][ends]
    return facts


def has_credit_twin(evidence: Evidence) -> bool:
    """Whether the algorithm brings a plain twin of how it gives credit. Where it brings none, it may leave tokens or
    attempts out on purpose."""
    return not CREDIT_PARTS & set(evidence.twin.missing)


def severity_of_a_choice(evidence: Evidence) -> str:
    """Of tokens or attempts that are left out or weigh less: a note where an algorithm without such a twin chose."""
    return NOTE if evidence.algorithm is not None and not has_credit_twin(evidence) else ERROR


# ------------------------------------------------------------------------------------------------ the rule


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    attempts, columns, algorithm = evidence.attempts, columns_of(evidence), evidence.algorithm
    if attempts is None or columns is None:
        yield NotChecked(
            "trajectories or a batch"
            if attempts is None
            else "the credit, or the credit table of an update"
        )
        return
    if wrong := sorted({len(values_T) for values_T in columns.values()} - {attempts.num_tokens}):
        yield Finding(
            f"credit for {wrong[0]} tokens, but the trajectories have {attempts.num_tokens}"
        )
        return
    facts = facts_of(evidence)
    if wrong := [
        name
        for name, fact in facts.items()
        if len(fact)
        != (attempts.num_trajectories if name == "final_value" else attempts.num_tokens)
    ]:
        yield Finding(
            f"{', '.join(wrong)} of the batch belong to other trajectories: their number is another one"
        )
        return
    if (missing := _needs(evidence, facts)) is not None:
        yield missing
        yield from _of_any(evidence, attempts, columns)
        if algorithm is not None and not has_credit_twin(evidence):
            yield from _alike_in_a_turn(evidence, attempts, columns)
            yield from _against_the_rewards(evidence, attempts, columns)
        return
    expected = expected_credit(attempts, evidence.twin.recipe, facts)
    yield Checked(int(attempts.sampled_T.sum()))
    yield from _compare(evidence, attempts, columns, expected, facts)


def _needs(evidence: Evidence, facts: Mapping[str, np.ndarray]) -> NotChecked | None:
    """What is missing to compute the credit once more."""
    algorithm = evidence.algorithm
    if algorithm is None:
        return NotChecked("the algorithm, whose settings say what the credit is to be")
    if not has_credit_twin(evidence):
        return NotChecked(f"a plain twin of the credit of {algorithm.name}", decides=True)
    recipe = evidence.twin.recipe
    names = ["old_logp_T", "ref_logp_T"] if recipe.kl_coef and recipe.kl_in == "reward" else []
    names += [name for name in ("value_T", "final_value_N") if name in algorithm.requires]
    if lacking := [
        name for name in names if name.removesuffix("_T").removesuffix("_N") not in facts
    ]:
        return NotChecked(f"{', '.join(lacking)}, of which the credit was made", decides=True)
    return None


def _compare(
    evidence: Evidence,
    attempts: Attempts,
    columns: Mapping[str, np.ndarray],
    expected: ExpectedCredit,
    facts: Mapping[str, np.ndarray],
) -> Iterator[RuleResult]:
    """Token by token; one finding per trajectory and column."""
    wanted = expected.columns
    if "return" in wanted and "return" not in columns:
        yield Finding(
            "the algorithm has a critic, but the credit says nothing that it could be fitted to (return)"
        )
        wanted = {
            name: values_T
            for name, values_T in wanted.items()
            if name not in ("return", "critic_weight")
        }
    pairs = [
        (name, values_T, columns.get(name, columns["weight"])) for name, values_T in wanted.items()
    ]
    near = dict.fromkeys(wanted, NEAR * (1 + float(np.abs(wanted["advantage"]).max(initial=0.0))))
    if any(_differ(values_T, got_T, near[name]).any() for name, values_T, got_T in pairs):
        rounding = rounding_of_credit(attempts, evidence.twin.recipe, facts)
        if any(
            (moved_T > UNDECIDED * near[name] / NEAR).any() for name, moved_T in rounding.items()
        ):
            yield NotChecked(
                "a spread of rewards that is clearly rounding, or clearly more than that",
                decides=True,
            )
            return
        near = {name: near[name] + 10 * rounding[name] for name in near}
    unlike_T = _differ(wanted["weight"], columns["weight"], 0.0)
    for name, values_T, got_T in sorted(pairs, key=lambda pair: ORDER.index(pair[0])):
        wrong_T = _differ(values_T, got_T, near[name])
        if name == "advantage":  # a token without its weight has no advantage either: said once
            wrong_T &= ~unlike_T
        yield from _by_row(evidence, attempts, name, values_T, got_T, wrong_T)
    credit = evidence.credit
    if (
        credit is not None
        and credit.minibatches is not None
        and credit.minibatches != expected.minibatches
    ):
        yield Finding(
            f"{credit.minibatches} updates per pass, but {expected.minibatches} are what "
            f"{evidence.twin.recipe.minibatch_size} trajectories per update make of this step"
        )


ORDER = ("weight", "advantage", "entropy_weight", "kl_weight", "return", "critic_weight")


def _differ(wanted_T: np.ndarray, got_T: np.ndarray, near: float | np.ndarray) -> np.ndarray:
    close_T = np.abs(wanted_T - got_T) <= near
    return ~(close_T | (np.isnan(wanted_T) & np.isnan(got_T)))


def _by_row(
    evidence: Evidence,
    attempts: Attempts,
    name: str,
    wanted_T: np.ndarray,
    got_T: np.ndarray,
    wrong_T: np.ndarray,
) -> Iterator[Finding]:
    for row, own in each_row(np.flatnonzero(wrong_T), attempts.row_T):
        first = int(own[0])
        sampled_T = attempts.sampled_T & (attempts.row_T == row)
        yield Finding(
            f"{name} {got_T[first]:.6g}, but its attempt's settings and rewards make it {wanted_T[first]:.6g} "
            f"(so at {many(len(own))} of this attempt, which sampled {int(sampled_T.sum())})"
            + _hint(wanted_T[sampled_T], got_T[sampled_T]),
            attempts.place(first, run_length(own)),
            count=len(own),
        )


def _hint(wanted: np.ndarray, got: np.ndarray) -> str:
    """What the wrong numbers look like."""
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


def _of_any(
    evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """What no algorithm may do."""
    weight_T, advantage_T = columns["weight"], columns["advantage"]
    recipe = evidence.twin.recipe
    widened = evidence.credit is not None and evidence.credit.widened is not None
    widened |= (
        recipe is not None and "loss_over" in recipe.widened
    )  # tokens that were not sampled, on purpose
    faults = [
        (
            "weight {:.6g} in an attempt that is not scored",
            weight_T,
            (weight_T != 0) & ~attempts.scored_N[attempts.row_T],
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
                (weight_T != 0) & ~attempts.sampled_T,
            )
        )
    for words, values_T, wrong_T in faults:
        count = int(wrong_T.sum())
        yield from at_first(
            wrong_T, lambda t: words.format(values_T[t]) + f" ({count} in all)", attempts.place
        )
    if not widened:
        yield from _one_weight(evidence, attempts, weight_T)


def _one_weight(evidence: Evidence, attempts: Attempts, weight_T: np.ndarray) -> Iterator[Finding]:
    """All sampled tokens of an attempt weigh the same."""
    highest_N = np.full(attempts.num_trajectories, -np.inf)
    np.maximum.at(highest_N, attempts.row_T[attempts.sampled_T], weight_T[attempts.sampled_T])
    short_T = attempts.sampled_T & (weight_T != highest_N[attempts.row_T])
    for row, own in each_row(np.flatnonzero(short_T), attempts.row_T):
        yield Finding(
            f"weight {weight_T[own[0]]:.6g}, but other sampled tokens of the same attempt weigh "
            f"{highest_N[row]:.6g} ({len(own)} tokens)",
            attempts.place(int(own[0]), run_length(own)),
            severity_of_a_choice(evidence),
            len(own),
        )


def _alike_in_a_turn(
    evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """A note where the tokens of one turn are worth different things, by an estimator that does not go token by token:
    it may tell them apart on purpose."""
    if getattr(evidence.algorithm, "has_timeline", True):
        return
    at = np.flatnonzero(attempts.sampled_T & (columns["weight"] != 0))
    row_at, turn_at, value_at = attempts.row_T[at], attempts.turn_T[at], columns["advantage"][at]
    same = (row_at[1:] == row_at[:-1]) & (turn_at[1:] == turn_at[:-1])
    broken = np.flatnonzero(same & (np.abs(np.diff(value_at)) > NEAR * (1 + np.abs(value_at[1:]))))
    for _, own in each_row(broken, row_at):
        yield Finding(
            f"advantage {value_at[own[0] + 1]:.6g} after {value_at[own[0]]:.6g}, though all tokens of one "
            "turn are worth the same by this algorithm",
            attempts.place(int(at[own[0] + 1])),
            NOTE,
            len(own),
        )


def _against_the_rewards(
    evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Credit that runs against the rewards of its own group, unless the estimator says that it may
    (`against_rewards = True`), leans on a critic, or pays for leaving the reference."""
    algorithm = evidence.algorithm
    if (
        declares(algorithm, "against_rewards")
        or "value_T" in algorithm.requires
        or (getattr(algorithm, "kl_coef", 0) and getattr(algorithm, "kl_in", "loss") == "reward")
    ):
        return
    at = np.flatnonzero(
        attempts.sampled_T & (columns["weight"] != 0) & attempts.scored_N[attempts.row_T]
    )
    count_N = np.bincount(attempts.row_T[at], minlength=attempts.num_trajectories)
    total_N = np.bincount(attempts.row_T[at], columns["advantage"][at], attempts.num_trajectories)
    mean_N = total_N / np.maximum(count_N, 1)
    together = 0.0
    for group in np.unique(attempts.group_N).tolist():
        own = np.flatnonzero((attempts.group_N == group) & (count_N > 0))
        reward, credit = attempts.reward_N[own], mean_N[own]
        together += (
            float(((reward - reward.mean()) * (credit - credit.mean())).sum())
            if len(own) > 1
            else 0.0
        )
        one_number = np.isclose(
            columns["advantage"][at], mean_N[attempts.row_T[at]], rtol=NEAR, atol=NEAR
        )
        own = own[[bool(one_number[attempts.row_T[at] == n].all()) for n in own]]
        for low, high in out_of_order(attempts.reward_N[own], mean_N[own], SLACK):
            n, other = int(own[high]), int(own[low])
            yield Finding(
                f"it earned {attempts.reward_N[n]:.6g} and is credited with {mean_N[n]:+.6g}, while "
                f"{attempts.names_N[other]} of its group earned {attempts.reward_N[other]:.6g} and is "
                f"credited with {mean_N[other]:+.6g}",
                attempts.place_of_row(n),
            )
    if together < -SLACK:
        yield Finding(
            "credit runs against the rewards: taken over all groups, who earned more than its group is "
            "credited with less. An estimator that means it says against_rewards = True"
        )


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
        "every sampled token carries its attempt's credit",
        means="tokens are pushed by another amount than the rewards and the algorithm's settings say: some turns learn "
        "nothing, or learn from another turn's, another attempt's or another group's success. Training goes on and "
        "the reward may still rise.",
        mend="recompute the credit of the trajectory named here by hand (wb.edit_step shows every number); then look at "
        "how a value per attempt or turn is laid onto its tokens: all segments, the right mask, no shift by one.",
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
