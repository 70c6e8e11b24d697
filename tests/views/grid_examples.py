"""Views of a grid, as functions of the foreign text in them: labels, settings, reasons and file names are a user's."""

from __future__ import annotations

from collections.abc import Callable

from workbench.extensions.ablation.views.doses import dose_view, heat_view
from workbench.extensions.ablation.views.forest import show_forest
from workbench.extensions.ablation.views.interactions import interaction_view
from workbench.extensions.ablation.views.plans import show_forecast, show_jobs
from workbench.extensions.ablation.views.power import show_power
from workbench.values import View

JUDGED = {
    "mean": 0.05,
    "low": -0.01,
    "high": 0.11,
    "verdict": "undecided",
    "why": "",
    "lacking": None,
    "margin": 0.02,
    "more_seeds": 3,
    "more_tasks": None,
}


def arm(text: str, rate: float, width: int) -> dict:
    runs = {
        str(seed): {
            "sampled": [rate, 0.1 * seed],
            "notebook": f"notebooks/{text}.ipynb",
            "run": text,
        }
        for seed in (0, 1)
    }
    return {
        "label": f"{text}, rate = {rate}",
        "at": {"rate": rate, "width": width, "text": text},
        "seeds": runs,
        "sampled": {
            "mean": rate,
            "low": rate - 0.1,
            "high": None if width == 2 else rate + 0.1,
            "lowest": 0.0,
            "highest": 0.5,
        },
    }


def table(text: str) -> dict:
    arms = {
        f"a{n}": arm(text, rate, width)
        for n, (rate, width) in enumerate(((0.01, 1), (0.1, 1), (0.01, 2), (0.1, 2)))
    }
    pairs = [
        {
            "first": name,
            "second": "a0",
            "sampled": JUDGED | {"each": {"0": {"mean": 0.02}, "1": {"mean": 0.08}}},
        }
        for name in ("a1", "a2")
    ]
    control = {
        "kind": "A/A",
        "words": text,
        "check": {"words": text, "held": False, "why": text},
        "sampled": JUDGED | {"each": [0.01, 0.02]},
    }
    return {
        "title": f"grid {text}",
        "seeds": [0, 1],
        "arms": arms,
        "compared": pairs,
        "controls": [control],
        "interactions": [
            {
                "axes": ["rate", "width"],
                "weights": {"a0": 1, "a1": -1, "a2": -1, "a3": 1},
                "sampled": JUDGED | {"each": {"0": {"mean": 0.02}}},
            }
        ],
        "power": {
            "seed": 0.001,
            "task": 0.04,
            "rest": 0.17,
            "runs": 5,
            "tasks": 64,
            "few": 5,
            "level": 0.01,
            "family": 2,
            "margin": 0.02,
        },
    }


def plan(text: str) -> dict:
    return {
        "title": text,
        "name": "a",
        "notebook": text,
        "all": {text: 1},
        "seeds": [0, 1],
        "tally": "4 jobs: 4 waiting",
        "left": 4,
        "arms": [
            {"name": "a", "label": text, "base": text, "inert": inert, "set": {text: text}}
            for inert in (False, True)
        ],
        "cost": {"of": 1, "each": 1.25, "left": 5.0},
        "compare": 2,
        "margin": 2,
        "looks": [5],
        "controls": True,
        "tuning": text,
        "speaks": text,
        "rows": "seeds",
        "detect": [{"difference": 4.1, "if": text}],
    }


VIEWS: dict[str, Callable[[str], View]] = {
    "forest": lambda x: show_forest(table(x)),
    "dose": lambda x: dose_view(table(x), "rate"),
    "heat": lambda x: heat_view(table(x)),
    "interaction": lambda x: interaction_view(table(x), "rate", "width"),
    "interaction, undeclared": lambda x: interaction_view(table(x) | {"interactions": ()}),
    "power": lambda x: show_power(table(x)),
    "forecast": lambda x: show_forecast(plan(x)),
    "jobs": lambda x: show_jobs(f"2 jobs, {x}", [(x, x, x), ("b", "failed", x)]),
}
