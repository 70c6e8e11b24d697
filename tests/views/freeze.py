"""The text of every view, kept in frozen.json: whatever builds a view, its text stays byte for byte.

    python tests/views/freeze.py            which texts are others now
    python tests/views/freeze.py --write    after a wanted change: write them, then read the difference

Written with the code of commit d2f010b, in which every view still made its text by hand; since then a line feed inside a
cell of a table is drawn as ⏎ everywhere (six of the hostile texts broke their tables). `golden/` holds a smaller set, for
people to read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, Path(__file__).parent, ROOT / "tests/ablation"):
    sys.path.insert(0, str(folder))

import test_arms_table as arms  # noqa: E402
import test_views_live as live  # noqa: E402
import views_examples as examples  # noqa: E402

import workbench as wb  # noqa: E402
from tests.golden_runs.make_old import old_runs, shown  # noqa: E402
from workbench.extensions.ablation.views.arms import show_arm_curves, show_arms  # noqa: E402
from workbench.extensions.bias.view import show_bias  # noqa: E402
from workbench.extensions.collapse.probes import ProbeRecord  # noqa: E402
from workbench.extensions.collapse.signals import SIGNALS, RunSignals  # noqa: E402
from workbench.extensions.collapse.step_signals import StepSignals  # noqa: E402
from workbench.extensions.talk import events as talks  # noqa: E402
from workbench.extensions.talk.view import TalkExchange, TalkLines, talk_view  # noqa: E402
from workbench.look import (  # noqa: E402
    config_view,
    curves_view,
    diff_view,
    live_view,
    show_counts,
    show_masks,
    show_rows,
    show_tokens,
)
from workbench.look.live import Status  # noqa: E402

FROZEN = Path(__file__).parent / "frozen.json"
HOSTILE = "<b onclick=1>\x1b[1m\u202e |$\n日本"


def bias_report(text: str) -> SimpleNamespace:
    row = dict(
        algorithm="grpo",
        label=f"GRPO {text}",
        says="unbiased",
        why=text,
        task="bandit-0.1",
        unit="turn",
        units=1234,
        exact=True,
        true=(0.25, -0.5),
        estimate=(0.25, -0.4),
        scale=0.9,
        cosine=0.98,
        bias=1e-9,
        noise=1.5,
        drawn=0,
        error=None,
        z=None,
        verdict=f"exact {text}",
        holds=True,
    )
    rows = [
        SimpleNamespace(**row),
        SimpleNamespace(**{**row, "task": "chain", "cosine": None, "scale": -0.2, "holds": False}),
        SimpleNamespace(
            **{**row, "label": "RLOO", "exact": False, "drawn": 4096, "error": 0.0123, "z": 1.25}
        ),
        SimpleNamespace(**{**row, "label": "PPO", "says": "biased", "bias": 0.4}),
    ]
    traps = (
        SimpleNamespace(shown=True, title=f"a trap {text}", lines=(text, "second")),
        SimpleNamespace(shown=False, title="another", lines=("x",)),
    )
    curves = (
        SimpleNamespace(safe_payout=0.5, attempts=2, risky_P=(0.1, 0.5), difference_P=(-0.2, 0.1)),
    )
    return SimpleNamespace(
        rows=tuple(rows),
        traps=traps,
        faults=(f"a fault {text}",),
        notes=(f"a note {text}",),
        curves=curves,
        lagged=lagged_rows(text),
        passed=False,
    )


def lagged_rows(text: str) -> tuple[SimpleNamespace, ...]:
    """Two corrections at two lags, and a term of KL that points back."""
    row = dict(
        kind="correction",
        task=f"chain {text}",
        label=f"per token {text}",
        lag=0,
        says="unbiased",
        drift=0.02,
        scale=1.0,
        bias=0.0,
        noise=1.5,
        verdict=f"exact {text}",
        points_back=False,
        holds=True,
    )
    return (
        SimpleNamespace(**row),
        SimpleNamespace(**{**row, "lag": 8, "bias": 0.3, "says": "biased", "drift": 0.4}),
        SimpleNamespace(**{**row, "kind": "kl", "bias": 1.7, "points_back": True, "scale": -0.7}),
    )


def exchange(text: str, *, ended: bool = True) -> TalkExchange:
    """One of every event, in the words of `text`."""
    return TalkExchange(tuple(talk_events(text))[: None if ended else 3])


def monitored_run(text: str) -> RunSignals:
    """Three steps of a retreat: what was not computed has no column."""
    steps = tuple(
        StepSignals(
            step,
            **dict.fromkeys(SIGNALS)
            | {"success": 0.5 / step, "turns": 4.0 - step, "flat_lost": 0.25 * step},
        )
        for step in (1, 2, 3)
    )
    return RunSignals(
        f"run {text}", steps, (ProbeRecord(2, "greedy", 0.25, -0.5, -0.75, -0.25),), 9
    )


def other_views(text: str) -> dict[str, Callable[[], object]]:
    """Views that `views_examples.VIEWS` lacks, as a function of the foreign text in them."""
    status = Status(f"run {text}", "running", 7, 20, f"step 8: {text}", 83.0, (f"skipped {text}",))
    rows, beside = (
        live.rows(7, explained_variance=0.3, approx_kl=1e-3),
        live.evaluation("random", "untrained", text),
    )
    ended = Status("first", "failed", 3, None, "", 9.0, (text,))
    return {
        "arms": lambda: show_arms(arms.table(none=(0.45, 0.66, 0.47))),
        "arm curves": lambda: show_arm_curves(arms.table()),
        "bias": lambda: show_bias(bias_report(text)),
        "bias, empty": lambda: show_bias(
            SimpleNamespace(
                rows=(), traps=(), faults=(), notes=(), curves=(), lagged=(), passed=True
            )
        ),
        "status": lambda: status.view(),
        "live": lambda: live_view(status, rows, beside, hint=f"hint {text}"),
        "live, nothing yet": lambda: live_view(
            Status("first", "running", 0, None, "starting"), [], {}
        ),
        "live, ended": lambda: live_view(ended, rows, beside),
        "diff": lambda: diff_view(
            live.diff(), live.rows(3), live.rows(4), live.evaluation("random")
        ),
        "diff, long": lambda: diff_view(
            live.diff(steps=tuple(range(999)), table={"metrics": ("≠",) * 999})
        ),
        "diff, equal": lambda: diff_view(
            live.diff(exact=True, settings=(), differences=(), credit=(), notes=())
        ),
        "talk": lambda: talk_view(
            [exchange(text), exchange("go on")], title=f"talk {text}", remark=f"remark {text}"
        ),
        "talk, unfinished": lambda: talk_view([exchange(text, ended=False)]),
        "talk, nothing yet": lambda: talk_view([]),
        "talk, many": lambda: talk_view([exchange("a")] * 40),
        "talk, in colour": lambda: SimpleNamespace(
            text="".join(map(TalkLines(True).of, exchange(text).events))
        ),
        "config, alone": lambda: config_view({"a": {text: 1.5, "b": text}, "c": ()}),
        "rows, many": lambda: show_rows(
            [{"step": n, "value": n / 7, text: None} for n in range(60)], title=text
        ),
        "curves, remark": lambda: curves_view(
            examples.steps(7), title=text, remark=f"remark {text}"
        ),
        "masks, many": lambda: show_masks(
            [examples.group(text)] * 40, max_rows=100, max_columns=20
        ),
        "tokens, many segments": lambda: show_tokens(
            examples.trajectory(segments=examples.rewritten() * 9),
            examples.token_texts,
            max_tokens=300,
        ),
        "tokens, edited": lambda: examples.credit_example(text),
        "signals": lambda: wb.show(monitored_run(text)),
        "signals, nothing yet": lambda: wb.show(RunSignals(f"run {text}", (), (), 0)),
    }


def of_a_run(run: object) -> dict[str, Callable[[], object]]:
    """What the golden texts of an old run leave out. Not what the lint says: its words are its own."""
    groups, row = run.groups(1), run.metrics().iloc[0].to_dict()
    return {
        "views": lambda: SimpleNamespace(text=shown(run)),
        "counts": lambda: show_counts(groups),
        "config": lambda: config_view(run.config, {**run.config, "seed": 99}),
        "metrics": lambda: wb.show_metrics(row, row),
        "rows": lambda: show_rows(run.evaluations().popitem()[1]["rows"]),
        "mask switches": lambda: wb.show_mask_switches(groups),
        "estimators": lambda: wb.show_estimators(groups, ["grpo", "rloo", "ppo"]),
        "editor": lambda: wb.edit_step(run, 1, attempt=2).view(),
        "editor, edited": lambda: wb.edit_step(run, 1).after(rewards={(0, 0): 2.0}),
        "groups": lambda: SimpleNamespace(text="\n".join(wb.show(group).text for group in groups)),
        "attempts": lambda: SimpleNamespace(text="\n".join(wb.show(t).text for t in groups[0])),
        "all tokens": lambda: SimpleNamespace(
            text="\n".join(
                wb.show(run, step=1, task=task, attempt=1, tokens=True).text
                for task in range(len(groups))
            )
        ),
    }


def cases() -> dict[str, Callable[[], object]]:
    found = {}
    for which, text in (("calm", "go on"), ("hostile", HOSTILE)):
        found |= {
            f"{name}, {which}": (lambda make=make, text=text: make(text))
            for name, make in examples.VIEWS.items()
        }
        found |= {f"{name}, {which}": make for name, make in other_views(text).items()}
    for path in old_runs():
        found |= {
            f"{path.name}: {name}": make for name, make in of_a_run(wb.open_run(path)).items()
        }
    found["two runs"] = lambda: wb.show(wb.compare_runs(*old_runs()[1:3]))
    return found


def text_of(make: Callable[[], object]) -> str:
    """The text; of what is refused, the reason."""
    try:
        return make().text.replace(str(ROOT), "ROOT")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def talk_events(text: str):
    """A function of its own: the events' names are the only thing here that may change."""
    yield from (
        talks.QuestionEvent(f"Where? {text}"),
        talks.TextEvent(0, f"<think>{text}"),
        talks.TextEvent(0, "</think>"),
        talks.TurnEvent(0, f"<think>{text}</think>ok", "length"),
        talks.MovesEvent(0, ("Left", text)),
        talks.ToolCallEvent(0, f"search {text}", {"query": text}),
        talks.ToolResultEvent(0, f"search {text}", f"found {text}"),
        talks.ToolResultEvent(0, "search", text, "bad_call"),
        talks.MessageEvent(0, "user", f"told {text}"),
        talks.FormatErrorEvent(0, f"unreadable {text}"),
        talks.TextEvent(1, "half"),
        talks.AnswerEvent(1, f"Vienna {text}"),
        talks.EndEvent(
            "terminated", f"over {text}", examples.trajectory(text), 99, f"error {text}"
        ),
    )


def main() -> int:
    os.chdir(ROOT)
    now = {name: text_of(make) for name, make in cases().items()}
    if "--write" in sys.argv:
        FROZEN.write_text(json.dumps(now, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
        print(f"{len(now)} texts, {FROZEN.stat().st_size:,} bytes")
        return 0
    before = json.loads(FROZEN.read_text(encoding="utf-8"))
    other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    for name in other:
        print(f"--- {name}, before\n{before.get(name)}\n+++ {name}, now\n{now.get(name)}")
    print(f"{len(now)} texts, {len(other)} are others now: {', '.join(other)}")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
