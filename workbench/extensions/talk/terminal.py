"""`workbench chat`: a person at the keyboard asks, and sees everything as it comes.

Ctrl-C stops the answer, not the program: the talk is told to stop and does so between two ticks, so that the engine is
never left in the middle of one. A second Ctrl-C ends the program. Colours only where somebody looks, and nothing that
a policy, a tool or a server wrote can act in the terminal (`views/talk.py`).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workbench.cli.opening import source_of
from workbench.extensions.talk.events import STOPPED, EndEvent
from workbench.extensions.talk.view import TalkLines
from workbench.values.errors import ConfigError

if TYPE_CHECKING:
    from workbench.extensions.talk.talk import Talk
    from workbench.values import Task

HELP = """  /tokens   the newest trajectory token by token: who wrote each
  /turns    the same turn by turn
  /task 7   a task of the environment, whose answer is known, in the place of a question
  /new      with --keep: the next question begins a new conversation
  /quit     (or Ctrl-D) ends; Ctrl-C stops an answer"""


def chat(args: argparse.Namespace) -> int:
    talk = _talk_of(args)
    if talk.remark:
        print(f"note: {talk.remark}", file=sys.stderr)
    try:
        with _ctrl_c(talk) as answering:
            if args.ask is not None:
                return _status(_answer(talk, args.ask, answering))
            return _converse(talk, answering)
    finally:
        talk.close()


def _talk_of(args: argparse.Namespace) -> Talk:
    from workbench.engines.endpoint import Endpoint
    from workbench.extensions.talk.talk import talk

    endpoint = None
    if args.endpoint is None:
        given = [name for name in ("model", "key_env", "calls") if getattr(args, name) is not None]
        if given:
            raise ConfigError(
                f"--{given[0].replace('_', '-')} has no effect without --endpoint URL"
            )
    elif args.model is None:
        raise ConfigError("--endpoint needs --model NAME: the model as that server knows it")
    elif args.step is not None:
        raise ConfigError("--step names a checkpoint, and over an endpoint none is loaded")
    else:
        endpoint = Endpoint(
            args.endpoint, args.model, args.key_env or "", calls=args.calls or "native"
        )
    return talk(
        source_of(args.source, args.settings, args.step, trust=args.trust),
        step=args.step,
        endpoint=endpoint,
        temperature=args.temperature,
        max_turns=args.max_turns,
        keep=args.keep,
    )


def _converse(talk: Talk, answering: dict[str, bool]) -> int:
    what = "a question" if hasattr(talk.family, "question_task") else "the number of a task"
    print(
        f"{talk.family.name}, up to {talk.max_turns} turns, temperature {talk.collect.temperature:g}: type {what}; "
        "/help says the rest"
    )
    while True:
        try:
            typed = _typed()
            if typed in ("/quit", "/exit"):
                return 0
            if typed.startswith("/task"):
                _answer(talk, _task(talk, typed.removeprefix("/task").strip()), answering)
            elif typed.startswith("/"):
                _command(talk, typed)
            elif typed:
                _answer(talk, typed, answering)
        except ConfigError as error:
            print(f"  {error}")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            if answering["broken"]:
                raise
            print("\n  (Ctrl-D ends)")


def _typed() -> str:
    """A line from the keyboard; what is piped in is not seen otherwise, so it is written down."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  (arrow keys and the lines before)

        return input("you> ").strip()
    typed = input("you> ").strip()
    print(typed)
    return typed


def _task(talk: Talk, number: str) -> Task:
    if not number.isdecimal():
        raise ConfigError("/task takes the number of a task (its seed), such as /task 7")
    return talk.family.task(int(number))


def _answer(talk: Talk, question: str | Task, answering: dict[str, bool]) -> EndEvent:
    """Ask and write down what happens; how it ended."""
    lines = TalkLines(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    answering["now"] = True
    try:
        for event in talk.stream(question):
            print(lines.of(event), end="", flush=True)
    except KeyboardInterrupt:
        if answering["broken"]:
            raise
        print(lines.of(talk.exchanges[-1].events[-1]), end="", flush=True)
    finally:
        answering["now"] = False
    return talk.exchanges[-1].events[-1]


def _status(ended: EndEvent) -> int:
    """Of one question: 0 where the task was over (an answer), 1 where it ended without, 2 where something broke."""
    if ended.reason == STOPPED:
        return 128 + signal.SIGINT
    if ended.reason == "terminated":
        return 0
    return 2 if ended.error else 1


def _command(talk: Talk, typed: str) -> None:
    from workbench.look import show_tokens, trajectory_view

    if typed == "/new":
        talk.begin_anew()
        return print("  the next question begins a new conversation")
    if typed not in ("/tokens", "/turns"):
        return print(HELP if typed == "/help" else f"  there is no {typed}\n{HELP}")
    if talk.trajectory is None:
        return print("  there is no finished trajectory to show")
    if typed == "/turns":
        return print(trajectory_view(talk.trajectory).text)
    if talk.session is None:
        return print("  over an endpoint no token is known; /turns shows the turns")
    print(show_tokens(talk.trajectory, talk.session.chat.token_texts).text)


@contextmanager
def _ctrl_c(talk: Talk) -> Iterator[dict[str, bool]]:
    """While an answer is under way Ctrl-C stops it; else it is an interrupt. "broken": pressed twice in one answer."""
    from workbench.training.signals import stop_on_signals

    answering = {"now": False, "broken": False}

    def pressed(number: int, _frame: object) -> None:
        if (
            not answering["now"] or talk.endpoint is not None
        ):  # nothing of ours is in the middle of anything
            raise KeyboardInterrupt
        if talk.stopping:
            answering["broken"] = True
            raise KeyboardInterrupt
        talk.stop()

    with (
        stop_on_signals()
    ):  # heeds nothing: and whoever counted the seconds after a Ctrl-C does not hear of these
        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield answering
        finally:
            signal.signal(signal.SIGINT, before)
