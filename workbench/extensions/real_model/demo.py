"""The demo with a pretrained model: a warm start, then reinforcement, and beside it as many games of fine-tuning more.

    base ── fine-tuning ──▶ warm start ┬─ reinforcement ────▶ trained
                                       └─ more fine-tuning ─▶ as many games, shown instead of played

The last one works meanwhile in a process of its own, on the other core. All play the same held-out tasks as random play
and the solver, and every difference is paired task by task.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from workbench.basics.beside import safe_children
from workbench.basics.extensions import service
from workbench.extensions.real_model.maker import model_folder
from workbench.extensions.real_model.skill import skill_of
from workbench.look import doc
from workbench.look.html import view_from
from workbench.rollouts.evaluate import Score, compare
from workbench.run.store import Run, step_name
from workbench.run.writer import make_folder, write_file
from workbench.training.config import Config, from_dict, load_config, to_dict
from workbench.training.session import evaluate, open_session
from workbench.values import View, trajectories_of
from workbench.values.errors import ConfigError, StoreError

PRESET = Path(__file__).parent / "higher_lower.toml"
DEMONSTRATIONS = 96
LR = 1e-3  # the largest, while games are shown
BASE = "untrained"
WARM = "warm start"
TUNED = "more fine-tuning"
TRAINED = "trained"
CLEAR_OF = (
    "random",
    BASE,
    WARM,
)  # to have learned is to be clear of these; of TUNED it is said apart
Rows = list[dict[str, Any]]
Train = Callable[[Config, Path], Run]


def games_of(config: Config) -> int:
    """How many games a run plays."""
    return config.train.steps * config.train.tasks_per_step * config.train.group_size


def real_demo(
    model: str,
    seeds: Sequence[int],
    out: Path | None,
    settings: Mapping[str, Any],
    train: Train,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Make the model's folder if it is not there, train once per seed, judge each; `table.json` in `out` says all of it.

    `train(config, path)` trains a run in this process. Raises ConfigError for a seed that stands twice, StoreError where a
    table lies in `out` already.
    """
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"every seed is a run of its own, but one occurs twice in {list(seeds)}")
    out = out or Path("runs") / f"demo-{model}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (out / "table.json").exists():
        raise StoreError(f"{out / 'table.json'} is there already; choose another folder")
    base = model_folder(model, say=say)
    config = load_config(PRESET, settings)
    make_folder(out)
    results = []
    for seed in seeds:
        result = one_seed(replace(config, seed=seed), base, out / f"seed-{seed}", train, say)
        results.append(result)
        say(seed_words(result))
    table = {"model": model, "learned": all(r["learned"] for r in results), "seeds": results}
    write_file(out / "table.json", (json.dumps(table, indent=1) + "\n").encode())
    say(f"table: {out / 'table.json'}")
    return table


def one_seed(
    config: Config, base: Path, out: Path, train: Train, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Everything of one seed below the new folder `out`; its rows, differences and checks."""
    began = time.monotonic()
    make_folder(out)
    clock = time.process_time()
    warm = shown(config, base, out / "warm-start", count=DEMONSTRATIONS, say=say)
    warm_cpu = time.process_time() - clock
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as beside:
        # As text: the values of a configuration hold functions, which do not travel.
        settings = to_dict(config)
        with safe_children():
            controls = beside.submit(_controls, settings, base, warm, out / "more-fine-tuning")
        controls.add_done_callback(partial(_say_failure, say))
        named = replace(config, policy=replace(config.policy, name=str(warm)))
        run = train(named, out / "run")
        rows, tuned_cpu = controls.result()
    rows = [*rows_of_run(run), *rows]
    columns = [name for name in run.clock() if name.endswith("_cpu_s")]
    cpu = {"warm start": warm_cpu, "reinforcement": float(run.clock()[columns].to_numpy().sum())}
    return {
        "seed": config.seed,
        "rows": rows,
        **judged(rows),
        "games": games_of(config),
        "demonstrations": DEMONSTRATIONS,
        "cpu_seconds": cpu | {"more fine-tuning": tuned_cpu},
        "wall_seconds": time.monotonic() - began,
    }


def _say_failure(say: Callable[[str], None], controls: Future) -> None:
    """At once: the run beside it lasts a quarter of an hour."""
    if error := controls.exception():
        say(f"the controls beside the run failed, so this seed will have no verdict: {error}")


def _controls(settings: Mapping[str, Any], base: Path, warm: Path, out: Path) -> tuple[Rows, float]:
    """Rows of the untrained model and of the warm start after as many games more, and the CPU seconds of those."""
    config = from_dict(settings)
    clock = time.process_time()
    games = games_of(config)
    shown(config, warm, out, count=games, first=DEMONSTRATIONS)
    spent = time.process_time() - clock
    return [*evaluated(config, base, BASE), *evaluated(config, out, TUNED)], spent


def shown(
    config: Config,
    policy: Path,
    out: Path,
    *,
    count: int,
    first: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """The policy after `count` games of the careful player, who names any number that is left, from number `first` on: a
    player without a plan, so that halving remains to be learned. Returns the new folder `out`."""
    # Twice as fast where the CPU multiplies bfloat16; there is no sampler that it would have to agree with.
    settings = {"learner.precision": "bf16"}
    warm_start = service("warm_start", "the demo with a pretrained model")
    made = warm_start(
        policy, config, out, settings, tasks=count, first=first, player="careful", lr=LR, say=say
    )
    return made.folder


def evaluated(config: Config, folder: Path, name: str) -> Rows:
    """Rows of the policy in a folder on the held-out tasks: sampled, and greedy."""
    config = replace(config, policy=replace(config.policy, name=str(folder)))
    session = open_session(config, quiet=True)
    return [row_of(score, score.played) for score in evaluate(session, name=name)]


def row_of(score: Score, groups: Sequence[Any]) -> dict[str, Any]:
    """A score's row, with what the policy can do."""
    played = trajectories_of(groups)
    return score.row() | ({"skill": skill_of(played).row()} if played else {})


def rows_of_run(run: Run) -> Rows:
    """Of the first and the last evaluation: what a run calls untrained is its warm start."""
    last = step_name(len(run.steps()))
    rows = []
    for name, renamed in ((step_name(0), {"untrained": WARM}), (last, {})):
        played = run.evaluated(name)
        for row in run.evaluations()[name]["rows"]:
            policy = row["policy"]
            if name == step_name(0) or policy == TRAINED:
                score = replace(Score.of_row(row), policy=renamed.get(policy, policy))
                rows.append(row_of(score, played.get(f"{policy}-{row['mode']}", ())))
    return rows


def judged(rows: Rows) -> dict[str, Any]:
    """Is the trained policy's greedy play clear of random play, of the untrained policy and of the warm start? Paired over
    the held-out tasks, 95 %. More fine-tuning is another way to learn the same: its difference is among the pairs, and no
    check asks for it."""
    scores = {}
    for row in rows:
        scores.setdefault(row["policy"], {})[row["mode"]] = Score.of_row(row)
    trained = scores[TRAINED]["greedy"]
    paired = []
    for name in (*CLEAR_OF, TUNED):
        modes = scores[name]
        paired.append(compare(modes.get("greedy") or modes["sampled"], trained))
    checks = {
        f"greedy success is above that of {pair['a']}, its paired 95 % interval above 0": pair[
            "low"
        ]
        > 0
        for pair in paired[: len(CLEAR_OF)]
    }
    return {"paired": paired, "checks": checks, "learned": all(checks.values())}


HEADER = (
    "policy",
    "success, greedy",
    "sampled",
    "valid turns",
    "tokens a turn",
    "among those left",
    "waste",
)
ORDER = ("solver", "random", BASE, WARM, TUNED, TRAINED)


def rows_view(rows: Rows) -> View:
    """Every policy's success and skill on the same tasks, and what the trained one is above the others."""
    by_policy: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_policy.setdefault(row["policy"], {})[row["mode"]] = row
    verdict = judged(rows)
    return view_from(
        doc.Heading("learned" if verdict["learned"] else "NOT learned"),
        doc.Table(list(HEADER), [_cells(name, by_policy[name]) for name in ORDER]),
        *(doc.Note(_difference(pair)) for pair in verdict["paired"]),
    )


def seed_words(result: Mapping[str, Any]) -> str:
    """The same of a seed, as text, with its cost."""
    cost = ", ".join(f"{name} {spent:.0f}" for name, spent in result["cpu_seconds"].items())
    return (
        f"seed {result['seed']}: {rows_view(result['rows']).text}\n"
        f"CPU seconds: {cost}; {result['wall_seconds'] / 60:.1f} minutes in all"
    )


def _difference(pair: Mapping[str, Any]) -> str:
    figures = [100 * pair[name] for name in ("difference", "low", "high")]
    return "{} over {}: {:+.1f} [{:+.1f}, {:+.1f}] points".format(pair["b"], pair["a"], *figures)


def _cells(name: str, modes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    cells = [name]
    for mode in ("greedy", "sampled"):
        row = modes.get(mode)
        cells.append("" if row is None else _rate(row))
    skill = modes.get("greedy", {}).get("skill") or {}
    for key in ("valid", "tokens", "inside", "waste"):
        value = skill.get(key)
        cells.append("" if value is None else f"{value:.2f}")
    return cells


def _rate(row: Mapping[str, Any]) -> str:
    return "{:.1f} [{:.1f}, {:.1f}]".format(
        *(100 * row[name] for name in ("success", "success_low", "success_high"))
    )
