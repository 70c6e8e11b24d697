"""One played trajectory, made without a policy: what was shown, answered, paid and raised, and how long it took.

Everything in this package that plays an environment from its reset to its end does it here, and asks its questions of
the value that comes of it. Nothing raises for an environment's sake: what it raised is part of the value.

Axis letters: K turns.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from workbench.values import Observation, StepResult, StopReason, Task, Trajectory, sum_of
from workbench.values.errors import EnvError, MissingPackageError
from workbench.worlds.base import EnvFamily
from workbench.worlds.baselines import trajectory_of, with_its_score
from workbench.worlds.runners import EnvAnswer, EnvRunner, asked, check_messages
from workbench.worlds.scoring import scores_after
from workbench.worlds.shared import opened

CUT_OFF = "no answer within the deadline"  # in the place of an answer
READ_OF_INFO = ("success", "valid_format", "moves", "calls", "answer", "documents", "complaint")
WAIT_S = 0.2  # for a runner's answers, at a time; a runner has its own deadlines


class Script(NamedTuple):
    """A trajectory to be played."""

    task: Task
    seed: int  # of the dynamics
    texts: tuple[str, ...]  # the actions, in order

    def then(self, *texts: str) -> Script:
        """The same with more actions behind it."""
        return self._replace(texts=(*self.texts, *texts))

    def ending(self, text: str) -> Script:
        """The same with another last action."""
        return self._replace(texts=(*self.texts[:-1], text))


class Scored(NamedTuple):
    """The outcome of a trajectory as a whole."""

    outcome: float  # paid beside the rewards of its turns
    success: bool | None


@dataclass(frozen=True, eq=False)
class PlayedTrajectory:
    """A task that was played once. Fields that were not reached are shorter, or None."""

    family: EnvFamily
    task: Task
    seed: int
    policy: str  # the way to play, in words
    texts: tuple[str, ...] = ()  # [K] actions, the one that raised among them
    opening: Observation | None = None
    results: tuple[StepResult, ...] = ()  # [K]
    readings: tuple[Mapping[str, Any], ...] = ()  # [K + 1] of the state: after the reset, each step
    error: str = ""  # what was raised; "" for nothing
    where: str = ""  # it was raised: "make", "reset", "step 3", "the policy"
    seconds: tuple[float, ...] = ()  # [K + 1] of the reset, each step
    changed: tuple[str, ...] = ()  # global generators that were left in another state

    @property
    def reported_success(self) -> bool | None:
        """Success by the last result; None where that is neither true nor false."""
        success = self.results[-1].info.get("success") if self.results else None
        return success if isinstance(success, bool) else None

    @cached_property
    def scored(self) -> Scored:
        """The payment for all of it: by a limit that cut it, by a score afterwards."""
        success = self.reported_success
        if self.error or not self.results:
            return Scored(0.0, success)
        if not all(map(is_number, self.results[-1].if_cut.values())):
            return Scored(0.0, success)
        ended = self.trajectory
        if scores_after(self.family):
            ended = with_its_score(self.family, ended)
            success = ended.success
        return Scored(ended.outcome or 0.0, success)

    @property
    def success(self) -> bool | None:
        return self.scored.success

    @property
    def reward(self) -> float | None:
        """None where some of it is none, or is no number."""
        paid = [result.reward for result in self.results]
        if not paid or not all(map(is_number, paid)):
            return None
        return float(sum_of(paid)) + self.scored.outcome

    @property
    def ended(self) -> bool:
        """The environment itself said that it was over."""
        return bool(self.results) and is_over(self.results[-1])

    @property
    def cut(self) -> bool:
        """The environment itself said that a limit ended it."""
        return bool(self.results) and self.results[-1].truncated

    @property
    def moves(self) -> int:
        return sum(len(result.info.get("moves", ())) for result in self.results)

    @property
    def shown(self) -> list[Observation]:
        """[K + 1] what a policy saw."""
        observations = [self.opening, *(result.observation for result in self.results)]
        return [observation for observation in observations if observation is not None]

    @property
    def answers(self) -> list[Any]:
        """Everything that the environment answered, in order, to be compared with another time."""
        replies = [self.opening, *self.results]
        answered: list[Any] = [
            (plain_answer(reply), reading.get("state_key"))
            for reply, reading in zip(replies, self.readings)
        ]
        return [*answered, self.error.partition(":")[0]] if self.error else answered

    @property
    def script(self) -> Script:
        return Script(self.task, self.seed, self.texts)

    @property
    def trajectory(self) -> Trajectory:
        return trajectory_of(
            self.task, self.seed, self.opening, list(zip(self.texts, self.results))
        )


# ------------------------------------------------------------------------------------------------ playing


def play(
    family: EnvFamily,
    task: Task,
    seed: int,
    act: Callable[[Any], str],
    *,
    policy: str = "",
    most: int | None = None,
    past_the_end: bool = False,
    read: tuple[str, ...] = ("state_key",),
    watch: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> PlayedTrajectory:
    """Play `task` once in an environment of its own.

    `act(env)`: the next action. `most`: actions (None: the family's turns). `past_the_end`: go on where the environment
    says that it is over. `read`: methods without arguments that are asked after every call, where it has them. `watch`:
    a context in which it is played.
    """
    record = _Record(read)
    before = _global_states()
    try:
        with opened(family) as env, watch():
            _play_in(
                env,
                task,
                seed,
                act,
                record,
                family.max_turns if most is None else most,
                past_the_end,
            )
    except MissingPackageError:  # no fault of the environment
        raise
    except (Exception, SystemExit) as error:  # anybody's environment
        record.error = f"{type(error).__name__}: {error}"
    after = _global_states()
    acted = len(record.results) + record.where.startswith("step")
    return PlayedTrajectory(
        family,
        task,
        seed,
        policy,
        tuple(record.texts[:acted]),
        record.opening,
        tuple(record.results),
        tuple(record.readings),
        record.error,
        record.where,
        tuple(record.seconds),
        tuple(name for name in after if after[name] != before[name]),
    )


def script_of(trajectory: Trajectory) -> Script:
    """The script by which a stored trajectory is played once more: without an action that a deadline left unanswered,
    since nobody waits for it there."""
    texts = tuple(turn.text for turn in trajectory.turns)
    if trajectory.stop_reason is StopReason.ENV_TIMEOUT:
        texts = texts[:-1]
    return Script(trajectory.task, trajectory.dynamics_seed, texts)


def replay(family: EnvFamily, script: Script, **options: Any) -> PlayedTrajectory:
    """Play all actions of a script, whatever the environment says of its end. `options`: as in `play`."""
    texts = iter(script.texts)
    return play(
        family,
        script.task,
        script.seed,
        lambda env: next(texts),
        most=len(script.texts),
        past_the_end=True,
        **options,
    )


def opening_of(family: EnvFamily, task: Task, seed: int) -> Observation | None:
    """The first observation; None where the task cannot be begun."""
    return replay(family, Script(task, seed, ())).opening


@dataclass
class _Record:
    """A trajectory that is being played, so far."""

    read: tuple[str, ...]
    texts: list[str] = field(default_factory=list)
    opening: Observation | None = None
    results: list[StepResult] = field(default_factory=list)
    readings: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    where: str = "make"
    error: str = ""

    def timed(self, where: str, call: Callable[[], Any]) -> Any:
        self.where = where
        began = time.perf_counter()
        value = call()
        self.seconds.append(time.perf_counter() - began)
        return value

    def look(self, env: Any) -> None:
        asked = [name for name in self.read if callable(getattr(env, name, None))]
        self.readings.append({name: getattr(env, name)() for name in asked})


def _play_in(
    env: Any,
    task: Task,
    seed: int,
    act: Callable[[Any], str],
    record: _Record,
    most: int,
    past_the_end: bool,
) -> None:
    opening = record.timed("reset", lambda: env.reset(task, seed))
    record.opening = _checked(opening, Observation, "reset")
    record.look(env)
    for k in range(most):
        record.where = "the policy"
        text = act(env)
        record.texts.append(text)
        result = _checked(record.timed(f"step {k}", lambda: env.step(text)), StepResult, "step")
        record.results.append(result)
        record.look(env)
        if is_over(result) and not past_the_end:
            break
    record.where = ""


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise EnvError(f"{where} returns a {kind.__name__}, got {type(value).__name__}")
    check_messages(value if kind is Observation else value.observation)
    return value


def answers_in(env: Any, script: Script) -> Iterator[Any]:
    """The answers of an environment that somebody else opened to the reset and to each action, as they are taken."""
    yield answer_of(env, env.reset(script.task, script.seed))
    for text in script.texts:
        yield answer_of(env, env.step(text))


def played_at_once(
    runner: EnvRunner, family: EnvFamily, scripts: Mapping[str, Script], patience: int = 1
) -> dict[str, list[Any]]:
    """The answers of a runner to several trajectories that are stepped in turns, by their keys. `patience`: how often it
    is asked for an answer that does not come."""
    answered: dict[str, list[Any]] = {key: [] for key in scripts}
    for key, script in scripts.items():
        runner.reset(key, family, script.task, script.seed)
    waiting = len(scripts)
    idle = 0
    while waiting and idle < patience:
        answers = runner.poll(WAIT_S)
        idle = 0 if answers else idle + 1
        for answer in answers:
            waiting -= 1
            mine = answered.setdefault(answer.key, [])
            mine.append(_of_a_runner(answer))
            texts = scripts[answer.key].texts if answer.key in scripts else ()
            if answer.error is None and len(mine) <= len(texts):
                runner.step(answer.key, texts[len(mine) - 1])
                waiting += 1
            else:
                runner.close(answer.key)
    return answered


def within(deadline_s: float | None, call: Callable[[], Any]) -> Any:
    """What `call` returns; CUT_OFF where that takes longer than `deadline_s` (None: any time will do). What hangs is left
    behind in its thread, as by the runner that has threads."""
    if deadline_s is None:
        return call()
    answers: SimpleQueue = SimpleQueue()
    Thread(target=lambda: answers.put(call()), daemon=True).start()
    try:
        return answers.get(timeout=deadline_s)
    except Empty:
        return CUT_OFF


def unplayable(family: EnvFamily) -> str | None:
    """Name what is missing to play it here and compare; None: nothing."""
    if not getattr(family, "deterministic", True):
        return f"an environment that is the same twice: {family.name} says that it is not"
    if getattr(family, "remote", False):
        return f"an environment of this process: {family.name} is remote"
    return None


# ------------------------------------------------------------------------------------------------ answers compared


class ShownResult(NamedTuple):
    """What a policy is told of an action, and what is said of it beside."""

    text: str
    reward: float | None
    terminated: bool
    truncated: bool
    success: Any  # as `info` has it
    valid_format: Any

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated


def shown_results(played: PlayedTrajectory) -> list[ShownResult]:
    """[K] of each action."""
    return [
        ShownResult(
            text_of(result.observation),
            result.reward,
            result.terminated,
            result.truncated,
            result.info.get("success"),
            result.info.get("valid_format"),
        )
        for result in played.results
    ]


def answer_of(env: Any, reply: Observation | StepResult) -> Any:
    key = asked(env, "state_key")
    return plain_answer(reply), key


def before_a_deadline(expected: list[Any], answered: list[Any]) -> tuple[list[Any], list[Any]]:
    """Both lists of answers, up to the call that a runner's deadline cut off, if one did."""
    if not answered or answered[-1] != CUT_OFF:
        return expected, answered
    return expected[: len(answered) - 1], answered[:-1]


def _of_a_runner(answer: EnvAnswer) -> Any:
    if answer.timed_out:
        return CUT_OFF
    if answer.error is not None:
        return answer.error.partition(":")[0]
    reply = answer.observation if answer.result is None else answer.result
    return plain_answer(reply), answer.state_key


def plain_answer(reply: Observation | StepResult | Any) -> Any:
    """What two plays of a trajectory are compared by. Of `info`, which is for people and may hold seconds or a host's name,
    the values that something else depends on (READ_OF_INFO)."""
    if not isinstance(reply, StepResult):
        return reply
    return (
        reply.observation,
        reply.reward,
        dict(reply.reward_parts),
        reply.terminated,
        reply.truncated,
        {name: reply.info[name] for name in READ_OF_INFO if name in reply.info},
    )


def parting(expected: list[Any], answered: list[Any]) -> str:
    """Where two lists of answers part, in words."""
    for k, (one, other) in enumerate(zip(expected, answered)):
        if one != other:
            what = "the first observation" if k == 0 else f"the answer to action {k - 1}"
            return f"{what} is {_short(other)} instead of {_short(one)}"
    return f"it has {len(answered)} answers instead of {len(expected)}"


def _short(answered: Any) -> str:
    """The part of an answer that people look at, cut."""
    if isinstance(answered, str):
        return f"an exception ({answered})"
    reply, key = answered
    if isinstance(reply, Observation):
        words = " ".join(message.text for message in reply.messages)
    else:
        words = f"{' '.join(message.text for message in reply[0].messages)!r}, reward {reply[1]}"
    words = words if len(words) <= 90 else f"... {words[-90:]}"
    return f"{words!r}" + (f" (state {key!r})" if key else "")


def same(one: Any, other: Any) -> bool:
    """Equal, or written alike: NaN and arrays cannot be asked."""
    try:
        return bool(one == other) or _written(one) == _written(other)
    except ValueError:
        return _written(one) == _written(other)


def _written(value: Any) -> Any:
    """`repr` of all that is in it: that of an observation or a result is made for people, and cut."""
    if is_dataclass(value) and not isinstance(value, type):
        named = [(part.name, _written(getattr(value, part.name))) for part in fields(value)]
        return type(value).__qualname__, named
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_written(part) for part in value]
    if isinstance(value, dict):
        return repr({key: _written(part) for key, part in value.items()})
    return repr(value)


# ------------------------------------------------------------------------------------------------ small words


def is_over(result: StepResult) -> bool:
    return result.terminated or result.truncated


def is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def text_of(observation: Observation | None) -> str:
    if observation is None:
        return ""
    return "\n".join(message.text for message in observation.messages)


# ------------------------------------------------------------------------------------------------ time and chance


class Spent:
    """Seconds spent on playing since this was made: those of this process, so that a busy machine changes nothing; a
    quarter of the wall clock's, where an environment only waits."""

    def __init__(self) -> None:
        self.process = time.process_time()
        self.wall = time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.process_time() - self.process, (time.monotonic() - self.wall) / 4)


@contextmanager
def global_dice(seed: int) -> Iterator[None]:
    """Python's and numpy's global generators seeded for a while, and put back."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _global_states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {"random": random.getstate(), "numpy.random": (kind, keys.tobytes(), *rest)}
