"""What there is by a short name: presets, environments, algorithms, one line each.

wb.presets()        wb.envs() (or wb.environments())        wb.algorithms()
"""

from __future__ import annotations

from workbench.learn.algorithms import ALGORITHMS
from workbench.look import show_rows
from workbench.training.config import PRESETS
from workbench.values import View
from workbench.worlds import ENVS
from workbench.worlds import PRESETS as ENV_PRESETS


def presets() -> View:
    """Whole configurations: `wb.load_config(name)`."""
    return show_rows(
        [
            {
                "preset": name,
                "environment": config.kind_of("env"),
                "algorithm": config.algorithm.name,
                "policy": config.policy.name,
                "steps": config.train.steps,
            }
            for name, config in PRESETS.items()
        ],
        title="presets: wb.load_config(name), workbench train NAME",
    )


def environments() -> View:
    """Kinds of environments: `env.kind`, and their presets for `workbench play`."""
    rows = [
        {
            "env.kind": name,
            "what it is": _first_line(ENVS[name].__doc__),
            "presets": ", ".join(
                preset for preset, family in ENV_PRESETS.items() if type(family) is ENVS[name]
            ),
        }
        for name in ENVS
    ]
    return show_rows(rows, title="environments: env.kind=NAME, or my_env:Guess of your own")


def algorithms() -> View:
    """Algorithms: `algorithm.kind`."""
    rows = [
        {
            "algorithm.kind": name,
            "advantage of a token": _first_line(algorithm.estimator.function.__doc__),
            "objective": algorithm.objective.name,
            "critic": "yes" if algorithm.critic else "",
        }
        for name, algorithm in ALGORITHMS.items()
    ]
    return show_rows(rows, title="algorithms: algorithm.kind=NAME, or my_module:MINE of your own")


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".")
