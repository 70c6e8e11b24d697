"""Rules of the lint about a run's environment: R14, R20, R24 to R31, R39. Stored trajectories are played once more and compared with
what is stored, and what the run evaluated, paid and split is compared with what it says.

    table.py     all of them, in the order of the lint
"""
