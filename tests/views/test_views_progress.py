"""The progress line in a terminal, in a file, in a notebook: throttled, and true at the end."""

from __future__ import annotations

import io
import itertools

import pytest

from workbench.types.errors import ConfigError
from workbench.views import progress
from workbench.views.progress_line import duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(stream, seconds_each: float, total: int = 100):
    clock = Clock()
    with progress(total, "training", mode="terminal", stream=stream, clock=clock) as bar:
        for step in range(total):
            clock.now += seconds_each
            bar.advance(note=f"step {step}")
    return stream.getvalue()


def test_a_terminal_line_is_rewritten_a_few_times_a_second():
    written = run(Terminal(), 0.01)
    assert written.count("\r") <= 13 and written.count("\n") == 1
    assert "100/100 · 100 % · 1 s so far · step 99" in written.split("\r")[-1]


def test_a_log_file_gets_a_line_now_and_then_and_no_escapes():
    written = run(io.StringIO(), 1.0)
    assert "\r" not in written and "\x1b" not in written
    assert 10 <= written.count("\n") <= 13 and "about 1:29 left" in written


def test_the_time_left_is_told_from_what_was_done_since():
    clock = Clock()
    with progress(10, "resumed", mode="terminal", stream=io.StringIO(), clock=clock) as bar:
        bar.found(4)
        clock.now += 6.0
        assert "left" not in bar.view(clock.now).text, "nothing is known yet"
        bar.update(6)
        assert "6/10 · 60 % · 6 s so far · about 12 s left" in bar.view(clock.now).text


@pytest.mark.parametrize(
    ("kind", "words"), [(KeyboardInterrupt, "stopped"), (MemoryError, "ended by MemoryError")]
)
def test_an_exception_leaves_its_name_and_is_not_swallowed(kind, words):
    stream = io.StringIO()
    with pytest.raises(kind):
        with progress(10, "training", mode="terminal", stream=stream, clock=Clock()) as bar:
            bar.advance(4)
            raise kind
    assert stream.getvalue().endswith(f"4/10 · 40 % · 0 s so far · {words}\n")


@pytest.mark.parametrize(
    "mode, forms", [("notebook", {"text/plain", "text/html"}), ("batch", {"text/plain"})]
)
def test_a_notebook_has_one_output_that_ends_true(monkeypatch, mode, forms):
    display = pytest.importorskip("IPython.display")
    shown, updated = [], []

    class Handle:
        def update(self, bundle, raw):
            updated.append(bundle)

    monkeypatch.setattr(
        display, "display", lambda bundle, raw, display_id: shown.append(bundle) or Handle()
    )
    monkeypatch.setattr("workbench.views.progress_line._shell", lambda: object())
    clock = Clock()
    with progress(1000, "training", mode=mode, clock=clock) as bar:
        for _ in range(1000):
            clock.now += 0.01
            bar.advance()
    assert len(shown) == 1 and 2 <= len(updated) <= 42
    assert set(updated[-1]) == forms and "1000/1000" in updated[-1]["text/plain"]


@pytest.mark.parametrize("mode", ["notebook", "batch"])
def test_outside_of_ipython_a_notebooks_way_falls_back_to_plain_lines(mode, monkeypatch):
    """A process that a notebook has started inherits WORKBENCH_PROGRESS."""
    monkeypatch.setenv("WORKBENCH_PROGRESS", mode)
    stream, clock = io.StringIO(), Clock()
    with progress(2, "training", stream=stream, clock=clock) as bar:
        clock.now += 10.0
        bar.advance()
    assert len(stream.getvalue().splitlines()) == 3 and "1/2" in stream.getvalue()


def test_foreign_text_in_a_terminal_line_is_spelled_out():
    stream = io.StringIO()
    bar = progress(None, "a\x1b[2J", mode="terminal", stream=stream, clock=Clock())
    bar.update(3, "b\r\nc")
    assert stream.getvalue() == "a␛[2J  3 · 0 s so far · b␍ c\n"


def test_a_printed_line_clears_the_bar_first(capsys):
    stream = Terminal()
    progress(3, "training", mode="terminal", stream=stream, clock=Clock()).say("step 1\x1b: good")
    assert stream.getvalue() == "\r\x1b[K" and capsys.readouterr().out == "step 1␛: good\n"


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


def test_closing_twice_shows_the_end_once():
    stream, ticks = io.StringIO(), itertools.count()
    bar = progress(2, "training", mode="terminal", stream=stream, clock=lambda: float(next(ticks)))
    bar.close()
    bar.close()
    assert stream.getvalue().count("\n") == 1
