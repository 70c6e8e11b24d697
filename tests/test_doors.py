"""What public functions say of a first argument of another kind: its type, and the call that fits."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from learning_data import make_groups

import workbench as wb
from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.look.cells import argument_checks as doors
from workbench.look.cells.argument_checks import KINDS, MADE, TAKES, said_of
from workbench.run.store import Run
from workbench.training.config import load_config
from workbench.values import Group
from workbench.values.errors import DataError


@pytest.fixture(scope="module")
def values():
    session = wb.open_session(wb.load_config("frozenlake"))
    [group] = wb.rollout(session, 1, group_size=2)
    return {
        "Config": session.config,
        "Session": session,
        "Group": group,
        "Trajectory": group[0],
        "list": [group],
        "tuple": (group,),
        "text": "a text",
        "path": Path("a path"),
        "Run": Run.__new__(Run),
        "int": 3,
        "float": 0.5,
        "None": None,
        "dict": {"a": 1},
        "Task": group.task,
        "class": Group,
        "function": lambda: None,
        "bytes": b"x",
        "set": {1},
    }


def test_every_kind_is_told(values):
    by_class = {cls: kind for kind, (cls, _) in KINDS.items()}
    assert {kind: said_of(value, by_class) for kind, value in values.items()} == {
        kind: kind for kind in values
    }
    assert values.keys() | {"RunningRun"} == KINDS.keys() and said_of(object(), by_class) == ""


@pytest.mark.parametrize("name", TAKES)
def test_another_kind_is_refused_with_the_call_that_fits(name, values):
    assert TAKES[name][0] in MADE
    for kind, value in values.items():
        if kind not in TAKES[name]:
            with pytest.raises(
                DataError, match=rf"wb\.{name} takes a {TAKES[name][0]}.*, got an? {kind}.*wb\."
            ):
                getattr(wb, name)(value)


def test_what_takes_runs_takes_no_numbers_and_says_how_to_write_it():
    with pytest.raises(
        DataError,
        match=r"wb\.show_replay takes a Run or a RunningRun or a text or a path, got an int \(3\)\. Write "
        r"wb\.show_replay\(run, \.\.\.\), with run = wb\.open_run\('runs/first'\)",
    ):
        wb.show_replay(3)


def test_nothing_public_that_takes_one_of_these_is_left_out():
    """Functions whose first argument is annotated as one of our kinds, and that are not refused anything else."""
    known = {"Session", "Run", "Config", "Group", "Trajectory", "Sequence[Group]", "str | Path"}
    left = []
    for name in wb.PUBLIC:
        function = getattr(wb, name)
        if (
            inspect.isfunction(function)
            and name not in TAKES
            and (found := [*inspect.signature(function).parameters.values()])
        ):
            words = str(found[0].annotation)
            if words in known or words.startswith(("Run |", "Session |", "Config |")):
                left.append(f"{name}({words})")
    assert not left


def test_another_kind_of_value_is_named_with_the_call_that_fits():
    config, [group, *_] = load_config("frozenlake"), make_groups(0, tasks=1, attempts=2, turns=1)
    for call, said in (
        (
            lambda: wb.train(group, "x"),
            "wb.train takes a Config or a text or a path or a class, got a Group.*wb.show",
        ),
        (
            lambda: wb.show_tokens(group, str),
            "takes a Trajectory or .*got a Group.*wb.show\\(group\\)",
        ),
        (lambda: wb.rollout(group), "takes a Session or a Config or a Run .*got a Group"),
        (lambda: wb.train_step(config, 1), "takes a Session, got a Config.*wb.open_session"),
        (
            lambda: wb.reopen(config),
            "takes a Run or a RunningRun or a text or a path, got a Config",
        ),
    ):
        with pytest.raises(DataError, match=said):
            call()


def test_every_guarded_door_is_public_and_each_kind_is_there():
    assert set(doors.TAKES) <= set(wb.PUBLIC) | set(provided("public"))
    assert {kind for kinds in doors.TAKES.values() for kind in kinds} <= set(doors.KINDS)
    for name, _ in doors.KINDS.values():
        assert isinstance(load_named(name, "kind"), type)
    assert said_of(object(), {}) == "" and wb.show_tokens.__wrapped__.__name__ == "show_tokens"
