"""A first environment, tool or algorithm of one's own, written as a module with its test and settings."""
