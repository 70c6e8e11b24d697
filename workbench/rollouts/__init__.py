"""Trajectories: `collect` lets an engine play environments, `evaluate` scores a policy beside its baselines, `metrics` counts."""
