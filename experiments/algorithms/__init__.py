"""Every algorithm on the same tasks, with the same budget, beside its baselines: `make algorithms`."""
