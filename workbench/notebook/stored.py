"""Cells that look at a stored run. They need the run folder and nothing else: no torch, no GPU, no network.

Token texts come from the policy's tokenizer where it can be found; without it, ids are shown.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.rollouts.metrics import filter_words
from workbench.run.code import why_foreign
from workbench.run.store import Run, open_run
from workbench.training.task_choice import choice_words
from workbench.types import CreditTable, Group, Observation, Segment, View
from workbench.types.dumps import Imported
from workbench.types.errors import DataError, PolicyError
from workbench.types.findings import ERROR, NOTE
from workbench.views import (
    credit_of,
    show_group,
    show_segment,
    show_text,
    show_tokens,
    show_trajectory,
)
from workbench.views.curves import curves_document
from workbench.views.evaluation import show_report
from workbench.views.html import shown
from workbench.views.live import live_curves
from workbench.views.tokens import TokenTexts, ids_as_texts
from workbench.views.words import count

if TYPE_CHECKING:
    from workbench.rollouts.evaluate import Score
    from workbench.training.session import Session


def show_run(run: Run | str | Path) -> View:
    """Learning curves of all committed steps, beside random play, the untrained policy and the solver (law 12); also
    the critic's explained variance and the KLs, where there are any, what a filter did, and what the lint said."""
    run = open_run(run)
    rows = run.metrics_rows()
    remark = "; ".join(filter(None, (filter_words(rows), choice_words(rows), lint_words(run))))
    return shown(curves_document(live_curves(rows, run.evaluations()), run.name, remark))


def lint_words(run: Run) -> str:
    """What the lint said of the steps, in a line ("lint: 12 steps clean; notes: R8 in 9"); "" where it was
    off."""
    reports = [
        said
        for step in (*run.steps(), *run.uncommitted())
        if (said := run.lint_values(step)) is not None
    ]
    if not reports:
        return ""
    named = {
        kind: [
            [
                answer["rule"]
                for answer in said["answers"]
                if any(finding["severity"] == kind for finding in answer["findings"])
            ]
            for said in reports
        ]
        for kind in (ERROR, NOTE)
    }
    bad = sum(map(bool, named[ERROR]))
    steps = count(len(reports), "step")
    said = f"lint: errors in {bad} of {steps}" if bad else f"lint: {steps} clean"
    for kind in (ERROR, NOTE):
        rules = Counter(rule for step in named[kind] for rule in step)
        if rules:
            said += f"; {kind}s: " + ", ".join(
                f"{rule} in {number}" for rule, number in sorted(rules.items())
            )
    return said + (f" (workbench lint {shlex.quote(str(run.path))} says where)" if bad else "")


def show_evaluations(run: Run | str | Path, step: int | None = None) -> View:
    """The table of one evaluation (default: the last): every policy on the same tasks, with intervals and paired
    differences.
    """
    run = open_run(run)
    reports = {report["step"]: report for report in run.evaluations().values() if "step" in report}
    if not reports or (step is not None and step not in reports):
        found = f"after steps {', '.join(map(str, sorted(reports)))}" if reports else "none yet"
        raise DataError(
            f"run {run.name} has no evaluation{'' if step is None else f' after step {step}'}; "
            f"it has {found}"
        )
    report = reports[max(reports) if step is None else step]
    return show_report(report, title=f"{run.name}, after step {report['step']}")


def show_step(
    run: Run | str | Path,
    step: int,
    *,
    task: int = 0,
    attempt: int | None = None,
    tokens: bool = False,
) -> View:
    """One group of a step (default), one attempt turn by turn, or its tokens by author with the credit that training
    used. Where a filter left attempts out, each says whether it was kept, and a line names the groups that were not.
    """
    run = open_run(run)
    groups = run.groups(step)
    group = groups[_index(task, len(groups), f"step {step} has no task")]
    if attempt is None and not tokens:
        kept = kept_attempts(
            run.credit(step, run.updates(step)[0]) if run.updates(step) else None, groups
        )
        if kept is None or False not in sum(kept, ()):
            return show_group(group)
        return show_group(group, kept=kept[task], remarks=_left_out(groups, kept))
    attempt = _index(attempt or 0, len(group), f"task {task} of step {step} has no attempt")
    trajectory = group[attempt]
    if not tokens:
        return show_trajectory(trajectory)
    return show_tokens(trajectory, token_texts(run), credit=_credit(run, step, task, attempt))


def show_prompt(session: Session, observation: Observation) -> View:
    """What the policy would be shown for `observation` as its first prompt: every token on its own, by author."""
    return show_segment(
        Segment(session.chat.open(observation)), session.chat.token_texts, title="first prompt"
    )


def show_scores(scores: Sequence[Score], absent: Mapping[str, str] = {}) -> View:
    """Scores of policies on the same tasks, with their intervals, paired where `untrained` or `random` is among them.
    `absent`: baselines that there are none of, and why ({"solver": "none known"}).
    """
    from workbench.rollouts.evaluate import report

    return show_report(report(scores, absent))


def show_replay(run: Run | str | Path, step: int) -> View:
    """Recompute a step's credit from its stored ids and rewards, and say whether every stored number is the same."""
    from workbench.notebook.replay import replay

    report, notes = replay(run, step)
    return show_text("\n".join([*notes, report.text]), title=f"replay of {run.name}, step {step}")


def show_rollouts(
    found: Imported, *, attempt: int | None = None, tokenizer: str | None = None
) -> View:
    """Rollouts that another framework wrote: what the file holds and what not, then the first attempts, or number
    `attempt`, token by token with what is trained. `tokenizer`: a policy or path whose tokenizer gives the tokens their
    texts; ids are shown without.
    """
    from workbench.views import show_imported

    return show_imported(
        found, None if tokenizer is None else _token_texts(tokenizer), attempt=attempt
    )


def _index(index: int, length: int, words: str) -> int:
    if not 0 <= index < length:
        raise DataError(f"{words} {index}; they are counted from 0 to {length - 1}")
    return index


def _credit(run: Run, step: int, task: int, attempt: int):
    """What the step's first update used for one attempt; None where the step made none."""
    if not run.updates(step):
        return None
    number = sum(len(group) for group in run.groups(step)[:task]) + attempt
    return credit_of(run.credit(step, run.updates(step)[0]), number)


def kept_attempts(
    table: CreditTable | None, groups: Sequence[Group]
) -> list[tuple[bool | None, ...]] | None:
    """Per attempt of each group: whether the step's credit gave any of its sampled tokens a weight; None for one that
    is not scored or sampled nothing. None altogether where the step made no update: then no weights are stored."""
    if table is None:
        return None
    number, found = 0, []
    weighing = set(np.unique(table["trajectory"][table["weight"] != 0]).tolist())
    for group in groups:
        marks = [
            number + n in weighing if t.reward is not None and t.num_sampled else None
            for n, t in enumerate(group)
        ]
        found.append(tuple(marks))
        number += len(group)
    return found


def _left_out(groups: Sequence[Group], kept: Sequence[tuple[bool | None, ...]]) -> list[str]:
    """A line per group of a step of which a filter left out all scored attempts, with the spread it went by."""
    lines = []
    for task, (group, marks) in enumerate(zip(groups, kept)):
        rewards = [t.reward for t in group if t.reward is not None]
        if True not in marks and False in marks:
            std = (
                f"{np.std(rewards, ddof=1):.2f}"
                if len(rewards) > 1
                else "— (a single scored attempt)"
            )
            lines.append(f"task {task} of this step was left out by the filter: std {std}")
    return lines


def token_texts(run: Run) -> TokenTexts:
    """One display string per token, by the tokenizer of the policy that the run's config names."""
    loader = run.setting("policy", dict).get("loader")
    return (
        ids_as_texts
        if loader and why_foreign(run)
        else _token_texts(run.setting("policy.name", str), loader)
    )


@lru_cache(maxsize=4)
def _token_texts(policy: str, loader: str | None = None) -> TokenTexts:
    try:
        from workbench.chat import ChatFormat
        from workbench.engines.policy import load_tokenizer

        return ChatFormat.from_tokenizer(load_tokenizer(policy, loader)).token_texts
    except (ImportError, PolicyError):
        # a laptop without transformers, or without the policy, still shows who wrote what
        return ids_as_texts
