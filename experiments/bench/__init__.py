"""Our step against TRL's on the same work, interleaved, and what our own parts cost: `python -m experiments.bench`."""
