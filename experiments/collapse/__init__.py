"""Runs that collapse, runs that only look ill, and what warned of it: `make collapse`."""
