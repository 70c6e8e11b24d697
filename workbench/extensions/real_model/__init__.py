"""One pretrained model, small enough for two cores, and a game of several turns that it learns by reinforcement."""
