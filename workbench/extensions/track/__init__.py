"""A run followed from another process, and what it writes sent to a tracker: trackio, wandb, mlflow or tensorboard."""
