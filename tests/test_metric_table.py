"""One formula a name: every metric of a run folder, made again with plain loops in float64, and the table that names it.

The table is docs/reference/metrics.md. Runs of the version that wrote `tests/golden_runs/old` keep the meaning of their numbers.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

import workbench as wb
from tests.golden_runs.runs import OLD, RECORDED, SMALL_POLICY
from workbench.look.curves import PANELS, curves_view
from workbench.plain.loss import clip, kl, value_loss
from workbench.rollouts.metrics import rollout_metrics
from workbench.values import StopReason, trajectories_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
ROUNDING = 1e-9
# What they are made of is not in the folder.
NOT_STORED = {
    "grad_norm",
    "critic_grad_norm",
    "micro_batches",
    "gradient_snr",
    "prompt_information",
    "prompt_retrieval",
    "prompt_chance",
}
# Written only with settings that no run here has; their own tests are named.
ELSEWHERE = {
    "credit_greedy_reward": "tests/algorithms/test_estimators.py",
    "credit_greedy_unscored": "tests/algorithms/test_estimators.py",
    "clip_fraction_dual": "tests/test_learner.py",
    "sampler_weight": "tests/test_learner.py",
    "sampler_weight_capped": "tests/test_learner.py",
    "staleness": "tests/test_ahead.py",
    "forgiven": "tests/extensions/interface/test_interface.py",
    "tasks_chosen_*": "tests/test_task_choice.py",
    "tasks_drawn_*": "tests/test_task_choice.py",
    "tasks_believed_*": "tests/test_task_choice.py",
}


def mean(numbers):
    numbers = list(numbers)
    return math.fsum(numbers) / len(numbers) if numbers else None


def std(numbers, less):
    """Standard deviation that divides by n - `less`; None where that is nothing."""
    if len(numbers) <= less:
        return None
    middle = mean(numbers)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in numbers) / (len(numbers) - less))


def alike(rewards):
    return max(rewards) - min(rewards) <= ROUNDING * max(abs(reward) for reward in rewards)


@dataclass
class Step:
    """What a run folder holds of one step."""

    run: object
    step: int

    @cached_property
    def groups(self):
        return self.run.groups(self.step)

    @cached_property
    def trajectories(self):
        return trajectories_of(self.groups)

    @cached_property
    def turns(self):
        return [turn for trajectory in self.trajectories for turn in trajectory.turns]

    @cached_property
    def config(self):
        return self.run.config_of(self.step)

    def algorithm(self, name, default=None):
        """A setting of the algorithm, which an older version kept beside the others and a newer one in a part."""
        own = self.config["algorithm"]
        parts = [own, *(part for part in own.values() if isinstance(part, dict))]
        for part in parts:
            if name in part and not isinstance(part[name], dict):
                return part[name]
        assert default is not None, name
        return default

    @cached_property
    def tables(self):
        return [self.run.credit(self.step, update) for update in self.run.updates(self.step)]

    @cached_property
    def plain_logp(self):
        """The sampler's own logprob of each token, of the unbent distribution."""
        logps = []
        for trajectory in self.trajectories:
            for span in (span for segment in trajectory.segments for span in segment.spans):
                known = span.plain_logprobs
                if known is None and not (span.sampling is not None and span.sampling.bends):
                    known = span.logprobs
                logps += [math.nan] * len(span) if known is None else known.tolist()
        return logps

    def rewards(self, kept=False):
        """Rewards of the scored (or kept) trajectories of each group."""
        weighed = set()
        if kept and self.tables:
            table = self.tables[0]
            for trajectory, weight in zip(table["trajectory"], table["weight"]):
                if weight != 0:
                    weighed.add(int(trajectory))
        number = -1
        listed = []
        for group in self.groups:
            own = []
            for trajectory in group:
                number += 1
                if trajectory.reward is not None and (not kept or number in weighed):
                    own.append(trajectory.reward)
            listed.append(own)
        return listed

    @property
    def filters(self):
        return self.config["algorithm"]["filter"]["keep"] != "all"

    def kept(self):
        return self.rewards(kept=self.filters)

    def trained(self, table):
        """Rows that this update trained and the policy sampled."""
        return [t for t in range(len(table["used"])) if table["used"][t] and table["eligible"][t]]

    def over_updates(self, of, join=mean):
        numbers = []
        for number, table in enumerate(self.tables):
            value = of(table) if of.__code__.co_argcount == 1 else of(table, number)
            if value is not None:
                numbers.append(value)
        return join(numbers) if numbers else None

    def per_token(self, of):
        return self.over_updates(
            lambda table: mean(float(of(table, t)) for t in self.trained(table))
        )

    def fitted(self, table):
        return [
            t
            for t in range(len(table["used"]))
            if table["used"][t] and table["return"][t] == table["return"][t]
        ]


def share(flags):
    return mean(bool(flag) for flag in flags)


def log_ratio(table, t):
    return float(table["new_logp"][t]) - float(table["old_logp"][t])


def k3(log_of_ratio):
    return math.expm1(log_of_ratio) - log_of_ratio


def gaps(step):
    """log trainer - log sampler of the tokens of the first update."""
    table = step.tables[0]
    there = [t for t in step.trained(table) if step.plain_logp[t] == step.plain_logp[t]]
    return [float(table["new_logp"][t]) - step.plain_logp[t] for t in there]


def spread_of_filter(rewards):
    stds = []
    for own in rewards:
        if len(own) > 1:
            stds.append(0.0 if alike(own) else std(own, 1))
    return mean(stds)


def loss_of(step):
    """The clipped surrogate, the entropy and the KL, over the number of trained tokens."""
    assert step.algorithm("reduction") == "token-mean"
    bounds = {"low": step.algorithm("clip_low"), "high": step.algorithm("clip_high")}

    def of(table):
        trained = step.trained(table)
        total = 0.0
        for t in trained:
            new, old = (torch.tensor(float(table[name][t])) for name in ("new_logp", "old_logp"))
            advantage = torch.tensor(float(table["advantage"][t]))
            total += float(table["weight"][t]) * float(
                clip(new, old, advantage, torch.tensor(True), **bounds).loss
            )
            total -= step.algorithm("entropy_coef", 0.0) * float(table["entropy"][t])
            total += kl_term(step, table, t)
        return total / len(trained)

    return step.over_updates(of)


def kl_of(table, t, estimator):
    both = (
        torch.tensor(float(table[name][t]), dtype=torch.float64)
        for name in ("new_logp", "ref_logp")
    )
    return float(kl(*both, estimator))


def kl_term(step, table, t):
    coef = step.algorithm("kl_coef", 0.0)
    if not coef or step.algorithm("kl_in") != "loss":
        return 0.0
    return coef * kl_of(table, t, step.algorithm("kl_estimator"))


def value_terms(step, table, held):
    terms = []
    for t in step.fitted(table):
        new, old, target = (
            torch.tensor(float(table[name][t]), dtype=torch.float64)
            for name in ("new_value", "value", "return")
        )
        bound = step.algorithm("value_clip")
        free = float(value_loss(new, old, target))
        bounded = float(value_loss(new, old, target, bound)) if bound else free
        terms.append(float(bounded > free) if held else bounded)
    return mean(terms)


def explained(step):
    def of(table):
        rows = step.fitted(table)
        targets = [float(table["return"][t]) for t in rows]
        if len(set(targets)) < 2:
            return None  # there is nothing to explain
        left = [target - float(table["value"][t]) for target, t in zip(targets, rows)]
        return 1 - (std(left, 1) / std(targets, 1)) ** 2

    return step.over_updates(of)


def moved(step):
    return [
        update
        for update in step.run.updates(step.step)
        if update not in step.run.skipped(step.step)
    ]


def skipped_so_far(step, words):
    count = 0
    for number in step.run.steps():
        if number <= step.step:
            count += sum(words in reason for reason in step.run.skipped(number).values())
    return count


def learning_rate(step):
    learner = step.config["learner"]
    first = step.run.metrics_line(step.step)["policy_version"] - len(moved(step))
    rates = []
    for made in range(first + 1, first + len(moved(step)) + 1):
        warm = min(1.0, made / learner["warmup_updates"]) if learner["warmup_updates"] else 1.0
        rates.append(learner["lr"] * warm)
    return mean(rates)


def reasoning(step):
    return [turn.info["reasoning"] for turn in step.turns if "reasoning" in turn.info]


RECOMPUTED = {
    "reward_mean": lambda s: mean(sum(s.rewards(), [])),
    "reward_std": lambda s: std(sum(s.rewards(), []), 0),
    "reward_std_in_group": lambda s: mean(std(own, 1) for own in s.rewards() if len(own) > 1),
    "reward_std_within": lambda s: mean(std(own, 0) for own in s.rewards() if own),
    "flat_groups": lambda s: share(alike(own) for own in s.rewards() if own),
    "success": lambda s: (
        share(t.success is True for t in s.trajectories)
        if any(t.success is not None for t in s.trajectories)
        else None
    ),
    "turns": lambda s: mean(len(t.turns) for t in s.trajectories),
    "sampled_tokens": lambda s: mean(
        sum(int(segment.eligible.sum()) for segment in t.segments) for t in s.trajectories
    ),
    "segments": lambda s: mean(len(t.segments) for t in s.trajectories),
    "unscored": lambda s: sum(t.reward is None for t in s.trajectories),
    "valid_format": lambda s: share(
        turn.info["valid_format"] for turn in s.turns if "valid_format" in turn.info
    ),
    "turns_cut": lambda s: share(turn.finish == "length" for turn in s.turns),
    "reasoning_stated": lambda s: share(word != "not stated" for word in reasoning(s)),
    "reasoning_agrees": lambda s: share(
        word == "agrees" for word in reasoning(s) if word != "not stated"
    ),
    "credit_trajectories_unscored": lambda s: sum(t.reward is None for t in s.trajectories),
    "credit_groups_flat": lambda s: sum(alike(own) for own in s.kept() if len(own) > 1),
    "credit_groups_without_baseline": lambda s: sum(
        len(own) < 2 for own in s.kept() if own or not s.filters
    ),
    "credit_reward_std_in_group": lambda s: mean(std(own, 1) for own in s.kept() if len(own) > 1),
    "credit_value_mean": lambda s: mean(
        float(v) for v, sampled in zip(s.tables[0]["value"], s.tables[0]["eligible"]) if sampled
    ),
    "credit_trajectories_bootstrapped": lambda s: sum(
        t.stop_reason is StopReason.CONTEXT_FULL for t in s.trajectories
    ),
    "credit_filter_kept": lambda s: sum(map(len, s.kept())) / sum(map(len, s.rewards())),
    "credit_filter_groups_kept": lambda s: sum(bool(own) for own in s.kept()),
    "credit_filter_groups_left_out": lambda s: sum(not own for own in s.kept()),
    "credit_filter_groups_flat": lambda s: sum(alike(own) for own in s.rewards() if len(own) > 1),
    "credit_filter_std_all": lambda s: spread_of_filter(s.rewards()),
    "credit_filter_std_kept": lambda s: spread_of_filter(s.kept()),
    "credit_updates_removed_by_filter": lambda s: (
        s.config["algorithm"]["epochs"] * s.config["algorithm"]["minibatches"] - len(s.tables)
    ),
    "loss": loss_of,
    "entropy": lambda s: s.per_token(lambda table, t: table["entropy"][t]),
    "approx_kl": lambda s: s.per_token(lambda table, t: k3(log_ratio(table, t))),
    "clip_fraction": lambda s: s.per_token(lambda table, t: table["clip_state"][t] != 0),
    "clip_fraction_high": lambda s: s.per_token(lambda table, t: table["clip_state"][t] == 1),
    "ratio_max": lambda s: s.over_updates(
        lambda table: max(math.exp(log_ratio(table, t)) for t in s.trained(table)), max
    ),
    "trained_tokens": lambda s: s.over_updates(lambda table: int(table["used"].sum()), sum),
    "trained_share": lambda s: s.over_updates(lambda table: share(table["used"])),
    "weight_mean": lambda s: s.per_token(lambda table, t: table["weight"][t]),
    "entropy_loss": lambda s: s.per_token(
        lambda table, t: -s.algorithm("entropy_coef") * table["entropy"][t]
    ),
    "kl_loss": lambda s: s.per_token(lambda table, t: kl_term(s, table, t)),
    "kl_ref": lambda s: s.per_token(lambda table, t: kl_of(table, t, "k3")),
    "new_value": lambda s: s.over_updates(
        lambda table: mean(float(table["new_value"][t]) for t in s.fitted(table))
    ),
    "value_loss": lambda s: s.over_updates(lambda table: value_terms(s, table, held=False)),
    "value_clip_fraction": lambda s: s.over_updates(lambda table: value_terms(s, table, held=True)),
    "explained_variance": explained,
    "stale_share": lambda s: 0.0,  # one step samples with the weights that it learns from
    "logp_gap_mean": lambda s: mean(map(abs, gaps(s))),
    "logp_gap_max": lambda s: max(map(abs, gaps(s))),
    "raw_ratio_mean": lambda s: mean(map(math.exp, gaps(s))),
    "raw_ratio_outside": lambda s: share(not 0.9 <= math.exp(gap) <= 1.1 for gap in gaps(s)),
    "mismatch_kl": lambda s: mean(map(k3, gaps(s))),
    "lr": learning_rate,
    "updates": lambda s: len(moved(s)),
    "policy_version": lambda s: sum(
        len(moved(Step(s.run, number))) for number in s.run.steps() if number <= s.step
    ),
    "bad_updates": lambda s: skipped_so_far(s, "not finite"),
    "empty_updates": lambda s: skipped_so_far(s, "nothing to"),
}
for reason in StopReason:
    RECOMPUTED[f"stop_{reason.value}"] = lambda s, reason=reason: share(
        t.stop_reason is reason for t in s.trajectories
    )


def table_of(text: str) -> dict[str, list[str]]:
    """Metric -> formula, unit, divisor, of every row of the page."""
    rows = {}
    for line in text.split("## Of views")[0].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and re.fullmatch(r"`[\w*]+`", cells[0]):
            assert cells[0].strip("`") not in rows, f"two rows of {cells[0]}"
            rows[cells[0].strip("`")] = cells[1:]
    return rows


def row_of(name: str) -> list[str]:
    rows = TABLE
    return [listed for listed in rows if fnmatch(name, listed)]


TABLE = table_of(PAGE.read_text(encoding="utf-8"))
SMALL = {
    "policy.name": str(ROOT / SMALL_POLICY),
    "policy.device": "cpu",
    "train.steps": 2,
    "train.tasks_per_step": 4,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 2,
    "learner.lr": 1e-3,
    "lint.mode": "off",
}
FRESH = {
    "filtered": (
        "frozenlake",
        {
            "algorithm.filter.keep": "top_k",
            "algorithm.filter.groups": 2,
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.entropy_coef": 0.01,
            "learner.warmup_updates": 4,
        },
    ),
    "critic": ("frozenlake-ppo", {}),
}


@pytest.fixture(
    scope="module",
    params=[
        *FRESH,
        *(path.name for path in sorted(OLD.glob("*/")) if (path / "run.json").exists()),
    ],
)
def run(request, tmp_path_factory):
    if request.param not in FRESH:
        return wb.open_run(OLD / request.param)
    preset, settings = FRESH[request.param]
    path = tmp_path_factory.mktemp("metrics") / request.param
    return wb.train_here(wb.load_config(preset, {**SMALL, **settings}), path, on_note=None)


def differences(run, recomputed=RECOMPUTED):
    """(step, metric, stored, recomputed) where they are not one number."""
    for number in run.steps():
        step = Step(run, number)
        for name, stored in run.metrics_line(number).items():
            if name in NOT_STORED:
                continue
            made = recomputed[name](step)
            # Sums of float32 terms, and logprobs that are stored rounded.
            if made is None or not math.isclose(stored, made, rel_tol=2e-4, abs_tol=2e-7):
                yield number, name, stored, made


def test_every_metric_of_a_run_is_what_its_formula_gives(run):
    assert list(differences(run)) == []


def test_the_other_convention_is_seen(tmp_path):
    """Negative control: a formula that divides by n where the table says n - 1 is a difference."""
    path = OLD / "small-frozenlake"
    wrong = RECOMPUTED | {
        "credit_reward_std_in_group": RECOMPUTED["reward_std_within"],
        "reward_std_within": RECOMPUTED["reward_std_in_group"],
    }
    names = {name for _, name, _, _ in differences(wb.open_run(path), wrong)}
    assert names == {"credit_reward_std_in_group", "reward_std_within"}


def test_every_metric_has_one_row_and_every_row_a_formula():
    written = set()
    for path in RECORDED.glob("*.json"):
        for step in json.loads(path.read_text())["steps"].values():
            written |= set(step["metrics"])
    assert [name for name in sorted(written) if len(row_of(name)) != 1] == []
    known = {*RECOMPUTED, *NOT_STORED, *ELSEWHERE}
    assert [name for name in sorted(known) if name not in ELSEWHERE and not row_of(name)] == []
    assert [listed for listed in TABLE if not any(fnmatch(name, listed) for name in known)] == []
    assert all(formula and unit and divisor for formula, unit, divisor in TABLE.values())
    # Negative control: a metric without a row is seen.
    assert row_of("reward_std_of_nobody") == []


def test_every_row_of_the_table_names_a_number_that_the_code_writes():
    source = "\n".join(path.read_text() for path in (ROOT / "workbench").rglob("*.py"))
    missing = []
    for name in TABLE:
        bare = name.removeprefix("credit_").rstrip("*")
        bare = re.sub(r"^filter_std_(all|kept)$", "filter_std_", bare)
        bare = re.sub(r"^(entropy|kl)_loss$", "_loss", bare)
        if bare not in source:
            missing.append(name)
    assert missing == []


# ------------------------------------------------------------------------------------------------ views


def test_one_view_draws_one_convention_and_says_which():
    titles = [panel.title for panel in PANELS if "std" in panel.title]
    assert titles == ["reward std within a group (n - 1)", "reward std within a group (n)"]
    new = curves_view([{"step": 1, "reward_std_in_group": 0.5, "reward_std_within": 0.25}]).text
    assert "reward std within a group (n - 1)" in new and "(n) " not in new
    old = curves_view([{"step": 1, "reward_std_within": 0.25}]).text
    assert "reward std within a group (n) " in old and "(n - 1)" not in old


def test_the_curve_the_groups_and_the_signals_agree(run):
    """What the first hour found: 0.4328 on the curve, 0.4627 in the table of groups."""
    for step in run.steps():
        stds = [spread.std for spread in wb.group_spread(run).at(step)]
        from_groups = float(np.mean([value for value in stds if value == value]))
        metrics = rollout_metrics(run.groups(step))
        assert metrics["reward_std_in_group"] == pytest.approx(from_groups, rel=1e-12)
        [signals] = [record for record in wb.signals(run).steps if record.step == step]
        assert signals.reward_spread == pytest.approx(from_groups, rel=1e-12)
        pairs = (
            (signals.success, "success"),
            (signals.reward, "reward_mean"),
            (signals.turns, "turns"),
            (signals.tokens, "sampled_tokens"),
            (signals.valid, "valid_format"),
        )
        for value, name in pairs:
            assert value == pytest.approx(metrics[name], rel=1e-12), name
