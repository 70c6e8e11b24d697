"""Cells that recompute credit: the editor, and estimators side by side.

    wb.credit_editor(groups, "ppo", token_texts=session.chat.token_texts, facts=wb.facts(session, groups))
    wb.edit_step("runs/first", 3)                     the same for a stored step, with the facts that training used
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

import torch

from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, missing_facts, needs_critic
from workbench.learn.algorithms.parts import ADVANTAGE_MASK
from workbench.learn.batch import Batch
from workbench.learn.replay import stored_facts
from workbench.notebook.credit_settings import (
    chosen,
    has_setting,
    inert_of,
    knobs_of,
    known_name,
    named,
    with_settings,
)
from workbench.notebook.live import has_widgets
from workbench.notebook.stored import token_texts as stored_token_texts
from workbench.run.store import Run, open_run
from workbench.training.stored import config_of_run
from workbench.types import CreditTable, Group, Trajectory, View, trajectories_of
from workbench.types.errors import ConfigError, DataError
from workbench.views.credit import show_estimators as draw_estimators
from workbench.views.credit_editor import CreditEditor, Edit, Outcome
from workbench.views.credited import Credited
from workbench.views.tokens import TokenTexts

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
            "none; open one that has, such as load_config('frozenlake-ppo', {'algorithm.kl_coef': 0.05})"
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
    with is `wb.reopen(run, step=step - 1)`, where that checkpoint was kept (train.checkpoint_every). `task`: only this
    group of the step.
    """
    run = open_run(run)
    groups, updates = run.groups(step), run.updates(step)
    batch = Batch.from_groups(groups)
    stored = facts_of(groups, run.credit(step, updates[0])) if updates else {}
    known = stored
    if session is not None and session.config.algorithm.requires:
        said = facts(session, groups)
        known = {name: getattr(said, name) for name in FACTS if getattr(said, name) is not None}
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


def credit_editor(
    groups: Sequence[Group],
    algorithm: Algorithm | str = "grpo",
    *,
    token_texts: TokenTexts,
    facts: Facts = None,
    attempt: int = 0,
    widgets: bool | None = None,
) -> CreditEditor:
    """Change a reward, an estimator or one of its settings, and see the credit of every token change.

    `algorithm`: a name ("my_module:MINE" too), or one with settings of its own to begin with. `facts`: a batch of the same groups that has
    what a critic and a reference say (`wb.facts`, `Learner.facts`), or a stored credit table; without them an estimator
    that needs them says so. `attempt`: the one shown in full, counted over all groups. `widgets` None: where somebody
    looks.
    """
    given = chosen(algorithm)
    start = given.name
    bases = ALGORITHMS | {start: given}
    credit, usual = (
        edited_credit(groups, bases, facts_of(groups, facts)),
        knobs_of(ALGORITHMS.get(start, given)),
    )
    own = ", ".join(
        f"{knob.name} = {knob.default}"
        for knob, other in zip(knobs_of(given), usual)
        if knob.default != other.default
    )
    knobs = {name: knobs_of(base) for name, base in bases.items()}
    return CreditEditor(
        groups,
        token_texts,
        knobs,
        credit,
        Edit(start),
        own=own,
        attempt=attempt,
        widgets=has_widgets() if widgets is None else widgets,
    )


def edit_step(
    run: Run | str | Path,
    step: int,
    *,
    session: Session | None = None,
    attempt: int = 0,
    widgets: bool | None = None,
) -> CreditEditor:
    """The editor on a stored step, opened with the run's own algorithm and the facts that training used. With a
    `session` the masks can be widened, too: it fills what training did not ask for (`step_facts`)."""
    run = open_run(run)
    return credit_editor(
        run.groups(step),
        config_of_run(run, ["algorithm"]).algorithm,
        token_texts=stored_token_texts(run),
        facts=step_facts(run, step, session=session),
        attempt=attempt,
        widgets=widgets,
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
    found: dict[str, Credited | str] = {}
    for name, base in bases.items():
        here = {key: value for key, value in settings.items() if has_setting(base, key)}
        try:
            found[name] = credit(Edit(name, here)).credited
        except (ConfigError, DataError) as error:
            found[name] = str(error)
    return draw_estimators(groups, found)


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
    """The same groups in which some turns earned something else: (attempt over all groups, turn) -> reward. The turn
    after the last one is the outcome. Attempts that are `dropped` are not scored, so that they leave baseline and loss.
    Raises DataError for a turn or an attempt that is not there."""
    left, made, n = dict(rewards), [], 0
    attempts = trajectories_of(groups)
    for number in dropped:
        if not 0 <= number < len(attempts):
            raise DataError(
                f"no attempt {number} to drop: there are {len(attempts)}, counted over all groups from 0"
            )
        left |= {(number, turn): None for turn in range(len(attempts[number].turns))}
        left |= (
            {}
            if attempts[number].outcome is None
            else {(number, len(attempts[number].turns)): None}
        )
    for group in groups:
        attempts = []
        for trajectory in group:
            here = {turn: left.pop((n, turn)) for (attempt, turn) in list(left) if attempt == n}
            attempts.append(_with_rewards(trajectory, n, here) if here else trajectory)
            n += 1
        made.append(
            replace(group, trajectories=tuple(attempts))
            if any(a is not b for a, b in zip(attempts, group))
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
    turns, outcome = list(trajectory.turns), {}
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
    """The function that the editor is handed. The batch of the last rewards is kept: moving a slider builds none."""
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
        found = credited(batch, algorithm)
        if look_for_inert:
            found = replace(found, inert=inert_of(algorithm, batch))
        last.update(edit=("outcome", edit), outcome=Outcome(edited, found))
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
    found = {name: getattr(batch, name) for name in FACTS if getattr(batch, name) is not None}
    expected = sum(len(segment) for group in groups for t in group for segment in t.segments)
    if batch.num_tokens != expected:
        raise DataError(
            f"facts of another batch: it has {batch.num_tokens} tokens, these groups have {expected}"
        )
    return found


def _demand_facts(algorithm: Algorithm, batch: Batch) -> None:
    if missing := missing_facts(algorithm, batch):
        raise DataError(
            f"{named(algorithm)} needs {', '.join(missing)}, which nobody computed for these groups: hand "
            "over facts=wb.facts(session, groups), from a session whose algorithm has a critic or a "
            "reference, such as load_config('frozenlake-ppo', {'algorithm.kl_coef': 0.05})"
        )


def with_facts(batch: Batch, known: Mapping[str, Any]) -> Batch:
    return replace(batch, **known) if known else batch


def _terms(algorithm: Any) -> list[str]:
    """The terms of the loss that this algorithm has."""
    there = {
        "policy": True,
        "entropy": bool(algorithm.entropy_coef),
        "kl": bool(algorithm.kl_coef) and algorithm.kl_in == "loss",
        "critic": needs_critic(algorithm),
    }
    return [term for term in TERMS if there[term]]
