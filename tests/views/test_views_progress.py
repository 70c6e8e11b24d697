"""The progress line in a terminal, in a file, in a notebook: throttled, and true at the end."""

from __future__ import annotations

import io

import pytest

from workbench.look import progress
from workbench.look.live import duration
from workbench.values.errors import ConfigError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


def run(clock, stream, seconds_each: float, total: int = 100):
    with progress(total, "training", mode="terminal", stream=stream) as bar:
        for step in range(total):
            clock.now += seconds_each
            bar.advance(note=f"step {step}")
    return stream.getvalue()


def test_a_terminal_line_is_rewritten_a_few_times_a_second(clock):
    written = run(clock, Terminal(), 0.01)
    assert written.count("\r") <= 13 and written.count("\n") == 1
    assert "training: 100%" in written and "100/100 [00:01" in written and "step 99" in written


def test_a_log_file_gets_a_line_now_and_then_and_no_escapes(clock):
    written = run(clock, io.StringIO(), 1.0)
    assert "\r" not in written and "\x1b" not in written
    assert 10 <= written.count("\n") <= 13 and "10/100 [00:10<01:30" in written


@pytest.mark.parametrize("restarts", [True, False])
def test_what_came_before_the_work_is_no_part_of_the_time_left(clock, restarts):
    """The baselines of a run; False, what to keep: counted in, they make the run look longer."""
    stream = io.StringIO()
    with progress(10, "run", mode="terminal", stream=stream) as bar:
        clock.now += 100.0
        if restarts:
            bar.restart_clock()
        clock.now += 12.0
        bar.update(4)
        assert ("[00:12<00:18" in stream.getvalue()) == restarts


def test_the_time_left_is_told_from_what_was_done_since(clock):
    stream = io.StringIO()
    with progress(10, "resumed", mode="terminal", stream=stream) as bar:
        bar.found(4)
        clock.now += 12.0
        bar.advance(0)
        assert "4/10 [00:12<?" in stream.getvalue(), "nothing is known yet"
        clock.now += 12.0
        bar.update(6)
        assert "6/10 [00:24<00:48" in stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "words"), [(KeyboardInterrupt, "stopped"), (MemoryError, "ended by MemoryError")]
)
def test_an_exception_leaves_its_name_and_is_not_swallowed(clock, kind, words):
    stream = io.StringIO()
    with pytest.raises(kind):
        with progress(10, "training", mode="terminal", stream=stream) as bar:
            bar.advance(4)
            raise kind
    last = stream.getvalue().splitlines()[-1]
    assert "4/10 [00:00<?" in last and last.endswith(f", {words}]")


@pytest.mark.parametrize("mode", ["notebook", "batch"])
def test_a_notebook_has_one_output_that_ends_true(monkeypatch, clock, mode):
    display = pytest.importorskip("IPython.display")
    shown, updated = [], []

    class Handle:
        def update(self, bundle, raw):
            updated.append(bundle)

    monkeypatch.setattr(
        display, "display", lambda bundle, raw, display_id: shown.append(bundle) or Handle()
    )
    monkeypatch.setattr("workbench.look.progress_line._shell", lambda: object())
    with progress(1000, "training", mode=mode) as bar:
        for _ in range(1000):
            clock.now += 0.01
            bar.advance()
    assert len(shown) == 1 and 2 <= len(updated) <= 42
    assert set(updated[-1]) == {"text/plain"} and "1000/1000" in updated[-1]["text/plain"]


@pytest.mark.parametrize("mode", ["notebook", "batch"])
def test_outside_of_ipython_a_notebooks_way_falls_back_to_plain_lines(mode, monkeypatch, clock):
    """A process that a notebook has started inherits WORKBENCH_PROGRESS."""
    monkeypatch.setenv("WORKBENCH_PROGRESS", mode)
    stream = io.StringIO()
    with progress(2, "training", stream=stream) as bar:
        clock.now += 10.0
        bar.advance()
    assert len(stream.getvalue().splitlines()) == 3 and "1/2" in stream.getvalue()


def test_foreign_text_in_a_terminal_line_is_spelled_out(clock):
    stream = io.StringIO()
    with progress(None, "a\x1b[2J", mode="terminal", stream=stream) as bar:
        bar.update(3, "b\r\nc")
    assert stream.getvalue().splitlines()[-1] == "a␛[2J: 3it [00:00, ?it/s, b␍ c]"


def test_a_printed_line_clears_the_bar_first(monkeypatch):
    """Both go to one terminal here."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    with progress(3, "training", mode="terminal") as bar:
        bar.say("step 1\x1b: good")
    before, after = terminal.getvalue().split("step 1␛: good\n")
    assert before.endswith("\r") and before.split("\r")[-2].strip() == "" and "0/3" in after


def test_the_mode_can_be_set_from_outside_and_is_checked(monkeypatch):
    monkeypatch.setenv("WORKBENCH_PROGRESS", "quiet")
    stream = io.StringIO()
    with progress(3, "training", stream=stream) as bar:
        bar.advance()
    assert stream.getvalue() == ""
    monkeypatch.setenv("WORKBENCH_PROGRESS", "loud")
    with pytest.raises(ConfigError, match="loud"):
        progress(3, "training")


@pytest.mark.parametrize(
    "seconds, words", [(0, "0 s"), (8.4, "8 s"), (59.6, "1:00"), (83, "1:23"), (7389, "2:03:09")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_closing_twice_shows_the_end_once(clock):
    stream = io.StringIO()
    bar = progress(2, "training", mode="terminal", stream=stream)
    bar.close("over")
    bar.close("over")
    assert stream.getvalue().count("over") == 1
