"""What each algorithm says about its own gradient. The bench measures every line of this page.

    unbiased   the estimate's expectation is the gradient of the objective, exactly
    scaled     ... is the gradient times a number that is known beforehand: same direction, other step size
    biased     neither; `why` says what it does instead. It must show on at least one task, else the claim is false

A claim holds for one setting of one algorithm, with what the bench puts right (`correction`), which is no part of it.
An algorithm without a line here is measured as it is and reported as a fault: add one that says what it estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from workbench.basics.settings import check_settings, one_of
from workbench.learn.algorithms.parts import Filter
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class Claim:
    """One setting of an algorithm, and what is said about it.

    looks_at: what its credit is computed from (see measure.Unit).
    settings: of the algorithm.
    whole_loss: the gradient of the loss as the learner sums it up, objective and reduction included, instead of the
        credit's alone; that looks at a whole batch.
    correction: every estimate times G/(G-1), or the credit of turn k times gamma^k.
    scale: of a scaled one: a key of SCALES.
    critic: which values an algorithm with a critic is given.
    gamma: of the objective J = E[sum_k gamma^k r_k], k counting turns.
    trajectories, groups: of a batch; 0 trajectories: the most of 8, 4, 2 that can be enumerated.
    tasks: only these; none: all.
    """

    label: str
    says: Annotated[str, one_of("unbiased", "scaled", "biased", "nothing")]
    why: str
    looks_at: Annotated[str, one_of("attempt", "group", "batch")] = "group"
    settings: Mapping[str, Any] = field(default_factory=dict)
    whole_loss: bool = False
    correction: Annotated[str, one_of("", "G/(G-1)", "gamma^k")] = ""
    scale: str = ""
    critic: Annotated[str, one_of("", "perfect", "wrong", "told", "told the end")] = ""
    gamma: float = 1.0
    attempts: int = 0
    groups: int = 1
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, f"claim {self.label!r}")
        if self.whole_loss and self.looks_at != "batch":
            raise ConfigError(
                f"claim {self.label!r}: a loss is one number for a batch, so looks_at is 'batch'"
            )
        if (self.says == "scaled") != (self.scale in SCALES):
            raise ConfigError(
                f"claim {self.label!r}: a scaled one, and only that, names its scale: {list(SCALES)}"
            )


# What a scaled estimate's expectation is, in units of the true gradient: (algorithm, trajectories in a group) -> number.
SCALES: Mapping[str, Callable[[Any, int], float]] = {
    "(G-1)/G": lambda algorithm, attempts: (attempts - 1) / attempts,
    "1/L": lambda algorithm, attempts: 1 / algorithm.fixed_length,
    "(G-1)/(G L)": lambda algorithm, attempts: (attempts - 1) / attempts / algorithm.fixed_length,
}

STD = (
    "divides by the group's standard deviation: groups that differ little count as much as those that differ much, "
    "and a rare large reward loses its say; it may point the wrong way"
)
WHITENED = (
    "divides by the batch's own deviation, which rare large rewards raise; in small batches it may point the "
    "wrong way"
)
TOKEN_MEAN = "the batch's number of tokens is divided by, and long trajectories have more of them"
OWN_LENGTH = "every trajectory is divided by its own length: what long ones teach counts less"
TRUSTS = "takes the critic's word for what follows"
AS_GOOD = "a perfect critic's word is as good as what follows"
LAST_TOKEN = (
    "a turn's end is worth what the critic says before its last token, and which token is the last depends "
    "on what is drawn"
)
BASELINE = "rewards to the end, minus a baseline that knows the past only"
SETTLED = "a baseline may know whatever was settled before the action was drawn, seen by the policy or not"
KNOWS_THE_END = "a baseline that knows what the policy will draw takes the merit away from the draw"
ANY = "a baseline of the past costs no bias, however wrong it is"
DROPS = "turn k counts in full, although the objective counts it gamma^k: the usual shortcut"
RESTORED = "with the factor gamma^k, which the algorithm leaves out, it is the gradient"
NO_LENGTH = "nothing is divided by what the trajectories happened to be"


def _critics(name: str, settings: Mapping[str, Any], perfect: tuple[str, str]) -> tuple[Claim, ...]:
    """What holds for every algorithm with a critic: lambda = 1 forgives a wrong one, lambda < 1 does not. `perfect`:
    what lambda < 1 makes of a perfect one."""
    plain = {"estimator": {"whiten": False, **settings}}
    half = {"estimator": {"whiten": False, "lam": 0.5, **settings}}
    return (
        Claim(
            f"{name}(1, 1), perfect critic",
            "unbiased",
            BASELINE,
            "attempt",
            plain,
            critic="perfect",
        ),
        Claim(f"{name}(1, 1), wrong critic", "unbiased", ANY, "attempt", plain, critic="wrong"),
        Claim(f"{name}(1, 0.5), perfect critic", *perfect, "attempt", half, critic="perfect"),
        Claim(f"{name}(1, 0.5), wrong critic", "biased", TRUSTS, "attempt", half, critic="wrong"),
    )


def _told(name: str, settings: Mapping[str, Any]) -> tuple[Claim, ...]:
    """A critic that sees more than the policy (critic.sees = "state"): what was settled before costs no bias, what the policy
    will still draw does."""
    plain = {"estimator": {"whiten": False, **settings}}
    half = {"estimator": {"whiten": False, "lam": 0.5, **settings}}
    return (
        Claim(
            f"{name}(1, 1), critic told what the environment drew",
            "unbiased",
            SETTLED,
            "attempt",
            plain,
            critic="told",
        ),
        Claim(
            f"{name}(1, 0.5), critic told what the environment drew",
            "unbiased",
            AS_GOOD,
            "attempt",
            half,
            critic="told",
        ),
        Claim(
            f"{name}(1, 1), critic told how it ends",
            "biased",
            KNOWS_THE_END,
            "attempt",
            plain,
            critic="told the end",
        ),
    )


CENTRED = {"estimator": {"normalize_std": False}}
BANDITS = ("bandit-0.1", "bandit-0.15")
RAGGED = ("lengths", "three_turns")  # trajectories differ in length

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "grpo": (
        Claim("GRPO", "biased", STD),
        Claim(
            "GRPO without std",
            "scaled",
            "a trajectory is part of the mean that it is compared with",
            settings=CENTRED,
            scale="(G-1)/G",
        ),
        Claim(
            "GRPO without std, times G/(G-1)",
            "unbiased",
            "then it is leave-one-out",
            correction="G/(G-1)",
            settings=CENTRED,
        ),
    ),
    "dr_grpo": (
        Claim(
            "Dr. GRPO",
            "scaled",
            "a trajectory is part of the mean that it is compared with",
            scale="(G-1)/G",
        ),
        Claim(
            "Dr. GRPO, whole loss",
            "scaled",
            NO_LENGTH,
            "batch",
            whole_loss=True,
            scale="(G-1)/(G L)",
            tasks=RAGGED,
        ),
    ),
    "dapo": (
        Claim("DAPO", "biased", STD),
        Claim(
            "DAPO, whole loss",
            "biased",
            f"{STD}; {TOKEN_MEAN}",
            "batch",
            whole_loss=True,
            tasks=RAGGED,
        ),
    ),
    "gspo": (
        Claim("GSPO", "biased", STD),
        Claim(
            "GSPO, whole loss",
            "biased",
            f"{STD}; {OWN_LENGTH}",
            "batch",
            whole_loss=True,
            tasks=RAGGED,
        ),
        Claim(
            "GSPO without std, whole loss",
            "biased",
            OWN_LENGTH,
            "batch",
            CENTRED,
            whole_loss=True,
            tasks=RAGGED,
        ),
    ),
    "cispo": (
        Claim("CISPO", "biased", STD),
        Claim(
            "CISPO, whole loss",
            "biased",
            f"{STD}; {TOKEN_MEAN}",
            "batch",
            whole_loss=True,
            tasks=RAGGED,
        ),
    ),
    "remax": (
        Claim(
            "ReMax",
            "unbiased",
            "what the greedy trajectory earned knows nothing of what was drawn in the others",
            "attempt",
        ),
    ),
    "rloo": (
        Claim("RLOO", "unbiased", "the others' mean knows nothing of a trajectory's own draws"),
        Claim(
            "RLOO, whole loss, sums",
            "unbiased",
            NO_LENGTH,
            "batch",
            {"reduction": "seq-mean-token-sum"},
            whole_loss=True,
            tasks=RAGGED,
        ),
        Claim(
            "RLOO, whole loss, fixed length",
            "scaled",
            NO_LENGTH,
            "batch",
            {"reduction": "fixed-length", "fixed_length": 8},
            whole_loss=True,
            scale="1/L",
            tasks=RAGGED,
        ),
        Claim(
            "RLOO, whole loss, token mean",
            "biased",
            TOKEN_MEAN,
            "batch",
            {"reduction": "token-mean"},
            whole_loss=True,
            tasks=RAGGED,
        ),
        Claim(
            "RLOO, whole loss, mean of means",
            "biased",
            OWN_LENGTH,
            "batch",
            {"reduction": "seq-mean-token-mean"},
            whole_loss=True,
            tasks=RAGGED,
        ),
    ),
    "reinforce": (
        Claim(
            "turn returns",
            "unbiased",
            "what came before a turn is no merit of it, nor is the others' mean",
        ),
        Claim(
            "turn returns, no baseline",
            "unbiased",
            "what came before a turn is no merit of it",
            "attempt",
            {"estimator": {"baseline": "none"}},
        ),
        Claim(
            "turn returns, gamma 0.9",
            "biased",
            DROPS,
            settings={"estimator": {"gamma": 0.9}},
            gamma=0.9,
        ),
        Claim(
            "turn returns, gamma 0.9, times gamma^k",
            "unbiased",
            RESTORED,
            settings={"estimator": {"gamma": 0.9}},
            gamma=0.9,
            correction="gamma^k",
        ),
    ),
    "reinforce_pp": (
        Claim("REINFORCE++", "biased", WHITENED, "batch"),
        Claim("REINFORCE++, batch of 32", "biased", WHITENED, "batch", attempts=32, tasks=BANDITS),
    ),
    "reinforce_pp_baseline": (
        Claim("REINFORCE++ baseline", "biased", WHITENED, "batch", groups=2),
    ),
    "gigpo": (
        Claim("GiGPO", "biased", STD),
        Claim(
            "GiGPO without std",
            "biased",
            "two comparisons are added up, the second among as many turns as happened "
            "to meet in a state",
            settings={"estimator": {"normalize_std": False, "gamma": 1.0}},
        ),
    ),
    "ppo": (
        *_critics("GAE", {}, ("unbiased", AS_GOOD)),
        *_told("GAE", {}),
        Claim("PPO as it is, wrong critic", "biased", WHITENED, "batch", critic="wrong"),
    ),
    "turn_ppo": (
        *_critics("turn GAE", {}, ("unbiased", AS_GOOD)),
        Claim(
            "turn GAE(0.9, 1), times gamma^k",
            "unbiased",
            RESTORED,
            "attempt",
            {"estimator": {"whiten": False, "gamma": 0.9}},
            critic="wrong",
            gamma=0.9,
            correction="gamma^k",
        ),
    ),
    "bilevel_ppo": (
        *_critics("bi-level GAE", {"gamma_turn": 1.0}, ("biased", LAST_TOKEN)),
        Claim(
            "bi-level GAE, gamma_turn 0.9",
            "biased",
            DROPS,
            "attempt",
            {"estimator": {"whiten": False, "gamma_turn": 0.9}},
            critic="wrong",
            gamma=0.9,
        ),
        Claim(
            "bi-level GAE, gamma_turn 0.9, times gamma^k",
            "unbiased",
            RESTORED,
            "attempt",
            {"estimator": {"whiten": False, "gamma_turn": 0.9}},
            critic="wrong",
            gamma=0.9,
            correction="gamma^k",
        ),
    ),
    "starpo": (
        Claim(
            "StarPO, wrong critic",
            "biased",
            WHITENED,
            "batch",
            {"reference": {"kl_coef": 0.0}},
            critic="wrong",
        ),
    ),
    "starpo_s": (
        Claim(
            "StarPO-S, 1 of 2 groups, wrong critic",
            "biased",
            f"learns from the groups that differ most, which is to seek risk; {WHITENED}",
            "batch",
            {"filter": Filter("top_share", share=0.5)},
            critic="wrong",
            groups=2,
        ),
    ),
}
