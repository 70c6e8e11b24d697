"""Processes that run other people's code and can be killed: their birth, their end, and what crosses.

    supervisor  the small process between: forks workers, kills them, and takes all of them with it when it goes
    frames      messages end to end on a socket, none longer than the reader takes
    values      settings as JSON that names classes and functions, and back: nothing that crosses can execute anything

Environments (`workbench.workers`) and tools (`workbench.tools`) both stand on it. A worker is a fence against
accidents, not against malice: its code runs with the rights of whoever started the run.
"""
