"""Estimators: from what was paid to what each token is worth. Each is one function; the arithmetic is in `learn/ops`.

    def ranks(inputs: CreditInputs, *, power: float = 1.0) -> Advantages: ...
    RANKS = Algorithm("ranks", Estimator(ranks, plain=plain_ranks, per="attempt", compares=True))

The keyword-only arguments of the function are its settings. What is known of it besides stands in its `Estimator`.

Axis letters: N trajectories · A timeline tokens · P turns that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from workbench.basics.settings import Declared, at_least, declared_arguments, one_of, probability
from workbench.basics.tensors import torch
from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.ops.anchor import anchor_advantage
from workbench.learn.ops.gae import gae
from workbench.learn.ops.group import comparable, group_advantage, group_statistics, leave_one_out
from workbench.learn.ops.returns import discounted_return
from workbench.learn.ops.turn_gae import bilevel_gae, turn_gae
from workbench.plain import credit as plain
from workbench.values.errors import ConfigError, DataError, nearest

BASELINES = ("others", "none")
Fact = bool | Callable[..., bool]  # a function is asked with the settings, by name


@dataclass(frozen=True)
class Estimator:
    """A function from `CreditInputs` to `Advantages`, its settings, and what an algorithm must know of it.

    `plain`: the same in `workbench/plain/credit.py`, `(lines, **settings) -> (advantages, targets)`; None: there is no
    second implementation to hold it against. `per`: what is worth the same throughout. Credit by the "token" follows the
    order of tokens, on the timeline that `masks.gae_over` names; reference implementations of such have an attribute `in_order`.
    `critic`: it reads values. `compares`: trajectories of the same task are each other's baseline, so that there must be
    two. `whitens`: it takes statistics over tokens (`inputs.whitened`). `ignores_shifts`: what is added to the rewards
    of all trajectories of a task, at their ends, has no effect. `divides`: by the spread of rewards in a group. `greedy`: it
    compares with one more trajectory of each task, by the likeliest tokens, so that one is collected (`Group.greedy`).
    """

    function: Callable[..., Advantages]
    plain: Callable | None = None
    per: str = "attempt"  # or "turn", "token"
    critic: bool = False
    compares: Fact = False
    whitens: Fact = False
    ignores_shifts: Fact = False
    divides: Fact = False
    greedy: bool = False
    settings: Mapping[str, Any] = field(
        default_factory=dict, hash=False
    )  # those not named: by default

    def __post_init__(self) -> None:
        declared = declared_arguments(self.function)
        known = [setting.name for setting in declared]
        if unknown := [name for name in self.settings if name not in known]:
            raise ConfigError(
                f"{self.function.__name__} has no setting {unknown[0]!r}; {nearest(unknown[0], known)}"
            )
        values = {}
        for setting in declared:
            value = self.settings.get(setting.name, setting.default)
            values[setting.name] = setting.checked(value, f"algorithm.estimator.{setting.name}")
        object.__setattr__(self, "settings", values)

    def __call__(self, inputs: CreditInputs) -> Advantages:
        return self.function(inputs, **self.settings)

    def __getattr__(self, name: str) -> Any:
        """A setting: `GAE.gamma`."""
        if name in vars(self).get("settings", {}):
            return self.settings[name]
        raise AttributeError(f"an estimator has no setting or attribute {name!r}", name=name)

    def declared_settings(self) -> tuple[Declared, ...]:
        """Its settings, with what they are set to."""
        return tuple(
            replace(setting, default=self.settings[setting.name])
            for setting in declared_arguments(self.function)
        )

    def with_settings(self, **settings: Any) -> Estimator:
        return replace(self, settings={**self.settings, **settings})

    def says(self, fact: str) -> bool:
        """Whether `compares`, `whitens`, `ignores_shifts` or `divides` is so, as it is set."""
        answer = getattr(self, fact)
        return bool(answer(**self.settings) if callable(answer) else answer)


# ------------------------------------------------------------------------------------------ trajectories are compared


NormalizeStd = Annotated[bool, "divide by the group's standard deviation"]


def group_relative(inputs: CreditInputs, *, normalize_std: NormalizeStd = True) -> Advantages:
    """GRPO: the reward of a trajectory relative to its group, for every token of it, in all its segments.

    A zero-variance group gives zeros; the only scored trajectory of a group has no baseline, and gets zero. `normalize_std=False`
    is the baseline of Dr. GRPO (arXiv 2503.20783).
    Source: Shao et al. 2024 (arXiv 2402.03300).
    """
    return Advantages(
        inputs.of_rows(
            group_advantage(
                inputs.reward_N, inputs.group_N, inputs.kept_N, normalize_std=normalize_std
            )
        )
    )


def rloo(inputs: CreditInputs) -> Advantages:
    """RLOO: what a trajectory earned above the mean of the others: n / (n - 1) times what Dr. GRPO's baseline gives.

    The gradient is unbiased as long as nothing is clipped and tokens are summed or divided by a
    fixed length (reduction "seq-mean-token-sum" or "fixed-length").
    Source: Ahmadian et al. 2024, "Back to Basics" (arXiv 2402.14740).
    """
    return Advantages(inputs.of_rows(leave_one_out(inputs.reward_N, inputs.group_N, inputs.kept_N)))


def remax(inputs: CreditInputs) -> Advantages:
    """ReMax: what a trajectory earned above what the greedy one at the same task earned. One trajectory per task is enough, and
    the greedy one trains nothing; where it could not be scored, the trajectories of its task get zero.

    The greedy trajectory knows nothing of what was drawn in the others, so the baseline costs no bias, as long as nothing is
    clipped and tokens are summed (or divided by a fixed length). What an environment draws is drawn anew for it.
    Source: Li et al. 2024, "ReMax" (arXiv 2310.10505), algorithm 1.
    """
    above_N = inputs.reward_N - inputs.greedy_N
    return Advantages(inputs.of_rows(torch.where(inputs.kept_N & ~above_N.isnan(), above_N, 0.0)))


def reinforce(
    inputs: CreditInputs,
    *,
    gamma: Annotated[float, probability(), "discount per turn"] = 1.0,
    baseline: Annotated[
        str, one_of(*BASELINES), "the mean of the others of the group, or nothing"
    ] = "others",
) -> Advantages:
    """G_k - b for every token of turn k, with G_k = r_k + gamma G_{k+1} over the turns of a trajectory.

    b is the mean of what the *other* trajectories of the group earned, discounted from their beginning: they know nothing
    of what was drawn in this one, so that it costs no bias. The only scored trajectory of a group gets zero. Trajectories that
    are all the same get zeros in their first turn; later ones get what is still to come minus what all of it was, which
    is noise and no bias.
    baseline="none": b = 0, one trajectory per task is enough, and there is much more variance.
    Source: Williams 1992, "Simple statistical gradient-following algorithms"; a turn earns what comes after it only:
    Sutton et al. 1999, "Policy Gradient Methods", theorem 1.
    """
    turns = inputs.turns
    return_P = discounted_return(inputs.reward_P, turns.row_P, gamma=gamma)
    if baseline == "others":
        first_P = torch.ones(len(turns.row_P), dtype=torch.bool)
        first_P[1:] = turns.row_P.diff() != 0
        start_N = inputs.reward_N.index_copy(0, turns.row_P[first_P], return_P[first_P])
        above_N = leave_one_out(start_N, inputs.group_N, inputs.kept_N)
        count_N = group_statistics(start_N, inputs.group_N, inputs.kept_N).count[inputs.group_N]
        # G_k - b in two parts, so that the first turns of trajectories that are all the same come out as exact zeros.
        return_P = (return_P - start_N[turns.row_P] + above_N[turns.row_P]) * (count_N > 1)[
            turns.row_P
        ]
    return Advantages(return_P[turns.turn_of_A])


def reinforce_pp_baseline(inputs: CreditInputs) -> Advantages:
    """What a trajectory earned above the mean of its group, on all its tokens, whitened over the batch instead of divided
    by the group's own deviation: a group that differs little stays one that says little, and a long trajectory counts for
    more.

    Whitening moves all tokens by the mean over tokens, which is not zero where good trajectories are longer than bad ones.
    What says nothing (a zero-variance group, the only scored trajectory of a group) is not moved with them, but stays at zero.
    Source: Hu et al. 2025, "REINFORCE++" (arXiv 2501.03262), the variant with a group baseline.
    """
    groups = inputs.reward_N, inputs.group_N, inputs.kept_N
    white_A = inputs.whitened(inputs.of_rows(group_advantage(*groups, normalize_std=False)))
    says_N = comparable(group_statistics(*groups), inputs.group_N, inputs.kept_N)
    return Advantages(torch.where(inputs.of_rows(says_N), white_A, 0.0))


def gigpo(
    inputs: CreditInputs,
    *,
    normalize_std: NormalizeStd = True,
    omega: Annotated[
        float, at_least(0), "weight of the comparison of turns, relative to that of trajectories"
    ] = 1.0,
    gamma: Annotated[float, probability(), "discount per turn, of that comparison"] = 0.95,
) -> Advantages:
    """A = (as in GRPO, the same for the whole trajectory) + omega (among the turns of the group that stood in the same
    state, by what was earned from the turn on, discounted once per turn).

    Needs an environment that names its states (`state_key()`): a turn whose state nobody else stood in, or that has no
    name, gets the first part alone. A group in which all earned the same may still differ turn by turn. `normalize_std`
    divides both parts by their own group's deviation, or neither. Raises DataError where no turn of the whole batch
    names its state.
    Source: Feng et al. 2025, "Group-in-Group Policy Optimization" (arXiv 2505.10978), with its gamma and omega.
    """
    turns = inputs.turns
    state_K = inputs.batch.state_of_turn_K
    if len(state_K) and not bool((state_K >= 0).any()):
        raise DataError(
            "gigpo compares turns that stood in the same state, but no turn of this batch names its "
            "state: give the environment a state_key(), or take grpo"
        )
    return_P = discounted_return(inputs.reward_P, turns.row_P, gamma=gamma)
    step_P = anchor_advantage(
        return_P, inputs.group_N[turns.row_P], inputs.state_P, normalize_std=normalize_std
    )
    whole_A = group_relative(inputs, normalize_std=normalize_std).advantage_A
    return Advantages(whole_A + omega * step_P[turns.turn_of_A])


# ------------------------------------------------------------------------------------------ returns and critics


Lambda = Annotated[
    float, probability(), "1: rewards to the end minus the value; lower: lean on the critic sooner"
]
Whiten = Annotated[bool, "advantages to mean 0, deviation 1, over the trained tokens of the step"]


def reinforce_pp(
    inputs: CreditInputs,
    *,
    gamma: Annotated[float, probability(), "discount per action token"] = 1.0,
) -> Advantages:
    """REINFORCE++: the discounted return of each action token, G_j = r_j + gamma G_{j+1}, whitened over the batch. No
    critic, and one trajectory per task is enough. What the environment says takes no time (learn/ops/gae.py).
    Source: Hu et al. 2025, "REINFORCE++" (arXiv 2501.03262).
    """
    return Advantages(
        inputs.whitened(discounted_return(inputs.reward_A, inputs.row_A, gamma=gamma))
    )


def token_gae(
    inputs: CreditInputs,
    *,
    gamma: Annotated[
        float, probability(), "discount per action token; what the environment says takes no time"
    ] = 1.0,
    lam: Lambda = 1.0,
    whiten: Whiten = True,
) -> Advantages:
    """PPO: a critic says what was to be expected at each token, and a token is worth how much better it went on: GAE
    over the timeline. The critic is fitted to what it gives before whitening. Source: see learn/ops/gae.py."""
    worth = gae(
        inputs.reward_A, inputs.value_A, inputs.final_value_N, inputs.row_A, gamma=gamma, lam=lam
    )
    advantage_A = inputs.whitened(worth.advantage) if whiten else worth.advantage
    return Advantages(advantage_A, worth.target)


def turns_gae(
    inputs: CreditInputs,
    *,
    gamma: Annotated[float, probability(), "discount per turn"] = 1.0,
    lam: Lambda = 1.0,
    whiten: Whiten = True,
) -> Advantages:
    """PPO where a whole turn is the action: the critic is asked, and fitted, once per turn, before its first token, and
    all tokens of a turn are worth what the turn is worth. What stands inside a turn, or after its last action token,
    moves nothing.

    Whitening is over tokens here as everywhere (a long turn counts for more); Agent-R1 whitens over turns.
    Source: the step-level training of Agent-R1 (Cheng et al. 2025, arXiv 2511.14460); see learn/ops/turn_gae.py.
    """
    worth = turn_gae(
        inputs.reward_A, inputs.value_A, inputs.final_value_N, inputs.turns, gamma=gamma, lam=lam
    )
    advantage_A = inputs.whitened(worth.advantage) if whiten else worth.advantage
    return Advantages(advantage_A, worth.target)


def two_level_gae(
    inputs: CreditInputs,
    *,
    gamma: Annotated[float, probability(), "discount per action token inside a turn"] = 1.0,
    lam: Lambda = 1.0,
    whiten: Whiten = True,
    gamma_turn: Annotated[float, probability(), "discount per turn"] = 0.95,
) -> Advantages:
    """PPO where turns are compared first, then the tokens inside each. What comes after a turn is discounted once, by
    `gamma_turn`, however many tokens the turns have. Turn ends are known, so that a turn without a reward is a turn.
    Source: Wang et al. 2025, "VAGEN" (arXiv 2510.16907), as in RAGEN (arXiv 2504.20073); see learn/ops/turn_gae.py.
    """
    worth = bilevel_gae(
        inputs.reward_A,
        inputs.value_A,
        inputs.final_value_N,
        inputs.turns,
        gamma=gamma,
        lam=lam,
        gamma_turn=gamma_turn,
    )
    advantage_A = inputs.whitened(worth.advantage) if whiten else worth.advantage
    return Advantages(advantage_A, worth.target)


# ------------------------------------------------------------------------------------------ what is known of them


GROUP_RELATIVE = Estimator(
    group_relative,
    plain.group_relative,
    compares=True,
    ignores_shifts=True,
    divides=lambda normalize_std: normalize_std,
)
RLOO = Estimator(rloo, plain.rloo, compares=True, ignores_shifts=True)
REMAX = Estimator(remax, plain.remax, ignores_shifts=True, greedy=True)
REINFORCE = Estimator(
    reinforce,
    plain.reinforce,
    per="turn",
    compares=lambda gamma, baseline: baseline == "others",
    ignores_shifts=lambda gamma, baseline: baseline == "others" and gamma == 1,
)
REINFORCE_PP = Estimator(reinforce_pp, plain.reinforce_pp, per="token", whitens=True)
REINFORCE_PP_BASELINE = Estimator(
    reinforce_pp_baseline,
    plain.reinforce_pp_baseline,
    compares=True,
    whitens=True,
    ignores_shifts=True,
)
GIGPO = Estimator(
    gigpo,
    plain.gigpo,
    per="turn",
    compares=True,
    ignores_shifts=lambda omega, gamma, **_: not omega or gamma == 1,
    divides=lambda normalize_std, **_: normalize_std,
)
GAE = Estimator(token_gae, plain.gae, per="token", critic=True, whitens=lambda whiten, **_: whiten)
TURN_GAE = Estimator(
    turns_gae, plain.turn_gae, per="turn", critic=True, whitens=lambda whiten, **_: whiten
)
BILEVEL_GAE = Estimator(
    two_level_gae, plain.bilevel_gae, per="token", critic=True, whitens=lambda whiten, **_: whiten
)
