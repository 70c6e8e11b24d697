"""Pure functions on tensors: formula, source, shapes; no state, nothing of ours imported. One idea a file."""
