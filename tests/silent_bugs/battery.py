"""What a copy of the workbench is put through, and what its lint says of it: one process, a few seconds.

    python -m tests.silent_bugs.battery --json FILE       as JSON; without it, a few lines of text

Whatever `workbench` Python imports here is tried: rollouts over several chat templates, environments and histories,
with faults, hostile text and tools (`tests/linting/clean_rollouts.py`), and training with the shipped policy over
several algorithms, each step through `cells.step.train_step`, with all rules asked; at last a run that is left and resumed. On
code without a bug nothing here is an error. What a guard of the package refuses is written down beside the findings; where
it names the rule that says why, that rule has named it.

`--where ranks` tries trainings of two processes instead, `--where server` trainings beside a real vLLM server.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

HERE, PLACES = (
    "here",
    ("here", "ranks", "server"),
)  # one process; two that learn together; one beside a vLLM server
NAMED = re.compile(r"\(rule (R\d+)\)")
SHOWN = 3  # findings of one rule in one scene that are kept
SMALL = {
    "lint.mode": "warn",
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "env.max_moves": 6,
    "env.max_moves_per_action": 2,
}
STEPS = 2

# One training a line: preset and what is set beside SMALL. Declared ablations are among them: they are no errors. Rules
# that try settings and gradients (lint.start) are most of the time; they are left out where others ask the same.
TRAININGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo, pulled, several updates": (
        "frozenlake",
        {
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.entropy_coef": 0.01,
            "algorithm.epochs": 2,
            "algorithm.minibatches": 2,
            "env.reasoning_bonus": 0.1,
            "learner.warmup_updates": 3,
        },
    ),
    "ppo, pays for nearness": (
        "frozenlake",
        {
            "algorithm.kind": "ppo",
            "algorithm.estimator.gamma": 0.97,
            "algorithm.estimator.lam": 0.9,
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.minibatches": 2,
            "algorithm.critic.bootstrap": "truncated",
            "env.reasoning_bonus": 0.1,
            "lint.start": False,
        },
    ),
    "turn_ppo, window, padded, in pieces": (
        "frozenlake",
        {
            "algorithm.kind": "turn_ppo",
            "algorithm.objective.kind": "cispo",
            "algorithm.estimator.gamma": 0.9,
            "algorithm.estimator.lam": 0.8,
            "collect.history": "window",
            "collect.window": 1,
            "learner.layout": "padded",
            "learner.micro_batch_tokens": 600,
        },
    ),
    "reinforce_pp, fresh": (
        "frozenlake",
        {
            "algorithm.kind": "reinforce_pp",
            "algorithm.estimator.gamma": 0.9,
            "collect.history": "fresh",
            "lint.start": False,
        },
    ),
    "gspo, filtered, bent": (
        "frozenlake",
        {
            "algorithm.kind": "gspo",
            "algorithm.filter.keep": "top_share",
            "algorithm.filter.share": 0.67,
            "algorithm.epochs": 2,
            "algorithm.sampler_cap": 2.0,
            "collect.temperature": 0.7,
            "collect.top_p": 0.9,
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.reference.kl_estimator": "k2",
            "collect.history": "template",
        },
    ),
    "dapo, sequence means, dual clip": (
        "frozenlake",
        {
            "algorithm.kind": "dapo",
            "algorithm.reduction": "seq-mean-token-mean",
            "algorithm.objective.dual_clip": 3.0,
            "algorithm.epochs": 2,
        },
    ),
    "rloo on the bandit, paid nearness": (
        "bandit",
        {
            "algorithm.kind": "rloo",
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.reference.kl_in": "reward",
            "lint.start": False,
        },
    ),
    "ppo, declared: masks wide, shared trunk": (
        "frozenlake",
        {
            "algorithm.kind": "ppo",
            "algorithm.masks.advantage_mask": False,
            "algorithm.masks.loss_mask": False,
            "algorithm.entropy_coef": 0.01,
            "critic.trunk": "policy",
        },
    ),
    "ppo, a discounted bootstrap that acts": (
        "frozenlake",
        {
            "algorithm.kind": "ppo",
            "algorithm.critic.bootstrap": "truncated",
            "algorithm.estimator.gamma": 0.8,
            "env.max_moves": 2,
            "env.max_moves_per_action": 1,
            "algorithm.minibatches": 2,
            "lint.start": False,
        },
    ),
    "grpo, decayed, in half precision, cut turns": (
        "frozenlake",
        {"learner.weight_decay": 0.1, "learner.precision": "bf16", "collect.max_turn_tokens": 12},
    ),
    "grpo, adapters": (
        "frozenlake",
        {"learner.lora_rank": 4, "learner.lr": 1e-2, "lint.start": False},
    ),
    "grpo, sequence means, fresh": (
        "frozenlake",
        {
            "algorithm.reduction": "seq-mean-token-mean",
            "collect.history": "fresh",
            "lint.start": False,
        },
    ),
    "grpo, sampled in half precision": (
        "frozenlake",
        {"engine.dtype": "bfloat16", "algorithm.sampler_cap": 2.0, "lint.start": False},
    ),
    "search, paid for documents": (
        "search",
        {
            "env.rewards.process": 0.2,
            "env.documents": 2,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
        },
    ),
}
# Runs with evaluations, which are looked at as runs: preset and settings.
RUNS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "evaluated, several trajectories": ("frozenlake", {"env.slip": 0.2, "evaluation.attempts": 3}),
    "evaluated, search": ("search", {"env.rewards.process": 0.2}),
    "evaluated, a world of one's own that breaks, cut turns": (
        "frozenlake",
        {
            "env.kind": "tests.silent_bugs.own_world:Away",
            "collect.max_turn_tokens": 12,
            "train.steps": 1,
        },
    ),
    "sampled ahead": (
        "frozenlake",
        {
            "train.staleness": 1,
            "algorithm.sampler_cap": 2.0,
            "train.steps": 3,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 3,
        },
    ),
    "long sessions, environments in threads": (
        "frozenlake",
        {
            "train.steps": 4,
            "train.group_size": 8,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 4,
            "collect.env_runner": "threads",
            "env.max_moves": 16,
            "env.max_moves_per_action": 1,
        },
    ),
}
EVALUATED = {
    "train.steps": 2,
    "train.evaluate_every": 1,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 8,
    "lint.start": False,
}
# Families as they are, asked what is asked of them at the start: the rollouts' are wrapped, and hide their settings.
WORLDS = ("frozenlake-4x4-slip", "bandit", "sokoban-6x6", "world-qa", "countdown", "shop-small")
# Recipes of the corpus: enough that every preset, history, algorithm and template is among them.
RECIPES = 22
# And those to whom turns matter, where there are several.
BY_TURNS = (
    ("bilevel_ppo", "frozenlake-4x4-slip", "append"),
    ("gigpo", "sokoban-6x6", "window"),
    ("reinforce", "frozenlake-4x4-slip", "fresh"),
    ("turn_ppo", "sokoban-6x6", "append"),
)


class Notes:
    """What was said in one scene, collected."""

    def __init__(self) -> None:
        self.errors: dict[str, list[dict[str, Any]]] = {}
        self.counts: dict[str, int] = {}
        self.looked: set[str] = set()
        self.guards: list[str] = []
        self.crash: str | None = None

    def add(self, report: Any, strict: Sequence[str] = ()) -> None:
        """The errors of a LintReport, and of the rules in `strict` notes as well; rules that looked at something are noted, so
        that silence can be read."""
        for answer in report.answers:
            if answer.looked:
                self.looked.add(answer.rule)
            wrong = answer.findings if answer.rule in strict else answer.errors
            if wrong:
                found = [{"place": str(finding.place), "what": finding.what} for finding in wrong]
                kept = self.errors.setdefault(answer.rule, [])
                kept += found[: SHOWN - len(kept)]
                self.counts[answer.rule] = (
                    self.counts.get(answer.rule, 0) + len(found) + answer.further_errors
                )

    def add_dict(self, said: Mapping[str, Any]) -> None:
        """A LintReport that another process wrote down."""
        from workbench.basics.findings import LintReport

        self.add(LintReport.from_dict(said))

    def refused(self, words: str) -> None:
        """What a guard said. "(rule R33)" in it is what the lint calls it."""
        self.guards.append(words)
        for rule in NAMED.findall(words):
            self.errors.setdefault(rule, []).append({"place": "guard", "what": words})
            self.counts[rule] = self.counts.get(rule, 0) + 1

    def as_dict(self, seconds: float) -> dict[str, Any]:
        return {
            "errors": self.errors,
            "counts": self.counts,
            "looked": sorted(self.looked, key=_number),
            "guards": self.guards,
            "crash": self.crash,
            "cpu_seconds": round(seconds, 3),
        }


def _number(rule: str) -> int:
    return int(rule[1:]) if rule[1:].isdigit() else 0


# ------------------------------------------------------------------------------------------------ scenes


def scenes(where: str = HERE) -> Iterator[tuple[str, Callable[[Notes], None]]]:
    """(name, what to do). Each is independent of the others, so that a guard that ends one leaves the rest."""
    if where != HERE:
        from tests.silent_bugs import several

        trainings, play = (
            (several.RANKED, several.ranks)
            if where == "ranks"
            else (several.SERVED, several.server)
        )
        yield from (
            (f"{where}: {name}", lambda notes, name=name: play(notes, name)) for name in trainings
        )
        return
    from tests.linting.clean_rollouts import Recipe, recipes

    turns = [
        Recipe("tiny", preset, history, algorithm, tasks=3, max_turn_tokens=24, seed=100 + number)
        for number, (algorithm, preset, history) in enumerate(BY_TURNS)
    ]
    for recipe in [*recipes(RECIPES), *turns]:
        yield f"rollouts: {recipe.about}", lambda notes, recipe=recipe: _rollouts(notes, recipe)
    for name, (preset, settings) in TRAININGS.items():
        yield (
            f"training: {name}",
            lambda notes, preset=preset, settings=settings: _training(notes, preset, settings),
        )
    for name in WORLDS:
        yield f"world: {name}", lambda notes, name=name: _world(notes, name)
    for history, template in (("append", "qwen3"), ("fresh", "tiny")):
        yield (
            f"tools: scripted, {history}",
            lambda notes, history=history, template=template: _tools(notes, history, template),
        )
    yield "programs: sound ones", _programs
    for name, (preset, settings) in RUNS.items():
        yield (
            f"run: {name}",
            lambda notes, preset=preset, settings=settings: _evaluated_run(notes, preset, settings),
        )
    yield "run: left and resumed", _resumed_run
    yield "run: its newest checkpoints are lost", lambda notes: _resumed_run(notes, lost=(2, 3))
    yield (
        "run: resumed with a critic",
        lambda notes: _resumed_run(
            notes, more={"algorithm.kind": "ppo", "algorithm.estimator.gamma": 0.97}
        ),
    )
    yield (
        "run: resumed with a reference",
        lambda notes: _resumed_run(
            notes, more={"algorithm.reference.kl_coef": 0.05, "learner.weight_decay": 0.1}
        ),
    )


def _rollouts(notes: Notes, recipe: Any) -> None:
    from tests.linting.clean_rollouts import collected
    from workbench.linting import lint_evidence

    notes.add(lint_evidence(collected(recipe)))


def _training(notes: Notes, preset: str, settings: Mapping[str, Any]) -> None:
    """STEPS steps as training makes them. A rule asked by `train_step` in step 1 is asked with its `start` rules."""
    from workbench.look.cells.train import train_step

    session = _session(preset, settings)
    for step in range(1, STEPS + 1):
        outcome = train_step(session, step)
        if outcome.lint is not None:
            notes.add(outcome.lint)
        notes.guards += [
            f"update skipped: {report.skipped}"
            for report in outcome.reports
            if report.skipped is not None and report.skipped.startswith("not finite")
        ]


def _session(preset: str, settings: Mapping[str, Any]) -> Any:
    from workbench.training.config import load_config
    from workbench.training.session import open_session

    small = (
        dict(SMALL)
        if preset == "frozenlake"
        else {k: v for k, v in SMALL.items() if not k.startswith("env.")}
    )
    config = load_config(preset, small | settings)
    return open_session(config, quiet=True)


def _world(notes: Notes, name: str) -> None:
    from workbench.linting import Evidence, lint_evidence
    from workbench.worlds import PRESETS

    notes.add(lint_evidence(Evidence(family=PRESETS[name], about=name), ("start",)))


def _tools(notes: Notes, history: str, template: str) -> None:
    from tests.silent_bugs.scripted_tools import scripted
    from workbench.linting import lint_evidence

    notes.add(lint_evidence(scripted(history, template)))


def _programs(notes: Notes) -> None:
    """Programs that ask a model over HTTP, each sound in its way: what the rules only note of others is wrong of these."""
    from tests.silent_bugs.own_programs import collected
    from workbench.extensions.agents.agent_rules import RULES
    from workbench.linting import lint_evidence

    notes.add(lint_evidence(collected(), ("step",)), strict=[rule.id for rule in RULES])


def _evaluated_run(notes: Notes, preset: str, settings: Mapping[str, Any]) -> None:
    from workbench.look.cells.lint import lint
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    small = {
        key: value
        for key, value in SMALL.items()
        if preset == "frozenlake" or not key.startswith("env.")
    }
    with tempfile.TemporaryDirectory(prefix="battery-") as folder:
        notes.add(
            lint(
                train_here(load_config(preset, small | EVALUATED | settings), Path(folder) / "run")
            ).report
        )


def _resumed_run(notes: Notes, lost: Sequence[int] = (), more: Mapping[str, Any] = {}) -> None:
    """A run of two steps, gone on with to its third; then the whole folder. `lost`: checkpoints of a run of three that
    are taken away first, so that the steps since the one before them are repeated from what is stored."""
    from workbench.look.cells.lint import lint
    from workbench.look.cells.train import resume_here, train_here
    from workbench.training.config import load_config

    settings = (
        SMALL
        | {
            "train.steps": 3 if lost else 2,
            "train.checkpoint_every": 1 if lost else 2,
            "train.keep_checkpoints": 3,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "algorithm.estimator.normalize_std": False,
            "lint.start": False,
            "learner.warmup_updates": 5,
        }
        | more
    )
    if settings.get("algorithm.kind", "grpo") != "grpo":
        del settings["algorithm.estimator.normalize_std"]
    with tempfile.TemporaryDirectory(prefix="battery-") as folder:
        path = Path(folder) / "run"
        train_here(load_config("frozenlake", settings), path)
        for step in lost:
            shutil.rmtree(path / "checkpoints" / f"step-{step:08d}")
        run = resume_here(path, {"train.steps": 3}, on_note=None)
        notes.add(lint(run).report)
        for step in run.steps():
            if (said := run.lint(step)) is not None:
                notes.add(said)


# ------------------------------------------------------------------------------------------------ all of them


def run_all(
    only: str = "", until: frozenset[str] = frozenset(), where: str = HERE
) -> dict[str, Any]:
    """{scene: what was said in it} and the totals. `only`: scenes whose name holds one of these words, between bars.
    `until`: no further scene once one of these rules ("any" of them) has found an error."""
    from workbench.values.errors import WorkbenchError

    began, found = time.process_time(), {}
    for name, scene in scenes(where):
        if not any(words in name for words in only.split("|")):
            continue
        notes, started = Notes(), time.process_time()
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                scene(notes)
        except WorkbenchError as error:
            notes.refused(f"{type(error).__name__}: {error}")
        except Exception as error:  # broken code may raise anything; that, too, is an answer
            frame = traceback.extract_tb(error.__traceback__)[-1]
            notes.crash = (
                f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            )
        found[name] = notes.as_dict(time.process_time() - started)
        if until & set(notes.errors) or "any" in until and notes.errors:
            break
    return {"scenes": found, "cpu_seconds": round(time.process_time() - began, 3)}


def merged(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """{rule: its findings, with their scenes}, in the order of rules."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for name, scene in found["scenes"].items():
        for rule, findings in scene["errors"].items():
            rules.setdefault(rule, []).extend({"scene": name, **finding} for finding in findings)
    return {rule: rules[rule] for rule in sorted(rules, key=_number)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.silent_bugs.battery", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument(
        "--only", default="", help="scenes whose name holds this, or 'one|of|these'"
    )
    parser.add_argument(
        "--until",
        default="",
        help="rules (R1,R6; any): stop after the scene in which one finds an error",
    )
    parser.add_argument(
        "--where",
        choices=PLACES,
        default=HERE,
        help="which scenes: of one process, of two, beside a server",
    )
    options = parser.parse_args(arguments)
    found = run_all(options.only, frozenset(filter(None, options.until.split(","))), options.where)
    if options.json:
        Path(options.json).write_text(json.dumps(found))
        return 0
    for name, scene in found["scenes"].items():
        said = ", ".join(f"{rule} {count}" for rule, count in scene["counts"].items())
        print(f"{scene['cpu_seconds']:6.2f} s  {name}: {said or 'clean'}")
        for line in scene["guards"] + ([scene["crash"]] if scene["crash"] else []):
            print(f"          {line[:300]}")
    for rule, findings in merged(found).items():
        print(f"{rule}: {findings[0]['scene']}: {findings[0]['place']}: {findings[0]['what']}")
    print(
        f"{found['cpu_seconds']:.1f} CPU-seconds; looked: "
        + " ".join(
            sorted({rule for s in found["scenes"].values() for rule in s["looked"]}, key=_number)
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
