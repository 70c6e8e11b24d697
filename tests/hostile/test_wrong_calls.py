"""Wrong calls of the public functions end in words of ours, which name the argument."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch

import workbench as wb
from tests.hostile.odd_values import odd_values
from tests.hostile.wrong_calls import (
    CALLED_ITSELF,
    CHEAP,
    NEW,
    RIGHT,
    RIGHT_OF_METHODS,
    Sound,
    WrongCall,
    calls,
    cheap,
    functions,
    without_wrong_calls,
)
from workbench.basics.annotated import checked, checked_methods, fits
from workbench.tools.shared_workers import shared_workers
from workbench.values.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def workers_end_with_the_test():
    """They stand in the folder in which the first of them was asked for, which is this test's; a later test has another."""
    yield
    shared_workers().shutdown()


def test_a_grid_of_wrong_calls_ends_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = cheap(tmp_path)
    tried = list(calls(right, sorted(right)))
    assert len(tried) > 800
    assert [wrong for call in tried if (wrong := call.ended())] == []


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A run and an open session, made once for all functions."""
    return Sound(tmp_path_factory.mktemp("sound"))


# Public functions that need a run or a policy, and methods of what they return: of these the odd values are tried.
OF_A_RUN = (
    "ablate agents audit bias_bench groups_equal play retokenize rollout show show_calls show_counts show_estimators "
    "show_mask_switches show_masks train_here tune_in warm_start"
).split()


@pytest.mark.parametrize("name", [*OF_A_RUN, *RIGHT_OF_METHODS])
def test_odd_values_end_in_words_where_a_run_is_needed(at, name, monkeypatch):
    monkeypatch.chdir(at.folder)
    monkeypatch.setenv("WORKBENCH_PROGRESS", "quiet")
    (at.folder / NEW).mkdir(exist_ok=True)
    tried = list(calls({name: (RIGHT | RIGHT_OF_METHODS)[name](at)}, [name], odd_values))
    assert len(tried) > 100
    assert [wrong for call in tried if (wrong := call.ended())] == []


def test_negative_control_a_method_without_its_door_is_noticed(at):
    updates = type(at.run).updates.__wrapped__.__get__(at.run)
    tried = calls({"Run.updates": {CALLED_ITSELF: updates}}, ["Run.updates"], odd_values)
    assert sum(bool(call.ended()) for call in tried) > 20


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_all_wrong_calls_end_in_words(at, name, monkeypatch, tmp_path):
    # What a call with a wrong path leaves behind is not what the next function finds.
    monkeypatch.chdir(tmp_path)
    (at.folder / NEW).mkdir(exist_ok=True)
    tried = list(calls({name: RIGHT[name](at)}, [name]))
    if inspect.signature(getattr(wb, name)).parameters:
        assert len(tried) > 10
    assert [wrong for call in tried if (wrong := call.ended())] == []


def test_every_public_function_that_takes_something_is_called_wrongly(monkeypatch):
    assert without_wrong_calls() == []
    assert set(RIGHT) <= set(functions()) and set(CHEAP) < set(RIGHT)
    monkeypatch.delitem(RIGHT, "tune_in")  # negative control
    assert without_wrong_calls() == ["tune_in"]


def test_negative_control_an_error_out_of_the_depth_is_noticed(monkeypatch):
    """One that Python raises where nothing was looked at."""
    monkeypatch.setitem(wb.__dict__, "schema_of", wb.schema_of.__wrapped__)
    assert "AttributeError" in WrongCall("schema_of", "tool", "5", {"tool": 5}).ended()
    assert WrongCall("load_config", "source", "5", {"source": 5}).ended() == ""


def test_what_is_refused_is_named_without_control_characters():
    with pytest.raises(DataError, match=r"wb\.runs takes folder as str \| os\.PathLike, got 5"):
        wb.runs(5)
    with pytest.raises(DataError) as error:
        wb.show_rows("\x1b]0;t\a")
    assert "\x1b" not in str(error.value) and "rows" in str(error.value)


def test_what_python_cannot_write_is_named_by_its_type_and_arrays_are_no_settings():
    deep = []
    for _ in range(5_000):
        deep = [deep]
    # Since Python 3.13 it can write lists as deep as this one.
    for value, words in ((deep, r"got (a list|\[\[)"), (np.zeros(3), "got array")):
        with pytest.raises(ConfigError, match=f"history is one of .*{words}"):
            wb.CollectConfig(history=value)
    with pytest.raises(DataError, match="wb.runs takes folder"):
        wb.runs(deep)


def test_one_of_ours_stands_in_for_no_other_one_of_ours():
    groups = wb.types.Groups([])
    assert fits(groups, Sequence[wb.types.Group]) and not fits([groups], Sequence[wb.types.Group])
    assert fits([Mine()], Sequence[wb.types.Group])  # negative control: a class of the user's may


class Mine:
    name = "mine"


class Record(NamedTuple):
    name: str


def built_on(kind: type) -> Callable[[str], Any]:
    """A class that adds nothing to one of Python's own, and a value of it."""
    value = {bytes: b"x", int: 5, float: 0.5, dict: {"x": 1}}
    return lambda text: type("Own", (kind,), {})(value.get(kind, text))


BUILT_ON = [*map(built_on, (str, bytes, int, float, list, tuple, dict, set, frozenset))]


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, [3, True * 0 + 1], [True, 0.5, "x", None, 10**30]),
        (float, [3, 0.5, math.inf], [math.nan, True, "0.5", 1j]),
        (str, ["", "x"], [5, b"x", "a\0b", None]),
        (bool, [True], [1, "true"]),
        (int | None, [None, 3], ["x"]),
        (Sequence[int], [[1, 2], (1,), range(3)], ["12", [None], {1}, 5, {1: 2}]),
        (Sequence[str], [["x"], "x"], [[5], 5, b"x"]),
        (Mapping[str, Any], [{}, {"x": object()}], [{5: 1}, [], "x", None]),
        (Path | str, [Path("x"), "x"], [5, "a\0b", Path("a\0b"), b"x"]),
        (Callable[[str], None], [print, Mine], ["x", 5]),
        (Any, [None, 5, object()], []),
        (wb.types.Group, [Mine(), Record("mine")], [5, "x", None, object(), [], print]),
        (wb.types.Group, [], [made("x") for made in BUILT_ON]),
        (wb.types.Group, [], [np.zeros(2), pd.Series([1]), torch.zeros(2), np.str_("x")]),
        (Sequence[str], [range(0)], [range(10**12)]),
        (tuple[str, int], [("x", 1), ("x", np.int64(1))], [(), ("x",), ("x", "y"), ["x", 1]]),
        (tuple[int | str, ...], [(), (1, "x")], [(None,), (0.5, 1), [1]]),
        (Mapping[tuple[int, int], float], [{(0, 1): 0.5}, {}], [{0: 0.5}, {(0,): 0.5}]),
        (wb.types.Group, [], [pd.NaT, pd.NA, torch.nn.Linear(1, 1), pd.DataFrame()]),
    ],
)
def test_an_argument_fits_or_does_not(hint, right, wrong):
    assert [value for value in right if not fits(value, hint)] == []
    assert [value for value in wrong if fits(value, hint)] == []


class Endless(Sequence):
    """It says that it has two parts, gives as many as are asked for, and remembers which those were."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Any:
        self.asked.append(place)
        return self.part


def test_what_holds_none_is_none_of_what_may_be_left_out():
    for wrong in (np.datetime64("NaT"), np.array(None, dtype=object)):
        with pytest.raises(DataError, match=r"wb\.function takes values as "):
            checked("function", taking)(wrong)
    assert checked("function", taking)(None)[0] is None  # negative control


class Loud(int):
    def __repr__(self) -> str:
        return "\x1b[2J"

    __format__ = __str__ = lambda self, *_: repr(self)


def taking(values: Sequence[wb.types.Group] | int | None, rest: Any = None) -> Any:
    return values, rest


def test_a_sequence_of_the_users_is_asked_for_as_many_parts_as_it_says_it_has():
    own = Endless(Mine())
    taken, rest = checked("function", taking)(own, own)
    assert own.asked == []  # it may make its parts when they are asked for
    assert [*taken] == [own.part, own.part] == taken[:] and taken[-1] is own.part
    assert len(taken) == 2 and set(own.asked) == {0, 1, -1}
    with pytest.raises(IndexError):
        taken[2]
    assert rest is own  # negative control: where anything is asked for it is handed on


def test_a_part_that_does_not_fit_is_refused_when_it_comes():
    taken, _ = checked("function", taking)(Endless("x"))
    with pytest.raises(
        DataError, match=r"^wb\.function takes values as Sequence.*, got 'x' \(str\) in"
    ):
        list(taken)
    groups = wb.types.Groups([])
    assert checked("function", taking)(groups)[0] is groups


@pytest.mark.parametrize("count", [np.int64(3), np.uint8(3), np.array(3), Loud(3)], ids=type)
def test_a_whole_number_of_any_kind_is_a_number_where_a_list_may_be_too(count):
    assert type(checked("function", taking)(count)[0]) is int


class Named(Protocol):
    name: str

    def task(self, task_seed: int) -> Any: ...


def of_a_class(**members: Any) -> Any:
    return type("Own", (), {"__module__": "mine", **members})()


def test_what_a_protocol_names_is_of_the_right_kind_where_it_is_there():
    for right in (of_a_class(name="x"), of_a_class(task=print), of_a_class(name="x", task=print)):
        assert fits(right, Named)
    for wrong in (MagicMock(), of_a_class(name=5, task=print), of_a_class(), "x", None):
        assert not fits(wrong, Named)


class Shelf:
    @property
    def size(self) -> int:
        return 3

    def item(self, place: int) -> int:
        return place

    def _own(self, place: int) -> int:
        return place

    @classmethod
    def of(cls, parts: Sequence[str]) -> Sequence[str]:
        return parts

    def clear(self) -> str:
        return "clear"


def test_methods_look_at_their_arguments_as_functions_do():
    shelf = checked_methods(type("Shelf", (Shelf,), dict(vars(Shelf))))()
    assert shelf.item(np.int64(3)) == 3 and shelf.of(["x"]) == ["x"] and shelf.size == 3
    assert shelf.clear() == "clear" and shelf._own("x") == "x"
    with pytest.raises(DataError, match=r"^Shelf\.item takes place as int, got 'x' \(str\)"):
        shelf.item("x")
    with pytest.raises(
        DataError, match=r"^Shelf\.of takes parts as Sequence\[str\], got 5 \(int\)"
    ):
        shelf.of(5)
    assert Shelf().item("x") == "x"  # negative control


ARRAYS = [np.array([0.5, 1.0]), pd.Series([0.5, 1.0], index=[7, 3]), torch.tensor([0.5, 1.0])]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: type(array).__name__)
def test_arrays_and_columns_are_taken_as_the_lists_they_hold(array):
    def function(values: Sequence[float] | None, curves: Mapping[str, Sequence[float]]) -> tuple:
        return values, curves

    door = checked("function", function)
    values, curves = door(array, {"success": array})
    assert values == [0.5, 1.0] and curves["success"] is array
    for wrong in (pd.Series(["a"]), np.zeros((2, 2)), np.array([np.nan])):
        with pytest.raises(DataError, match=r"wb\.function takes values as Sequence\[float\]"):
            door(wrong, {})
    with pytest.raises(DataError, match=r"wb\.function takes curves as "):
        door(array, {"success": pd.Series(["a"])})
    assert wb.result(per_task=array, curves={"success": array}).facts["per_task"] == [0.5, 1.0]


@pytest.mark.parametrize(
    "solved",
    [[True, False], (True, np.bool_(False)), *(array > 0.6 for array in ARRAYS)],
    ids=lambda solved: type(solved).__name__,
)
def test_true_and_false_are_numbers_among_several_and_alone_they_are_none(solved):
    assert sorted(wb.result(per_task=solved).facts["per_task"]) == [0.0, 1.0]
    with pytest.raises(DataError, match=r"wb\.result takes success as "):
        wb.result(success=True)
    with pytest.raises(DataError, match=r"wb\.result takes per_task as "):
        wb.result(per_task=["True"])


def test_scalars_of_arrays_are_taken_as_python_s_own_and_arrays_stay_where_they_are_asked_for():
    def function(flag: bool, number: float, count: int, array: np.ndarray, rest: Any) -> tuple:
        return flag, number, count, array, rest

    door = checked("function", function)
    array = np.arange(2)
    flag, number, *_, as_asked, rest = door(
        np.bool_(True), torch.tensor(0.5), np.int64(3), array, array
    )
    assert flag is True and type(number) is float and as_asked is array and rest is array
    with pytest.raises(DataError, match=r"wb\.function takes flag as bool"):
        door(np.int64(1), 0.5, 3, array, None)


def test_a_number_of_another_class_is_handed_on_as_python_s_own():
    def function(count: int, share: float | None, flag: bool, rest: Any) -> tuple:
        return count, share, flag, rest

    handed = checked("function", function)(Loud(3), np.float64(0.5), True, Loud(4))
    assert handed == (3, 0.5, True, 4)
    assert [type(value) for value in handed] == [int, float, bool, int]


def test_a_fraction_is_handed_on_as_a_float():
    def function(share: float, rest: Any) -> tuple:
        return share, rest

    half = Fraction(1, 2)
    share, rest = checked("function", function)(half, half)
    assert type(share) is float and share == 0.5 and rest is half


def test_a_line_of_a_compiled_library_is_not_the_caller_s_own():
    table = {"table": pd.DataFrame({"odd": [1]}), "trajectory": 0}
    assert WrongCall("credit_of", "table", "a table", table).ended() == ""


@pytest.fixture
def no_code_of_the_users(monkeypatch):
    """The functions below stand for ones of this package."""
    monkeypatch.setattr("workbench.basics.annotated.own_line", lambda error: None)


def lacking(group: wb.types.Group, rest: Any = None) -> Any:
    return group.no_such


def test_what_a_stand_in_lacks_is_said_when_it_is_missed(no_code_of_the_users):
    door = checked("function", lacking)
    with pytest.raises(DataError, match=r"was handed group = .*Mine.*no_such.*test_wrong") as error:
        door(Mine())
    assert isinstance(error.value.__cause__, AttributeError)
    with pytest.raises(DataError, match=r"group = .* and rest = .*, of a class that is not known"):
        door(Mine(), Mine())
    task = wb.types.Task("x", "x", 0)
    with pytest.raises(AttributeError):  # negative control: where all is ours the fault is, too
        door(object.__new__(wb.types.Group), [task])


def test_negative_control_what_the_callers_code_raises_is_handed_on():
    with pytest.raises(AttributeError):
        checked("function", lacking)(Mine())


def test_a_name_that_no_file_can_have_is_said(no_code_of_the_users):
    door = checked("function", lambda text: Path(text).stat())
    with pytest.raises(DataError, match=r"wb\.function was handed what no file is called: .*'xxx"):
        door("x" * 5_000)
    with pytest.raises(FileNotFoundError):  # negative control
        door("nowhere")


def test_what_binds_is_handed_on_as_it_came():
    def function(a: int, *more: str, flag: bool = False, **rest: Any) -> tuple:
        return a, more, flag, rest

    door = checked("function", function)
    assert door(1, "x", "y", flag=True, z=None) == (1, ("x", "y"), True, {"z": None})
    with pytest.raises(DataError, match=r"wb\.function takes more as str, got 5"):
        door(1, "x", 5)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        door()
    assert door.__wrapped__ is function and door.__name__ == "function"
