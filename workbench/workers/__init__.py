"""Environments in worker processes, which can be killed: for code that may hang, crash or flood.

    runner      ProcessRunner: which attempt lives where, deadlines, and running an attempt again from its seed
    supervisor  the small process between: forks workers, kills them, and takes all of them with it when it goes
    worker      what happens inside a worker
    wire        families, tasks and answers as JSON: nothing that crosses can execute anything

A worker is a fence against accidents, not against malice: its code runs with the rights of whoever started the run.
"""
from workbench.workers.runner import ProcessRunner

__all__ = ["ProcessRunner"]
