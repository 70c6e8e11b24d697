"""What a driver of the negative control sends. A worker that takes such a job imports this file, and locks nothing from then
on: a job's lock is taken before what it does is called."""

from __future__ import annotations

from tests.faults.grid_driver import NoLock, do_noted
from workbench.extensions.ablation import work

work.FolderLock = NoLock
work.claim_file = lambda path, content: True


def do_unlocked(job, plan, out, cwd, cell_limit_s=None):
    """Do a job as `do_noted` does, while others may do it too."""
    return do_noted(job, plan, out, cwd, cell_limit_s)
