"""What the public functions take first, and what is said of a value of another kind: its type, and the call that fits it.

Only values of the kinds below are refused; anything else goes on to the function, which knows best.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from workbench.types.errors import DataError

# Kind -> (its class, the calls that fit it). A class whose module was never imported has no values.
KINDS: Mapping[str, tuple[str, str]] = {
    "Config": ("workbench.training.config:Config", "wb.open_session(config), or wb.train(config, 'runs/first')"),
    "Session": ("workbench.training.session:Session", "wb.rollout(session), wb.evaluate(session), wb.lint(session)"),
    "Run": ("workbench.run.store:Run", "wb.show_run(run), wb.show_step(run, 1), wb.lint(run), wb.reopen(run); "
                                       "run.groups(1) are the groups of a step"),
    "RunningRun": ("workbench.notebook.live_run:RunningRun", "its .wait() gives the Run"),
    "Group": ("workbench.types:Group", "wb.show_group(group)"),
    "Trajectory": ("workbench.types:Trajectory", "wb.show_trajectory(trajectory), wb.show_tokens(trajectory, texts)"),
    "list": ("builtins:list", "one of them at a time, or wb.lint(groups, session=session)"),
    "tuple": ("builtins:tuple", "one of them at a time, or wb.lint(groups, session=session)"),
    "text": ("builtins:str", "wb.load_config('frozenlake') for a preset or file of settings, wb.open_run(path) for a run"),
    "path": ("pathlib:PurePath", "wb.load_config(path) for a file of settings, wb.open_run(path) for a run"),
}
_NAMES, _RUN = ("text", "path"), ("Run", "text", "path")
TAKES: Mapping[str, tuple[str, ...]] = {
    "load_config": _NAMES, "open_session": ("Config",), "train": ("Config",), "train_here": ("Config",),
    **dict.fromkeys(("rollout", "evaluate", "baselines", "evaluation_report", "train_step", "facts"), ("Session",)),
    **dict.fromkeys(("open_run", "reopen", "step_facts", "edit_step", "export_policy", "show_replay", "show_step"), _RUN),
    **dict.fromkeys(("attach", "resume", "resume_here"), _NAMES),
    "show_group": ("Group",), "show_trajectory": ("Trajectory",), "talk": ("Session", "Config", *_RUN),
}


def kind_of(value: Any) -> str:
    """Which of `KINDS` a value is; "" for any other."""
    for kind, (name, _) in KINDS.items():
        module, _, attribute = name.partition(":")
        cls = getattr(sys.modules.get(module), attribute, None)
        if cls is not None and isinstance(value, cls):
            return kind
    return ""


def guarded(name: str, function: Callable) -> Callable:
    """The function, which refuses a first argument of a kind that it does not take: DataError, with the call that fits."""
    takes = TAKES[name]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = kind_of(args[0]) if args else ""
        if given and given not in takes:
            shown = f" {str(args[0])!r:.60}" if given in _NAMES else ""
            raise DataError(f"wb.{name} takes {' or '.join(f'a {each}' for each in takes)}, got a {given}{shown}. For a {given}: "
                            f"{KINDS[given][1]}")
        return function(*args, **kwargs)

    return call
