"""What the public functions take first, and what is said of a value of another kind: its type, and the call that fits it.

A run, one that trains and a session of it are one thing to the caller: where a function takes one, another is made into
it, and closed again. So is a config, where its session is taken, and what `load_config` takes, where a config is. A
class of the user's may stand in for one of ours, and goes on to the function, which knows best. All other arguments are held
against their annotations (`annotated`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Any

from workbench.basics.annotated import checked, may_be_a_path, shown, unreadable
from workbench.basics.plugins import load_named
from workbench.values.errors import DataError, WorkbenchError, shortened

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
        "workbench.look.cells.live_run:RunningRun",
        "run.wait() gives the Run when it has ended; wb.reopen(run) its Session",
    ),
    "Task": ("workbench.values:Task", "wb.show(task), wb.rollout(session, [task])"),
    "Group": ("workbench.values:Group", "wb.show(group)"),
    "Trajectory": (
        "workbench.values:Trajectory",
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
_NAMES = ("text", "path")
_RUN = ("Run", "RunningRun", "text", "path")
_CONFIG = ("Config", *_NAMES, "class")
_SESSION = ("Session", "Config", *_RUN, "class")
_GROUPS = ("list", "tuple")
TAKES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("load_config", "open_session", "train", "train_here"), _CONFIG),
    "train_step": ("Session",),
    **dict.fromkeys(
        (
            "rollout",
            "evaluate",
            "baselines",
            "evaluation_report",
            "facts",
            "retokenize",
            "show_prompt",
        ),
        _SESSION,
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
            "groups_equal",
        ),
        _GROUPS,
    ),
    **dict.fromkeys(("explore", "paired"), (*_RUN, "list", "tuple")),
    "show_tokens": ("Trajectory", *_RUN),
    **dict.fromkeys(("talk", "audit"), ("Session", "Config", *_RUN)),
}


# Name of a function -> what it is for a run.
OF_A_RUN = {"show_tokens": "workbench.look.cells.stored:tokens_of_run"}


LISTINGS = ("presets", "environments", "algorithms", "runs")


class _Listing:
    """A public function that people name without parentheses: it then says how it is called."""

    def __init__(self, name: str, function: Callable) -> None:
        functools.update_wrapper(self, function)
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        first, _, _ = str(self.__doc__).partition("\n")
        return f"wb.{self._name}(), with its parentheses: {first}"


def said_of(value: Any, by_class: Mapping[str, str]) -> str:
    """What is said of the first class, "module:Class", that a value is of; "" where it is of none. None is imported."""
    for name, words in by_class.items():
        module, _, attribute = name.partition(":")
        cls = getattr(sys.modules.get(module), attribute, None)
        if cls is not None and isinstance(value, cls):
            return words
    return ""


def as_public(name: str, value: Any) -> Any:
    """A public value as it is handed out: a function that refuses what it does not take, or that says how it is called."""
    if not inspect.isfunction(value):
        return value
    function = checked(name, value)
    if name in TAKES:
        return guarded(name, function)
    return _Listing(name, function) if name in LISTINGS else function


def guarded(name: str, function: Callable) -> Callable:
    """The function, which refuses a first argument of a kind that it does not take: DataError, with the call that fits."""
    takes = TAKES[name]
    by_name = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args and by_name in kwargs:
            args = (kwargs.pop(by_name),)
        if not args:
            return function(**kwargs)
        first, *others = args
        try:
            first, given = _looked_at(name, first)
            is_right = given in ("", takes[0]) and not _is_family(first)
        except WorkbenchError:
            raise
        except Exception as error:
            raise unreadable(f"wb.{name}", by_name, first, error) from error
        if given in _RUN and name in OF_A_RUN:
            return checked(name, load_named(OF_A_RUN[name], name))(first, *others, **kwargs)
        with ExitStack() as opened:
            if not is_right:
                first = _made_into(takes[0], first, opened)
            return function(first, *others, **kwargs)

    return call


def _looked_at(name: str, first: Any) -> tuple[Any, str]:
    """A function's first argument, and its kind; DataError for a kind that it does not take."""
    takes = TAKES[name]
    given = _kind_of(first)
    if given == "Session" and "Run" in takes and given not in takes and first.run is not None:
        first, given = first.run, "Run"
    if given and given not in takes:
        raise DataError(_refusal(name, takes, given, first))
    if given == "text" and not may_be_a_path(first):
        raise DataError(f"wb.{name}: no file is called {shown(first)}")
    return (first.run if given == "RunningRun" else first), given


def _kind_of(value: Any) -> str:
    """Its kind; the name of its class where that is Python's own; "": a class of the user's."""
    is_plain = type(value).__module__ == "builtins"
    named = {cls: kind for kind, (cls, _) in KINDS.items()}
    return said_of(value, named) or (type(value).__name__ if is_plain else "")


def _is_family(value: Any) -> bool:
    """Whether it is an environment of the user's own."""
    return hasattr(value, "task") and (hasattr(value, "make") or hasattr(value, "make_shared"))


def _made_into(kind: str, value: Any, opened: ExitStack) -> Any:
    """A config, or a session that `opened` closes, of what has one; anything else as it is."""
    if kind == "Config":
        from workbench.training.config import load_config

        return load_config(value)
    if kind == "Session":
        from workbench.training.reopening import session_of

        return opened.enter_context(closing(session_of(value)))
    return value


def _refusal(name: str, takes: tuple[str, ...], given: str, value: Any) -> str:
    fits = KINDS[given][1] if given in KINDS else ""
    words = f" ({shortened(value)})" if given in _NAMES or not fits else ""
    word = MADE[takes[0]].partition(" =")[0]
    right = (
        f"For a {given}: {fits}" if fits else f"Write wb.{name}({word}, ...), with {MADE[takes[0]]}"
    )
    return f"wb.{name} takes {' or '.join(f'a {kind}' for kind in takes)}, got {'an' if given == 'int' else 'a'} {given}{words}. {right}"
