"""Environments played without a policy: by scripts, by the family's own solver and random play, by stored actions.

    playing.py    one played trajectory: what was shown, answered, paid and raised
    paid.py       success and payment of played trajectories, held against each other
    given.py      an environment as the checks take it: trajectories by several ways to play
    leaks.py      whether a text holds a task's answer
    sharing.py    trajectories played among others, and what they share; reachable.py: what can be reached from a value
    words.py      the solver's words on their way through a policy's tokenizer, template and stop tokens; variations.py: harmless
                  variations of them; written_numbers.py: numbers as texts write them

It judges nothing. `inspect_worlds`, `inspect_tasks` and `world_rules` ask their questions of what it plays, and import it: the
one extension that others stand on.
"""
