"""Trajectories of a run in the forms that other packages read: one module a kind of file, `job` and `conversation` for all.

Nothing here is a second way to keep a run: the run folder stays the truth, and what a form cannot hold is left out and
counted, never made up.
"""
