"""The code that the author of an environment wrote, put under other circumstances for a while: another clock, calls that fail.

modules.py   which modules are the author's own
clocks.py    another clock for those modules alone
branches.py  which branches of them are taken
pitfalls.py  expressions that rarely do what they look like
guards.py    blocks that catch everything, and how the first call in one is made to fail
"""
