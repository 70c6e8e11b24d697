"""What the public functions take first, and what is said of a value of another kind: its type, and the call that fits it.

Only values of the kinds below are refused; anything else goes on to the function, which knows best: a class of the user's
may stand in for one of ours.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from workbench.types.errors import DataError

# Kind -> (its class, the calls that fit it). A class whose module was never imported has no values.
KINDS: Mapping[str, tuple[str, str]] = {
    "Config": (
        "workbench.training.config:Config",
        "wb.open_session(config), or wb.train(config, 'runs/first')",
    ),
    "Session": (
        "workbench.training.session:Session",
        "wb.rollout(session), wb.evaluate(session), wb.lint(session)",
    ),
    "Run": (
        "workbench.run.store:Run",
        "wb.show(run), wb.explore(run), wb.lint(run), wb.reopen(run); "
        "run.groups(1) are the groups of a step",
    ),
    "RunningRun": (
        "workbench.notebook.live_run:RunningRun",
        "what takes a Run; its .wait() gives one that has ended",
    ),
    "Task": ("workbench.types:Task", "wb.show(task), wb.rollout(session, [task])"),
    "Group": ("workbench.types:Group", "wb.show(group)"),
    "Trajectory": (
        "workbench.types:Trajectory",
        "wb.show(trajectory), wb.show_tokens(trajectory, texts)",
    ),
    "list": ("builtins:list", "one of them at a time, or wb.lint(groups, session=session)"),
    "tuple": ("builtins:tuple", "one of them at a time, or wb.lint(groups, session=session)"),
    "text": (
        "builtins:str",
        "wb.load_config('frozenlake') for a preset or file of settings, wb.open_run(path) for a run",
    ),
    "path": (
        "pathlib:PurePath",
        "wb.load_config(path) for a file of settings, wb.open_run(path) for a run",
    ),
    "int": ("builtins:int", ""),
    "float": ("builtins:float", ""),
    "None": ("types:NoneType", ""),
    "dict": ("builtins:dict", ""),
    "class": ("builtins:type", ""),
    "function": ("types:FunctionType", ""),
    "bytes": ("builtins:bytes", ""),
    "set": ("builtins:set", ""),
}
# Kind -> how one has such a value.
MADE: Mapping[str, str] = {
    "Config": "config = wb.load_config('frozenlake')",
    "Session": "session = wb.open_session(wb.load_config('frozenlake'))",
    "Run": "run = wb.open_run('runs/first')",
    "Group": "group = wb.rollout(session)[0]",
    "Trajectory": "trajectory = wb.rollout(session)[0][0]",
    "list": "groups = wb.rollout(session)",
    "text": "text = 'runs/first', or the name of a preset or a file where settings are asked for",
}
_NAMES, _RUN, _GROUPS = ("text", "path"), ("Run", "RunningRun", "text", "path"), ("list", "tuple")
TAKES: Mapping[str, tuple[str, ...]] = {
    "load_config": _NAMES,
    "open_session": ("Config",),
    "train": ("Config",),
    "train_here": ("Config",),
    **dict.fromkeys(
        (
            "rollout",
            "evaluate",
            "baselines",
            "evaluation_report",
            "train_step",
            "facts",
            "retokenize",
            "show_prompt",
        ),
        ("Session",),
    ),
    **dict.fromkeys(
        (
            "open_run",
            "reopen",
            "step_facts",
            "edit_step",
            "export_policy",
            "export_run",
            "show_replay",
            "compare_runs",
            "group_spread",
            "by_kind",
            "signals",
            "branch",
        ),
        _RUN,
    ),
    "replay_step": ("Run", "RunningRun"),
    **dict.fromkeys(("attach", "resume", "resume_here", "fresh_path"), _NAMES),
    **dict.fromkeys(
        (
            "show_counts",
            "show_masks",
            "show_estimators",
            "show_mask_switches",
            "credit_editor",
            "groups_equal",
        ),
        _GROUPS,
    ),
    **dict.fromkeys(("explore", "paired"), (*_RUN, "list", "tuple")),
    "show_tokens": ("Trajectory",),
    **dict.fromkeys(("talk", "audit"), ("Session", "Config", *_RUN)),
}


def said_of(value: Any, by_class: Mapping[str, str]) -> str:
    """What is said of the first class, "module:Class", that a value is of; "" where it is of none. None is imported."""
    for name, said in by_class.items():
        module, _, attribute = name.partition(":")
        cls = getattr(sys.modules.get(module), attribute, None)
        if cls is not None and isinstance(value, cls):
            return said
    return ""


def guarded(name: str, function: Callable) -> Callable:
    """The function, which refuses a first argument of a kind that it does not take: DataError, with the call that fits."""
    takes = TAKES[name]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = said_of(args[0], {cls: kind for kind, (cls, _) in KINDS.items()}) if args else ""
        if given and given not in takes:
            raise DataError(_refusal(name, takes, given, args[0]))
        if given == "RunningRun":
            args = (args[0].run, *args[1:])
        return function(*args, **kwargs)

    return call


def _refusal(name: str, takes: tuple[str, ...], given: str, value: Any) -> str:
    fits = KINDS[given][1]
    shown = f" ({value!r:.60})" if given in _NAMES or not fits else ""
    word = MADE[takes[0]].partition(" =")[0]
    right = (
        f"For a {given}: {fits}" if fits else f"Write wb.{name}({word}, ...), with {MADE[takes[0]]}"
    )
    return f"wb.{name} takes {' or '.join(f'a {each}' for each in takes)}, got {'an' if given == 'int' else 'a'} {given}{shown}. {right}"
