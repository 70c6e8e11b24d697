"""Views: pure functions from a value to a `View` (html with inline styles, text, png), without torch.

Names are resolved on first use, so that showing a trajectory does not import what draws curves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOME = {
    "show_trajectory": "trajectory",
    "show_group": "groups",
    "show_tokens": "tokens",
    "show_segment": "tokens",
    "credit_of": "tokens",
    "show_masks": "masks",
    "show_counts": "masks",
    "show_credit": "credit",
    "show_switches": "mask_switches",
    "show_retokenized": "retokenized",
    "show_forecast": "plans",
    "show_jobs": "plans",
    "show_notebook_audit": "audits",
    "show_forest": "forest",
    "show_dose": "doses",
    "show_heat": "doses",
    "show_interaction": "interactions",
    "show_power": "power",
    "show_arms": "arms",
    "show_arm_curves": "arms",
    "show_curves": "curves",
    "show_bias": "bias",
    "show_evaluation": "evaluation",
    "show_demo": "evaluation",
    "show_diff": "run_diff",
    "show_lint": "lint",
    "show_env_check": "env_check",
    "show_imported": "imported",
    "show_live": "live",
    "show_status": "live",
    "show_metrics": "records",
    "show_mismatch": "mismatch",
    "show_config": "records",
    "show_rows": "records",
    "show_talk": "talk",
    "show_text": "records",
    "show_facts": "values",
    "show_groups": "values",
    "show_task": "values",
    "show_turn": "values",
    "show_observation": "values",
    "show_credit_table": "values",
    "show_pairs": "pairs",
    "show_pair": "pairs",
    "progress": "progress_line",
    "esc": "escape",
    "visible": "escape",
}
__all__ = sorted(HOME)


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"workbench.views has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"workbench.views.{HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
