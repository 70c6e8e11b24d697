"""The live view: one output, drawn only when there is news and not too often, last of all in its final form."""

from __future__ import annotations

import re
import threading
import time

import pytest

from tests.store_values import ordinary_step
from tests.test_train import tiny
from workbench.notebook import live
from workbench.notebook.live import LiveView
from workbench.notebook.live_run import RunningRun
from workbench.run.recording import create_run
from workbench.training.config import to_dict

ROWS = [
    {
        "policy": policy,
        "mode": "sampled",
        "n": 8,
        "success": level,
        "success_low": level - 0.1,
        "success_high": level + 0.1,
        "reward": level,
    }
    for policy, level in (("random", 0.2), ("untrained", 0.4), ("solver", 0.9))
]


class Pretended:
    """A process that ends when it is told to; waiting for it takes no time."""

    status = None

    def __init__(self):
        self.over, self.asked = threading.Event(), 0

    def ended(self, within_s=0.0):
        return self.over.wait(min(within_s, 0.02))

    def ask(self):
        self.asked += 1


class Recorder:
    """A screen that remembers what it was shown."""

    def __init__(self, *_):
        self.shown, self.lines = [], []

    def show(self, status, rows, evaluations):
        self.shown.append((status.state, status.step, len(rows), len(evaluations)))

    def line(self, status):
        self.lines.append(status)


@pytest.fixture
def scene(tmp_path):
    """(writer, process, view, screen, clock): a run under way, and a view of it with a clock of its own."""
    now = [0.0]
    with create_run(tmp_path / "run", to_dict(tiny(train__steps=9))) as run:
        process, screen = Pretended(), Recorder()
        view = LiveView(
            RunningRun(tmp_path / "run", process),
            every_s=2.0,
            screen=lambda _: screen,
            clock=lambda: now[0],
        )
        view._screen = screen
        yield run, process, view, screen, now


def commit(run, step: int) -> None:
    run.write_step(step, ordinary_step(step))
    run.commit_step(
        step,
        {
            "success": 0.5,
            "reward_mean": 0.5,
            "reward_std_within": 0.1,
            "grad_norm": 1.0,
            "entropy": 0.5,
        },
    )


def test_it_is_drawn_at_most_every_two_seconds_and_only_when_there_is_news(scene):
    run, process, view, screen, now = scene
    view.look()
    assert len(screen.shown) == 1
    for tenth in range(1, 100):  # ten seconds, a step every half second until the fifth
        now[0] = tenth / 10
        if tenth % 5 == 0 and tenth <= 50:
            commit(run, tenth // 5)
        view.look()
    steps = [step for _, step, *_ in screen.shown]
    assert steps == [0, 4, 8, 10], "at 0, 2, 4 and 6 seconds; then nothing was new any more"
    assert view.drawn == 4 and screen.lines


def test_a_slow_picture_makes_the_pauses_longer(scene):
    run, process, view, screen, now = scene
    screen.show = lambda *_: now.__setitem__(0, now[0] + 1.0)  # drawing takes a second
    view.look()
    drawn = []
    for step in range(1, 25):
        commit(run, step)
        now[0] = max(now[0], 1.0 + step)
        before = view.drawn
        view.look()
        drawn += [step] if view.drawn > before else []
    assert drawn == [9, 19], "one second of drawing, nine of rest"


def test_the_end_is_drawn_at_once_and_is_the_end(scene):
    run, process, view, screen, now = scene
    assert not view.look()
    commit(run, 1)
    process.over.set()
    now[0] = 0.1
    assert view.look()
    assert screen.shown[-1] == ("ended", 1, 1, 0)


def test_what_it_wrote_between_the_last_look_and_its_end_is_drawn_too(scene):
    run, process, view, screen, now = scene

    def ended(within_s=0.0):  # asked after the folder was read
        if not process.over.is_set():
            commit(run, 1)
            process.over.set()
        return True

    process.ended = ended
    assert view.look() and screen.shown == [("ended", 1, 1, 0)]


def test_a_thread_follows_and_leaves_with_the_run(scene, monkeypatch):
    run, process, view, screen, now = scene
    view._screen, view._clock = None, time.monotonic
    view.every_s = 0.0
    view._ipython_display_()
    assert view._thread.is_alive() and view._thread.daemon
    commit(run, 1)
    for _ in range(500):
        if ("running", 1, 1, 0) in screen.shown:
            break
        time.sleep(0.01)
    process.over.set()
    view._thread.join(10)
    assert not view._thread.is_alive() and screen.shown[-1][0] == "ended"


def test_a_run_that_cannot_be_read_is_shown_as_such(scene):
    run, process, view, screen, now = scene
    commit(run, 1)
    view.look()
    path = run.path / "metrics.jsonl"
    path.write_bytes(b"nonsense\n" * 50)
    now[0] = 9.0
    assert view.look() and screen.shown[-1][0] == "failed"
    assert "damaged" in view.view().text


def test_waiting_draws_the_last_picture_from_the_thread_that_waits(scene):
    """Papermill takes in only what the cell under way sends: a picture sent by the view's own thread would be lost."""
    run, process, view, screen, now = scene
    view.running._views.append(view)
    drawn_by = []
    screen.show = lambda *_: drawn_by.append(threading.current_thread())
    run.write_evaluation("step-00000000", {"step": 0, "rows": ROWS})
    for step in range(1, 10):
        commit(run, step)
    run.write_evaluation("step-00000009", {"step": 9, "rows": ROWS})
    process.over.set()
    assert view.running.wait().steps()[-1] == 9
    assert drawn_by == [threading.main_thread()]


# ------------------------------------------------------------------------------------------------ screens


class Handle:
    def __init__(self, log):
        self.log = log

    def update(self, bundle, raw):
        self.log.append(("update", bundle))


@pytest.fixture
def outputs(monkeypatch):
    """What is sent to the front end: (display or update, bundle)."""
    import IPython.display

    log = []
    monkeypatch.setattr(
        IPython.display,
        "display",
        lambda bundle, raw, display_id=None: log.append(("display", bundle)) or Handle(log),
    )
    return log


def test_without_a_front_end_there_is_one_output_with_a_picture(scene, outputs):
    run, process, view, _, now = scene
    view._screen, view.button, view._screen_of = None, False, live._screen
    run.write_evaluation("step-00000000", {"step": 0, "rows": ROWS})
    commit(run, 1)
    view._screen = live._screen(view)
    view.look()
    commit(run, 2)
    now[0] = 3.0
    view.look()
    process.over.set()
    view.look()
    assert [kind for kind, _ in outputs] == ["display", "update", "update"]
    first, last = outputs[0][1], outputs[-1][1]
    assert "run.stop() stops it" in first["text/plain"] and "random 0.2" in first["text/plain"]
    assert "random 0.2" in first["text/html"] and first["image/png"].startswith(b"\x89PNG")
    assert (
        last["image/png"].startswith(b"\x89PNG")
        and "random: 0.200 [0.100, 0.300]" in last["text/plain"]
    )
    assert not any("widget" in kind for _, bundle in outputs for kind in bundle)


def test_the_button_asks_once_then_kills_and_goes_when_the_run_ends(scene, outputs):
    pytest.importorskip("ipywidgets")
    run, process, view, _, now = scene
    process.kill = process.over.set
    view.button = True
    screen = view._screen = live._screen(view)
    commit(run, 1)
    view.look()
    [(_, bundle)] = outputs
    assert "application/vnd.jupyter.widget-view+json" in bundle and "text/html" in bundle
    assert re.search(
        r"as it stood when .*attach\('.*/run'\) follows it again", bundle["text/plain"]
    ), "without a kernel"
    before = screen._facts.value
    now[0] = 2.5
    view.look()
    assert screen._facts.value is before, "nothing new: nothing is sent"
    commit(run, 2)
    now[0] = 4.0
    steps = [len(trace.x) for trace in screen._curves.data if trace.name == "training"]
    zoomed = screen._curves.layout.xaxis.range = [0, 1]
    view.look()
    assert (
        [len(trace.x) for trace in screen._curves.data if trace.name == "training"]
        == [n + 1 for n in steps]
        != []
    )
    assert list(screen._curves.layout.xaxis.range) == zoomed, "what was zoomed stays zoomed"
    screen._button.click()
    assert process.asked == 1 and "kill" in screen._button.description
    screen._button.click()
    now[0] = 8.0
    assert view.look()
    assert (
        outputs[-1][0] == "update"
        and "application/vnd.jupyter.widget-view+json" not in outputs[-1][1]
    )
    assert len([kind for kind, _ in outputs if kind == "display"]) == 1, (
        "one output from the first to the last"
    )


@pytest.mark.parametrize(
    ("environment", "looked_at"),
    [
        ({}, False),
        ({"JPY_SESSION_NAME": "/x.ipynb"}, True),
        ({"JPY_SESSION_NAME": "/x.ipynb", "WORKBENCH_PROGRESS": "batch"}, False),
    ],
)
def test_a_button_is_shown_where_somebody_can_press_it(environment, looked_at, monkeypatch):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG", "WORKBENCH_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert live.is_looked_at() == looked_at
