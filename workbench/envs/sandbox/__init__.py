"""Boxes for code that nobody has read: an agent's, or a program that a data set brought.

    boxes     what is used: open_sandbox, Sandbox.run, fork, files     supply   where boxes come from: warm, by tier
    limits    the settings of a box
    commands  boxes that bubblewrap, Docker or Apptainer shuts in
    zygote    the process that boxes are forked from                  confine  how a process shuts itself in
    guest     what runs inside; virtual: clock and chance that stand still; values: plain values across
    filters   which of the system's calls may be made                 calls    those that shut a box in, by ctypes
    users     a root and users of a box's own

What runs inside (zygote, confine, users, guest, virtual, values, filters, calls) is standard library only.
"""
