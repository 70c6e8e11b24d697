"""From trajectories to new weights: batch, credit, loss, optimizer updates.

`ops/` are pure tensor functions; `batch` lays trajectories end to end; algorithms give credit and a loss; the learner
makes the updates; `replay` recomputes the credit of a stored step.
"""
