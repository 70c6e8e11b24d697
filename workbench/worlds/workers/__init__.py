"""Environments in worker processes: deadlines, and running a trajectory again from its seed after a crash.

env_runner  ProcessRunner: the runner whose environments live in processes
env_slots   which trajectory lives in which worker
env_wire    calls and answers as JSON, and what a worker does with them
"""
