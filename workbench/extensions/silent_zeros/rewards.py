"""Reward functions of somebody else's: the forms in which they are called, what they return, where they stand.

    trl         f(prompts, completions, **columns) -> list of numbers          TRL; of a batch
    verl        f(data_source, solution_str, ground_truth, extra_info)         verl's compute_score
    verifiers   f(completion, answer, prompt, state, ...)                      functions of a rubric of verifiers
    plain       f(text, row) or f(text) -> a number

Axis letters: N completions, F functions.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.values.errors import DataError, shortened, where_raised

# What TRL keeps for itself of a row; the other columns are handed to a reward function.
KEPT = ("prompt", "completion", "completion_ids")
VERL = ("solution_str", "ground_truth")
VERIFIERS = ("completion", "answer", "state", "info", "parser")


@dataclass(frozen=True, eq=False)
class CompletionBatch:
    """Completions that are to be scored, one a row.

    rows         [N] the user's rows
    completions  [N] text; or the messages of an answer
    ids          [N] token ids of each
    """

    rows: Sequence[Mapping[str, Any]]
    completions: Sequence[Any]
    ids: Sequence[Sequence[int]]

    def column(self, name: str) -> list[Any]:
        """A column of the rows; None where one has none."""
        return [row.get(name) for row in self.rows]

    def only(self, row: int) -> CompletionBatch:
        """This row alone."""
        here = slice(row, row + 1)
        return CompletionBatch(self.rows[here], self.completions[here], self.ids[here])


@dataclass(frozen=True, eq=False)
class RewardFunction:
    """A reward function of the user's own.

    given   further arguments that a trainer hands to it: its state, loggers
    """

    name: str
    function: Callable[..., Any]
    form: str
    weight: float = 1.0
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """ "my_rewards.py:12 (accuracy)"; the name alone where there is no source."""
        code = getattr(_inner(self.function), "__code__", None)
        if code is None:
            return self.name
        return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} ({self.name})"

    def ask(self, batch: CompletionBatch) -> Any:
        """What it returns: of one in TRL's form whatever it may be, of others a list. Raises what it raises."""
        if self.form == "trl":
            return self._ask_together(batch)
        return [self._ask_one(batch.only(row)) for row in range(len(batch.rows))]

    def _ask_together(self, batch: CompletionBatch) -> Any:
        names = set().union(*batch.rows) - {*KEPT}
        columns = {name: batch.column(name) for name in sorted(names)}
        return self._call(
            prompts=batch.column("prompt"),
            completions=list(batch.completions),
            completion_ids=[list(ids) for ids in batch.ids],
            **columns,
            **self.given,
        )

    def _ask_one(self, batch: CompletionBatch) -> Any:
        row = batch.rows[0]
        completion = batch.completions[0]
        text = text_of(completion)
        if self.form == "verl":
            known = {
                "data_source": row.get("data_source"),
                "solution_str": text,
                "ground_truth": _at(row, "reward_model.ground_truth", row.get("ground_truth")),
                "extra_info": row.get("extra_info"),
            }
            return _number_of(self._call(**_accepted(self.function, known)))
        if self.form == "verifiers":
            messages = as_messages(completion)
            state = {"prompt": row.get("prompt"), "completion": messages, **row}
            known = {**row, "completion": messages, "state": state, **self.given}
            return self._call(**_accepted(self.function, known))
        if len(_positional(self.function)) == 1:
            return self._call(text)
        return self._call(text, row)

    def _call(self, *args: Any, **named: Any) -> Any:
        result = self.function(*args, **named)
        if not inspect.isawaitable(result):
            return result
        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread runs a loop already
            return pool.submit(asyncio.run, _awaited(result)).result()


async def _awaited(result: Any) -> Any:
    return await result


def _number_of(result: Any) -> Any:
    """The score, where verl's function returns more beside it."""
    return result.get("score") if isinstance(result, Mapping) else result


def _at(row: Mapping[str, Any], path: str, otherwise: Any = None) -> Any:
    """A value by its dotted path."""
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return otherwise
        value = value[name]
    return value


def column_of(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or inside one ("reward_model.ground_truth"); None where there is none."""
    return row[column] if column in row else _at(row, column)


def _inner(function: Any) -> Any:
    """The function behind partials, decorators and objects that are called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__") and not hasattr(function, "__func__"):
        function = getattr(type(function), "__call__", function)
    return getattr(function, "__func__", function)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # made in C
        return {}


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, value in _parameters(function).items() if value.kind in kinds]


def _takes_anything(function: Callable[..., Any]) -> bool:
    kinds = [value.kind for value in _parameters(function).values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known arguments that the function takes."""
    if _takes_anything(function):
        return dict(known)
    return {name: value for name, value in known.items() if name in _parameters(function)}


def form_of(function: Callable[..., Any]) -> str:
    """How a reward function is called, by the names of its arguments."""
    names = set(_parameters(function))
    if names & {"completions", "prompts"}:
        return "trl"
    if names >= set(VERL):
        return "verl"
    if "completion" in names and (names & set(VERIFIERS[1:]) or _takes_anything(function)):
        return "verifiers"
    if _takes_anything(function) and not _positional(function):
        return "trl"
    return "plain"


def reward_functions(rewards: Any) -> list[RewardFunction]:
    """A function, several, or a rubric of verifiers. Raises DataError where it is none of these."""
    if hasattr(rewards, "funcs") and hasattr(rewards, "weights"):
        given = {
            "parser": getattr(rewards, "parser", None),
            **getattr(rewards, "class_objects", {}),
        }
        return [
            RewardFunction(name_of(function), function, "verifiers", float(weight), given)
            for function, weight in zip(rewards.funcs, rewards.weights)
        ]
    several = list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]
    for function in several:
        if not callable(function):
            raise DataError(
                "rewards is a function, a list of functions or a rubric of verifiers; got "
                f"{shortened(function)}. Hand over what your trainer calls to score an answer"
            )
    return [RewardFunction(name_of(function), function, form_of(function)) for function in several]


def asks_for(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of this name."""
    return name in _parameters(function)


def name_of(function: Any) -> str:
    return getattr(_inner(function), "__name__", type(function).__name__)


# ------------------------------------------------------------------------------------------------ completions


def as_messages(words: Any) -> list[dict[str, Any]]:
    """Words as the messages of a conversational completion."""
    if isinstance(words, str):
        return [{"role": "assistant", "content": words}]
    return list(words)


def text_of(completion: Any) -> str:
    """A completion as text: of messages what the last one of the assistant says."""
    if isinstance(completion, str):
        return completion
    spoken = [message for message in completion if message.get("role") == "assistant"]
    return str((spoken or [{}])[-1].get("content") or "")


# ------------------------------------------------------------------------------------------------ what they return


@dataclass(frozen=True, eq=False)
class BatchRewards:
    """What functions paid for a batch.

    values_NF    NaN: nothing that is a number
    unscored_NF  it returned None: the function does not score this row
    faults       (n, f) -> what went wrong
    """

    values_NF: np.ndarray
    unscored_NF: np.ndarray
    faults: Mapping[tuple[int, int], str]

    def words(self, row: int, column: int) -> str:
        """What a function did with a row: "pays 1", "returns None", "raises ..."."""
        if (row, column) in self.faults:
            return self.faults[row, column]
        if self.unscored_NF[row, column]:
            return "returns None"
        return f"pays {self.values_NF[row, column]:.4g}"


def pay(functions: Sequence[RewardFunction], batch: CompletionBatch) -> BatchRewards:
    """Ask all functions about all rows together. Where one raises, it is asked about each row alone."""
    shape = (len(batch.rows), len(functions))
    values_NF = np.full(shape, np.nan)
    unscored_NF = np.zeros(shape, bool)
    faults: dict[tuple[int, int], str] = {}
    for column, function in enumerate(functions):
        returned, wrong = _returned(function, batch)
        for row, value in enumerate(returned):
            number, fault = _checked_number(value)
            values_NF[row, column] = number
            unscored_NF[row, column] = value is None
            if fault or wrong[row]:
                unscored_NF[row, column] = False
                faults[row, column] = wrong[row] or fault
    return BatchRewards(values_NF, unscored_NF, faults)


def _returned(
    function: RewardFunction, batch: CompletionBatch
) -> tuple[Sequence[Any], Sequence[str]]:
    """(values [N], what went wrong [N])."""
    count = len(batch.rows)
    try:
        result = _listed(function.ask(_copied(batch)))
    except Exception as error:  # anybody's function
        if count == 1 or function.form == "trl" and not _fails_alone(function, batch):
            return [None] * count, [_raised(error)] * count
        pairs = [_returned(function, batch.only(row)) for row in range(count)]
        return [values[0] for values, _ in pairs], [wrong[0] for _, wrong in pairs]
    if result is None or len(result) != count:
        shape = "no list" if result is None else f"{len(result)} values"
        return [None] * count, [f"returns {shape} for {count} completions"] * count
    return result, [""] * count


def _fails_alone(function: RewardFunction, batch: CompletionBatch) -> bool:
    """Whether some row makes it raise by itself."""
    for row in range(len(batch.rows)):
        try:
            function.ask(_copied(batch.only(row)))
        except Exception:
            return True
    return False


def _listed(result: Any) -> list[Any] | None:
    if hasattr(result, "tolist"):
        result = result.tolist()
    return list(result) if isinstance(result, (list, tuple)) else None


def _raised(error: Exception) -> str:
    where = where_raised(error)
    return f"raises {type(error).__name__}: {error}" + (f" at {where}" if where else "")


def _checked_number(value: Any) -> tuple[float, str]:
    """(the number, what is wrong with it)."""
    if value is None:
        return math.nan, ""
    if isinstance(value, str):
        return math.nan, f"returns {shortened(value)}, which is no number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan, f"returns {shortened(value)}, which is no number"
    if math.isnan(number):
        return math.nan, "returns NaN"
    return (number, "") if math.isfinite(number) else (math.nan, f"returns {number}")


def _copied(batch: CompletionBatch) -> CompletionBatch:
    """The same batch, so that a function that alters what it is handed alters nothing of the next question."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # a row holds what cannot be copied: an open file, a lock
        return batch


@contextmanager
def untouched_chance() -> Iterator[None]:
    """Python's, numpy's and torch's global generators are as before, afterwards."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state()
    tensors = None if torch is None else torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.random.set_rng_state(tensors)
