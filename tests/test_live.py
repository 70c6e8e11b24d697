"""The live view: one output, drawn only when there is news and not too often, last of all in its final form."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from tests.store_values import ordinary_step
from tests.test_train import tiny
from workbench.look import live
from workbench.look.cells.live_run import RunningRun, WatchedRun
from workbench.look.live import LiveView
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

    sends = 0  # bytes of a picture

    def show(self, moment):
        panels = len(moment.body()["panels"])
        self.shown.append((moment.status.state, moment.status.step, panels))
        return self.sends

    def line(self, moment):
        self.lines.append(moment.status)


@pytest.fixture
def scene(tmp_path):
    """(writer, process, view, screen, clock): a run under way, and a view of it with a clock of its own."""
    now = [0.0]
    with create_run(tmp_path / "run", to_dict(tiny(train__steps=9))) as run:
        process, screen = Pretended(), Recorder()
        view = LiveView(
            WatchedRun(RunningRun(tmp_path / "run", process)),
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
            "reward_std_in_group": 0.1,
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

    def show(_moment):
        now[0] += 1.0  # drawing takes a second
        return 0

    screen.show = show
    view.look()
    drawn = []
    for step in range(1, 25):
        commit(run, step)
        now[0] = max(now[0], 1.0 + step)
        before = view.drawn
        view.look()
        drawn += [step] if view.drawn > before else []
    assert drawn == [9, 19], "one second of drawing, nine of rest"


@pytest.mark.parametrize(
    ("sends", "pause"), [(10_000, 2), (100_000, 5), (10_000_000, live.LONGEST_PAUSE_S)]
)
def test_a_large_picture_does_not_queue_on_a_slow_line(scene, sends, pause):
    """What is sent faster than a line carries comes later and later; a pause that never ended would look like a kernel
    that is gone."""
    run, process, view, screen, now = scene
    screen.sends = sends
    view.look()
    commit(run, 1)
    while view.drawn == 1:
        now[0] += 0.5
        view.look()
    assert now[0] == pause


def test_the_end_is_drawn_at_once_and_is_the_end(scene):
    run, process, view, screen, now = scene
    assert not view.look()
    commit(run, 1)
    process.over.set()
    now[0] = 0.1
    assert view.look()
    assert screen.shown[-1] == ("ended", 1, 5)


def test_what_it_wrote_between_the_last_look_and_its_end_is_drawn_too(scene):
    run, process, view, screen, now = scene

    def ended(within_s=0.0):  # asked after the folder was read
        if not process.over.is_set():
            commit(run, 1)
            process.over.set()
        return True

    process.ended = ended
    assert view.look() and screen.shown == [("ended", 1, 5)]


def test_a_thread_follows_and_leaves_with_the_run(scene, monkeypatch):
    run, process, view, screen, now = scene
    view._screen, view._clock = None, time.monotonic
    view.every_s = 0.0
    view._ipython_display_()
    assert view._thread.is_alive() and view._thread.daemon
    commit(run, 1)
    for _ in range(500):
        if ("running", 1, 5) in screen.shown:
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
    running = RunningRun(run.path, process)
    running._views.append(view)
    drawn_by = []
    screen.show = lambda *_: drawn_by.append(threading.current_thread())
    run.write_evaluation("step-00000000", {"step": 0, "rows": ROWS})
    for step in range(1, 10):
        commit(run, step)
    run.write_evaluation("step-00000009", {"step": 9, "rows": ROWS})
    process.over.set()
    assert running.wait().steps()[-1] == 9
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
    run.write_evaluation("step-00000000", {"step": 0, "rows": ROWS})
    commit(run, 1)
    view._screen = live.PictureScreen()
    view.look()
    commit(run, 2)
    now[0] = 3.0
    view.look()
    process.over.set()
    view.look()
    assert [kind for kind, _ in outputs] == ["display", "update", "update"]
    first, last = outputs[0][1], outputs[-1][1]
    assert re.search(r"as of \d\d:\d\d:\d\d; .*wb.attach\('.*/run'\)", first["text/plain"])
    assert "random 0.2" in first["text/plain"]
    assert "random 0.2" in first["text/html"] and first["image/png"].startswith(b"\x89PNG")
    assert (
        last["image/png"].startswith(b"\x89PNG")
        and "random: 0.200 [0.100, 0.300]" in last["text/plain"]
    )
    assert not any("widget" in kind for _, bundle in outputs for kind in bundle)


WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def watched(scene, outputs, monkeypatch):
    """(writer, process, view, its widget screen, clock): before somebody's eyes; the page has said nothing yet."""
    pytest.importorskip("anywidget")
    run, process, view, _, now = scene
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    process.kill = process.over.set
    monkeypatch.setenv("JPY_SESSION_NAME", "/x.ipynb")
    monkeypatch.delenv("WORKBENCH_PROGRESS", raising=False)
    view._screen = live._screen(view.followed)
    commit(run, 1)
    view.look()
    return run, process, view, view._screen, now


def test_the_script_sets_text_and_no_markup_and_asks_no_other_machine(watched):
    script = watched[3]._widget._esm
    acts = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3\.org)"
    )
    assert not re.search(acts, str(script)) and "textContent" in str(script)


def says(screen, word):
    """What the page sends."""
    screen._heard(screen._widget, {"ask": word}, [])


def test_the_page_has_all_that_it_draws_in_a_few_kilobytes(watched, outputs):
    run, process, view, screen, now = watched
    (above, widget), (below, picture) = outputs
    assert (above, below) == ("display", "display") and WIDGET in widget and WIDGET not in picture
    assert re.search(r"as of .*wb.attach\('.*/run'\)", picture["text/plain"]), "without a kernel"
    state = screen._widget.get_state()
    assert len(json.dumps({name: state[name] for name in ("status", "body", "again")})) < 10_000
    assert len(state["_esm"]) + len(state["_css"]) < 30_000
    assert [panel["title"] for panel in state["body"]["panels"]][:2] == ["success", "reward"]
    assert state["status"]["facts"].startswith("step 1 of 9") and "attach" in state["again"]


def test_a_page_that_draws_the_widget_is_sent_news_only_and_no_picture(watched, outputs):
    run, process, view, screen, now = watched
    says(screen, "drawn")
    before = screen._widget.body
    now[0] = 30.0
    view.look()
    assert screen._widget.body is before and len(outputs) == 2, "nothing new: nothing is sent"
    commit(run, 2)
    now[0] = 60.0
    view.look()
    lines = screen._widget.body["panels"][0]["traces"]
    assert [len(line["x"]) for line in lines if line["name"] == "training"] == [2]
    assert len(outputs) == 2, "the picture below, which is hidden, is not drawn for nobody"


@pytest.mark.parametrize("says_first", [None, "failed"])
def test_where_the_page_does_not_say_that_it_draws_the_picture_goes_on_renewing_itself(
    watched, outputs, says_first
):
    """A widget layer that gave up on a busy machine never comes back: the picture needs none."""
    run, process, view, screen, now = watched
    if says_first is not None:
        says(screen, "drawn")
        says(screen, says_first)
    now[0] = live.GRACE_S + 3
    view.look()  # nothing new was committed, and yet what there is has not been seen
    assert outputs[-1][0] == "update" and outputs[-1][1]["image/png"].startswith(b"\x89PNG")
    drawn = len(outputs)
    now[0] += 30
    view.look()
    assert len(outputs) == drawn, "nothing new"
    commit(run, 2)
    now[0] += 30
    view.look()
    assert len(outputs) == drawn + 1 and "steps 1 to 2" in outputs[-1][1]["text/plain"]
    says(screen, "drawn")  # it came at last
    commit(run, 3)
    now[0] += 30
    view.look()
    assert len(outputs) == drawn + 1


def test_the_button_asks_once_then_kills_and_goes_when_the_run_ends(watched, outputs):
    run, process, view, screen, now = watched
    assert screen._widget.status["stop"] == "Stop"
    says(screen, "stop")
    now[0] = 4.0
    view.look()
    assert process.asked == 1 and screen._widget.status["stop"] == "Force stop"
    says(screen, "stop")
    now[0] = 8.0
    assert view.look()
    (_, above), (_, picture) = outputs[-2:]
    assert above == {} and picture["image/png"].startswith(b"\x89PNG"), "one output is left"
    assert len([kind for kind, _ in outputs if kind == "display"]) == 2


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


# ------------------------------------------------------------------------------------------------ what it looks like


def drawn_panels(page, folder, rows) -> None:
    """The widget's own script on a page, over these rows."""
    status = {"name": "a", "state": "running", "colour": "#0072b2", "share": 0.5, "facts": ""}
    held = {
        "status": status | {"problems": [], "stop": "Stop", "stop_does": ""},
        "body": {"panels": live.live_panels(rows, {"start": {"step": 0, "rows": ROWS}})},
        "again": "",
    }
    script = live.page_text("drawing.js", "live.js")
    path = folder / "live.html"
    path.write_text(
        "<!doctype html><meta charset=utf-8><div id=x></div><script type=module>"
        + script.replace("export default { render };", "")
        + f"\nconst held = {json.dumps(held)};"
        "render({ model: { get: (name) => held[name], on() {}, off() {}, send() {} }, el: document.getElementById('x') });</script>"
    )
    page.goto(path.as_uri())
    page.wait_for_selector(".wb-live-panel")


TICKS = """() => [...document.querySelectorAll('.wb-live-panel')]
    .map(panel => [...panel.querySelectorAll('text[text-anchor=end]')].map(each => each.textContent))"""


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_the_ticks_of_a_panel_are_round_and_written_alike(page, tmp_path):
    rows = [
        {"step": step, "success": 0.1 + 0.02 * step, "reward_mean": 0.0021 * step - 0.0313}
        | {"entropy": 700.0 - 31.3 * step, "grad_norm": 0.55 + 0.03 * step, "approx_kl": 1e-6}
        for step in range(1, 12)
    ]
    drawn_panels(page, tmp_path, rows)
    panels = page.evaluate(TICKS)
    assert len(panels) == 5 and not page.trouble, page.trouble
    for texts in panels:
        decimals = {len(text.partition("e")[0].partition(".")[2]) for text in texts}
        assert len(texts) > 1 and len(decimals) == 1, texts
    spaced = [[float(text.replace("−", "-")) for text in texts] for texts in panels[:3]]
    for values in spaced:
        steps = {f"{b - a:.6g}" for a, b in zip(values, values[1:])}
        digits = f"{float(next(iter(steps))):e}".split("e")[0].rstrip("0").rstrip(".")
        assert len(steps) == 1 and digits in ("1", "2", "2.5", "5"), values


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_what_is_pale_on_white_paper_is_no_brighter_than_the_rest_on_black(page, tmp_path):
    """The course as logged lies behind its running mean, on either paper."""
    drawn_panels(page, tmp_path, [{"step": step, "success": 0.1 * step} for step in range(1, 9)])
    for paper, ink in (("#ffffff", "#111111"), ("#111111", "#eeeeee")):
        page.evaluate(
            f"Object.assign(document.body.style, {{ background: '{paper}', color: '{ink}' }})"
        )
        distances = []
        for name in ("training", "training, mean of 5 steps"):
            stroke = page.locator(f"[data-trace='{name}']").first.evaluate(
                "each => getComputedStyle(each).stroke"
            )
            *channels, share = [float(part) for part in re.findall(r"[\d.]+", stroke)][:4] + [1.0]
            if "/" in stroke:
                *channels, share = [float(part) for part in re.findall(r"[\d.]+", stroke)]
            white = float(paper == "#ffffff")
            seen = [share * channel + (1 - share) * white for channel in channels[:3]]
            distances.append(sum(abs(channel - white) for channel in seen))
        assert 0.2 < distances[0] < distances[1], (paper, distances)
