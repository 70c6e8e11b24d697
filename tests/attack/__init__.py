"""An attack that makes itself up: `python -m tests.attack.drive --seed 1 --minutes 60 --out attacked`, or `make attack SEED=1`."""
