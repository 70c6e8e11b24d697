"""Two records of a run held against each other: equal, or the first number that is another one, by name.

    step 2, update 0, column advantage: recorded float64[5384] 3fa2c1d0 with -0.61, 1.22 ..., now 9b01e77f with ...

On the machine that the record was made on (threads, versions, processor) every bit must be the same. On another one
sums are rounded otherwise. Then floats must agree within NEAR, everything else must be equal, and a sampled token may
be another one only where trajectories before it agree (`Verdict`); what could not be compared for that is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Relative to the size of an entry and of its array (of a metric: to 1 + itself). Another instruction set (no vectors,
# AVX2) or two threads change the six runs by 0.0001 at most, an entropy; and no sampled token.
NEAR = 0.001
SAME_TRAJECTORIES = 0.8  # of the step in which rounding first tips over a sampled token: trajectories that must be untouched
_IDS = "sampled_ids_each"


@dataclass(frozen=True)
class Difference:
    """One value that is another one. `rounding`: another order of sums would explain it."""

    where: str
    text: str
    rounding: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """`passed`, and in words why, or why not. `exact`: not a bit differs."""

    passed: bool
    exact: bool
    text: str


class OtherMachineWarning(UserWarning):
    """Numbers were compared within rounding only: this machine does not round as the one that they were recorded on."""


def expect(recorded: Mapping[str, Any], now: Mapping[str, Any], name: str) -> None:
    """AssertionError naming the first number that is another one; OtherMachineWarning where that was not asked to the
    last bit."""
    verdict = judge(recorded, now)
    if not verdict.passed:
        raise AssertionError(f"golden run {name}: {verdict.text}")
    if not verdict.exact:
        warnings.warn(f"golden run {name}, {verdict.text}", OtherMachineWarning, stacklevel=2)


def judge(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Verdict:
    """Is `now` the run that was recorded?"""
    found = list(differences(recorded, now))
    if not found:
        return Verdict(True, True, "equal in every bit")
    first = "\n".join(map(str, found[:5])) + (
        f"\n... and {len(found) - 5} more" if len(found) > 5 else ""
    )
    machine = [
        f"{name} ({value}, now {now['machine'].get(name)})"
        for name, value in recorded["machine"].items()
        if now["machine"].get(name) != value
    ]
    if not machine:
        return Verdict(
            False,
            False,
            f"{len(found)} values are not those that were recorded on this kind of machine:\n"
            f"{first}",
        )
    where = f"recorded with other {', '.join(machine)}"
    left, note = _up_to_another_token(recorded, now, found)
    if unexplained := [difference for difference in left if not difference.rounding]:
        return Verdict(
            False,
            False,
            f"{where}, but this is more than rounding:\n{unexplained[0]}\nall of them:\n{first}",
        )
    return Verdict(
        True,
        False,
        f"{where}: {len(left)} values agree within rounding only, the first:\n{found[0]}{note}",
    )


def _up_to_another_token(
    recorded: Mapping[str, Any], now: Mapping[str, Any], found: list[Difference]
) -> tuple[list[Difference], str]:
    """The differences that count on another machine. Where two tokens were almost equally likely, rounding decides
    which is sampled, and from there on the run is another one: only what was before is compared."""
    for step, facts in recorded["steps"].items():
        before, after = (
            facts["attempts"][_IDS],
            now["steps"].get(step, {}).get("attempts", {}).get(_IDS, []),
        )
        same = sum(a == b for a, b in zip(before, after, strict=False))
        if before == after or same < SAME_TRAJECTORIES * len(before):
            continue
        earlier = [
            difference
            for difference in found
            if difference.where.startswith("step ")
            and int(difference.where.removeprefix("step ").split(",")[0]) < int(step)
        ]
        return earlier, (
            f"\nNOT COMPARED from step {step} on: {len(before) - same} of {len(before)} trajectories sampled "
            "another token there, where two were almost equally likely"
        )
    return found, ""


# ------------------------------------------------------------------------------------------------ differences


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """Every value of the record that is missing or another one now, in the order in which a run makes them. What is
    there now and was not recorded (a new column, a new metric) is no difference."""
    if list(recorded["steps"]) != list(now["steps"]):
        yield Difference(
            "steps",
            f"recorded {', '.join(recorded['steps'])}; now {', '.join(now['steps'])}",
            False,
        )
    for part in ("steps", "evaluations", "weights"):
        yield from _inside(recorded[part], now[part], (part,))


def _inside(recorded: Any, now: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    if isinstance(recorded, Mapping) and "sha256" in recorded:
        yield from _array(recorded, now, path)
    elif isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for key, value in recorded.items():
            if key in now:
                yield from _inside(value, now[key], (*path, key))
            else:
                yield Difference(_words((*path, key)), "was recorded and is not there now", False)
    elif isinstance(recorded, list) and isinstance(now, (list, tuple)):
        yield from _list(recorded, list(now), path)
    elif not _same(recorded, now):
        yield Difference(_words(path), f"recorded {recorded!r}, now {now!r}", _near(recorded, now))


def _list(recorded: list, now: list, path: tuple[str, ...]) -> Iterator[Difference]:
    if len(recorded) != len(now):
        yield Difference(_words(path), f"recorded {len(recorded)} entries, now {len(now)}", False)
        return
    for index, (a, b) in enumerate(zip(recorded, now)):
        if not _same(a, b):
            number = sum(not _same(*pair) for pair in zip(recorded, now))
            near = all(_same(*pair) or _near(*pair) for pair in zip(recorded, now))
            yield Difference(
                _words(path),
                f"entry {index}: recorded {a!r}, now {b!r} ({number} of {len(now)} differ)",
                near,
            )
            return


def _array(recorded: Mapping[str, Any], now: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    if not (isinstance(now, Mapping) and "sha256" in now):
        yield Difference(_words(path), f"recorded an array, now {now!r}", False)
    elif recorded["sha256"] != now["sha256"]:
        rounding = path[-1] == "clip_state" or (
            recorded["dtype"] == now["dtype"]
            and recorded["shape"] == now["shape"]
            and recorded["dtype"].startswith("float")
            and _array_near(recorded, now)
        )
        yield Difference(
            _words(path), f"recorded {_array_words(recorded)}, now {_array_words(now)}", rounding
        )


def _array_near(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    size = recorded["norm"] / max(np.sqrt(np.prod(recorded["shape"])), 1)  # of a typical entry
    pairs = [(recorded["mean"], now["mean"]), *zip(recorded["values"], now["values"])]
    close = all(a != a and b != b or abs(a - b) <= NEAR * (abs(a) + size) for a, b in pairs)
    return bool(close and abs(recorded["norm"] - now["norm"]) <= NEAR * recorded["norm"])


def _array_words(facts: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{value!r}" for value in facts["values"])
    return (
        f"{facts['dtype']}{facts['shape']} {facts['sha256'][:8]} (mean {facts['mean']:.9g}, norm "
        f"{facts['norm']:.9g}; {shown})"
    )


def _same(a: Any, b: Any) -> bool:
    """Equal to the last bit; None is not zero, True is not 1, NaN is NaN."""
    if _number(a) and _number(b):
        return repr(float(a)) == repr(float(b))
    return type(a) is type(b) and a == b


def _near(a: Any, b: Any) -> bool:
    return _number(a) and _number(b) and (a != a and b != b or abs(a - b) <= NEAR * (1 + abs(a)))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(path: tuple[str, ...]) -> str:
    """("steps", "2", "updates", "0", "columns", "advantage") as "step 2, update 0, column advantage"."""
    singular = {
        "steps": "step",
        "updates": "update",
        "columns": "column",
        "evaluations": "evaluation after step",
        "metrics": "metric",
        "weights": "weights of",
        "attempts": "attempts'",
    }
    words, rest = [], list(path)
    while rest:
        head = rest.pop(0)
        words.append(f"{singular[head]} {rest.pop(0)}" if head in singular and rest else head)
    return ", ".join(words)
