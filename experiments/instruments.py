"""What the instruments notice and cost, as figures: the tables of docs/evidence/instruments.md.

    python -m experiments.instruments imported --json FILE    faults planted into files that other frameworks wrote
    python -m experiments.instruments audit --json FILE       faults injected into the engine: are they named?
    python -m experiments.instruments credit --json FILE      the credit editor's speed, gae_over, tokenizing again
    python -m experiments.instruments clean --json FILE       the lint on clean rollouts: does it complain?
    python -m experiments.instruments lint RUN ... --json FILE     the lint's share of the CPU time of stored runs

The faults and rollouts are those of the tests (`tests/imported`, `tests/mismatch`, `tests/linting`); here their size is kept, not only the verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.mismatch import mismatch_kit as kit

Result = dict[str, Any]


# ------------------------------------------------------------------------------------------------ imported rollouts


def imported() -> Result:
    """Every planted fault: the rules that named it; and the files as they were written: the rules that complained."""
    import workbench as wb
    from tests.imported.planted import FILES, PLANTED, rows_of, write
    from tests.imported.planted_dumps import FAULTS, FORKS, LOG_JSON, TREES, content_of, put

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for planted in PLANTED:
            changed = rows_of(planted.file)
            planted.plant(changed)
            named = wb.lint(write(changed, Path(folder) / Path(planted.file).name)).named
            rows.append(
                {
                    "file": planted.file,
                    "fault": planted.name,
                    "thread": planted.thread,
                    "rule": planted.rule,
                    "named": list(named),
                }
            )
        for fault in FAULTS:
            content = content_of(fault.file)
            fault.plant(content)
            report = wb.lint(put(content, fault.file, Path(folder))).report
            speaks = any(fault.words in f.what for f in report[fault.rule].findings)
            named = [name for name in report.named if name not in fault.also]
            rows.append(
                {
                    "file": fault.file,
                    "fault": fault.name,
                    "thread": "",
                    "rule": fault.rule,
                    "named": named if fault.severity == "error" else [fault.rule] * speaks + named,
                }
            )
    clean = sorted(
        str(path.relative_to(FILES))
        for path in FILES.rglob("*")
        if path.suffix in (".jsonl", ".parquet", ".eval") or path.name in (TREES, FORKS, LOG_JSON)
    )
    return {
        "planted": rows,
        "clean": [{"file": file, "named": list(wb.lint(FILES / file).named)} for file in clean],
    }


# ------------------------------------------------------------------------------------------------ engine and trainer


def _stale(session: Any) -> None:
    from workbench.look.cells.train import train_step

    kit.sync_one_behind(session)
    for step in (2, 3):
        train_step(session, step)


def _left_behind(part: Callable[[str], bool], session: Any) -> None:
    from workbench.look.cells.train import train_step

    kit.keep_back(session, part)
    train_step(session, 2)


def _undeclared_half(session: Any) -> None:
    session.engine.config = replace(session.engine.config, dtype="float32")


# What is said to be wrong: (the kind that must be named, settings of the session, what is done to it after its first
# update). An adapter comes on the weights that the session was opened with: that is what an engine holds that never got it.
FAULTS: Mapping[str, tuple[str, Mapping[str, Any], Callable[[Any], None]]] = {
    "temperature": ("temperature", {"collect.temperature": 0.7}, kit.lie_about_sampling),
    "top-p": ("top-p", {"collect.top_p": 0.8}, kit.lie_about_sampling),
    "one update stale": ("stale weights", {}, _stale),
    "tied head": ("output head", {}, partial(_left_behind, lambda name: name == "lm_head.weight")),
    "a layer not refreshed": (
        "part of the weights",
        {},
        partial(_left_behind, lambda name: name.startswith("model.layers.1.")),
    ),
    "bfloat16 head": ("dtype", {}, partial(kit.half_precision, head_only=True)),
    "a whole engine in bfloat16": ("dtype", {"engine.dtype": "bfloat16"}, _undeclared_half),
    "positions": ("positions", {}, kit.shift_positions),
    "logprobs of the neighbour": ("positions", {}, kit.shift_logprobs),
    "adapter not merged": ("adapter", {}, kit.add_adapter),
}
# Declared, so no fault.
CLEAN = (
    {},
    {"engine.dtype": "bfloat16"},
    {"learner.precision": "bf16"},
    {"engine.dtype": "bfloat16", "learner.precision": "bf16"},
)


def audited(seeds: Sequence[int] = (10, 11, 12)) -> Result:
    """Each fault at each seed, and clean states of two policies: what was named, the mean gap in nats per sampled token,
    and what is left of it once the named cause is accounted for."""
    from workbench.engines.gap import TRAINING_LIMITS
    from workbench.extensions.engine_audit.audit import audit
    from workbench.extensions.engine_audit.report import MismatchReport
    from workbench.training.config import load_config
    from workbench.training.session import open_session

    def told(report: MismatchReport) -> Result:
        return {
            "named": list(report.named),
            "gap": report.gap.mean,
            "left": report.left.mean,
            "tokens": report.gap.tokens,
        }

    rows, clean = [], []
    for name, (kind, settings, injure) in FAULTS.items():
        for seed in seeds:
            session = kit.session_after(0 if kind == "adapter" else 1, seed, **settings)
            injure(session)
            rows.append(
                {
                    "fault": name,
                    "kind": kind,
                    "seed": seed,
                    **told(audit(session, tasks=1, attempts=4, control=False)),
                }
            )
    for preset in ("frozenlake", "sokoban"):
        for settings in CLEAN:
            for seed in seeds[:2]:
                config = load_config(preset, kit.SMALL | {"seed": seed} | settings)
                report = audit(open_session(config, quiet=True), tasks=1, attempts=4, control=False)
                clean.append({"preset": preset, "settings": settings, "seed": seed, **told(report)})
    return {
        "faults": rows,
        "clean": clean,
        "limits": {
            str(dtype).removeprefix("torch."): list(limits)
            for dtype, limits in TRAINING_LIMITS.items()
        },
    }


# ------------------------------------------------------------------------------------------------ credit


def credit(edits: int = 40) -> Result:
    """CPU seconds of drawing the picture anew after each of `edits` changed rewards; what `gae_over` changes before
    whitening, at lambda 1 and 0.5; what comes back when sampled answers are decoded and encoded again."""
    import workbench as wb
    from workbench.look.cells.credit import edited_groups

    session = wb.open_session(wb.load_config("frozenlake"), quiet=True)
    times = {}
    for tasks in (1, 16):
        groups = wb.rollout(session, tasks, group_size=8)
        edited = edited_groups(groups, "grpo", token_texts=session.chat.token_texts)
        times[str(8 * tasks)] = [_redrawn(edited, number, 8 * tasks) for number in range(edits)]
    again = {}
    for temperature in (1.6, 1.0):
        config = replace(session.config.collect, temperature=temperature)
        found = wb.retokenize(session, wb.rollout(session, 4, group_size=8, config=config))
        again[str(temperature)] = {
            "turns": len(found.turns),
            "changed": found.changed,
            "others": found.damage.others,
        }
    return {"redraw_cpu_s": times, "gae_over": _gae_over(), "again": again}


def _redrawn(edited: Any, number: int, attempts: int) -> float:
    from workbench.look.cells.edits import Edit

    began = time.process_time()
    view = edited.view(Edit("grpo", {}, {(number % attempts, 0): 0.25 + number / 100}))
    assert view.html and view.text
    return time.process_time() - began


def _gae_over(steps: int = 4) -> Result:
    """Largest change of an action token's advantage, by lambda, where the timeline of GAE runs over the response."""
    import workbench as wb
    from workbench.learn.algorithms import PPO
    from workbench.look.cells.credit import credited
    from workbench.look.cells.credit_settings import with_settings
    from workbench.look.credited import largest_change

    session = wb.open_session(
        wb.load_config("frozenlake-ppo", {"train.tasks_per_step": 4}), quiet=True
    )
    for step in range(1, steps + 1):
        wb.train_step(session, step)
    batch = wb.facts(session, wb.rollout(session, 4, group_size=8))
    found = {}
    for lam in (1.0, 0.5):
        narrow = PPO(estimator={"gamma": 1.0, "lam": lam, "whiten": False})
        wide = with_settings(narrow, {"masks.gae_over": "response"})
        found[str(lam)] = float(
            largest_change(
                credited(batch, wide).advantage_T,
                credited(batch, narrow).advantage_T,
                batch.eligible_T.numpy(),
            )
        )
    return {"action_tokens": int(batch.eligible_T.sum()), "largest_change": found}


# ------------------------------------------------------------------------------------------------ the lint


def clean(most: int | None = None) -> Result:
    """Clean rollouts of every template family, history, environment and algorithm, the corpus of
    `tests/linting/test_clean.py`: how many trajectories, and the rules that complained. `most`: only so many recipes."""
    from tests.linting.clean_rollouts import TEMPLATES, collected, recipes
    from workbench.linting import all_rules, check
    from workbench.worlds import PRESETS

    rules = [rule for rule in all_rules().values() if rule.when in ("step", "update")]
    made = recipes(most or len(TEMPLATES) * len(PRESETS) * 2, TEMPLATES, seed=1000)
    attempts, errors = 0, []
    for recipe in made:
        evidence = collected(recipe)
        attempts += len(evidence.trajectories)
        errors += [{"recipe": recipe.about, "rule": rule} for rule in check(evidence, rules).named]
    return {
        "attempts": attempts,
        "errors": errors,
        "recipes": len(made),
        "rules": len(rules),
        **{
            name: len({getattr(recipe, name[:-1]) for recipe in made})
            for name in ("templates", "presets", "algorithms")
        },
    }


def lint(paths: Sequence[Path]) -> Result:
    """Of each run: the preset, steps, and mean CPU milliseconds of a step and of the lint in it (the first step, which
    warms up, apart); errors that it found. Both numbers are of one process, so their ratio holds on a busy machine."""
    from workbench.run.store import open_run

    rows = []
    for path in paths:
        run = open_run(path)
        clock = run.clock()
        cpu = clock[[name for name in clock if name.endswith("_cpu_s")]].astype(float).iloc[1:]
        reports = [report for step in run.steps() if (report := run.lint(step)) is not None]
        tokens = (
            run.metrics()["tokens"].astype(float).iloc[1:].mean()
            if "tokens" in run.metrics()
            else None
        )
        rows.append(
            {
                "env": run.config["env"]["kind"],
                "algorithm": run.config["algorithm"]["kind"],
                "steps": len(run.steps()),
                "attempts": len([t for g in run.groups(run.steps()[-1]) for t in g]),
                "tokens": tokens,
                "step_cpu_ms": 1e3 * float(cpu.sum(axis=1).mean()),
                "lint_cpu_ms": 1e3 * float(cpu["lint_cpu_s"].mean()),
                "looked": len(reports),
                "errors": sorted({rule for report in reports for rule in report.named}),
            }
        )
    return {"runs": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures, and say how many there are."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.instruments", description=__doc__.split("\n")[0]
    )
    parser.add_argument("what", choices=("imported", "audit", "credit", "clean", "lint"))
    parser.add_argument("runs", nargs="*", type=Path, help="of lint: run folders")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    options = parser.parse_args(arguments)
    if bool(options.runs) != (options.what == "lint"):
        parser.error("name run folders for lint, and for nothing else")
    makers = {
        "imported": imported,
        "audit": audited,
        "credit": credit,
        "clean": clean,
        "lint": partial(lint, options.runs),
    }
    result = makers[options.what]()
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        f"{options.what}: "
        + ", ".join(
            f"{len(part)} {name}" for name, part in result.items() if hasattr(part, "__len__")
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
