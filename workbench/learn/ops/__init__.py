"""Pure functions on tensors: formula, source, shapes; no state, and nothing of ours imported but each other."""
