"""A warm start: a policy is trained on what a player does in training tasks, before rewards."""
