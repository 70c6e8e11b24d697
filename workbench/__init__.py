"""Agent RL Workbench: a cell is a function from values to a value that can show itself; training is a loop over cells.

    import workbench as wb
    run = wb.train(wb.load_config("frozenlake"), "runs/first").wait()

Every name in PUBLIC below is there, and those that extensions add; nothing is imported before it is asked for.

`import workbench` itself costs milliseconds and needs only the standard library, so that a finished run opens on a
laptop without torch and an environment's author needs only Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Whatever is imported of this package: what it lacks is named with the extra that brings it.
import_module("workbench.basics.extras").watch()

# The public surface of the core: name -> "module" or "module:attribute". A name must not be that of a submodule unless it
# *is* that submodule: Python binds a submodule to its package on first import and would silently replace the function.
PUBLIC: dict[str, str] = {
    "types": "workbench.values",
    "errors": "workbench.values.errors",
    # open things
    "load_config": "workbench.training.config:load_config",
    "open_session": "workbench.training.session:open_session",
    "reopen": "workbench.training.reopening:reopen",
    "open_run": "workbench.run.store:open_run",
    # what there is
    "presets": "workbench.look.cells.catalog:presets",
    "envs": "workbench.worlds",  # the module; called, it is `environments`
    "environments": "workbench.look.cells.catalog:environments",
    "algorithms": "workbench.look.cells.catalog:algorithms",
    # cells: each is one call with something to look at
    "rollout": "workbench.training.session:rollout",
    "train": "workbench.look.cells.live_run:train",
    "attach": "workbench.look.cells.live_run:attach",
    "resume": "workbench.look.cells.live_run:resume",
    "train_step": "workbench.look.cells.train:train_step",
    "train_here": "workbench.look.cells.train:train_here",
    "resume_here": "workbench.look.cells.train:resume_here",
    "lint": "workbench.look.cells.lint:lint",
    "assert_clean": "workbench.look.cells.lint:assert_clean",
    "evaluate": "workbench.training.session:evaluate",
    "baselines": "workbench.training.session:baselines",
    "evaluation_report": "workbench.training.session:evaluation_report",
    "show_calls": "workbench.look.calls:show_calls",
    "tool": "workbench.tools.base:tool",
    "tools_named": "workbench.tools.base:tools_named",
    "schema_of": "workbench.tools.base:schema_of",
    "Endpoint": "workbench.engines.endpoint:Endpoint",
    "fresh_path": "workbench.look.cells.live_run:fresh_path",
    "CollectConfig": "workbench.rollouts.config:CollectConfig",
    "groups_equal": "workbench.run.equality:groups_equal",
    "facts": "workbench.look.cells.credit:facts",
    "edit_step": "workbench.look.cells.credit:edit_step",
    "step_facts": "workbench.look.cells.credit:step_facts",
    "show_estimators": "workbench.look.cells.credit:show_estimators",
    "replay_step": "workbench.learn.replay:replay_step",
    "show_prompt": "workbench.look.cells.stored:show_prompt",
    "compare_runs": "workbench.look.run_diff:compare_runs",
    "export_policy": "workbench.look.cells.export_policy:export_policy",
    "show_replay": "workbench.look.cells.stored:show_replay",
    # views: value -> picture, without torch
    "show": "workbench.look.cells.show:show",
    "explore": "workbench.look.cells.explore:explore",
    "paired": "workbench.look.pairs:paired",
    "group_spread": "workbench.look.spread:group_spread",
    "by_kind": "workbench.look.task_types:by_kind",
    "show_tokens": "workbench.look:show_tokens",
    "show_masks": "workbench.look:show_masks",
    "show_counts": "workbench.look:show_counts",
    "show_metrics": "workbench.look:show_metrics",
    "show_rows": "workbench.look:show_rows",
    "credit_of": "workbench.look:credit_of",
    "progress": "workbench.look:progress",
}


# Names of earlier versions, and of other libraries -> how one says it here.
ELSEWHERE = {
    "credit_editor": "wb.edit_step(run, step), or the editor of wb.explore(run)",
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
    "help": "wb.presets(), wb.envs(), wb.algorithms() for what there is, help(wb.train) for a function",
    "plot": "wb.show(run), or wb.explore(run) to walk through it",
    "view": "wb.show(value)",
    "load": "wb.load_config('frozenlake') for settings, wb.open_run(path) for a run",
    "eval": "wb.evaluate(run)",
    "sample": "wb.rollout(session, 2)",
    "fit": "wb.train(config, path)",
}


def __getattr__(name: str) -> Any:
    """Import what stands behind a public name on first use; later uses find it without coming here."""
    place = PUBLIC.get(name)
    if place is None and not name.startswith("_"):
        place = import_module("workbench.basics.extensions").provided("public").get(name)
    if place is None:
        errors = import_module("workbench.values.errors")
        hint = errors.did_you_mean(name, __dir__(), cutoff=0.75) or "dir(workbench) lists the names"
        if name in ELSEWHERE:
            hint = f"here it is {ELSEWHERE[name]}"
        raise errors.MissingNameError(f"module 'workbench' has no attribute {name!r}; {hint}")
    import_module("workbench.values.view").make_views_with(_view_of)
    module_name, _, attribute = place.partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    checks = import_module("workbench.look.cells.argument_checks")
    value = checks.as_public(name, value)
    globals()[name] = value
    return value


def _view_of(value: Any) -> Any:
    """The view of a value, for values that show themselves: imported when one does."""
    return __getattr__("show")(value)


def __dir__() -> list[str]:
    added = import_module("workbench.basics.extensions").provided("public")
    return sorted({"__doc__", "__name__", "__version__", *PUBLIC, *added})
