"""Which settings of an algorithm can have no effect (law 11), and what else should be said before a run begins.

Read off the settings alone: what turns out inert only as a run goes is in its metrics.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.algorithms.objectives import OBJECTIVES, ClipObjective
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, READS, Filter
from workbench.learn.ops import filters
from workbench.types.errors import ConfigError
from workbench.types.settings import Inert


def most_kept(rule: Filter, groups: int, group_size: int) -> int:
    """The largest number of attempts that a filter can keep of `groups` groups with `group_size` attempts each."""
    if rule.keep == "within_group":
        return groups * min(group_size, rule.attempts)
    kept = {
        "top_share": lambda: filters.count_of_share(groups, rule.share),
        "top_k": lambda: min(groups, rule.groups),
        "band": lambda: len(filters.places_in_band(groups, rule.low, rule.high)),
    }
    return (kept[rule.keep]() if rule.keep in kept else groups) * group_size


def updates_of_a_step(algorithm: Algorithm, tasks: int, group_size: int) -> int:
    """The largest number of updates that a step of so many attempts can make."""
    if not algorithm.minibatch_size:
        return algorithm.epochs * algorithm.minibatches
    chosen = algorithm.filter
    attempts = tasks * group_size if chosen.equal_updates else most_kept(chosen, tasks, group_size)
    return algorithm.epochs * max(1, math.ceil(attempts / algorithm.minibatch_size))


def inert_settings(algorithm: Algorithm, tasks: int, group_size: int) -> list[Inert]:
    """Every setting that may be without effect, for steps of `tasks` x `group_size` attempts."""
    one = updates_of_a_step(algorithm, tasks, group_size) == 1
    smaller = (
        f"a step has at most {most_kept(algorithm.filter, tasks, group_size)} attempts after the filter; "
        * (algorithm.filter.acts and bool(algorithm.minibatch_size))
    )
    more = (
        f"{smaller}raise algorithm.epochs, or lower algorithm.minibatch_size"
        if algorithm.minibatch_size
        else "raise algorithm.epochs or algorithm.minibatches"
    )
    why = f"with one update per step the ratio is 1 everywhere and clipping can never bind; {more}"
    ours = (
        type(algorithm.objective) in OBJECTIVES.values()
    )  # what another one does with a bound of that name is not known
    found = [(name, one and ours, why) for name in ("clip_low", "clip_high", "dual_clip")]
    if algorithm.critic is not None:
        found.append(
            (
                "value_clip",
                one,
                "with one update per step no value has moved yet and clipping can never bind; "
                f"{more}",
            )
        )
    for name in ("kl_estimator", "kl_in"):
        found.append(
            (
                name,
                not algorithm.kl_coef,
                "algorithm.kl_coef is 0, so there is no pull towards a reference",
            )
        )
    compares = algorithm.settings.get("omega", 1.0) != 0
    found.append(("gamma", not compares, "algorithm.omega is 0, so turns are not compared"))
    found += [
        (f"filter.{name}", *said)
        for name, *said in inert_of_filter(algorithm.filter, tasks, group_size)
    ]
    found.append(
        (
            "rewards.over",
            algorithm.rewards.normalize == "none",
            "algorithm.rewards.normalize is 'none'",
        )
    )
    found.append(
        (
            "rewards.normalize",
            algorithm.rewards.normalize == "mean" and algorithm.ignores_shifts,
            f"{algorithm.name} takes the mean of the group off by itself, and with it whatever is the same for all "
            "of a group",
        )
    )
    return found + _inert_masks(algorithm)


def remarks(algorithm: Algorithm, tasks: int, group_size: int) -> list[str]:
    """What else should be known before a run begins: bounds that an algorithm brings along, and that can never bind."""
    if updates_of_a_step(algorithm, tasks, group_size) > 1:
        return []
    chosen, size = algorithm.filter, algorithm.minibatch_size
    bounds = asdict(ClipObjective())
    brought = [
        f"{name} = {algorithm.settings[name]}"
        for name, usual in bounds.items()
        if algorithm.settings.get(name, usual) != usual
    ]
    if not brought and not (chosen.acts and size):
        return []
    brought += (
        [f"value_clip = {algorithm.critic.value_clip}"]
        if algorithm.critic and algorithm.critic.value_clip
        else []
    )
    left, cure = "a step makes one update", "raise algorithm.epochs or algorithm.minibatches"
    if size:
        cure = "lower algorithm.minibatch_size, or raise algorithm.epochs"
    if size and chosen.acts:
        left = (
            f"the filter ({chosen.label}) leaves at most {most_kept(chosen, tasks, group_size)} of {tasks} x "
            f"{group_size} attempts, one update of {size}"
        )
        if tasks * group_size > size:
            cure += ", or set algorithm.filter.equal_updates=true"
    return [
        f"{left}, so the ratio is 1 everywhere and clipping ({', '.join(brought or bounds)}) can never bind; {cure}"
    ]


def check_sizes(algorithm: Algorithm, group_size: int) -> None:
    """Raises ConfigError where a step of so many attempts per task can never be learned from."""
    if algorithm.filter.acts and group_size < 2:
        raise ConfigError(
            f"algorithm.filter.keep = {algorithm.filter.keep!r} chooses by how much the attempts at a task "
            f"differ and needs train.group_size >= 2, got {group_size}"
        )


def _inert_masks(algorithm: Algorithm) -> list[Inert]:
    paid, pulled = algorithm.reference.in_reward, algorithm.reference.in_loss
    undiscounted = algorithm.settings.get("gamma", 1.0) == algorithm.settings.get("lam", 1.0) == 1.0
    masks = algorithm.masks
    # Beside the actions it does matter which timeline there is: for what is trained there, and for what it pays there.
    elsewhere = masks.over("loss_over") == "response" or bool(
        paid and masks.over("kl_reward_over") == masks.over("critic_over") == "response"
    )
    same = undiscounted and masks.over("whiten_over") == "actions" and not elsewhere
    found = [
        (
            "gae_over",
            not algorithm.has_timeline,
            f"{algorithm.name} gives all tokens of an attempt, or of a turn, the same credit",
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
            "nothing is paid for leaving a reference (algorithm.kl_coef, kl_in = 'reward')",
        ),
        ("critic_over", not needs_critic(algorithm), f"{algorithm.name} has no critic"),
        ("entropy_over", not algorithm.entropy_coef, "algorithm.entropy_coef is 0"),
        (
            "kl_loss_over",
            not pulled,
            "the loss has no pull towards a reference (algorithm.kl_coef, kl_in = 'loss')",
        ),
    ]
    dead = {name for name, is_dead, _ in found if is_dead}
    own = {name for name in ADVANTAGE_MASK if getattr(algorithm.masks, name) is not None}
    found.append(
        (
            "advantage_mask",
            set(ADVANTAGE_MASK) <= dead | own,
            "none of its four switches can act: "
            + "; ".join(
                reason for name, is_dead, reason in found if is_dead and name in ADVANTAGE_MASK
            ),
        )
    )
    return [(f"masks.{name}", is_dead, reason) for name, is_dead, reason in found]


def inert_of_filter(rule: Filter, tasks: int, group_size: int) -> list[Inert]:
    """(field, whether it cannot act, why) of every setting, for the check when a config is loaded: of steps with so
    many tasks, and so many attempts at each."""
    reads = READS[rule.keep]
    found = []
    for f in fields(rule):
        if f.name in ("keep", "zero_variance", "equal_updates"):
            continue
        owner = next(kind for kind, names in READS.items() if f.name in names)
        found.append(
            (f.name, f.name not in reads, f"algorithm.filter.keep is {rule.keep!r}, not {owner!r}")
        )
    found.append(
        (
            "slack",
            rule.keep == "top_p" and rule.mass != "linear",
            "algorithm.filter.mass is 'softmax'",
        )
    )
    found += [
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
            f"a group has only {group_size} attempts, so all are kept",
        ),
        ("equal_updates", not rule.acts, "nothing is filtered"),
        # Flat groups come last, and the share is reached before them.
        (
            "zero_variance",
            (rule.keep, rule.mass, rule.zero_variance) == ("top_p", "linear", "drop")
            and rule.p < 1,
            "algorithm.filter.keep = 'top_p' never keeps a flat group: it holds no share of the spread",
        ),
    ]
    return found
