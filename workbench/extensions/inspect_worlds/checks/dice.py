"""Which dice a trajectory throws: every draw from a generator, the line that makes it, and the state that it was made in.

Two ways to see a draw, and neither asks anything of an environment. Python's own generators are C functions, of whose calls
the interpreter tells (`sys.setprofile`). numpy's are not told of, so generators that are made while a trajectory is played are
made of a class that notes what is drawn (`_noting_class`); one that was made before is not seen, and trajectories that it joins are
found by playing them.
"""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from workbench.extensions.scripted_play.playing import Script, play
from workbench.worlds.base import EnvFamily

NO_DRAW = (
    "seed",
    "getstate",
    "setstate",
    "spawn",
    "get_state",
    "set_state",
    "jumped",
    "__reduce__",
)
OTHER_SOURCES = {
    "urandom": "os.urandom",
    "getrandom": "os.urandom",
    "uuid4": "uuid",
    "time": "the clock",
    "time_ns": "the clock",
    "perf_counter": "the clock",
}
PASSED_BY = (
    "types/seeds.py",
    "tempfile.py",
    "uuid.py",
    "threading.py",
    "selectors.py",
    "base_events.py",
    "subprocess.py",
    "logging/",
    "scripted_play/playing.py",
)


class Draw(NamedTuple):
    """`step`: of which action (-1: reset). `place`: file and line. `what`: whose generator. `state`: before the draw.
    `method`, `asked`: what was called on a numpy generator, and with what."""

    step: int
    place: str
    what: str
    state: int
    method: str = ""
    asked: inspect.BoundArguments | None = None


def draws_of(family: EnvFamily, script: Script) -> list[Draw]:
    """All draws of a trajectory, in order; those that it had made where it raises."""
    return draws_of_each(family, [script])[0]


def draws_of_each(family: EnvFamily, scripts: Sequence[Script]) -> list[list[Draw]]:
    """... of several, for which numpy's names are exchanged once."""
    draws: list[list[Draw]] = []
    step = [-1]

    def noted(what: str, owner: Any, frame: FrameType | None = None, *called: Any) -> None:
        place = _place(frame or sys._getframe(2))
        if not any(part in place for part in PASSED_BY):
            draws[-1].append(Draw(step[0], place, what, _state(owner), *called))

    def seen(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (what := _source(called)):
            noted(what, called.__self__, frame)

    def act_by(script: Script) -> Callable[[Any], str]:
        def act(env: Any) -> str:
            step[0] += 1
            return script.texts[step[0]]

        return act

    with _numpy_noted(noted):
        for script in scripts:
            draws.append([])
            step[0] = -1
            play(
                family,
                script.task,
                script.seed,
                act_by(script),
                most=len(script.texts),
                past_the_end=True,
                read=(),
                watch=partial(_watched, seen),
            )
    return draws


@contextmanager
def _watched(seen: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(seen)  # coroutines run in a thread that begins later
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def _source(called: Any) -> str:
    """Name the source that a called C function draws from; "" for any other function."""
    owner = getattr(called, "__self__", None)
    name = getattr(called, "__name__", "")
    if isinstance(owner, random.Random) and name not in NO_DRAW:
        return "random (global)" if owner is random._inst else "a random.Random of its own"
    return OTHER_SOURCES.get(name, "") if type(owner).__name__ == "module" else ""


def _state(owner: Any) -> int:
    if isinstance(owner, np.random.Generator):
        return hash(repr(owner.bit_generator.state))
    if isinstance(owner, np.random.RandomState):
        return hash(repr(owner.get_state()))
    try:
        return hash(owner.getstate())
    except (AttributeError, NotImplementedError):  # the clock, the system's
        return 0


# ------------------------------------------------------------------------------------------------ numpy's


@contextmanager
def _numpy_noted(noted: Callable[[str, Any], None]) -> Iterator[None]:
    """For a while, whoever asks numpy for a generator gets one that notes its draws; and so does whoever draws from the
    global one. In every module, as many import these names for themselves."""
    generator = np.random.Generator
    state = np.random.RandomState
    make = np.random.default_rng
    noting = _noting_class(generator, noted)

    def made(seed: Any = None) -> np.random.Generator:
        return seed if isinstance(seed, generator) else noting(make(seed).bit_generator)

    instead: dict[int, Any] = {
        id(generator): noting,
        id(state): _noting_class(state, noted),
        id(make): made,
    }
    kept: list[Any] = [generator, state, make]
    for name in _drawing(state):
        if hasattr(np.random, name):
            drawn = getattr(np.random, name)
            kept.append(drawn)
            instead[id(drawn)] = _noting_function(drawn, noted)
    changed = []
    for module in list(sys.modules.values()):
        for name, value in _names_of(module):
            if id(value) in instead:
                changed.append((module, name, value))
    for module, name, value in changed:
        setattr(module, name, instead[id(value)])
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _names_of(module: Any) -> list[tuple[str, Any]]:
    own = (
        module.__name__.startswith("numpy") and module.__name__ != "numpy.random"
        if hasattr(module, "__name__")
        else True
    )
    return [] if own or module.__name__ == __name__ else list(vars(module).items())


def _drawing(kind: type) -> list[str]:
    return [
        name
        for name in vars(kind)
        if not name.startswith("_") and name not in NO_DRAW and callable(getattr(kind, name))
    ]


def _noting_class(kind: type, noted: Callable[[str, Any], None]) -> type:
    def method(name: str) -> Callable:
        plain = getattr(kind, name)

        def drawn(self: Any, *args: Any, **names: Any) -> Any:
            asked = _bound(SIGNATURES.get(name), args, names)
            noted(f"a numpy {kind.__name__} of its own", self, sys._getframe(1), name, asked)
            return plain(self, *args, **names)

        return drawn

    return type(kind.__name__, (kind,), {name: method(name) for name in _drawing(kind)})


def _bound(
    signature: inspect.Signature | None, args: tuple[Any, ...], names: dict[str, Any]
) -> inspect.BoundArguments | None:
    """Arguments by their names; None where they are not looked at, or are wrong, which numpy says itself."""
    try:
        return signature.bind(*args, **names) if signature else None
    except TypeError:
        return None


def _integers(
    low: Any, high: Any = None, size: Any = None, dtype: Any = None, endpoint: Any = False
):
    """The arguments of numpy's Generator.integers, whose own signature cannot be asked."""


def _choice(
    a: Any, size: Any = None, replace: Any = True, p: Any = None, axis: Any = 0, shuffle: Any = True
):
    """... of Generator.choice."""


SIGNATURES = {"integers": inspect.signature(_integers), "choice": inspect.signature(_choice)}


def _noting_function(plain: Callable, noted: Callable[[str, Any], None]) -> Callable:
    def drawn(*args: Any, **names: Any) -> Any:
        noted("numpy.random (global)", np.random.mtrand._rand)
        return plain(*args, **names)

    return drawn


# ------------------------------------------------------------------------------------------------ where


def _place(frame: FrameType) -> str:
    """The line that draws: the first outside of the generator's own module."""
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename.endswith(("/random.py", "/secrets.py")):
        at = at.f_back
    at = at or frame
    return f"{'/'.join(at.f_code.co_filename.split('/')[-2:])}:{at.f_lineno}"
