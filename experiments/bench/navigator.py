"""How soon the navigator answers: a run of 1,000 steps, a step of 128 trajectories with 1,000 tokens each, and a trajectory of 32,000.

    python -m experiments.bench.navigator [--steps 1000] [--json FILE]

The runs are written for it; nothing is trained. What the kernel does is timed in this process; what the browser does in
Debian's chromium, on saved pages, from the click until the second frame after the tokens are in the page. Seconds are
those of the wall clock, so a busy machine shows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import workbench as wb
from workbench.look.cells.explored import Answers
from workbench.run.recording import create_run
from workbench.training.config import to_dict
from workbench.values import (
    CreditTable,
    Group,
    Message,
    Observation,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

GROUPS, TRAJECTORIES, LARGE = (
    16,
    8,
    5,
)  # groups and trajectories of a large step, and how many steps are large
METRICS = (
    "success",
    "reward_mean",
    "reward_std_within",
    "entropy",
    "grad_norm",
    "valid_format",
    "approx_kl",
    "kl_ref",
)
CONFIG = to_dict(wb.load_config("frozenlake"))

# Milliseconds from a click on a row until its tokens are painted.
CLICKED = """async row => { const node = document.querySelectorAll('.wb-step > .wb-scroll tbody tr')[row];
    document.querySelector('.wb-trajectory').replaceChildren(); const began = performance.now(); node.click();
    await new Promise(done => { const look = () => document.querySelector('.wb-tokens .wb-token')
        ? requestAnimationFrame(() => requestAnimationFrame(done)) : setTimeout(look, 1); look(); });
    return performance.now() - began; }"""
EDITED = """async () => { const editor = document.querySelector('.wb-editor'), began = performance.now(); editor.open = true;
    await new Promise(done => { const look = () => document.querySelector('.wb-code')
        ? requestAnimationFrame(() => requestAnimationFrame(done)) : setTimeout(look, 1); look(); });
    return performance.now() - began; }"""
SCROLLED = """async () => { const sheet = document.querySelector('.wb-tokens'), frames = []; let last = performance.now();
    for (let part = 0; part <= 60; part += 1) { sheet.scrollTop = sheet.scrollHeight * part / 60; await new Promise(requestAnimationFrame);
        frames.push(performance.now() - last); last = performance.now(); }
    return Math.max(...frames); }"""
SWITCHED = """async () => { const lanes = document.querySelector('select[aria-label="per-token metric"]'), began = performance.now();
    lanes.selectedIndex = 1; lanes.dispatchEvent(new Event('change'));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))); return performance.now() - began; }"""


def a_trajectory(
    rng: np.random.Generator, task: int, number: int, turns: int, tokens: int
) -> Trajectory:
    """A trajectory whose turns have `tokens` tokens each, three fifths of them not the policy's."""
    spans, own = [], tokens * 2 // 5
    for turn in range(turns):
        spans.append(
            Span(
                Source.ENV if turn else Source.PROMPT,
                max(0, turn - 1),
                rng.integers(100, 400, tokens - own),
            )
        )
        spans.append(
            Span(
                Source.POLICY,
                turn,
                rng.integers(100, 400, own),
                rng.normal(-1, 0.3, own).astype(np.float32),
                policy_version=1,
                sampled=True,
            )
        )
    said = Observation((Message("user", "Go on."),))
    return Trajectory(
        Task(f"lake/{task}", "lake", task),
        attempt=number,
        dynamics_seed=number,
        first_observation=said,
        segments=(Segment(tuple(spans)),),
        turns=tuple(
            Turn(turn, f"<answer>{rng.integers(99)}</answer>", reward=0.0, reply=said.messages)
            for turn in range(turns)
        ),
        outcome=float(rng.integers(2)),
        success=None,
        stop_reason=StopReason.TERMINATED,
    )


def credit(groups: list[Group], step: int) -> CreditTable:
    trajectories = [t for group in groups for t in group]
    source = np.concatenate([t.segments[0].sources for t in trajectories])
    eligible = np.concatenate([t.segments[0].eligible for t in trajectories])
    advantage = np.where(eligible, np.random.default_rng(step).normal(size=len(source)), 0.0)
    return CreditTable(
        step,
        0,
        {
            "trajectory": np.repeat(
                np.arange(len(trajectories), dtype=np.int32),
                [len(t.segments[0]) for t in trajectories],
            ),
            "source": source,
            "eligible": eligible,
            "advantage": advantage,
            "weight": eligible.astype(float),
            "ratio": np.where(eligible, 1.0, np.nan).astype(np.float32),
        },
    )


def write(path: Path, steps: int, groups_of: Callable[[int], list[Group]]) -> None:
    with create_run(path, CONFIG) as run:
        for step in range(1, steps + 1):
            groups = groups_of(step)
            run.write_step(step, groups)
            run.write_credit(credit(groups, step))
            run.commit_step(step, {name: 0.5 + 0.1 * float(np.sin(step)) for name in METRICS})


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - began)


def in_the_kernel(folder: Path, steps: int) -> dict[str, Any]:
    """Milliseconds until an answer is there, as JSON."""
    answers = Answers([wb.open_run(folder)])
    asked = lambda **question: _timed(lambda: json.dumps(answers.of(question).content))  # noqa: E731
    opened = asked(ask="runs")
    answers.of({"ask": "texts", "run": 0})
    large = [asked(ask="step", run=0, step=step) for step in range(steps - LARGE + 1, steps + 1)]
    every = [
        asked(ask="attempt", run=0, step=steps, task=task, attempt=number)
        for task in range(GROUPS)
        for number in range(TRAJECTORIES)
    ]
    edits = [
        {"columns": ["grpo"], "settings": {"normalize_std": False}}
        if number % 2
        else {"columns": ["grpo"], "rewards": [[number, 0, 0.5]]}
        for number in range(20)
    ]
    edited = [
        asked(
            ask="credit",
            run=0,
            step=steps,
            edit=json.dumps(edit),
            task=0,
            attempt=number % TRAJECTORIES,
        )
        for number, edit in enumerate([{}, *edits])
    ]
    return {
        "open_ms": opened,
        "step_ms": large,
        "attempt_ms": every,
        "editor_opened_ms": edited[0],
        "editor_edit_ms": edited[1:],
        "spread_ms": asked(ask="spread", run=0),
    }


def in_the_browser(run: Path, long: Path, steps: int, folder: Path) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    pages = [
        wb.explore(run, at=f"step {steps}").save(folder / "run.html"),
        wb.explore(long, at="step 1").save(folder / "long.html"),
    ]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.goto(pages[0].as_uri())
        page.wait_for_selector(".wb-step > .wb-scroll tbody tr")
        selected = []
        for row in range(0, GROUPS * TRAJECTORIES, 3):
            page.click(".wb-all")
            selected.append(page.evaluate(CLICKED, row))
        page.click(".wb-all")
        painted = page.evaluate(EDITED)
        heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
        page.goto(pages[1].as_uri())
        page.wait_for_selector(".wb-step > .wb-scroll tbody tr")
        found = {
            "select_ms": selected,
            "heap_mb": heap,
            "editor_paint_ms": painted,
            "long_first_ms": page.evaluate(CLICKED, 0),
            "long_worst_frame_ms": page.evaluate(SCROLLED),
            "long_lane_ms": page.evaluate(SWITCHED),
        }
        browser.close()
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    small = [Group(tuple(a_trajectory(rng, 0, number, 1, 20) for number in range(2)))]

    def large():
        return [
            Group(tuple(a_trajectory(rng, task, number, 8, 125) for number in range(TRAJECTORIES)))
            for task in range(GROUPS)
        ]  # noqa: E731

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(
            folder / "run", args.steps, lambda step: large() if step > args.steps - LARGE else small
        )
        write(folder / "long", 1, lambda step: [Group((a_trajectory(rng, 0, 0, 20, 1600),))])
        result = {
            "steps": args.steps,
            "attempts": GROUPS * TRAJECTORIES,
            "tokens": 1000,
            "long_tokens": 32_000,
            **in_the_kernel(folder / "run", args.steps),
            **in_the_browser(folder / "run", folder / "long", args.steps, folder),
        }
    for name, value in result.items():
        if isinstance(value, list):
            print(
                f"{name:22} median {np.median(value):8.1f}  95 of 100 within {np.quantile(value, 0.95):8.1f}  ({len(value)})"
            )
        else:
            print(f"{name:22} {value:,.1f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
