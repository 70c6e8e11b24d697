"""Worlds, inspected: environments are played to see whether they do what they say, and stored trajectories are compared with
what they answer.

    playing.py   one played trajectory: what was shown, answered, paid and raised
    checks/      E1 to E34, asked of an environment that somebody writes: `workbench check-env`, `wb.check_env`
    words.py     the solver's words on their way through a policy's tokenizer, template and stop tokens; variations.py: harmless
                 variations of them
    rules/       R14, R20, R24 to R31, R39, asked by the lint of the trajectories and the environment of a run

Both sets are queries over the same played trajectories.
"""
