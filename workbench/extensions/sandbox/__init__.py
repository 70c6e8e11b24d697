"""Sandboxes for code that nobody has read: an agent's, or a program that a data set brought.

    sandboxes   what is used: open_sandbox, Sandbox.run, fork, files     pool   where sandboxes come from: warm, by tier
    limits      the settings of a sandbox
    commands    sandboxes that bubblewrap, Docker or Apptainer shuts in
    forkserver  the process that sandboxes are forked from                  confine  how a process shuts itself in
    worker      what runs inside; virtual: clock and chance that stand still; values: plain values across
    filters     which of the system's calls may be made                 calls    those that shut a sandbox in, by ctypes
    users       a root and users of a sandbox's own

What runs inside (forkserver, confine, users, worker, virtual, values, filters, calls) is standard library only.
"""
