"""Plain records shown well: the metrics of a step, the configuration of a run with what was changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import BOLD, QUIET, YELLOW_PAPER, Look
from workbench.look.text import lines_of
from workbench.values import View

LONGEST_VALUE = 200  # characters
MEANINGS = {
    "reward_mean": "mean reward of the scored trajectories",
    "reward_std": "standard deviation (n) over all of them",
    "reward_std_in_group": "standard deviation (n - 1) inside a group, mean over groups: what group baselines learn from",
    "reward_std_within": "the same in the population form (n), as older runs have it",
    "flat_groups": "share of zero-variance groups: equal rewards, so no advantage from a group baseline",
    "success": "share of trajectories that succeeded",
    "valid_format": "share of answers that could be read",
    "forgiven": "share of answers that a lenient reader forgave something",
    "unscored": "trajectories without a reward: left out of baseline and loss",
    "turns_cut": "share of turns cut for length",
    "entropy": "mean over trained tokens, nats",
    "grad_norm": "before clipping",
    "approx_kl": "KL(old || new), nats per token",
    "kl_ref": "KL(policy || reference), nats per token, k3 estimate",
    "value_loss": "half the squared error of the critic, per trained token",
    "explained_variance": "of the returns, by the critic's values before the update: 1 perfect, 0 no better than a "
    "mean",
    "critic_grad_norm": "before clipping",
    "value_clip_fraction": "share of trained tokens whose value was clipped",
    "clip_fraction": "share of trained tokens whose ratio was clipped",
    "ratio_max": "largest new / old probability",
    "trained_tokens": "tokens with a gradient",
    "sampled_tokens": "sampled tokens per trajectory",
    "policy_version": "updates so far",
    "staleness": "updates between the weights that sampled and those that learned, at most",
}


def show_metrics(
    row: Mapping[str, Any], previous: Mapping[str, Any] | None = None, *, title: str = "metrics"
) -> View:
    """The numbers of one step, each with what it means; with `previous` also how much it changed.

    A number that was not computed is a dash, never zero (invariant 5).
    """
    columns = [
        doc.Column("", look=BOLD),
        *doc.numbers("value", *(["change"] if previous is not None else [])),
        doc.Column("meaning", look=QUIET),
    ]
    rows = []
    for name, value in row.items():
        change = [_change(value, previous.get(name))] if previous is not None else []
        rows.append(
            [
                str(name),
                "—" if value is None else _value(value),
                *change,
                MEANINGS.get(str(name), ""),
            ]
        )
    return view_from(
        doc.Heading(title),
        doc.Table(columns, rows, header=False),
    )


def _change(value: Any, before: Any) -> str:
    def is_number(x: Any) -> bool:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and not words.missing(x)

    return f"{value - before:+.3g}" if is_number(value) and is_number(before) else ""


def config_view(config: Any, default: Any = None, *, title: str = "configuration") -> View:
    """A configuration, one line per setting; those that differ from `default` are marked `*` and name the default.

    `config` and `default`: nested mappings (`config.to_dict`) or dataclasses. Without `default` nothing is marked. With
    it you will see what was changed; the other settings are behind a line that opens them (all stand in the text form).
    """
    now = flattened(config)
    before = {} if default is None else flattened(default)
    rows = []
    changed = []
    others = []
    for name in {**now, **before}:
        here = _value(now[name]) if name in now else "not set"
        there = _value(before[name]) if name in before else "not set"
        is_known = name in now and name in before
        differs = default is not None and not (is_known and now[name] == before[name])
        row = _setting_row(name, here, there, differs)
        rows.append(row)
        (changed if differs else others).append(row)
    # Without the columns that are empty there: notebooks keep a hundred of these rows.
    rest = doc.Table(("setting", "value"), [row[1:3] for row in others], header=False)
    summary = words.count(len(rows), "setting")
    page: list[doc.Part] = [_settings_table(changed)] if changed else []
    if default is None:
        page.append(rest)
    else:
        summary += f", {len(changed)} changed from the default"
        fold = f"{words.count(len(others), 'setting')} as in the default"
        page.append(doc.Fold(fold, (rest,)))
    in_order = doc.TextPart("\n".join(lines_of([_settings_table(rows)])))
    return view_from(doc.Heading(f"{title}: {summary}"), in_order, doc.PagePart(tuple(page)))


def _setting_row(name: str, here: str, there: str, differs: bool) -> list[doc.Cell]:
    paper = YELLOW_PAPER if differs else None
    return [
        doc.Cell("*" if differs else "", Look(paper, bold=True)),
        doc.Cell(name, Look(paper)),
        doc.Cell(here, Look(paper, mono=True, bold=differs)),
        doc.Cell(f"default {there}" if differs else "", Look(paper)),
    ]


def _settings_table(rows: Sequence[Sequence[doc.Cell]]) -> doc.Table:
    return doc.Table(("", "setting", "value", ""), rows, header=False)


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
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(map(str, row))
    cells = []
    for row in rows[:max_rows]:
        cells.append([_value(row[name]) if name in row else "" for name in names])
    return view_from(
        doc.Heading(title) if title else None,
        doc.Table(list(names), cells) if names else None,
        doc.first_shown(max_rows, len(rows), "rows"),
    )


def text_view(text: str, *, title: str = "") -> View:
    """Plain text as a view: for reports that are made of lines."""
    return view_from(
        doc.Heading(title) if title else None,
        doc.Block(text) if text else None,
    )
