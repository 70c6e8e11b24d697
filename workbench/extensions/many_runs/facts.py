"""What there is to know of a run beside others: how far it came, what it reached, by which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.look import words
from workbench.look.cells.live_run import attach
from workbench.look.curves import BASELINES
from workbench.look.records import flattened
from workbench.run.store import Run
from workbench.values.errors import WorkbenchError

POLICIES = ("trained", *BASELINES)
# Differ between any two runs and say nothing of them.
NO_SETTINGS = ("code",)


@dataclass(frozen=True, eq=False)
class RunFacts:
    """One run beside others.

    state      as `Status.state` says it; "damaged" where it cannot be read
    step       that it came to
    steps      how many there are to be
    measured   the step after which `rates` were measured; None: never
    rates      policy -> (success, return) on the held-out tasks, sampled where that was measured; None where not known
    curve      success of each committed step in training, or reward where nobody knows success; None: not known
    settings   the configuration with dotted names
    problem    why it could not be read
    """

    run: Run
    state: str
    step: int = 0
    steps: int | None = None
    measured: int | None = None
    rates: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    curve: Sequence[float | None] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def rate(self, policy: str) -> float | None:
        """Success of a policy, or its return where nobody knows success."""
        success, reward = self.rates.get(policy, (None, None))
        return reward if success is None else success

    def reached(self, policy: str) -> str:
        """The same in words: a return is named as one."""
        success, reward = self.rates.get(policy, (None, None))
        if success is not None:
            return words.percent(success)
        return "—" if reward is None else f"return {words.signed(reward)}"

    @property
    def searched_text(self) -> str:
        """What a text filter looks at: name, state, problem, and each setting as key=value."""
        parts = [self.run.name, self.state, self.problem]
        parts += [f"{name}={setting_words(value)}" for name, value in self.settings.items()]
        return "\n".join(parts).lower()


def facts_of(run: Run) -> RunFacts:
    """What the folder holds now."""
    try:
        status = attach(run.path).status
        reports = [report for report in run.evaluations().values() if "step" in report]
        rows = run.metrics_rows()
        settings = flattened(run.config)
    except WorkbenchError as error:
        return RunFacts(run, "damaged", problem=str(error))
    last = max(reports, key=lambda report: report["step"], default=None)
    return RunFacts(
        run,
        status.state,
        status.step,
        status.steps,
        None if last is None else last["step"],
        {} if last is None else _rates(last["rows"]),
        _curve(rows),
        {  # an algorithm without settings of its own has an empty part, which is none either
            name: value
            for name, value in settings.items()
            if name not in NO_SETTINGS and value != {}
        },
    )


def _rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float | None, float | None]]:
    by_mode = {(row["policy"], row["mode"]): row for row in rows}
    rates = {}
    for policy in POLICIES:
        row = by_mode.get((policy, "sampled")) or by_mode.get((policy, "greedy"))
        if row is not None:
            rates[policy] = (row["success"], row.get("reward"))
    return rates


def _curve(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    knows = any(row.get("success") is not None for row in rows)
    return [row.get("success" if knows else "reward_mean") for row in rows]


def differing_settings(runs: Sequence[RunFacts]) -> list[str]:
    """The settings in which these runs differ, those that all of them have first, in the order of their configurations; a run
    that cannot be read has none."""
    readable = [facts.settings for facts in runs if facts.settings]
    names: dict[str, None] = {}
    for settings in readable:
        names |= dict.fromkeys(settings)
    differing = [name for name in names if len({_comparable(own, name) for own in readable}) > 1]
    return sorted(differing, key=lambda name: any(name not in own for own in readable))


def _comparable(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "not set"


def setting_words(value: Any) -> str:
    """A setting in few characters; text as it is."""
    return value if isinstance(value, str) else repr(value)


def numbers_of(facts: RunFacts) -> dict[str, Any]:
    """Name, state and numbers of a run, as the columns of `Runs.frame`."""
    known = [value for value in facts.curve if value is not None]
    row: dict[str, Any] = {
        "name": facts.run.name,
        "path": str(facts.run.path),
        "state": facts.state,
        "step": facts.step,
        "steps": facts.steps,
        "measured": facts.measured,
    }
    for policy in POLICIES:
        prefix = "" if policy == "trained" else f"{policy}_"
        row[f"{prefix}success"], row[f"{prefix}reward"] = facts.rates.get(policy, (None, None))
    row["train_first"] = known[0] if known else None
    row["train_last"] = known[-1] if known else None
    return row
