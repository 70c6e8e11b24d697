"""Cells that look at a stored run. They need the run folder and nothing else: no torch, no GPU, no network.

Token texts come from the policy's tokenizer where it can be found; without it, ids are shown.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import together
from workbench.look import (
    credit_of,
    group_view,
    segment_view,
    show_tokens,
    text_view,
    trajectory_view,
)
from workbench.look.curves import curves_document
from workbench.look.evaluation import report_view
from workbench.look.html import shown
from workbench.look.live import live_curves
from workbench.look.tokens import TokenTexts, ids_as_texts
from workbench.look.words import count
from workbench.rollouts.metrics import filter_words
from workbench.run.code import why_foreign
from workbench.run.store import Run, open_run
from workbench.training.task_choice import choice_words
from workbench.values import CreditTable, Group, Observation, Segment, View
from workbench.values.address import Address
from workbench.values.errors import DataError, PolicyError

if TYPE_CHECKING:
    from workbench.training.session import Session


def learning_curves_view(run: Run | str | Path) -> View:
    """Learning curves of all committed steps, beside random play, the untrained policy and the solver (invariant 12); also
    the critic's explained variance and the KLs, where there are any, what a filter did, and what the lint said."""
    run = open_run(run)
    rows = run.metrics_rows()
    remarks = (filter_words(rows), choice_words(rows), lint_words(run))
    remark = "; ".join(remark for remark in remarks if remark)
    return shown(curves_document(live_curves(rows, run.evaluations()), run.name, remark))


def lint_words(run: Run) -> str:
    """What the lint said of the steps ("lint: 12 steps clean; notes: R8 in 9; not checked: R28 [calls of tools]"); ""
    where it was off."""
    stored = [run.lint(step) for step in (*run.steps(), *run.uncommitted())]
    reports = [report for report in stored if report is not None]
    if not reports:
        return ""
    steps = count(len(reports), "step")
    bad = sum(1 for report in reports if report.errors)
    sentences = [f"lint: errors in {bad} of {steps}" if bad else f"lint: {steps} clean"]
    for severity in ("error", "note"):
        rules: Counter[str] = Counter()
        for report in reports:
            rules.update({rule for rule, _ in getattr(report, f"{severity}s")})
        if rules:
            counts = ", ".join(f"{rule} in {number}" for rule, number in sorted(rules.items()))
            sentences.append(f"{severity}s: {counts}")
    hint = f" (workbench lint {shlex.quote(str(run.path))} says where)" if bad else ""
    sentences[-1] += hint
    return "; ".join([*sentences, *together(reports).unchecked])


def evaluation_of_run_view(run: Run | str | Path, step: int | None = None) -> View:
    """The table of one evaluation (default: the last): every policy on the same tasks, with intervals and paired
    differences.
    """
    run = open_run(run)
    reports = {report["step"]: report for report in run.evaluations().values() if "step" in report}
    if not reports or (step is not None and step not in reports):
        has = f"after steps {', '.join(map(str, sorted(reports)))}" if reports else "none yet"
        raise DataError(
            f"run {run.name} has no evaluation{'' if step is None else f' after step {step}'}; "
            f"it has {has}"
        )
    report = reports[max(reports) if step is None else step]
    return report_view(report, title=f"{run.name}, after step {report['step']}")


def step_view(
    run: Run | str | Path,
    step: int,
    *,
    task: int = 0,
    attempt: int | None = None,
    tokens: bool = False,
) -> View:
    """One group of a step (default), one trajectory turn by turn, or its tokens by author with the credit that training
    used. Where a filter left trajectories out, each says whether it was kept, and a line names the groups that were not.
    """
    run = open_run(run)
    groups = run.groups(step)
    group = groups[_index(task, len(groups), f"step {step} has no task")]
    if attempt is None and not tokens:
        updates = run.updates(step)
        table = run.credit(step, updates[0]) if updates else None
        kept = kept_trajectories(table, groups)
        if kept is None or False not in sum(kept, ()):
            return group_view(group)
        return group_view(group, kept=kept[task], remarks=_left_out(groups, kept))
    attempt = _index(attempt or 0, len(group), f"task {task} of step {step} has no trajectory")
    trajectory = group[attempt]
    if not tokens:
        return trajectory_view(trajectory)
    return show_tokens(trajectory, token_texts(run), credit=_credit(run, step, task, attempt))


def tokens_of_run(run: Run | str | Path, at: str | Address = "") -> View:
    """The tokens of a trajectory of a run by author, with the credit that training used: of the one that `at` names, else of
    the first of the newest step."""
    run = open_run(run)
    at = Address.of(at)
    step = at.step or max(run.steps(), default=1)
    return step_view(run, step, task=at.task or 0, attempt=at.attempt or 0, tokens=True)


def show_prompt(session: Session, observation: Observation) -> View:
    """What the policy would be shown for `observation` as its first prompt: every token on its own, by author."""
    return segment_view(
        Segment(session.chat.open(observation)), session.chat.token_texts, title="first prompt"
    )


def show_replay(run: Run | str | Path, step: int) -> View:
    """Recompute a step's credit from its stored ids and rewards, and say whether every stored number is the same."""
    from workbench.look.cells.replay import replay

    run = open_run(run)
    report, notes = replay(run, step)
    return text_view("\n".join([*notes, report.text]), title=f"replay of {run.name}, step {step}")


def is_of_another_framework(path: Path) -> bool:
    """Whether the folder or file holds no run but rollouts that an extension can read."""
    try:
        is_run = (path / "run.json").exists()
    except OSError:  # it cannot be the name of a file
        return False
    if is_run or not has_service("looks_like_rollouts"):
        return False
    # A file is no run: who reads rollouts says what is wrong with it.
    if path.is_file() and not path.with_name("run.json").exists():
        return True
    return service("looks_like_rollouts", f"reading {path}")(path)


def _index(index: int, length: int, words: str) -> int:
    if not 0 <= index < length:
        raise DataError(f"{words} {index}; they are counted from 0 to {length - 1}")
    return index


def _credit(run: Run, step: int, task: int, attempt: int):
    """What the step's first update used for one trajectory; None where the step made none."""
    if not run.updates(step):
        return None
    number = sum(len(group) for group in run.groups(step)[:task]) + attempt
    return credit_of(run.credit(step, run.updates(step)[0]), number)


def kept_trajectories(
    table: CreditTable | None, groups: Sequence[Group]
) -> list[tuple[bool | None, ...]] | None:
    """Per trajectory of each group: whether the step's credit gave any of its sampled tokens a weight; None for one that
    is not scored or sampled nothing. None altogether where the step made no update: then no weights are stored."""
    if table is None:
        return None
    number = 0
    kept = []
    weighing = set(np.unique(table["trajectory"][table["weight"] != 0]).tolist())
    for group in groups:
        marks: list[bool | None] = []
        for trajectory in group:
            may_weigh = trajectory.reward is not None and trajectory.num_sampled
            marks.append(number in weighing if may_weigh else None)
            number += 1
        kept.append(tuple(marks))
    return kept


def _left_out(groups: Sequence[Group], kept: Sequence[tuple[bool | None, ...]]) -> list[str]:
    """A line per group of a step of which a filter left out all scored trajectories, with the spread it went by."""
    lines = []
    for task, (group, marks) in enumerate(zip(groups, kept)):
        rewards = [t.reward for t in group if t.reward is not None]
        if True not in marks and False in marks:
            std = "— (a single scored trajectory)"
            if len(rewards) > 1:
                std = f"{np.std(rewards, ddof=1):.2f}"
            lines.append(f"task {task} of this step was left out by the filter: std (n - 1) {std}")
    return lines


def token_texts(run: Run) -> TokenTexts:
    """One display string per token, by the tokenizer of the policy that the run's config names."""
    loader = run.setting("policy", dict).get("loader")
    if loader and why_foreign(run):
        return ids_as_texts
    return texts_of_tokenizer(run.setting("policy.name", str), loader, download=False)


@lru_cache(maxsize=4)
def texts_of_tokenizer(
    policy: str, loader: str | None = None, *, download: bool = True
) -> TokenTexts:
    try:
        from workbench.chat import ChatFormat
        from workbench.engines.policy import load_tokenizer

        return ChatFormat.from_tokenizer(
            load_tokenizer(policy, loader, download=download)
        ).token_texts
    except (ImportError, PolicyError):
        # a laptop without transformers, or without the policy, still shows who wrote what
        return ids_as_texts
