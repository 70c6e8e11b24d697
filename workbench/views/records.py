"""Plain records shown well: the metrics of a step, the configuration of a run with what was changed."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import capped, visible

LONGEST_VALUE = 200  # characters
MEANINGS = {
    "reward_mean": "mean reward of the scored trajectories",
    "reward_std": "standard deviation over all of them",
    "reward_std_within": "standard deviation inside a group, mean over groups: what group baselines learn from",
    "flat_groups": "share of groups in which all rewards are equal: they teach nothing",
    "success": "share of attempts that succeeded",
    "valid_format": "share of answers that could be read",
    "unscored": "trajectories without a reward: left out of baseline and loss",
    "turns_cut": "share of turns cut for length",
    "entropy": "mean over trained tokens, nats",
    "grad_norm": "before clipping",
    "approx_kl": "KL(old || new), nats per token",
    "kl_ref": "KL(policy || reference), nats per token, k3 estimate",
    "value_loss": "half the squared error of the critic, per trained token",
    "explained_variance": "of the returns, by the critic's values before the update: 1 perfect, 0 no better than a mean",
    "critic_grad_norm": "before clipping",
    "value_clip_fraction": "share of trained tokens whose value was held",
    "clip_fraction": "share of trained tokens whose ratio was clipped",
    "ratio_max": "largest new / old probability",
    "trained_tokens": "tokens with a gradient",
    "sampled_tokens": "sampled tokens per trajectory",
    "policy_version": "updates so far",
}


def show_metrics(row: Mapping[str, Any], previous: Mapping[str, Any] | None = None, *, title: str = "metrics") -> View:
    """The numbers of one step, each with what it means; with `previous` also how much it changed.

    A number that was not computed is a dash, never zero (law 5).
    """
    header = ["", "value", *(["change"] if previous is not None else []), "meaning"]
    lines = []
    for name, value in row.items():
        line = [str(name), "—" if value is None else _value(value)]
        if previous is not None:
            line.append(_change(value, previous.get(name)))
        lines.append([*line, MEANINGS.get(str(name), "")])
    right = tuple(range(1, len(header) - 1))
    spelled = [[visible(c, newline="⏎") for c in line] for line in lines]
    text = "\n".join([visible(title), words.aligned(spelled, right=right)])
    rows = [
        [
            m.cell(line[0], style="font-weight:600"),
            *map(m.number_cell, line[1:-1]),
            m.cell(line[-1], foreground=m.MUTED),
        ]
        for line in lines
    ]
    return m.finished(m.card(m.heading(title), m.table(rows, m.head_cells(header, right=header[1:-1]))), text)


def _change(value: Any, before: Any) -> str:
    def is_number(x: Any) -> bool:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and not words.missing(x)

    return f"{value - before:+.3g}" if is_number(value) and is_number(before) else ""


def show_config(config: Any, default: Any = None, *, title: str = "configuration") -> View:
    """A configuration, one line per setting; those that differ from `default` are marked `*` and name the default.

    `config` and `default`: nested mappings (`config.to_dict`) or dataclasses. Without `default` nothing is marked. With
    it you will see what was changed; the other settings are behind a line that opens them (all stand in the text form).
    """
    now, before = flattened(config), {} if default is None else flattened(default)
    lines, changed = [], 0
    for name in [*now, *(name for name in before if name not in now)]:
        here = _value(now[name]) if name in now else "not set"
        there = _value(before[name]) if name in before else "not set"
        differs = default is not None and (name not in now or name not in before or now[name] != before[name])
        changed += differs
        lines.append(["*" if differs else "", name, here, f"default {there}" if differs else ""])
    summary = words.count(len(lines), "setting") + ("" if default is None else f", {changed} changed from the default")
    text = "\n".join([f"{visible(title)}: {summary}",
                      words.aligned([[visible(c, newline="⏎") for c in line] for line in lines])])
    rows: dict[bool, list[list[m.Html]]] = {True: [], False: []}
    for mark, name, value, note in lines:
        paper = "#fff3d6" if mark else m.CARD
        rows[bool(mark)].append([
            m.cell(mark, background=paper, style="font-weight:600"), m.cell(name, background=paper),
            m.cell(value, background=paper, style=f"font-family:{m.MONO};{'font-weight:600' if mark else ''}"),
            m.cell(note, background=paper, foreground=m.INK if mark else m.MUTED)])
    changes, others = m.table(rows[True]) if changed else None, m.table(rows[False])
    if default is not None:
        others = m.folded(words.count(len(rows[False]), "setting") + " as in the default", others)
    return m.finished(m.card(m.heading(title), m.note(summary), changes, others), text)


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and dataclasses as dotted names: {"train.steps": 40}. Empty ones stay as they are."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if not isinstance(value, Mapping) or (not value and prefix):
        return {prefix.rstrip("."): value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= flattened(inner, f"{prefix}{name}.")
    return flat


def _value(value: Any) -> str:
    """Numbers in few digits, everything else as its `repr` would say it, but without quotes around words."""
    if value is None or isinstance(value, (bool, int, float)):
        return words.number(value) if value is not None else "none"
    return capped(value if isinstance(value, str) else str(value), LONGEST_VALUE)


def show_rows(rows: list[Mapping[str, Any]], *, title: str = "", max_rows: int = 50) -> View:
    """Any table of records, one line each, at most `max_rows` of them with a notice of how many are hidden."""
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    shown, hidden = rows[:max_rows], max(0, len(rows) - max_rows)
    cells = [[_value(row[name]) if name in row else "" for name in names] for row in shown]
    notice = f"first {len(shown)} rows shown, {hidden} hidden" if hidden else ""
    text = "\n".join(line for line in [visible(title), words.aligned(
        [[visible(c, newline="⏎") for c in line] for line in [names, *cells]]), notice] if line)
    html = m.card(m.heading(title) if title else None,
                  m.table([[m.cell(c) for c in line] for line in cells], m.head_cells(names)),
                  m.warning(notice) if notice else None)
    return m.finished(html, text)


def show_text(text: str, *, title: str = "") -> View:
    """Plain text as a view: for reports that are made of lines."""
    return m.finished(m.card(m.heading(title) if title else None, m.block(text)),
                "\n".join(line for line in [visible(title), visible(text)] if line))
