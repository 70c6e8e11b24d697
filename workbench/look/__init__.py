"""Views: pure functions from a value to a `View` (html with inline styles, text, png), without torch.

Names are resolved on first use, so that showing a trajectory does not import what draws curves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOME = {
    "trajectory_view": "trajectory",
    "group_view": "groups",
    "show_tokens": "tokens",
    "segment_view": "tokens",
    "credit_of": "tokens",
    "show_masks": "masks",
    "show_counts": "masks",
    "credit_view": "credit",
    "curves_view": "curves",
    "evaluation_view": "evaluation",
    "demo_view": "evaluation",
    "diff_view": "run_diff",
    "lint_view": "lint",
    "live_view": "live",
    "show_metrics": "records",
    "config_view": "records",
    "show_rows": "records",
    "text_view": "records",
    "facts_view": "values",
    "groups_view": "values",
    "task_view": "values",
    "turn_view": "values",
    "observation_view": "values",
    "credit_table_view": "values",
    "progress": "progress_line",
    "esc": "escape",
    "visible": "escape",
}
__all__ = sorted(HOME)


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"workbench.look has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"workbench.look.{HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
