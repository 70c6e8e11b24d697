"""The chat cell: a box to type in, a button to stop, and the talk as it comes.

In JupyterLab these are widgets, which live as long as the kernel does; an output of its own holds the picture of the
talk, hidden while they are alive and there when the notebook is opened again without them (as in the credit editor).
Without anybody looking (papermill) there is nothing but that picture.

Answers are made in a thread, so that the kernel hears the Stop button and other cells run meanwhile. The engine is the
session's own and serves one at a time: sample nothing else with that session until the answer is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from workbench.look.doc import WarningLine
from workbench.look.html import parts_html
from workbench.look.live import has_widgets, widget_bundle
from workbench.look.progress_line import CellOutput
from workbench.values import View

EVERY_S = 0.1  # between two drawings while an answer comes
# Part of the widgets, and gone with them: while they are alive, the picture after them would say the same twice.
HIDE_THE_PICTURE = (
    "<style>.jp-OutputArea-child:has(.wb-talk) + .jp-OutputArea-child {display: none}</style>"
)


class ShownTalk(Protocol):
    """What the panel needs of a `Talk` (talk.py), which shows itself in one."""

    family: Any

    def stream(self, question: str) -> Iterable[Any]: ...

    def stop(self) -> None: ...

    def view(self) -> View: ...


def draw_panel(talk: ShownTalk) -> None:
    """Show the talk in the cell under way: as widgets where somebody looks, else as a picture."""
    if has_widgets():
        TalkPanel(talk).show()
    else:
        CellOutput().put(talk.view()._repr_mimebundle_())


class TalkPanel:
    """The widgets of one talk. `thread` makes the answer that is under way."""

    def __init__(self, talk: ShownTalk) -> None:
        import ipywidgets as w

        self.talk = talk
        self.thread = None
        self._saved: CellOutput | None = (
            None  # the picture in an output of its own, once that is there
        )
        hint = (
            "a question"
            if hasattr(talk.family, "question_task")
            else "the number of a task, such as 7"
        )
        self.question = w.Text(
            placeholder=hint, layout=w.Layout(flex="1 1 auto", width="auto")
        ).add_class("wb-talk-question")
        self.question.on_msg(self._said)
        self.send = w.Button(description="Ask", layout=w.Layout(width="80px")).add_class(
            "wb-talk-ask"
        )
        self.send.on_click(lambda _button: self.ask())
        self.stop = w.Button(
            description="Stop", icon="stop", disabled=True, layout=w.Layout(width="80px")
        )
        self.stop.add_class("wb-talk-stop")
        self.stop.on_click(lambda _button: talk.stop())
        self.notice = w.HTML()
        self.picture = w.HTML(talk.view().html)
        hidden = w.HTML(HIDE_THE_PICTURE, layout=w.Layout(display="none"))
        self.box = w.VBox(
            [self.picture, w.HBox([self.question, self.send, self.stop]), self.notice, hidden]
        )
        self.box.add_class("wb-talk")

    def show(self) -> None:
        from IPython.display import display

        words = "interactive while the kernel runs; snapshot below"
        display(widget_bundle(self.box, words), raw=True)
        self._saved = CellOutput()
        self._saved.put(self.talk.view()._repr_mimebundle_())

    def ask(self) -> None:
        """Put what stands in the box to the policy; nothing happens while an answer is under way."""
        question = self.question.value.strip()
        if not question or (self.thread is not None and self.thread.is_alive()):
            return
        self.question.value = ""
        self.notice.value = ""
        self.send.disabled = True
        self.stop.disabled = False
        self.thread = threading.Thread(
            target=self._answer, args=(question,), name="talk", daemon=True
        )
        self.thread.start()

    def _said(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if content.get("event") == "submit":  # Enter
            self.ask()

    def _answer(self, question: str) -> None:
        drawn = 0.0
        try:
            for _ in self.talk.stream(question):
                if time.monotonic() - drawn > EVERY_S:
                    self._draw()
                    drawn = time.monotonic()
        except (
            Exception
        ) as error:  # whatever it is: out of a thread it would go to a log that nobody reads
            self.notice.value = str(parts_html([WarningLine(f"{type(error).__name__}: {error}")]))
        finally:
            self._draw()
            if self._saved is not None:
                self._saved.put(self.talk.view()._repr_mimebundle_())
            self.send.disabled = False
            self.stop.disabled = True

    def _draw(self) -> None:
        self.picture.value = self.talk.view().html
