"""Does anything learn on the device: the shipped policies, and one pretrained model of 135 million parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from experiments.gpu_check.device import Figures, Keep, peak_gb, start_memory, until
from experiments.gpu_check.plan import Setting
from workbench.extensions.real_model.higher_lower import HigherLower
from workbench.look.cells.train import train_step, usual_instruments
from workbench.rollouts.evaluate import Score
from workbench.training.config import Config, load_config
from workbench.training.session import baselines, evaluate, open_session
from workbench.values.errors import WorkbenchError

SHIPPED = ("frozenlake", "search", "sokoban")
GAPS = ("logp_gap_mean", "logp_gap_max")
PHASES = ("collect_s", "update_s", "sync_s", "lint_s", "store_s", "credit_s")


# ------------------------------------------------------------------------------------------------ shipped policies


def shipped(setting: Setting, keep: Keep) -> Figures:
    """Presets trained as they ship, with the engine in the device's dtype, as far as there is time: success before and after on
    256 held-out tasks, the gap between engine and trainer (rule R23 of the lint refuses one that is too large), seconds of a step by phase."""
    found: Figures = {"rows": []}
    for name in SHIPPED:
        settings: dict[str, Any] = {
            "policy.device": setting.device,
            "engine.dtype": setting.dtype,
            "learner.precision": setting.precision,
            "evaluation.num_tasks": 256,
        }
        if setting.tiny:
            settings |= {
                "train.steps": 2,
                "train.tasks_per_step": 2,
                "train.group_size": 4,
                "evaluation.num_tasks": 4,
            }
        row = _trained(setting, load_config(name, settings), 0.7 * setting.seconds / len(SHIPPED))
        found["rows"].append({"preset": name, **row})
        keep(found)
    return found


# ------------------------------------------------------------------------------------------------ a pretrained model


def real(setting: Setting, keep: Keep) -> Figures:
    """The pretrained model guesses numbers: as many steps as there is time for, held-out games before and after."""
    # What is left after the evaluation and the last checkpoint is kept for them.
    return _trained(setting, guessing(setting), 0.75 * setting.seconds, keep)


def guessing(setting: Setting) -> Config:
    """Higher or lower, as the model comes: no warm start, all weights, five guesses, and the number is what pays. Raises
    NoModel without a folder."""
    if not setting.model:
        raise NoModel(
            "there is no folder of the model; --model FOLDER names it (experiments/gpu_check.sh --join makes it)"
        )
    settings: dict[str, Any] = {
        "policy.name": setting.model,
        "policy.device": setting.device,
        "engine.dtype": setting.dtype,
        "engine.max_context": 512,
        "learner.precision": setting.precision,
        "learner.lr": 2e-5,
        "collect.max_turn_tokens": 6,
        "collect.temperature": 0.8,
        "train.tasks_per_step": 4 if setting.tiny else 16,
        "train.group_size": 4 if setting.tiny else 8,
        "train.steps": 2 if setting.tiny else 200,
        "evaluation.num_tasks": 4 if setting.tiny else 128,
    }
    return load_config(HigherLower(max_turns=5, pay="found"), settings)


class NoModel(WorkbenchError):
    """The part needs a model that is not here."""


# ------------------------------------------------------------------------------------------------ one run


def _trained(
    setting: Setting, config: Config, seconds: float, keep: Keep = lambda found: None
) -> Figures:
    """Evaluate, train until the steps or the seconds are over, evaluate again. Nothing is stored: it is the weights that are
    asked, not a folder."""
    left = until(seconds)
    start_memory(setting)
    found: Figures = {"metrics": [], "clock": []}
    with closing(open_session(config, quiet=True)) as session:
        instruments = usual_instruments(config)
        found["baselines"] = list(map(_short, baselines(session)))
        found["before"] = list(map(_short, evaluate(session)))
        keep(found)
        for step in range(1, config.train.steps + 1):
            outcome = train_step(session, step, instruments=instruments)
            found["metrics"].append(_kept(outcome.metrics | {"step": step}))
            found["clock"].append({name: outcome.clock.get(name, 0.0) for name in PHASES})
            found["peak_gb"] = peak_gb(setting)
            keep(found)
            if left() < 0:
                break
        found["steps"] = step
        found["after"] = list(map(_short, evaluate(session)))
    found["gap"] = {name: max(row.get(name, 0.0) for row in found["metrics"]) for name in GAPS}
    return found


def _short(score: Score) -> Mapping[str, Any]:
    row = score.row()
    wanted = (
        "policy",
        "mode",
        "n",
        "success",
        "success_low",
        "success_high",
        "valid_format",
        "tokens",
    )
    return {name: row[name] for name in wanted if name in row}


def _kept(row: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = ("step", "success", "reward_mean", "valid_format", "entropy", "trained_tokens", *GAPS)
    return {name: float(row[name]) for name in wanted if row.get(name) is not None}
