"""Where the time of a step goes: `workbench train --profile`.

sections    seconds of named parts of a program, each without the parts within it
training    what of a training step is such a part, and where it is written down
table       the table that is printed, made from a run's clock
"""
