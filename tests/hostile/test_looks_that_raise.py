"""What a caller's value raises when it is only looked at, texts that look like numbers, and links in a circle end in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

import workbench as wb
from workbench.basics.annotated import checked
from workbench.basics.digits import whole_in
from workbench.extensions.doctor.machine import threads
from workbench.look.task_types import KindRecord
from workbench.values.errors import ConfigError, DataError


class Unsayable:
    def __repr__(self):
        raise RecursionError("no end")


class Quarrelsome:
    def __eq__(self, other):
        return self == other

    __hash__ = None


class OddKind(type):
    def __repr__(cls):
        raise ValueError("no name")


class Nameless(metaclass=OddKind):
    """Its class cannot be written."""


@pytest.mark.parametrize("value", [Unsayable(), [Unsayable()], {"x": Unsayable()}, Nameless])
def test_a_value_that_cannot_be_written_is_refused_in_words(value):
    with pytest.raises(DataError, match=r"wb\.show cannot look at .* __repr__ ended in"):
        wb.show(value)


def test_a_comparison_without_end_is_refused_in_words():
    compared = checked("compared", lambda value: value == 5)
    with pytest.raises(DataError, match="cannot look at .* __eq__ ended in RecursionError"):
        compared(Quarrelsome())


def test_negative_control_what_is_called_for_what_it_does_raises_its_own():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checked("called", lambda function: function())(broken)


class Stranger:
    """Of a class of the user's: it might stand in for a group."""


@pytest.mark.parametrize("function", [wb.show_counts, wb.show_masks, wb.show_estimators])
def test_a_list_of_strangers_is_refused_in_words(function):
    with pytest.raises(DataError, match="of a class that is not known here"):
        function([Stranger()])


def test_links_in_a_circle_are_refused_in_words(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    with pytest.raises((DataError, ConfigError)):
        wb.ablate(circle, tmp_path / "out", dry_run=True)


NO_NUMBERS = ["²", "٣", "1" * 5_000, "", "-1", "1.0", "①"]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_of_ascii_digits_is_none(text):
    assert whole_in(text) is None
    assert whole_in("0042") == 42  # negative control


@pytest.mark.parametrize("kind", [*NO_NUMBERS, "a\x00b", "\ud800", "\x1b[2J", "7"])
def test_kinds_of_tasks_may_be_any_text(kind, monkeypatch):
    """A run says what its kinds are called, and may be a stranger's."""
    task = wb.types.Task("x", "x", 0, {"kind": kind})
    first = wb.types.Trajectory(
        task, 0, 0, wb.types.Observation(()), (), (), wb.types.StopReason.TERMINATED, success=True
    )
    groups = [wb.types.Group((first, replace(first, attempt=1)))]

    class Stored:
        name = "stored"
        steps = staticmethod(lambda: [1])
        groups = staticmethod(lambda step: groups_of_step)
        evaluations = staticmethod(lambda: {"step-1": {"step": 1}})
        evaluated = staticmethod(lambda name: {"trained-sampled": groups_of_step})

    groups_of_step = groups
    monkeypatch.setattr("workbench.look.task_types.open_run", lambda run: run)
    found = wb.by_kind.__wrapped__(Stored(), "kind")
    assert found.training == (KindRecord(1, found.kinds[0], 2, 2),)
    assert "\x1b" not in repr(found) and "\0" not in repr(found)
    assert found.success(found.kinds[0]).mean == 1.0


def test_a_number_of_threads_that_is_none_is_no_fault():
    assert threads(cores=1, omp_num_threads="²", load=0.0)


def test_more_tasks_than_there_is_room_for_are_refused():
    session = wb.open_session(wb.load_config("bandit"), quiet=True)
    with pytest.raises(ConfigError, match="count is from 1 to"):
        session.train_tasks(1, 2**62)
    assert len(session.train_tasks(1, 3)) == 3
