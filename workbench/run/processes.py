"""Which process is meant: ids are used again, and a wall clock may be set anew."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Identity:
    """One process among all that ever were.

    pid: its id.
    started: when it was started, in seconds after its machine was.
    machine: the name of that.
    """

    pid: int
    started: str
    machine: str


def identity(pid: int) -> Identity | None:
    """The process that has this id now; None where there is none, or only what is left of one that has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        # Both depend on the wall clock, their difference does not.
        started = process.create_time() - psutil.boot_time()
    except psutil.NoSuchProcess:
        return None
    return Identity(pid, f"{started:.2f}", socket.gethostname())
