"""Which attempts of a step are learned from: a frozen dataclass over the pure functions of `learn/ops/filters.py`.

It looks at *raw* rewards only. An attempt that it leaves out leaves baseline, whitening and loss, as if it had never
been sampled.

Axis letters: N trajectories · G groups.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from workbench.learn.ops import filters
from workbench.types.errors import ConfigError
from workbench.types.settings import above, at_least, check_settings, one_of
from workbench.types.tensors import Tensor, torch

# keep -> the fields that it reads
READS = {
    "all": (), "top_share": ("share",), "top_p": ("p", "mass", "slack"), "top_k": ("groups",), "min_p": ("ratio",),
    "band": ("low", "high"), "within_group": ("attempts",),
}
MASSES = ("linear", "softmax")
ZERO_VARIANCE = ("drop", "keep")
SHARE = above(0, most=1, why="0.25 is a quarter")


@dataclass(frozen=True)
class Filter:
    """A choice by the standard deviation of the raw rewards inside each group.

    keep            all           every group
                    top_share     the `share` of the groups with the largest std (StarPO-S: 0.25)
                    top_p         the fewest groups, largest first, that hold the share `p` of all std (RAGEN-2)
                    top_k         the `groups` groups with the largest std
                    min_p         groups with at least `ratio` times the largest std
                    band          groups between the quantiles `low` and `high`; 0..0.25 is the least uncertain quarter
                    within_group  of every group the `attempts` attempts whose rewards differ most
    zero_variance   "drop": a group in which all attempts earned the same is left out before anything is chosen. "keep":
                    it is a group like others, the last in order. `top_share` and `top_k` count the same either way.
    equal_updates   a step with a filter makes as many updates as it would without one (smaller ones), so that what is
                    measured is the choice and not the number of updates

    Choosing by the very rewards that credit is made of bends the gradient: groups in which something rare paid much are
    chosen more often than they come up. `make bias` measures it.

    A group with fewer than two scored attempts has no standard deviation and is left out, unless nothing is filtered
    at all (`acts` is false: `keep` is "all", or its share, p or band is the whole). An attempt that is not scored is
    never kept. Nothing at all may be kept: the step is then skipped and counted.
    """

    keep: Annotated[str, one_of(*READS), "what is chosen"] = "all"
    share: Annotated[float, SHARE, "of all groups (top_share)"] = 0.25
    p: Annotated[float, SHARE, "of all spread (top_p)"] = 0.9
    mass: Annotated[str, one_of(*MASSES), "what is shared: the spread, or its softmax (top_p)"] = "linear"
    slack: Annotated[float, at_least(0), "of linear mass, in units of reward (top_p)"] = 0.01
    groups: Annotated[int, at_least(1), "with the largest spread (top_k)"] = 4
    ratio: Annotated[float, at_least(0, most=1), "of the largest spread (min_p)"] = 0.5
    low: Annotated[float, at_least(0, most=1), "quantile of spread that a group is above (band)"] = 0.0
    high: Annotated[float, at_least(0, most=1), "... and below (band)"] = 1.0
    attempts: Annotated[int, at_least(2, why="one attempt alone has nothing to be compared with"),
                        "of each group (within_group)"] = 4
    zero_variance: Annotated[str, one_of(*ZERO_VARIANCE), "what becomes of groups in which all earned the same"] = "keep"
    equal_updates: Annotated[bool, "as many updates a step as without a filter"] = False

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.filter")
        if not self.low < self.high:
            raise ConfigError(f"algorithm.filter.low and high are quantiles, 0 <= low < high <= 1; got {self.low!r}, "
                              f"{self.high!r}")

    @property
    def acts(self) -> bool:
        """Whether it can leave anything out."""
        whole = {"all": True, "top_share": self.share == 1, "top_p": self.p == 1,
                 "band": (self.low, self.high) == (0, 1), "min_p": self.ratio == 0}.get(self.keep, False)
        return not whole or self.zero_variance == "drop"

    def kept(self, reward_N: Tensor, group_N: Tensor, scored_N: Tensor) -> Tensor:
        """bool [N]: the attempts to learn from, all of them scored. `reward_N` are the raw rewards, NaN where unscored;
        `group_N` numbers the groups from 0."""
        if not self.acts:
            return scored_N.clone()
        std_G = filters.reward_std(reward_N, group_N, scored_N)
        if self.zero_variance == "drop":
            std_G = torch.where(std_G == 0, torch.nan, std_G)
        kept_N = self._chosen(std_G)[group_N] & scored_N
        if self.keep == "within_group":
            kept_N = filters.widest_attempts(reward_N, group_N, kept_N, self.attempts)
        return kept_N

    def _chosen(self, std_G: Tensor) -> Tensor:
        """bool [G]"""
        match self.keep:
            case "top_share":
                return filters.top_share(std_G, self.share)
            case "top_p" if self.mass == "linear":
                return filters.top_mass(std_G, self.p, self.slack)
            case "top_p":
                return filters.nucleus(std_G, self.p)
            case "top_k":
                return filters.top_k(std_G, self.groups)
            case "min_p":
                return filters.at_least(std_G, self.ratio)
            case "band":
                return filters.quantile_band(std_G, self.low, self.high)
        return ~std_G.isnan()

    def notes(self, reward_N: Tensor, group_N: Tensor, scored_N: Tensor, kept_N: Tensor) -> dict[str, float]:
        """What a choice amounts to, for the metrics line: the share of scored attempts and the number of groups that
        are kept, how many groups are flat, and the mean within-group std over all groups and over what is kept."""
        groups = int(group_N.max()) + 1
        every_G, kept_G = (filters.reward_std(reward_N, group_N, some_N) for some_N in (scored_N, kept_N))
        found = {"filter_kept": float(kept_N.sum()) / max(int(scored_N.sum()), 1),
                 "filter_groups_kept": float(len(group_N[kept_N].unique())),
                 "filter_groups_left_out": float(groups - len(group_N[kept_N].unique())),
                 "filter_groups_flat": float((every_G == 0).sum())}
        for name, std_G in (("all", every_G), ("kept", kept_G)):
            known = std_G[~std_G.isnan()]
            found |= {f"filter_std_{name}": float(known.mean())} if len(known) else {}
        return found

    @property
    def label(self) -> str:
        """The rule in a few words: `top_share, share 0.25, flat groups dropped`."""
        numbers = [f"{name} {getattr(self, name)}" for name in READS[self.keep]]
        return ", ".join([self.keep, *numbers, *(["flat groups dropped"] if self.zero_variance == "drop" else [])])

    def at_most(self, groups: int, group_size: int) -> int:
        """The largest number of attempts that can be kept of `groups` groups with `group_size` attempts each."""
        if self.keep == "within_group":
            return groups * min(group_size, self.attempts)
        kept = {"top_share": lambda: filters.count_of_share(groups, self.share),
                "top_k": lambda: min(groups, self.groups),
                "band": lambda: len(filters.places_in_band(groups, self.low, self.high))}
        return (kept[self.keep]() if self.keep in kept else groups) * group_size

    def inert(self, tasks: int, group_size: int) -> list[tuple[str, bool, str]]:
        """(field, whether it cannot act, why) of every setting, for the check when a config is loaded: of steps with so
        many tasks, and so many attempts at each."""
        reads = READS[self.keep]
        found = []
        for f in fields(self):
            if f.name in ("keep", "zero_variance", "equal_updates"):
                continue
            owner = next(kind for kind, names in READS.items() if f.name in names)
            found.append((f.name, f.name not in reads, f"algorithm.filter.keep is {self.keep!r}, not {owner!r}"))
        found.append(("slack", self.keep == "top_p" and self.mass != "linear", "algorithm.filter.mass is 'softmax'"))
        found += [("keep", self.keep != "all" and not self.acts, "as its numbers stand, it leaves nothing out"),
                  ("groups", self.groups >= tasks, f"a step has only {tasks} groups, so all that differ are kept"),
                  ("attempts", self.attempts >= group_size, f"a group has only {group_size} attempts, so all are kept"),
                  ("equal_updates", not self.acts, "nothing is filtered"),
                  # Flat groups come last, and the share is reached before them.
                  ("zero_variance", (self.keep, self.mass, self.zero_variance) == ("top_p", "linear", "drop") and self.p < 1,
                   "algorithm.filter.keep = 'top_p' never keeps a flat group: it holds no share of the spread")]
        return found
