"""Every error a user can meet, in one vocabulary.

Each class also inherits the standard error it refines, so `except ValueError` keeps working. A message says three
things: what was expected, what came, what to do. A failed *attempt* is not an error at all: it is a `Trajectory`
with a named stop reason (law 10), counted and shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> str:
    """ "did you mean 'lam'?": the nearest of the known words, at most so many, in whatever letters; "" where none is as
    near as `cutoff` (1: the same)."""
    lower = {name.lower(): name for name in sorted(known)}
    close = [
        name for name in lower if sorted(name) == sorted(word.lower())
    ]  # letters that changed places: gpro, grpo
    close = close[:most] or get_close_matches(word.lower(), lower, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(lower[name]) for name in close)}?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say of a word that is none of those known: the nearest, else all of them."""
    known = sorted(known)
    return did_you_mean(word, known) or f"known: {', '.join(known)}"


class WorkbenchError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(WorkbenchError, ValueError):
    """A setting is unknown, contradictory or does nothing (law 11)."""


class ChatFormatError(WorkbenchError, ValueError):
    """A chat template or tokenizer cannot be used safely, or text became a control token (laws 2 and 9)."""


class DataError(WorkbenchError, ValueError):
    """Trajectories, groups or batches that break a law: misaligned, mixed tasks, missing facts."""


class EnvError(WorkbenchError, RuntimeError):
    """An environment or a task is wrong in a way that its author must mend."""


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
    """The lint found an error before an update would have been made of it; `report` has all that it found."""

    report: object = None


class StoreError(WorkbenchError, OSError):
    """A run folder or checkpoint is missing, damaged, of another format, or could not be written."""
