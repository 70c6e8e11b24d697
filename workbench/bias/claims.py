"""What each algorithm says about its own gradient. The bench measures every line of this page.

    unbiased   the estimate's expectation is the gradient of the objective, exactly
    scaled     ... is the gradient times a number that is known beforehand: same direction, other step size
    biased     neither; `why` says what it does instead. It must show on at least one task, else the claim is false

A claim holds for one setting of one algorithm, and for what the bench puts right (`correction`), which is no part of the
algorithm. An algorithm without a line here is an error of the bench: whoever adds one says what it estimates.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ConfigError

SAYS = ("unbiased", "scaled", "biased")
LOOKS_AT = ("attempt", "group", "batch")
CORRECTIONS = ("", "G/(G-1)", "gamma^k")
CRITICS = ("", "perfect", "wrong")
SCALES = {"(G-1)/G": lambda attempts: (attempts - 1) / attempts}


@dataclass(frozen=True)
class Claim:
    """One setting of an algorithm, and what is said about it.

    `looks_at`: what its credit is computed from (see measure.Unit); `groups` of `attempts` (0: what suits the task) make
    a batch. `gamma` is that of the objective J = E[sum_k gamma^k r_k], k counting turns. `correction`: every estimate
    times G/(G-1), or the credit of turn k times gamma^k. `scale`, of a scaled one: a key of SCALES. `tasks`: only these.
    """

    label: str
    says: str
    why: str
    looks_at: str = "group"
    settings: Mapping[str, Any] = field(default_factory=dict)
    correction: str = ""
    scale: str = ""
    critic: str = ""
    gamma: float = 1.0
    attempts: int = 0
    groups: int = 1
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("says", SAYS), ("looks_at", LOOKS_AT), ("correction", CORRECTIONS), ("critic", CRITICS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"claim {self.label!r}: {name} is one of {known}, got {getattr(self, name)!r}")
        if (self.says == "scaled") != (self.scale in SCALES):
            raise ConfigError(f"claim {self.label!r}: a scaled one, and only that, names its scale: {list(SCALES)}")


STD = "divides by the group's standard deviation: groups that differ little count as much as those that differ much, " \
      "so that rare large rewards lose their say; it may point the wrong way"
OWN_MEAN = "an attempt is part of the mean that it is compared with, which takes away 1/G of the gradient"

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "grpo": (
        Claim("GRPO", "biased", STD),
        Claim("GRPO without std, times G/(G-1)", "unbiased", "then it is leave-one-out", correction="G/(G-1)",
              settings={"normalize_std": False}),
    ),
    "ppo": (
        Claim("GAE(1, 1), perfect critic", "unbiased", "rewards to the end minus a baseline of the past", "attempt",
              {"whiten": False}, critic="perfect"),
        Claim("GAE(1, 1), wrong critic", "unbiased", "a baseline of the past costs no bias, however wrong", "attempt",
              {"whiten": False}, critic="wrong"),
        Claim("GAE(1, 0.5), perfect critic", "unbiased", "the critic's word is as good as what follows", "attempt",
              {"whiten": False, "lam": 0.5}, critic="perfect"),
        Claim("GAE(1, 0.5), wrong critic", "biased", "takes the critic's word for what follows", "attempt",
              {"whiten": False, "lam": 0.5}, critic="wrong"),
        Claim("PPO as it is: GAE(1, 1), whitened", "biased", "whitening divides by the batch's own deviation, and "
              "takes away its mean", "batch", critic="wrong"),
    ),
}
