"""Talk to a policy: a person asks, the policy calls its tools and answers, and everything is seen as it happens.

    talk = wb.talk("runs/first")             a run's newest checkpoint; a preset is its untrained policy
    talk                                     as a cell's last line: a box to type in
    talk.ask("Where was Ada born?")          one question; the exchange shows itself, `.trajectory` is the trajectory
    for event in talk.stream("..."): ...     the same, as it comes

It is the loop that training samples with (`interactive.InteractiveTrajectory`), the same environment, chat format and
limits. So what the policy sees of a question is, id for id, what it would see of it in training; only a gold answer is
missing, and with it the reward. Each question is a conversation of its own, as there; `keep=True` goes on in the same
one. An environment without questions (FrozenLake) plays the task whose number is given.

Over an OpenAI-compatible endpoint (`endpoint=`) the server applies its own chat template: same messages, same tools,
but the tokens are not ours.

Where a program is what is trained (`env.kind = "agent"`), it is started for the question, and every call of it is a turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.basics.annotated import checked_methods
from workbench.engines.endpoint import Endpoint
from workbench.extensions.talk.events import (
    STOPPED,
    AnswerEvent,
    EndEvent,
    FormatErrorEvent,
    MessageEvent,
    MovesEvent,
    QuestionEvent,
    TalkEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEvent,
)
from workbench.extensions.talk.interactive import InteractiveTrajectory
from workbench.extensions.talk.talk_endpoint import EndpointTrajectory
from workbench.extensions.talk.talk_panel import draw_panel
from workbench.extensions.talk.view import TalkExchange, talk_view
from workbench.look.words import STOP_WORDS
from workbench.rollouts.config import CollectConfig
from workbench.run.store import Run, open_run
from workbench.training.config import PRESETS, Config, load_config
from workbench.training.reopening import reopen
from workbench.training.session import Session, open_session
from workbench.training.stored import config_of_run
from workbench.values import StopReason, Task, Trajectory, Turn, View
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import seed_of
from workbench.values.view import HasView
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvRunner

GOES_ON = (
    StopReason.TERMINATED,
    StopReason.ENV_TRUNCATED,
    StopReason.MAX_TURNS,
)  # a next question may follow these
STOPPED_WORDS = "stopped; the next question begins anew"
HALF = "\ufffd"  # what a character looks like whose bytes are not all there yet
Watched = (
    InteractiveTrajectory | EndpointTrajectory
)  # a trajectory under way, by our engine or by a server


def talk(
    source: Session | Config | Run | str | Path,
    *,
    step: int | None = None,
    endpoint: Endpoint | None = None,
    temperature: float | None = None,
    max_turns: int | None = None,
    keep: bool = False,
    trust: bool = False,
) -> Talk:
    """A talk with the policy of an opened session, a run (newest checkpoint, or that of `step`), a preset or a config.

    With an `endpoint` only environment, tools and limits come from `source`, and nothing is loaded. `temperature`
    (default: training's; 0 is greedy) and `max_turns` (at most the environment's) hold for this talk. While it answers,
    the session's engine is busy. `trust`: as in `open_run`. Raises ConfigError, and what opening a session raises.
    """
    session, config = _opened(source, step, load=endpoint is None, trust=trust)
    return Talk(config, session, endpoint, temperature=temperature, max_turns=max_turns, keep=keep)


def _opened(
    source: Session | Config | Run | str | Path, step: int | None, load: bool, trust: bool
) -> tuple[Session | None, Config]:
    if isinstance(source, str) and (source in PRESETS or source.endswith(".toml")):
        source = load_config(source)
    if isinstance(source, (str, Path)):
        source = open_run(source, trust=trust)
    if step is not None and not (isinstance(source, Run) and load):
        raise ConfigError("step names a checkpoint of a run: talk('runs/first', step=10)")
    if isinstance(source, Run):
        config = config_of_run(open_run(source, trust=trust))
        return (reopen(source, step=step, trust=trust), config) if load else (None, config)
    if isinstance(source, Config):
        return (open_session(source) if load else None), source
    return source, source.config


@checked_methods
class Talk(HasView):
    """A person's questions to one policy. `exchanges` are all of them so far. One question at a time."""

    def __init__(
        self,
        config: Config,
        session: Session | None = None,
        endpoint: Endpoint | None = None,
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
        keep: bool = False,
    ) -> None:
        self.family: EnvFamily = config.family
        _check_program(self.family, keep, endpoint)
        self.collect: CollectConfig = config.collect
        if temperature is not None:
            self.collect = replace(self.collect, temperature=temperature)
        self.max_turns = _turn_limit(self.family, max_turns)
        self.seed = config.seed
        self.session = session
        self.endpoint = endpoint
        self.keep = keep
        self.exchanges: tuple[TalkExchange, ...] = ()
        self._runner: EnvRunner | None = None
        self._trajectory: Watched | None = None  # what a next question may go on with
        self._stopping = threading.Event()
        self._busy = threading.Lock()

    # -------------------------------------------------------------------------------------------- asking

    def ask(self, question: str | Task) -> TalkExchange:
        """Ask one question and wait for all that comes of it; or play a task of the environment, whose
        answer is known (`session.held_out_tasks`). Raises ConfigError for what is no question here."""
        for _ in self.stream(question):
            pass
        return self.exchanges[-1]

    def stream(self, question: str | Task) -> Iterator[TalkEvent]:
        """Ask, and get the events one by one as they happen. An iterator that is left early stops the answer."""
        task = question if isinstance(question, Task) else self.task_of(question)
        if not self._busy.acquire(blocking=False):
            raise ConfigError("this talk is still answering; wait for it, or stop() it")
        events: list[TalkEvent] = []
        self.exchanges += (TalkExchange(()),)
        self._stopping.clear()
        try:
            for event in self._events(question, task):
                events.append(event)
                self.exchanges = (*self.exchanges[:-1], TalkExchange(tuple(events)))
                yield event
        finally:
            if self._trajectory is not None and self._trajectory.trajectory is None:
                self._trajectory.close()
                self._trajectory = None
            if not events or not isinstance(events[-1], EndEvent):  # nobody wanted to hear the rest
                self.exchanges = (
                    *self.exchanges[:-1],
                    TalkExchange((*events, EndEvent(STOPPED, STOPPED_WORDS))),
                )
            self._busy.release()

    def stop(self) -> None:
        """Stop the answer that is under way, from another thread or a signal's handler; the next question may come."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """The answer under way was asked to stop."""
        return self._stopping.is_set()

    def begin_anew(self) -> None:
        """With `keep`: the next question does not go on behind the last one."""
        self._trajectory = None

    @property
    def trajectory(self) -> Trajectory | None:
        """Of the newest question: a real trajectory, for `show_tokens`, `trajectory_view`; None where it was stopped."""
        return self.exchanges[-1].trajectory if self.exchanges else None

    def task_of(self, question: str) -> Task:
        """What the environment makes of a question. Raises ConfigError for what it cannot take."""
        text = question.strip()
        if not text:
            raise ConfigError("a question has at least one character")
        if hasattr(self.family, "question_task"):
            return self.family.question_task(text)
        if not text.isdecimal():
            raise ConfigError(
                f"{self.family.name} takes no questions; give the number of a task (its seed), such as "
                "7, and watch the policy at it"
            )
        return self.family.task(int(text))

    def close(self) -> None:
        """Give back what the environments hold (worker processes)."""
        if self._runner is not None:
            self._runner.shutdown()
            self._runner = None

    # -------------------------------------------------------------------------------------------- what happens

    def _events(self, question: str | Task, task: Task) -> Iterator[TalkEvent]:
        last = self._trajectory if self.keep else None
        goes_on = (
            last is not None
            and last.trajectory is not None
            and last.trajectory.stop_reason in GOES_ON
        )
        typed = isinstance(question, str)
        yield QuestionEvent(
            question if typed else str(task.payload.get("question", task.id)), goes_on
        )
        known = len(last.turns) if goes_on else 0
        if goes_on:
            try:
                last.go_on(task, seed_of(self.seed, "talk", len(self.exchanges), "dynamics"))
            except EnvError as error:
                yield EndEvent(
                    StopReason.ENV_ERROR.value, STOP_WORDS[StopReason.ENV_ERROR], error=str(error)
                )
                return
        else:
            self._trajectory = self._begin(task)
        # Where nobody has typed what the policy is asked, it is told.
        begins = not goes_on and not (typed and hasattr(self.family, "question_task"))
        yield from _watched(self._trajectory, known, begins, self._text, self._stopping)

    def _begin(self, task: Task) -> Watched:
        if self._runner is None:
            self._runner = self.collect.runner()
        shared = {
            "family": self.family,
            "config": self.collect,
            "runner": self._runner,
            "max_turns": self.max_turns,
            "address": (self.seed, "talk", len(self.exchanges)),
        }
        if self.endpoint is not None:
            return EndpointTrajectory(task, endpoint=self.endpoint, **shared)
        # A family whose trajectories are not stepped says what plays one.
        kind = getattr(self.family, "interactive", lambda: InteractiveTrajectory)()
        return kind(task, engine=self.session.engine, chat=self.session.chat, **shared)

    def _text(self, trajectory: Watched) -> str:
        """What the policy has written of its turn so far, but for a last character that is not whole yet."""
        if self.endpoint is not None:
            return trajectory.text
        return (
            self.session.chat.action_text(trajectory.sampled).rstrip(HALF)
            if trajectory.sampled
            else ""
        )

    # -------------------------------------------------------------------------------------------- showing itself

    @property
    def remark(self) -> str:
        """What must be known of the tokens of this talk."""
        if self.endpoint is None:
            return ""
        return (
            f"{self.endpoint.model} at {self.endpoint.url}: the server applies its own chat template, so the "
            "tokens are not ours; they are those of training only where its template is the policy's own"
        )

    def view(self) -> View:
        """The whole talk as it stands."""
        return talk_view(self.exchanges, title=f"talk in {self.family.name}", remark=self.remark)

    def _ipython_display_(self) -> None:
        draw_panel(self)


def _check_program(family: EnvFamily, keep: bool, endpoint: Endpoint | None) -> None:
    """Raise ConfigError for what cannot be done where a program stands between the person and the policy."""
    if not hasattr(family, "interactive"):
        return
    if endpoint is not None:
        raise ConfigError(
            "a talk with a run whose tasks are tried by a program goes through that program, and the program asks the run's "
            "own policy; to try it on a server, start it yourself with OPENAI_BASE_URL set"
        )
    if keep:
        raise ConfigError("a program begins anew with every question; leave out keep (--keep)")


def _turn_limit(family: EnvFamily, max_turns: int | None) -> int:
    if max_turns is None:
        return family.max_turns
    if not 1 <= max_turns <= family.max_turns:
        raise ConfigError(
            f"max_turns is from 1 to {family.max_turns}, where {family.name} ends by itself; got "
            f"{max_turns}"
        )
    return max_turns


def _watched(
    trajectory: Watched,
    known: int,
    begins: bool,
    text_of: Callable[[Watched], str],
    stopping: threading.Event,
) -> Iterator[TalkEvent]:
    """What happens in a trajectory, from turn number `known` on, until it is over or `stopping` is set. `told`: beginning
    with what the policy is told first. `text_of`: what it has written of its turn so far."""
    wrote = answered = known
    shown = ""
    while trajectory.trajectory is None:
        if stopping.is_set():
            yield EndEvent(STOPPED, STOPPED_WORDS)  # `stream` closes what is under way
            return
        trajectory.tick()
        if begins and trajectory.first_observation.messages:
            message = trajectory.first_observation.messages[-1]
            begins = False
            yield MessageEvent(0, message.role, message.text)
        while answered < min(wrote, len(trajectory.turns) - trajectory.waits):
            yield from events_of(trajectory.turns[answered])
            answered += 1
        text = text_of(trajectory)
        if text.startswith(shown) and len(text) > len(shown):
            yield TextEvent(wrote, text[len(shown) :])
            shown = text
        if len(trajectory.turns) > wrote:
            turn = trajectory.turns[wrote]
            yield TurnEvent(turn.index, turn.text, turn.finish)
            wrote = wrote + 1
            shown = ""
    over = trajectory.trajectory
    yield EndEvent(
        over.stop_reason.value,
        STOP_WORDS[over.stop_reason],
        over,
        getattr(trajectory, "length", None),
        over.error,
    )


def events_of(turn: Turn) -> Iterator[TalkEvent]:
    """What came of a turn that the environment has answered."""
    info: dict[str, Any] = dict(turn.info)
    if turn.moves:
        yield MovesEvent(turn.index, turn.moves)
    for call in turn.tool_calls:
        yield ToolCallEvent(turn.index, call.name, call.arguments)
    facts = info.get("calls", ())
    kinds = {
        call.call_id: str(dict(fact).get("error") or "")
        for call, fact in zip(turn.tool_calls, facts)
    }
    complaint = (
        ""
        if info.get("valid_format", True)
        else str(info.get("complaint") or "could not be read as an action")
    )
    is_complained = False
    for message in turn.reply:
        if message.role == "tool":
            error = kinds.get(message.tool_call_id, "bad_call")
            yield ToolResultEvent(turn.index, message.name or "tool", message.text, error)
        elif complaint and complaint in message.text:
            yield FormatErrorEvent(turn.index, message.text)
        else:
            yield MessageEvent(turn.index, message.role, message.text)
        is_complained = is_complained or complaint in message.text
    if complaint and not is_complained:
        yield FormatErrorEvent(turn.index, complaint)
    if isinstance(info.get("answer"), str):
        yield AnswerEvent(turn.index, info["answer"])
