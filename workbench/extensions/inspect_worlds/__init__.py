"""Worlds, inspected: an environment is played to see whether it does what it says.

    checks/      E1 to E34, asked of an environment that somebody writes: `workbench check-env`, `wb.check_env`

Those of tasks and answers stand in `inspect_tasks`, what plays the environment in `scripted_play`; the lint asks its own rules
of a run's environment in `world_rules`.
"""
