"""The league: silent bugs planted into runs of TRL, a legitimate twin of each, and what every tool said of every run.

    python -m experiments.league run --seed 0 --json FILE      every tool on every run
    python -m experiments.league cost --json FILE              what each costs, alone, on runs without a bug
    python -m experiments.league join FILE ... --json FILE     the league of several seeds and of the cost

`make league` does all three in an environment that has the tools. How it is counted: `counting.py`; what is planted where:
`corpus.py`; how each tool is attached: `tools.py`.
"""
