"""Environments in worker processes, which can be killed: for code that may hang, crash or flood.

    runner      ProcessRunner: which attempt lives where, deadlines, and running an attempt again from its seed
    worker      what happens inside a worker
    wire        families, tasks and answers as JSON: nothing that crosses can execute anything

How processes are born and ended, and what may cross at all, is `workbench.processes`.
A worker is a fence against accidents, not against malice: its code runs with the rights of whoever started the run.
"""
from workbench.workers.runner import ProcessRunner

__all__ = ["ProcessRunner"]
