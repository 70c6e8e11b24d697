"""The bias bench: what each algorithm's gradient is worth, on tasks where the true one is a formula.

`bench` measures, `claims` says what each algorithm claims, `tasks` has the tasks, `cell` and `command` are the ways in.
"""
