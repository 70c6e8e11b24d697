"""Blocks that catch every error, in the code of an environment's author, and a call in one of them that is made to fail."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

from workbench.extensions.own_code.modules import own_modules, tree_of

MESSAGE = "refused: what is asked here does not answer"
BROAD = ("Exception", "BaseException")
# Calls that read a text or a value, and fail by what the policy wrote alone.
READS = frozenset(
    """parse loads literal_eval match search fullmatch findall finditer group groups groupdict split rsplit splitlines strip
    lstrip rstrip lower upper casefold removeprefix removesuffix replace partition rpartition startswith endswith join
    format get items keys values index count append extend pop sub fromisoformat strptime Fraction Decimal decode encode
    simplify sympify isdigit isnumeric translate find rfind title""".split()
)
# Names by which something outside is asked.
OUTSIDE = frozenset(
    """requests httpx urllib urlopen http socket subprocess openai anthropic aiohttp post client connect open read_text
    read_bytes run Popen check_output sleep wait fetch query execute recv send communicate judge grade verify""".split()
)
RAISES = ("ConnectionError", "TimeoutError", "OSError", "RuntimeError", "IOError", "EnvError")


class CallGuard(NamedTuple):
    """A block whose every failure is caught."""

    path: str
    line: int  # of the first statement in it that calls something
    handler: int  # line
    catches: str  # in words
    severe: bool  # it asks something outside, or code that raises such errors


# ------------------------------------------------------------------------------------------------ making it fail


@contextmanager
def failing(guard: CallGuard) -> Iterator[list[int]]:
    """For a while, the guarded line raises. Yields how often it did."""
    raised: list[int] = []

    def of_line(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line" and frame.f_lineno == guard.line:
            raised.append(frame.f_lineno)
            sys.settrace(watch)  # a trace that raises is taken away
            raise ConnectionError(MESSAGE)
        return of_line

    def watch(frame: FrameType, event: str, value: Any) -> Any:
        return of_line if frame.f_code.co_filename == guard.path else None

    with tracing(watch):
        yield raised


@contextmanager
def tracing(watch: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """For a while, `watch` is told of every function that is entered."""
    before = sys.gettrace(), threading.gettrace()
    threading.settrace(watch)  # a score may have a thread of its own
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


# ------------------------------------------------------------------------------------------------ what is guarded


def guards_of(family: Any) -> tuple[CallGuard, ...]:
    """Blocks in the author's own modules that catch everything around a call which does more than read a text."""
    files = []
    for module in own_modules(family):
        with suppress(OSError):  # its file is gone
            files.append((module.__file__, os.stat(module.__file__).st_mtime_ns))
    return _guards_in(tuple(files))


@lru_cache(
    maxsize=4
)  # every check of an environment beside the same modules asks for the same ones
def _guards_in(files: tuple[tuple[str, int], ...]) -> tuple[CallGuard, ...]:
    """Of files, each with the time of its last change."""
    trees: dict[str, ast.Module] = {}
    code = AuthoredCode()
    for path, _ in files:
        tree = tree_of(path)
        if tree is not None:
            trees[path] = tree
            code.add(tree)
    code.settle()
    guards = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Try):
                guards += _guard(path, node, code)
    return tuple(guards)


def _guard(path: str, node: ast.Try, code: AuthoredCode) -> Iterator[CallGuard]:
    broad = next((handler for handler in node.handlers if _is_broad(handler)), None)
    if broad is None or any(isinstance(part, ast.Raise) for part in ast.walk(broad)):
        return
    calling = next((part for part in node.body if CallSummary.of(part).asks(code)), None)
    if calling is None:
        return
    caught = "a bare except" if broad.type is None else f"except {ast.unparse(broad.type)}"
    severe = any(CallSummary.of(part).asks_outside(code) for part in node.body)
    yield CallGuard(path, calling.lineno, broad.lineno, caught, severe)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind).split(".")[-1] in BROAD for kind in kinds)


class CallSummary(NamedTuple):
    """What a piece of code calls, each as the names of its path, and whether it raises an error of something outside."""

    calls: tuple[tuple[str, ...], ...]
    raises: bool

    @classmethod
    def of(cls, node: ast.AST) -> CallSummary:
        calls: list[tuple[str, ...]] = []
        raises = False
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                calls.append(tuple(ast.unparse(part.func).split(".")))
            elif isinstance(part, ast.Raise) and part.exc is not None:
                kind = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
                raises = raises or ast.unparse(kind).split(".")[-1] in RAISES
        return cls(tuple(calls), raises)

    def asks_outside(self, code: AuthoredCode) -> bool:
        """Whether it asks something outside, or calls own code that does."""
        for path in self.calls:
            if _reads_a_value(path):
                continue
            if path[-1] in code.outside or path[-1] not in code.own and OUTSIDE.intersection(path):
                return True
        return self.raises

    def asks(self, code: AuthoredCode) -> bool:
        """Whether it does more than read a text."""
        for path in self.calls:
            name = path[-1]
            if _reads_a_value(path):
                continue
            known = name in code.own or name in READS or hasattr(builtins, name)
            if not known or name in code.asking:
                return True
        return self.asks_outside(code)


def _reads_a_value(path: tuple[str, ...]) -> bool:
    """Whether it is a method that reads a text or a value, as in `text.split(">")`: a function of one's own that is called
    `split`, too, is another one."""
    is_method = len(path) > 1 and path[0] not in ("self", "cls", "super()")
    return is_method and path[-1] in READS and not OUTSIDE.intersection(path)


class AuthoredCode:
    """Functions of somebody's own by name, and those of them that ask something."""

    def __init__(self) -> None:
        self.own: dict[str, list[CallSummary]] = {}
        self.outside: set[str] = set()
        self.asking: set[str] = set()

    def add(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.own.setdefault(node.name, []).append(CallSummary.of(node))

    def settle(self) -> None:
        """Go on until no function is added for what it calls."""
        before = -1
        while before < len(self.outside) + len(self.asking):
            before = len(self.outside) + len(self.asking)
            for name, bodies in self.own.items():
                if any(body.asks_outside(self) for body in bodies):
                    self.outside.add(name)
                if any(body.asks(self) for body in bodies):
                    self.asking.add(name)
