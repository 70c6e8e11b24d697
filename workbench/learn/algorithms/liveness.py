"""Which settings of an algorithm can have no effect (invariant 11), and what else should be said before a run begins.

Read off the settings alone: what turns out inert only as a run goes is in its metrics.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields

from workbench.basics.settings import Inert
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.algorithms.objectives import OBJECTIVES, ClipObjective
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, READS, Filter
from workbench.learn.ops import filters
from workbench.values.errors import ConfigError


def most_kept(rule: Filter, groups: int, group_size: int) -> int:
    """The largest number of trajectories that a filter can keep of `groups` groups with `group_size` trajectories each."""
    if rule.keep == "within_group":
        return groups * min(group_size, rule.attempts)
    kept = {
        "top_share": lambda: filters.count_of_share(groups, rule.share),
        "top_k": lambda: min(groups, rule.groups),
        "band": lambda: len(filters.places_in_band(groups, rule.low, rule.high)),
    }
    return (kept[rule.keep]() if rule.keep in kept else groups) * group_size


def updates_of_a_step(algorithm: Algorithm, tasks: int, group_size: int) -> int:
    """The largest number of updates that a step of so many trajectories can make."""
    if not algorithm.minibatch_size:
        return algorithm.epochs * algorithm.minibatches
    chosen = algorithm.filter
    attempts = tasks * group_size if chosen.equal_updates else most_kept(chosen, tasks, group_size)
    return algorithm.epochs * max(1, math.ceil(attempts / algorithm.minibatch_size))


def inert_settings(algorithm: Algorithm, tasks: int, group_size: int) -> list[Inert]:
    """Every setting that may be without effect, for steps of `tasks` x `group_size` trajectories."""
    one = updates_of_a_step(algorithm, tasks, group_size) == 1
    more = _what_makes_more_updates(algorithm, tasks, group_size)
    inert: list[Inert] = []
    if type(algorithm.objective) in OBJECTIVES.values():  # what settings of others do is not known
        why = f"with one update per step the ratio is 1 everywhere and clipping can never bind; {more}"
        inert += [(f"objective.{bound.name}", one, why) for bound in fields(algorithm.objective)]
    if algorithm.critic is not None:
        why = f"with one update per step no value has moved yet and clipping can never bind; {more}"
        inert.append(("critic.value_clip", one, why))
    why = "algorithm.reference.kl_coef is 0, so there is no pull towards a reference"
    for name in ("kl_estimator", "kl_in"):
        inert.append((f"reference.{name}", not algorithm.reference.kl_coef, why))
    compares = algorithm.settings.get("estimator.omega", 1.0) != 0
    why = "algorithm.estimator.omega is 0, so turns are not compared"
    inert.append(("estimator.gamma", not compares, why))
    for name, is_dead, why in inert_of_filter(algorithm.filter, tasks, group_size):
        inert.append((f"filter.{name}", is_dead, why))
    normalize = algorithm.rewards.normalize
    inert.append(("rewards.over", normalize == "none", "algorithm.rewards.normalize is 'none'"))
    why = (
        f"{algorithm.name} takes the mean of the group off by itself, and with it whatever is the same for all "
        "of a group"
    )
    is_dead = normalize == "mean" and algorithm.ignores_shifts
    inert.append(("rewards.normalize", is_dead, why))
    return inert + _inert_masks(algorithm)


def scales_again(algorithm: Algorithm) -> bool:
    """Whether the rewards are put on a scale of their own ("mean_std") that the estimator replaces by another.

    Within a group: it takes the group's mean off and divides by its std. Over the step: it whitens all tokens, each of
    which sees the same shift and scale. A pull that is paid in the reward is not scaled with it, so nothing is undone.
    """
    if algorithm.rewards.normalize != "mean_std" or algorithm.reference.in_reward:
        return False
    if algorithm.ignores_shifts and algorithm.estimator.says("divides"):
        return True
    undiscounted = algorithm.settings.get("estimator.gamma", 1.0) == 1
    reads_values = algorithm.critic is not None
    over_the_step = algorithm.rewards.over == "batch" and undiscounted and not reads_values
    return over_the_step and algorithm.whitens


def _what_makes_more_updates(algorithm: Algorithm, tasks: int, group_size: int) -> str:
    if not algorithm.minibatch_size:
        return "raise algorithm.epochs or algorithm.minibatches"
    cure = "raise algorithm.epochs, or lower algorithm.minibatch_size"
    if not algorithm.filter.acts:
        return cure
    most = most_kept(algorithm.filter, tasks, group_size)
    return f"a step has at most {most} trajectories after the filter; {cure}"


def remarks(algorithm: Algorithm, tasks: int, group_size: int) -> list[str]:
    """What else should be known before a run begins: bounds that an algorithm brings along, and that can never bind."""
    if updates_of_a_step(algorithm, tasks, group_size) > 1:
        return []
    chosen = algorithm.filter
    size = algorithm.minibatch_size
    objective = algorithm.objective
    bounds = asdict(ClipObjective())
    brought = []
    for name, usual in bounds.items():
        bound = getattr(objective, name, usual)
        if bound != usual:
            brought.append(f"{name} = {bound}")
    if not brought and not (chosen.acts and size):
        return []
    if algorithm.critic and algorithm.critic.value_clip:
        brought.append(f"value_clip = {algorithm.critic.value_clip}")
    left = "a step makes one update"
    cure = "raise algorithm.epochs or algorithm.minibatches"
    if size:
        cure = "lower algorithm.minibatch_size, or raise algorithm.epochs"
    if size and chosen.acts:
        left = (
            f"the filter ({chosen.label}) leaves at most {most_kept(chosen, tasks, group_size)} of {tasks} x "
            f"{group_size} trajectories, one update of {size}"
        )
        if tasks * group_size > size:
            cure += ", or set algorithm.filter.equal_updates=true"
    clips = ", ".join(brought or bounds)
    return [f"{left}, so the ratio is 1 everywhere and clipping ({clips}) can never bind; {cure}"]


def check_sizes(algorithm: Algorithm, group_size: int) -> None:
    """Raises ConfigError where a step of so many trajectories per task can never be learned from."""
    if algorithm.filter.acts and group_size < 2:
        raise ConfigError(
            f"algorithm.filter.keep = {algorithm.filter.keep!r} chooses by how much the trajectories of a task "
            f"differ and needs train.group_size >= 2, got {group_size}"
        )


def _inert_masks(algorithm: Algorithm) -> list[Inert]:
    paid = algorithm.reference.in_reward
    pulled = algorithm.reference.in_loss
    discounts = [algorithm.settings.get(f"estimator.{name}", 1.0) for name in ("gamma", "lam")]
    undiscounted = discounts == [1.0, 1.0]
    masks = algorithm.masks
    # Beside the actions it does matter which timeline there is: for what is trained there, and for what it pays there.
    elsewhere = masks.over("loss_over") == "response" or bool(
        paid and masks.over("kl_reward_over") == masks.over("critic_over") == "response"
    )
    same = undiscounted and masks.over("whiten_over") == "actions" and not elsewhere
    inert = [
        (
            "gae_over",
            not algorithm.has_timeline,
            f"{algorithm.name} gives all tokens of a trajectory, or of a turn, the same credit",
        ),
        (
            "gae_over",
            algorithm.has_timeline and same,
            "at gamma = lambda = 1 the advantages of actions do not depend on "
            "what stands between them",
        ),
        ("whiten_over", not algorithm.whitens, f"{algorithm.name} whitens nothing as it is set"),
        (
            "kl_reward_over",
            not paid,
            "nothing is paid for leaving a reference (algorithm.reference.kl_coef, kl_in = 'reward')",
        ),
        ("critic_over", not needs_critic(algorithm), f"{algorithm.name} has no critic"),
        ("entropy_over", not algorithm.entropy_coef, "algorithm.entropy_coef is 0"),
        (
            "kl_loss_over",
            not pulled,
            "the loss has no pull towards a reference (algorithm.reference.kl_coef, kl_in = 'loss')",
        ),
    ]
    dead = {name for name, is_dead, _ in inert if is_dead}
    own = {name for name in ADVANTAGE_MASK if getattr(algorithm.masks, name) is not None}
    reasons = [why for name, is_dead, why in inert if is_dead and name in ADVANTAGE_MASK]
    why = f"none of its four switches can act: {'; '.join(reasons)}"
    inert.append(("advantage_mask", set(ADVANTAGE_MASK) <= dead | own, why))
    return [(f"masks.{name}", is_dead, why) for name, is_dead, why in inert]


def inert_of_filter(rule: Filter, tasks: int, group_size: int) -> list[Inert]:
    """(field, whether it cannot act, why) of every setting, for the check when a config is loaded: of steps with so
    many tasks, and so many trajectories of each."""
    reads = READS[rule.keep]
    inert = []
    for f in fields(rule):
        if f.name in ("keep", "zero_variance", "equal_updates"):
            continue
        owner = next(kind for kind, names in READS.items() if f.name in names)
        why = f"algorithm.filter.keep is {rule.keep!r}, not {owner!r}"
        inert.append((f.name, f.name not in reads, why))
    inert.append(
        (
            "slack",
            rule.keep == "top_p" and rule.mass != "linear",
            "algorithm.filter.mass is 'softmax'",
        )
    )
    inert += [
        (
            "keep",
            rule.keep != "all" and not rule.acts,
            "as its numbers stand, it leaves nothing out",
        ),
        (
            "groups",
            rule.groups >= tasks,
            f"a step has only {tasks} groups, so all that differ are kept",
        ),
        (
            "attempts",
            rule.attempts >= group_size,
            f"a group has only {group_size} trajectories, so all are kept",
        ),
        ("equal_updates", not rule.acts, "nothing is filtered"),
        # Zero-variance groups come last, and the share is reached before them.
        (
            "zero_variance",
            (rule.keep, rule.mass, rule.zero_variance) == ("top_p", "linear", "drop")
            and rule.p < 1,
            "algorithm.filter.keep = 'top_p' never keeps a zero-variance group: it holds no share of the total std",
        ),
    ]
    return inert
