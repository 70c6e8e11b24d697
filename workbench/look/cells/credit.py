"""Cells that recompute credit: an edited step, and estimators side by side.

    wb.edit_step("runs/first", 3).after(rewards={(1, 0): 0.5})     a stored step, with the facts that training used
    wb.step_facts(run, 3, session=wb.reopen(run))     these facts, and what that session says where training had none
    wb.show_estimators(groups, ["grpo", "rloo"])

Credit is what `Batch.from_groups` and `algorithm.credit` give: the very functions of training, so every number shown is
the one that training would use, bit for bit. An edit of a reward makes new groups; nothing is patched behind the batch.

Axis letters: N trajectories · T tokens of the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.basics.tensors import torch
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, missing_facts, needs_critic
from workbench.learn.algorithms.parts import ADVANTAGE_MASK
from workbench.learn.batch import Batch
from workbench.learn.replay import stored_facts
from workbench.look.cells.credit_settings import (
    chosen,
    has_setting,
    inert_of,
    knobs_of,
    known_name,
    named,
    with_settings,
)
from workbench.look.cells.edits import Edit, EditedCredit, Outcome
from workbench.look.cells.stored import token_texts as stored_token_texts
from workbench.look.credit import estimators_view
from workbench.look.credited import Credited
from workbench.look.tokens import TokenTexts
from workbench.run.store import Run, open_run
from workbench.training.stored import config_of_run
from workbench.values import CreditTable, Group, Trajectory, View, trajectories_of
from workbench.values.errors import ConfigError, DataError

if TYPE_CHECKING:
    from workbench.training.session import Session

Facts = Batch | CreditTable | None
FACTS = ("old_logp_T", "ref_logp_T", "value_T", "final_value_N")


# ------------------------------------------------------------------------------------------------ the cells


def facts(session: Session, groups: Sequence[Group]) -> Batch:
    """A batch that knows what the session's models say of its tokens, everywhere in the responses: logprobs under the
    current and the reference policy, the critic's values. Which of them there are is the algorithm's business
    (`requires`; a reference comes with the current policy's logprobs beside it); that they are there also where nothing
    was sampled is for looking at mask switches. Raises DataError where the session's algorithm asks its models nothing.
    """
    algorithm = session.config.algorithm
    if not algorithm.requires:
        raise DataError(
            f"{named(algorithm)} as it is set asks neither a critic nor a reference, so this session has "
            "none; open one that has, such as load_config('frozenlake-ppo', {'algorithm.reference.kl_coef': 0.05})"
        )
    masks = replace(algorithm.masks, advantage_mask=False, **dict.fromkeys(ADVANTAGE_MASK))
    learner = copy.copy(session.learner)  # the same models; only what it is asked for is another
    learner.algorithm = replace(algorithm, masks=masks)
    batch = learner.facts(Batch.from_groups(groups))
    if batch.ref_logp_T is None or batch.old_logp_T is not None:
        return batch
    # with the pull in the loss, training compares the two there; to look at it in the reward, both are wanted here
    return replace(batch, old_logp_T=learner.logprobs(batch, learner.algorithm.reads_T(batch)))


def step_facts(
    run: Run | str | Path, step: int, *, session: Session | None = None, task: int | None = None
) -> Batch:
    """The batch of a stored step with the facts that training used, bit for bit.

    Training asked its models only where credit was due. `session` fills the gaps, the replies between the answers, with
    what its own models say; it says nothing where a number is stored. A session with the weights that the step began
    with is `wb.reopen(run, step=step - 1)`. `task`: only this
    group of the step.
    """
    run = open_run(run)
    groups = run.groups(step)
    updates = run.updates(step)
    batch = Batch.from_groups(groups)
    stored = facts_of(groups, run.credit(step, updates[0])) if updates else {}
    known = stored
    if session is not None and session.config.algorithm.requires:
        asked = facts(session, groups)
        known = {name: getattr(asked, name) for name in FACTS if getattr(asked, name) is not None}
        known |= {
            name: torch.where(there.isfinite(), there, known[name]) if name in known else there
            for name, there in stored.items()
        }
    batch = with_facts(batch, known)
    if task is None:
        return batch
    if not 0 <= task < len(groups):
        raise DataError(
            f"step {step} has no task {task}; they are counted from 0 to {len(groups) - 1}"
        )
    first = sum(len(group) for group in groups[:task])
    return batch.select(range(first, first + len(groups[task])))


def edited_groups(
    groups: Sequence[Group],
    algorithm: Algorithm | str = "grpo",
    *,
    token_texts: TokenTexts,
    facts: Facts = None,
    attempt: int = 0,
) -> EditedCredit:
    """The credit of these groups, and after a change of a reward, an estimator or one of its settings.

    `algorithm`: a name ("my_module:MINE" too), or one with settings of its own to begin with. `facts`: a batch of the same groups that has
    what a critic and a reference say (`wb.facts`, `Learner.facts`), or a stored credit table; without them an estimator
    that needs them says so. `attempt`: the one shown in full, counted over all groups.
    """
    given = chosen(algorithm)
    start = given.name
    bases = ALGORITHMS | {start: given}
    credit = edited_credit(groups, bases, facts_of(groups, facts))
    usual = knobs_of(ALGORITHMS.get(start, given))
    own = ", ".join(
        f"{knob.name} = {knob.default}"
        for knob, other in zip(knobs_of(given), usual)
        if knob.default != other.default
    )
    return EditedCredit(groups, token_texts, credit, Edit(start), own=own, attempt=attempt)


def edit_step(
    run: Run | str | Path,
    step: int,
    *,
    algorithm: Algorithm | str | None = None,
    session: Session | None = None,
    attempt: int = 0,
) -> EditedCredit:
    """The credit of a stored step and after edits, with the facts that training used, under the run's own algorithm or
    another. With a `session` the masks can be widened, too: it fills what training did not ask for (`step_facts`).
    `attempt`: the one shown in full, counted over all groups. By clicking: `wb.explore(run, at="step 3")`."""
    run = open_run(run)
    own = config_of_run(run, ["algorithm"]).algorithm if algorithm is None else algorithm
    return edited_groups(
        run.groups(step),
        own,
        token_texts=stored_token_texts(run),
        facts=step_facts(run, step, session=session),
        attempt=attempt,
    )


def show_estimators(
    groups: Sequence[Group],
    names: Sequence[str | Algorithm] = tuple(ALGORITHMS),
    *,
    facts: Facts = None,
    settings: Mapping[str, Any] = {},
) -> View:
    """The advantage of every turn under several estimators, side by side, each with its own defaults; `settings` (by
    dotted name) are set in each that has them. `names`: of algorithms, or algorithms. One that cannot be computed on this
    batch says why."""
    bases = {base.name: base for base in map(chosen, names)}
    credit = edited_credit(groups, bases, facts_of(groups, facts), look_for_inert=False)
    by_name: dict[str, Credited | str] = {}
    for name, base in bases.items():
        here = {key: value for key, value in settings.items() if has_setting(base, key)}
        try:
            by_name[name] = credit(Edit(name, here)).credited
        except (ConfigError, DataError) as error:
            by_name[name] = str(error)
    return estimators_view(groups, by_name)


# ------------------------------------------------------------------------------------------------ credit as arrays


def credited(batch: Batch, algorithm: Algorithm) -> Credited:
    """`algorithm.credit(batch)` as arrays. Raises what it raises, and DataError where an advantage is not finite: then
    a fact is missing at a token that was asked about."""
    credit = algorithm.credit(batch)
    kept_N = batch.scored_N & algorithm.filter.kept(
        batch.reward_N, batch.group_of_trajectory_N, batch.scored_N
    )
    bad_T = ~credit.advantage_T.isfinite()
    if bool(bad_T.any()):
        where = batch.describe_token(int(bad_T.nonzero()[0]))
        raise DataError(
            f"{int(bad_T.sum())} tokens have no finite advantage, the first: {where}. A widened mask asks "
            "for values or logprobs at tokens that were not sampled, where training had none: "
            "facts=wb.facts(session, groups) has them in the whole response, and for a stored step "
            "wb.edit_step(run, step, session=wb.reopen(run))"
        )
    counts = {
        f"tokens_{term}": float((credit.weights_of(term) != 0).sum()) for term in _terms(algorithm)
    }
    return_T = None if credit.return_T is None else credit.return_T.numpy()
    return Credited(
        credit.advantage_T.numpy(),
        credit.weight_T.numpy(),
        return_T,
        batch.reward_N.numpy(),
        kept_N.numpy(),
        dict(credit.notes) | counts,
    )


def with_rewards(
    groups: Sequence[Group],
    rewards: Mapping[tuple[int, int], float | None],
    dropped: Collection[int] = (),
) -> tuple[Group, ...]:
    """The same groups in which some turns earned something else: (trajectory over all groups, turn) -> reward. The turn
    after the last one is the outcome. Trajectories that are `dropped` are not scored, so that they leave baseline and loss.
    Raises DataError for a turn or a trajectory that is not there."""
    left = dict(rewards)
    made = []
    n = 0
    trajectories = trajectories_of(groups)
    for number in dropped:
        if not 0 <= number < len(trajectories):
            raise DataError(
                f"no attempt {number} to drop: there are {len(trajectories)}, counted over all groups from 0"
            )
        left |= {(number, turn): None for turn in range(len(trajectories[number].turns))}
        left |= (
            {}
            if trajectories[number].outcome is None
            else {(number, len(trajectories[number].turns)): None}
        )
    for group in groups:
        trajectories = []
        for trajectory in group:
            here = {turn: left.pop((n, turn)) for (attempt, turn) in list(left) if attempt == n}
            trajectories.append(_with_rewards(trajectory, n, here) if here else trajectory)
            n += 1
        made.append(
            replace(group, trajectories=tuple(trajectories))
            if any(a is not b for a, b in zip(trajectories, group))
            else group
        )
    if left:
        raise DataError(
            f"no attempt {next(iter(left))[0]}: there are {n}, counted over all groups from 0"
        )
    return tuple(made)


def _with_rewards(
    trajectory: Trajectory, n: int, rewards: Mapping[int, float | None]
) -> Trajectory:
    turns = list(trajectory.turns)
    outcome = {}
    for turn, reward in rewards.items():
        if turn == len(turns) and trajectory.outcome is not None:
            outcome = {"outcome": reward, "outcome_parts": {}, "scored": reward is not None}
        elif 0 <= turn < len(turns):
            turns[turn] = replace(turns[turn], reward=reward, reward_parts={})
        else:
            an = "no" if trajectory.outcome is None else "an"
            raise DataError(
                f"attempt {n} has {len(turns)} turns, counted from 0, and {an} outcome after them; there "
                f"is no turn {turn}"
            )
    return replace(trajectory, turns=tuple(turns), **outcome)


def edited_credit(
    groups: Sequence[Group],
    bases: Mapping[str, Algorithm],
    known: Mapping[str, Any],
    look_for_inert: bool = True,
) -> Callable[[Edit], Outcome]:
    """A function that computes an edit. The batch of the last rewards is kept: another setting builds none."""
    last: dict[str, Any] = {}

    def batch_of(edit: Edit) -> tuple[tuple[Group, ...], Batch]:
        key = (tuple(edit.rewards.items()), edit.dropped)
        if last.get("key") != key or "batch" not in last:
            edited = with_rewards(groups, edit.rewards, edit.dropped)
            last.update(key=key, groups=edited, batch=with_facts(Batch.from_groups(edited), known))
        return last["groups"], last["batch"]

    def credit(edit: Edit) -> Outcome:
        if ("outcome", edit) == last.get("edit"):
            return last["outcome"]
        algorithm = with_settings(bases[known_name(edit.algorithm, bases)], edit.settings)
        edited, batch = batch_of(edit)
        _demand_facts(algorithm, batch)
        computed = credited(batch, algorithm)
        if look_for_inert:
            computed = replace(computed, inert=inert_of(algorithm, batch))
        last.update(edit=("outcome", edit), outcome=Outcome(edited, computed))
        return last["outcome"]

    return credit


# ------------------------------------------------------------------------------------------------ facts


def facts_of(groups: Sequence[Group], source: Facts) -> dict[str, Any]:
    """The later facts that a batch or a stored table has, by name."""
    if source is None:
        return {}
    batch = source if isinstance(source, Batch) else Batch.from_groups(groups)
    if isinstance(source, CreditTable):
        columns = {name.rpartition("_")[0]: name for name in FACTS}
        there = [fact for column, fact in columns.items() if column in source.columns]
        return stored_facts(batch, source, there, "a step")
    known = {name: getattr(batch, name) for name in FACTS if getattr(batch, name) is not None}
    expected = sum(len(segment) for group in groups for t in group for segment in t.segments)
    if batch.num_tokens != expected:
        raise DataError(
            f"facts of another batch: it has {batch.num_tokens} tokens, these groups have {expected}"
        )
    return known


def _demand_facts(algorithm: Algorithm, batch: Batch) -> None:
    if missing := missing_facts(algorithm, batch):
        raise DataError(
            f"{named(algorithm)} needs {', '.join(missing)}, which nobody computed for these groups: hand "
            "over facts=wb.facts(session, groups), from a session whose algorithm has a critic or a "
            "reference, such as load_config('frozenlake-ppo', {'algorithm.reference.kl_coef': 0.05})"
        )


def with_facts(batch: Batch, known: Mapping[str, Any]) -> Batch:
    return replace(batch, **known) if known else batch


def _terms(algorithm: Any) -> list[str]:
    """The terms of the loss that this algorithm has."""
    there = {
        "policy": True,
        "entropy": bool(algorithm.entropy_coef),
        "kl": algorithm.reference.in_loss,
        "critic": needs_critic(algorithm),
    }
    return [term for term in TERMS if there[term]]
