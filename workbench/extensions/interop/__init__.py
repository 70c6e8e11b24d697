"""Rollouts of other frameworks in, trajectories of ours out; the lint of arrays as they were found."""
