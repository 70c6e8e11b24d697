"""Signals that may warn of a collapse of training, step by step, and alarms over them."""
