"""Every error a user can meet, in one vocabulary.

Each class also inherits the standard error it refines, so `except ValueError` keeps working. A message says three
things: what was expected, what came, what to do. A failed *rollout* is not an error at all: it is a `Trajectory`
with a named stop reason (invariant 10), counted and shown.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from difflib import get_close_matches

# Folders whose code is nobody's own: this package, Python's library, installed packages.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = ("/site-packages/", "/dist-packages/")


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> str:
    """Suggest the nearest of the known words: "did you mean 'lam'?". Upper and lower case are the same.

    most    suggestions
    cutoff  how near they must be (1: the same); "" where none is
    """
    lower = {name.lower(): name for name in sorted(known)}
    letters = sorted(word.lower())
    swapped = [name for name in lower if sorted(name) == letters]  # gpro, grpo
    close = swapped[:most] or get_close_matches(word.lower(), lower, n=most, cutoff=cutoff)
    if not close:
        return ""
    return f"did you mean {' or '.join(repr(lower[name]) for name in close)}?"


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest, for an unknown word, the nearest known one; without one, list all of them."""
    known = sorted(known)
    return did_you_mean(word, known) or f"known: {', '.join(known)}"


def own_line(error: BaseException) -> traceback.FrameSummary | None:
    """The line of the user's own code that an error, or its cause, comes from: the innermost one that belongs neither to
    this package nor to Python nor to an installed package. None where there is none."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and all(cause is not link for link in chain):
        chain.append(cause)
    for link in reversed(chain):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if _is_own(frame.filename):
                return frame
    return None


def _is_own(file: str) -> bool:
    if file.startswith("<"):  # made by a program, but for what was typed
        return file.startswith(("<ipython-input", "<stdin"))
    if file.endswith((".pyx", ".pxi")):  # compiled, under the name that it had where it was built
        return False
    installed = any(folder in file for folder in _INSTALLED)
    return not installed and not file.startswith((_PACKAGE, _LIBRARY))


def where_raised(error: BaseException) -> str:
    """The file's name and the line of the user's own code that an error comes from ("my_env.py:12"); of an error that comes
    from none, its innermost line, "" where it has no traceback."""
    line = own_line(error)
    for innermost in traceback.extract_tb(error.__traceback__)[-1:]:
        line = line or innermost
    return f"{os.path.basename(line.filename)}:{line.lineno}" if line else ""


def _shown(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]


def shortened(value: object, most: int = 60) -> str:
    """A value as Python writes it, cut; its type, where Python cannot write it (nested too deeply)."""
    try:
        words = repr(value)
    except Exception:
        words = f"a {type(value).__name__}"
    return words if len(words) <= most else words[: most - 3] + "..."


class WorkbenchError(Exception):
    """Base of all errors that this package raises on purpose. A notebook shows one as a sentence below one line of the
    user's code; `%xmode Verbose`, then `%tb`, shows every line that it came through."""

    def __str__(self) -> str:
        """The message, in which nothing acts in a terminal: names and values in it may be a stranger's."""
        return "".join(map(_shown, super().__str__()))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, in lines."""
        from IPython import get_ipython

        shell = get_ipython()
        if shell is None:
            return traceback.format_exception(self)
        if shell.InteractiveTB.mode == "Verbose":
            parts = (type(self), self, self.__traceback__)
            return shell.InteractiveTB.structured_traceback(*parts)
        lines = [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]
        if line := own_line(self):
            cell = shell.compile.format_code_name(line.filename)
            place = " ".join(cell) if cell else f"File {line.filename} in {line.name}"
            lines[:0] = [f"{place}, line {line.lineno}", f"----> {line.lineno} {line.line}", ""]
        return lines


class MissingNameError(WorkbenchError, AttributeError):
    """Something public is asked for by a name that it does not have; the message says which is meant."""


class ConfigError(WorkbenchError, ValueError):
    """A setting is unknown, contradictory or does nothing (invariant 11)."""


class MissingPackageError(ConfigError, ModuleNotFoundError):
    """A package that an extra brings is not installed; the message says which extra."""


class ChatFormatError(WorkbenchError, ValueError):
    """A chat template or tokenizer cannot be used safely, or text became a control token (invariants 2 and 9)."""


class DataError(WorkbenchError, ValueError):
    """Trajectories, groups or batches that break an invariant: misaligned, mixed tasks, missing facts."""


class EnvError(WorkbenchError, RuntimeError):
    """An environment or a task is wrong in a way that its author must fix."""


class ToolError(WorkbenchError, ValueError):
    """A tool cannot be offered: its schema, its signature or where it comes from is wrong. (A *call* that goes wrong is
    no error of ours: it is text that the agent can act on.)"""


class SearchError(WorkbenchError, RuntimeError):
    """A searcher outside this process gave no usable answer in time."""


class EngineError(WorkbenchError, RuntimeError):
    """A sampler could not answer, or answered something that cannot be true."""


class PolicyError(WorkbenchError, ValueError):
    """A model or tokenizer could not be loaded, or the two do not fit each other."""


class LearnerError(WorkbenchError, RuntimeError):
    """Training cannot go on: wrong number of processes, nothing to train, non-finite numbers in a row."""


class LintError(WorkbenchError, ValueError):
    """The lint found an error, and no update was made; `report` has all findings."""

    report: object = None


class StoreError(WorkbenchError, OSError):
    """A run folder or checkpoint is missing, damaged, of another format, or could not be written."""
