"""The two tables of Agent-R1's paper at this size: methods, and masks. `make search-methods`, `make search-masks`."""
