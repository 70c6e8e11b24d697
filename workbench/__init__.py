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
    "errors": "workbench.types.errors",
    # open things
    "load_config": "workbench.training.config:load_config",
    "open_session": "workbench.training.session:open_session",
    "reopen": "workbench.training.session:reopen",
    "open_run": "workbench.run.store:open_run",
    "runs": "workbench.notebook.runs:runs",
    # what there is
    "presets": "workbench.notebook.catalog:presets",
    "envs": "workbench.envs",  # the module; called, it is `environments`
    "environments": "workbench.notebook.catalog:environments",
    "algorithms": "workbench.notebook.catalog:algorithms",
    # cells: each is one call with something to look at
    "rollout": "workbench.training.session:rollout",
    "train": "workbench.notebook.live_run:train",
    "attach": "workbench.notebook.live_run:attach",
    "resume": "workbench.notebook.live_run:resume",
    "train_step": "workbench.notebook.train:train_step",
    "train_here": "workbench.notebook.train:train_here",
    "resume_here": "workbench.notebook.train:resume_here",
    "lint": "workbench.notebook.lint:lint",
    "assert_clean": "workbench.notebook.lint:assert_clean",
    "planted": "workbench.notebook.planted:planted",
    "show_planted": "workbench.notebook.planted:show_planted",
    "ablate": "workbench.ablation.door:ablate",
    "result": "workbench.ablation.cell:result",
    "evaluate": "workbench.training.session:evaluate",
    "baselines": "workbench.training.session:baselines",
    "evaluation_report": "workbench.training.session:evaluation_report",
    "bias_bench": "workbench.notebook.bias:bias_bench",
    "audit": "workbench.notebook.audit:audit",
    "play": "workbench.notebook.play:play",
    "check_env": "workbench.notebook.check_env:check_env",
    "talk": "workbench.notebook.talk:talk",
    "show_calls": "workbench.notebook.calls:show_calls",
    "tool": "workbench.envs.tools.base:tool",
    "tools_named": "workbench.envs.tools.base:tools_named",
    "schema_of": "workbench.envs.tools.base:schema_of",
    "mount": "workbench.envs.tools.mcp:mount",
    "Endpoint": "workbench.engines.endpoint:Endpoint",
    "fresh_path": "workbench.notebook.live_run:fresh_path",
    "CollectConfig": "workbench.rollouts.config:CollectConfig",
    "groups_equal": "workbench.run.equality:groups_equal",
    "facts": "workbench.notebook.credit:facts",
    "credit_editor": "workbench.notebook.credit:credit_editor",
    "edit_step": "workbench.notebook.credit:edit_step",
    "step_facts": "workbench.notebook.credit:step_facts",
    "show_estimators": "workbench.notebook.credit:show_estimators",
    "show_mask_switches": "workbench.notebook.mask_switches:show_mask_switches",
    "retokenize": "workbench.notebook.retokenize:retokenize",
    "replay_step": "workbench.learn.replay:replay_step",
    "show_prompt": "workbench.notebook.stored:show_prompt",
    "compare_runs": "workbench.run.diff:compare_runs",
    "export_run": "workbench.notebook.export:export_run",
    "export_policy": "workbench.notebook.export_policy:export_policy",
    "show_replay": "workbench.notebook.stored:show_replay",
    "read_rollouts": "workbench.importers:read_rollouts",
    # views: value -> picture, without torch
    "show": "workbench.notebook.show:show",
    "explore": "workbench.notebook.explore:explore",
    "paired": "workbench.notebook.paired:paired",
    "branch": "workbench.notebook.branch:branch",
    "group_spread": "workbench.notebook.spread:group_spread",
    "by_kind": "workbench.notebook.by_kind:by_kind",
    "signals": "workbench.notebook.signals:signals",
    "show_tokens": "workbench.views:show_tokens",
    "show_masks": "workbench.views:show_masks",
    "show_counts": "workbench.views:show_counts",
    "show_metrics": "workbench.views:show_metrics",
    "show_rows": "workbench.views:show_rows",
    "credit_of": "workbench.views:credit_of",
    "progress": "workbench.views:progress",
}


# Names of earlier versions -> how one says it now.
RENAMED = {
    "neighbours": "wb.baselines(session)",
    "show_run": "wb.show(run)",
    "show_curves": "wb.show(run)",
    "curves_figure": "wb.show(run)",
    "show_step": "wb.show(run, step=3, task=0)",
    "show_evaluations": "wb.show(run, evaluation='last')",
    "show_evaluation": "wb.show(scores)",
    "show_scores": "wb.show(scores)",
    "show_config": "wb.show(config)",
    "show_trajectory": "wb.show(trajectory)",
    "show_group": "wb.show(group)",
    "show_diff": "wb.show(difference)",
    "diff_runs": "wb.compare_runs(run, other)",
    "show_rollouts": "wb.show(wb.read_rollouts(path))",
    "show_bias": "wb.show(found)",
    "show_mismatch": "wb.show(found)",
}


def __getattr__(name: str) -> Any:
    """Import what stands behind a public name on first use; later uses find it without coming here."""
    if name not in PUBLIC:
        if name in RENAMED:
            raise AttributeError(
                f"workbench.{name} is gone: {RENAMED[name]} does it now", name=name
            )
        nearest = import_module("workbench.types.errors").nearest
        raise AttributeError(
            f"module 'workbench' has no attribute {name!r}; {nearest(name, PUBLIC)}", name=name
        )
    module_name, _, attribute = PUBLIC[name].partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    doors = import_module("workbench.types.doors")
    value = doors.guarded(name, value) if name in doors.TAKES else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
