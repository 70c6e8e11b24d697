"""A warm start: a policy is trained on the solver's turns in training tasks, before rewards."""
