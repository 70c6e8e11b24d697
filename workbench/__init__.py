"""Agent RL Workbench: a cell is a function from values to a value that can show itself; training is a loop over cells.

    import workbench as wb
    run = wb.train(wb.load_config("frozenlake"), "runs/first").wait()

Every name in PUBLIC below is there; nothing is imported before it is asked for.

`import workbench` itself costs milliseconds and needs only the standard library, so that a finished run opens on a
laptop without torch and an environment's author needs only Python.
"""
from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The whole public surface: name -> "module" or "module:attribute". A name must not be that of a submodule unless it
# *is* that submodule: Python binds a submodule to its package on first import and would silently replace the function.
PUBLIC: dict[str, str] = {
    "types": "workbench.types",
    "errors": "workbench.errors",
    # open things
    "load_config": "workbench.config:load_config",
    "open_session": "workbench.session:open_session",
    "reopen": "workbench.session:reopen",
    "open_run": "workbench.store:open_run",
    # cells: each is one call with something to look at
    "rollout": "workbench.cells.rollout:rollout",
    "train": "workbench.cells.running:train",
    "attach": "workbench.cells.running:attach",
    "resume": "workbench.cells.running:resume",
    "train_step": "workbench.cells.train:train_step",
    "train_here": "workbench.cells.train:train_here",
    "resume_here": "workbench.cells.resume:resume_here",
    "lint": "workbench.cells.lint:lint",
    "assert_clean": "workbench.cells.lint:assert_clean",
    "planted": "workbench.cells.planted:planted",
    "show_planted": "workbench.cells.planted:show_planted",
    "evaluate": "workbench.cells.evaluate:evaluate",
    "neighbours": "workbench.cells.evaluate:neighbours",
    "evaluation_report": "workbench.cells.evaluate:evaluation_report",
    "bias_bench": "workbench.cells.bias:bias_bench",
    "audit": "workbench.cells.audit:audit",
    "play": "workbench.cells.play:play",
    "talk": "workbench.cells.talk:talk",
    "show_calls": "workbench.cells.calls:show_calls",
    "tool": "workbench.tools.base:tool",
    "tools_named": "workbench.tools.base:tools_named",
    "schema_of": "workbench.tools.base:schema_of",
    "mount": "workbench.tools.mcp:mount",
    "Endpoint": "workbench.endpoint:Endpoint",
    "fresh_path": "workbench.cells.running:fresh_path",
    "CollectConfig": "workbench.collect:CollectConfig",
    "groups_equal": "workbench.columns:groups_equal",
    "facts": "workbench.cells.credit:facts",
    "credit_editor": "workbench.cells.credit:credit_editor",
    "edit_step": "workbench.cells.credit:edit_step",
    "step_facts": "workbench.cells.credit:step_facts",
    "show_estimators": "workbench.cells.credit:show_estimators",
    "show_mask_switches": "workbench.cells.mask_switches:show_mask_switches",
    "retokenize": "workbench.cells.retokenize:retokenize",
    "replay_step": "workbench.replay:replay_step",
    "show_prompt": "workbench.cells.show:show_prompt",
    "show_scores": "workbench.cells.show:show_scores",
    "diff_runs": "workbench.cells.show:diff_runs",
    "compare_runs": "workbench.run_diff:compare_runs",
    "export_run": "workbench.cells.export:export_run",
    "export_policy": "workbench.cells.export_policy:export_policy",
    "show_replay": "workbench.cells.show:show_replay",
    "show_run": "workbench.cells.show:show_run",
    "show_step": "workbench.cells.show:show_step",
    "show_rollouts": "workbench.cells.show:show_rollouts",
    "read_rollouts": "workbench.imported:read_rollouts",
    "show_evaluations": "workbench.cells.show:show_evaluations",
    # views: value -> picture, without torch
    "show_config": "workbench.views:show_config",
    "show_trajectory": "workbench.views:show_trajectory",
    "show_group": "workbench.views:show_group",
    "show_tokens": "workbench.views:show_tokens",
    "show_masks": "workbench.views:show_masks",
    "show_counts": "workbench.views:show_counts",
    "show_curves": "workbench.views:show_curves",
    "curves_figure": "workbench.views:curves_figure",
    "show_bias": "workbench.views:show_bias",
    "show_evaluation": "workbench.views:show_evaluation",
    "show_diff": "workbench.views:show_diff",
    "show_metrics": "workbench.views:show_metrics",
    "show_mismatch": "workbench.views:show_mismatch",
    "show_rows": "workbench.views:show_rows",
    "credit_of": "workbench.views:credit_of",
    "progress": "workbench.views:progress",
}


def __getattr__(name: str) -> Any:
    """Import what stands behind a public name on first use; later uses find it without coming here."""
    if name not in PUBLIC:
        from difflib import get_close_matches
        near = get_close_matches(name, PUBLIC, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(PUBLIC))}"
        raise AttributeError(f"module 'workbench' has no attribute {name!r}{hint}", name=name)
    module_name, _, attribute = PUBLIC[name].partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
