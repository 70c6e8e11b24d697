"""The credit of a stored step after an edit, as the navigator asks for it: several estimators beside each other.

The arithmetic is that of `wb.edit_step`, and so of training: groups with other rewards, a batch of them, the algorithm's own
`credit`. Trajectories are counted over all groups, as everywhere in an edit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from workbench.learn.algorithms import ALGORITHMS
from workbench.look.cells.credit import edited_credit, facts_of, step_facts
from workbench.look.cells.credit_settings import chosen, has_setting, knobs_of
from workbench.look.cells.edits import Edit, Knob, Outcome
from workbench.look.cells.step_record import spread_of
from workbench.look.credited import Credited, changed_tokens, largest_change, tokens_of
from workbench.look.escape import visible
from workbench.run.store import Run
from workbench.training.stored import config_of_run
from workbench.values import Groups, Trajectory, trajectories_of
from workbench.values.errors import DataError, WorkbenchError

BESIDE = ("grpo", "rloo", "reinforce_pp")  # shown where nobody chose what to compare with
MOST_COLUMNS = 6


class EditedStep:
    """A stored step whose rewards, trajectories, masks and estimators can be changed without touching the run."""

    def __init__(self, run: Run, step: int, groups: Groups) -> None:
        """Raises ConfigError where the run's own algorithm cannot be had here."""
        own = config_of_run(run, ["algorithm"]).algorithm
        self.run = run
        self.step = step
        self.groups = groups
        self.own = own.name
        self.bases = ALGORITHMS | {own.name: own}
        self.trajectories = trajectories_of(groups)
        self.tokens = tokens_of(self.trajectories)
        self._task = np.repeat(np.arange(len(groups)), [len(group) for group in groups]).tolist()
        self._credit = edited_credit(groups, self.bases, facts_of(groups, step_facts(run, step)))

    @cached_property
    def before(self) -> Credited:
        """The credit that training used."""
        return self._credit(Edit(self.own)).credited

    def after(
        self, asked: str, attempt: int | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(JSON values, numbers per token of `attempt`) of an edit, written as `asked` says it. A column that cannot be
        computed says why."""
        edit, names = self.asked(asked)
        made: list[Credited | str] = []
        outcome: Outcome | None = None
        for name in names:
            known = {
                key: value
                for key, value in edit.settings.items()
                if has_setting(self.bases[name], key)
            }
            if name == edit.algorithm:
                known = edit.settings
            try:
                computed = self._credit(Edit(name, known, edit.rewards, edit.dropped))
                made.append(computed.credited)
                outcome = outcome or computed
            except WorkbenchError as error:
                made.append(visible(str(error)))
        first = made[0]
        inert = first.inert if isinstance(first, Credited) else {}
        content = {
            "own": self.own,
            "algorithms": list(self.bases),
            "columns": [self._column(name, credit) for name, credit in zip(names, made)],
            "trained": int((self.before.weight_T != 0).sum()),
            "code": self.code(edit),
            "knobs": [_knob(knob, edit, inert) for knob in knobs_of(chosen(self.bases[names[0]]))],
            "rows": self._rows(edit, outcome, made),
            "dropped": list(edit.dropped),
        }
        if attempt is not None:
            paid = [
                [name, edit.rewards.get((attempt, turn), reward), reward]
                for turn, (name, reward) in enumerate(_paid_by(self.trajectories[attempt]))
            ]
            content |= {"number": attempt, "paid": paid}
        return content, {} if attempt is None else self._arrays(made, attempt)

    def asked(self, text: str) -> tuple[Edit, list[str]]:
        """(the edit, names of the estimators to show beside each other) of {"columns": [names, the edited one first],
        "settings": {dotted name: value}, "rewards": [[attempt, turn, reward]], "dropped": [trajectories]}, each of which may be
        left out. Raises DataError for anything else."""
        try:
            request = json.loads(text or "{}")
            columns = list(request.get("columns") or dict.fromkeys((self.own, *BESIDE)))[
                :MOST_COLUMNS
            ]
            if unknown := [name for name in columns if name not in self.bases]:
                raise DataError(
                    f"no algorithm {unknown[0]!r:.60}; there are {', '.join(self.bases)}"
                )
            rewards = {
                (int(attempt), int(turn)): reward if reward is None else float(reward)
                for attempt, turn, reward in request.get("rewards", ())
            }
            edit = Edit(
                columns[0],
                dict(request.get("settings", {})),
                rewards,
                tuple(sorted(map(int, request.get("dropped", ())))),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"an edit is JSON with columns, settings, rewards and dropped; got {text!r:.200}: {error}"
            ) from error
        return edit, columns

    def code(self, edit: Edit) -> str:
        """One line that shows the same."""
        arguments = {
            "algorithm": edit.algorithm if edit.algorithm != self.own else None,
            "settings": dict(edit.settings),
            "rewards": dict(edit.rewards),
            "dropped": list(edit.dropped),
        }
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value)
        return f"wb.edit_step({str(self.run.path)!r}, {self.step})" + (
            f".after({given})" if given else ""
        )

    # -------------------------------------------------------------------------------------------- parts

    def _column(self, name: str, made: Credited | str) -> dict[str, Any]:
        if isinstance(made, str):
            return {"name": name, "error": made}
        now, was = (
            np.where(credit.weight_T != 0, credit.advantage_T, np.nan)
            for credit in (made, self.before)
        )
        changed = changed_tokens(now, was)
        by = largest_change(now, was, changed) if changed.any() else 0.0
        return {
            "name": name,
            "trained": int((made.weight_T != 0).sum()),
            "changed": int(changed.sum()),
            "by": by if np.isfinite(by) else None,
        }

    def _rows(
        self, edit: Edit, outcome: Outcome | None, made: Sequence[Credited | str]
    ) -> list[dict[str, Any]]:
        """A row per trajectory: what it earns, its group's mean and spread, and the mean advantage of its trained tokens."""
        groups = self.groups if outcome is None else outcome.groups
        spreads = [spread_of(group) for group in groups]
        before = self._means(self.before)
        after = [None if isinstance(credit, str) else self._means(credit) for credit in made]
        rows = []
        for number, (task, now) in enumerate(zip(self._task, trajectories_of(groups))):
            rows.append(
                {
                    "task": task,
                    "attempt": now.attempt,
                    "number": number,
                    "reward": now.reward,
                    "was": self.trajectories[number].reward,
                    "dropped": number in edit.dropped,
                    "mean": spreads[task]["mean"],
                    "std": spreads[task]["std"],
                    "before": before[number],
                    "after": [None if means is None else means[number] for means in after],
                }
            )
        return rows

    def _means(self, credited: Credited) -> list[float | None]:
        """The mean advantage of the trained tokens of each trajectory; None where it has none."""
        lengths = [tokens.stop - tokens.start for tokens in self.tokens]
        trajectory_T = np.repeat(np.arange(len(lengths)), lengths)
        trained_T = credited.weight_T != 0
        trajectory_T = trajectory_T[trained_T]
        count_N = np.bincount(trajectory_T, minlength=len(lengths))
        sum_N = np.bincount(trajectory_T, credited.advantage_T[trained_T], minlength=len(lengths))
        means_N = sum_N / np.maximum(count_N, 1)
        return [float(mean) if count else None for mean, count in zip(means_N, count_N)]

    def _arrays(self, made: Sequence[Credited | str], attempt: int) -> dict[str, np.ndarray]:
        """Advantages of the trained tokens of one trajectory, NaN elsewhere: "before", and "after 0", "after 1", ... of each
        column."""
        columns = {"before": self.before} | {
            f"after {number}": one for number, one in enumerate(made) if isinstance(one, Credited)
        }
        at = self.tokens[attempt]
        return {
            name: np.where(one.weight_T[at] != 0, one.advantage_T[at], np.nan)
            for name, one in columns.items()
        }


def _paid_by(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    """(name, reward) of each turn, then of the outcome if there is one: what can be edited."""
    paid = [(f"turn {turn.index}", turn.reward) for turn in trajectory.turns]
    return paid if trajectory.outcome is None else [*paid, ("outcome", trajectory.outcome)]


def _knob(knob: Knob, edit: Edit, inert: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": knob.name,
        "value": edit.settings.get(knob.name, knob.default),
        "default": knob.default,
        "choices": list(knob.choices),
        "low": knob.low,
        "high": knob.high,
        "whole": isinstance(knob.default, int) and not isinstance(knob.default, bool),
        "inert": visible(inert.get(knob.name, "")),
    }
