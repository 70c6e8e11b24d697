"""What flows through the workbench: frozen values, standard library and numpy only.

Axis letters, used as name suffixes everywhere:
    N trajectories · G attempts in a group · K turns · S segments · T tokens (flat: segments end to end) · V vocabulary

A finished attempt, and where its tokens come from:

    Trajectory ── turns     what was said and earned, one entry per exchange
               └─ segments  what the model really saw, one entry per sequence
                     └─ spans   tokens by one author: PROMPT | SCAFFOLD | POLICY | ENV

An append-only history is one segment; a rewritten history (window, fresh prompt per turn, a template that drops old
thoughts) is several. Training treats both alike.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from workbench.errors import DataError


class Source(IntEnum):
    """Who wrote a token. Recorded when the token is born, never inferred from text, role or template (law 1)."""

    PROMPT = 0    # task text, system text, tool schemas: what stands before the first action
    SCAFFOLD = 1  # literals of the chat template: role headers, separators, a stop token that had to be supplied
    POLICY = 2    # sampled by the policy, in this segment or (shown again, without logprobs) in an earlier one
    ENV = 3       # observations, tool results: what the environment replied


class StopReason(str, Enum):
    """Why a trajectory ended: the task was over, a limit ran out, or something broke."""

    TERMINATED = "terminated"        # the environment says that the task is over
    ENV_TRUNCATED = "env_truncated"  # the environment's own limit (moves) ran out
    MAX_TURNS = "max_turns"          # the limit on exchanges ran out
    CONTEXT_FULL = "context_full"    # the next observation or action would not fit into the context
    ENV_ERROR = "env_error"          # the environment raised; `Trajectory.error` says what
    ENV_TIMEOUT = "env_timeout"      # the environment missed its deadline
    ENGINE_ERROR = "engine_error"    # the engine gave no answer for this trajectory

    @property
    def is_fault(self) -> bool:
        """True where something broke: such a trajectory is unscored (law 5), never "reward 0"."""
        return self in (StopReason.ENV_ERROR, StopReason.ENV_TIMEOUT, StopReason.ENGINE_ERROR)


# ------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True)
class Text:
    """A part of a message. Untrusted text never becomes a control token (law 9).

    `trusted=True` is for instructions that an environment's *author* wrote; never for task data, tool output or
    anything a user or model typed.
    """

    text: str
    trusted: bool = False


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it: `arguments` is the parsed JSON object."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None


@dataclass(frozen=True)
class Message:
    """One chat message. `content` is a tuple of parts; a bare string is taken as one untrusted part."""

    role: str  # "system" | "user" | "assistant" | "tool"
    content: str | tuple[Text, ...]  # kept as a tuple of parts
    name: str | None = None          # of the tool, in a tool reply
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        content = (Text(self.content),) if isinstance(self.content, str) else tuple(self.content)
        object.__setattr__(self, "content", content)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


@dataclass(frozen=True)
class Observation:
    """What an environment hands over: messages to append and, at reset, the JSON schemas of the tools on offer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "tools", tuple(self.tools))


@dataclass(frozen=True)
class StepResult:
    """An environment's answer to one action.

    `reward` is what this turn earned (None: could not be scored); `reward_parts` names what it is made of and sums to
    it. `terminated`: the task is over. `truncated`: a limit of the environment ran out. `info` is for people: JSON
    values such as `success` (bool), `moves` (list), `valid_format` (bool), `state` (text drawn in views). `tool_calls`
    are the calls that the action was read as, in its order. `if_cut`: what the attempt as a whole earns, by named parts,
    should a limit that the environment does not know (turns, context) end it here; it is then the outcome.
    """

    observation: Observation
    reward: float | None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    tool_calls: tuple[ToolCall, ...] = ()
    if_cut: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))


# ------------------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Task:
    """One problem to solve. `task_seed` makes the problem; chance inside the environment has its own seed (law 7).

    `payload` holds what the environment needs to build it (JSON values: a level, a question, a gold answer).
    """

    id: str
    env: str
    task_seed: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------ tokens


@dataclass(frozen=True)
class Sampling:
    """How a span was sampled, so that a trainer can tell whether its logprobs are comparable."""

    temperature: float = 1.0
    top_p: float = 1.0
    engine: str = ""
    dtype: str = ""

    @property
    def bends(self) -> bool:
        """True where the sampled-from distribution is not the model's own softmax."""
        return self.temperature != 1.0 or self.top_p != 1.0


def _frozen_array(values: Any, dtype: Any, what: str) -> np.ndarray:
    array = np.array(values, dtype=dtype)  # always a copy: nobody else holds a writable view
    if array.ndim != 1:
        raise DataError(f"{what} must be one-dimensional, got shape {array.shape}")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive tokens by one author.

    `logprobs` [len] are those of the distribution that was sampled from, present exactly where the policy sampled
    these tokens *in this very segment*; the same tokens shown again later have None and are never trained twice.
    `plain_logprobs` [len] are of the unbent distribution, where temperature or top-p bend it and the engine can say.
    `turn` is the exchange the span belongs to, counted from 0; the first prompt has turn 0, a reply belongs to the turn
    of the action it answers.
    """

    source: Source
    turn: int
    token_ids: np.ndarray
    logprobs: np.ndarray | None = None
    plain_logprobs: np.ndarray | None = None
    policy_version: int | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", Source(self.source))
        object.__setattr__(self, "token_ids", _frozen_array(self.token_ids, np.int32, "token_ids"))
        for name in ("logprobs", "plain_logprobs"):
            values = getattr(self, name)
            if values is None:
                continue
            values = _frozen_array(values, np.float32, name)
            object.__setattr__(self, name, values)
            if len(values) != len(self.token_ids):
                raise DataError(
                    f"turn {self.turn}: {len(self.token_ids)} sampled tokens but {len(values)} {name}; "
                    "an engine returns one logprob per token, stop token included"
                )
        if self.logprobs is not None and self.source is not Source.POLICY:
            raise DataError(f"a {self.source.name} span cannot carry logprobs: only the policy samples")
        if self.plain_logprobs is not None and self.logprobs is None:
            raise DataError("plain_logprobs without logprobs: a span that was not sampled here has neither")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Pickle, which carries spans between processes, brings arrays back writable: frozen again (law 6)."""
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def eligible(self) -> bool:
        """Law 1: trained if and only if the policy sampled it in this very segment."""
        return self.logprobs is not None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class Segment:
    """One sequence that the model really saw: spans end to end. All arrays below are [T], aligned token by token."""

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(self.spans))

    def _per_token(self, value, dtype) -> np.ndarray:
        parts = [np.full(len(span), value(span), dtype) for span in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    @property
    def token_ids(self) -> np.ndarray:
        return np.concatenate([span.token_ids for span in self.spans]) if self.spans else np.zeros(0, np.int32)

    @property
    def sources(self) -> np.ndarray:
        return self._per_token(lambda span: span.source, np.int8)

    @property
    def turns(self) -> np.ndarray:
        return self._per_token(lambda span: span.turn, np.int32)

    @property
    def eligible(self) -> np.ndarray:
        return self._per_token(lambda span: span.eligible, bool)

    @property
    def logprobs(self) -> np.ndarray:
        """float32, NaN where the token was not sampled here (None is not zero, law 5)."""
        parts = [np.full(len(s), np.nan, np.float32) if s.logprobs is None else s.logprobs for s in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first one sampled in this segment; everything after is the *response*."""
        length = 0
        for span in self.spans:
            if span.eligible:
                return length
            length += len(span)
        return length

    def __len__(self) -> int:
        return sum(len(span) for span in self.spans)


# ------------------------------------------------------------------------------------------------ trajectories


@dataclass(frozen=True)
class Turn:
    """One exchange: the whole text the policy wrote (the action) and what came back.

    `text` is decoded for people and parsers; the ids in the segments are the truth (law 2).
    `finish` is "stop" (the policy ended its turn) or "length" (it was cut). `reward` None: not scored.
    """

    index: int
    text: str
    finish: str = "stop"
    moves: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reply: tuple[Message, ...] = ()
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    state_key: str | None = None  # of the state the action was taken in, where the environment can name it
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One finished attempt at a task.

    `outcome` is what was earned by the trajectory as a whole, scored at its end; None where the environment pays by
    turns only, or where scoring failed (`scored` tells which). `reward` is the sum of all turns and the outcome.
    """

    task: Task
    attempt: int
    dynamics_seed: int
    first_observation: Observation
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    outcome: float | None = None
    outcome_parts: Mapping[str, float] = field(default_factory=dict)
    scored: bool = True
    success: bool | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", tuple(self.turns))
        object.__setattr__(self, "segments", tuple(self.segments))
        object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))

    @property
    def terminated(self) -> bool:
        return self.stop_reason is StopReason.TERMINATED

    @property
    def truncated(self) -> bool:
        """A limit ended it, not the task: a critic would bootstrap here."""
        return not self.terminated and not self.stop_reason.is_fault

    @property
    def reward(self) -> float | None:
        """Undiscounted sum of turn rewards and outcome; None if any of it could not be scored (law 5)."""
        if not self.scored or self.stop_reason.is_fault or any(turn.reward is None for turn in self.turns):
            return None
        return float(sum(turn.reward for turn in self.turns) + (self.outcome or 0.0))

    @property
    def num_sampled(self) -> int:
        return sum(len(span) for segment in self.segments for span in segment.spans if span.eligible)


@dataclass(frozen=True, eq=False)
class Group:
    """Attempts at the same task, from the same first observation (law 7)."""

    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "trajectories", tuple(self.trajectories))
        if not self.trajectories:
            raise DataError("a group holds at least one trajectory")
        first = self.trajectories[0]
        # A fault before the first observation leaves an empty one: nothing to compare.
        seen = next((t for t in self.trajectories if t.first_observation.messages), first)
        for other in self.trajectories[1:]:
            if other.task.id != first.task.id or other.task.task_seed != first.task.task_seed:
                raise DataError(
                    f"a group is one task, but attempt {other.attempt} is task {other.task.id!r} (seed "
                    f"{other.task.task_seed}) and attempt {first.attempt} is {first.task.id!r} (seed "
                    f"{first.task.task_seed}); baselines over different tasks are meaningless"
                )
            if other.first_observation.messages and other.first_observation != seen.first_observation:
                raise DataError(
                    f"task {first.task.id!r}: attempts {seen.attempt} and {other.attempt} start from different "
                    "observations; the first observation must depend on task_seed only, not on dynamics_seed"
                )
        attempts = [t.attempt for t in self.trajectories]
        if len(set(attempts)) != len(attempts):
            raise DataError(f"task {first.task.id!r}: attempt numbers repeat: {attempts}")

    @property
    def task(self) -> Task:
        return self.trajectories[0].task

    def __len__(self) -> int:
        return len(self.trajectories)

    def __iter__(self):
        return iter(self.trajectories)

    def __getitem__(self, index: int) -> Trajectory:
        return self.trajectories[index]


def trajectories_of(groups: Sequence[Group]) -> list[Trajectory]:
    """All trajectories, in address order: group by group, attempt by attempt."""
    return [trajectory for group in groups for trajectory in group]


# ------------------------------------------------------------------------------------------------ credit


@dataclass(frozen=True, eq=False)
class CreditTable:
    """Exactly what one update used, one row per token of the batch [T]; a later view shows it, a replay recomputes it.

    Columns (numpy, all of length T; a column that was not computed is absent, never zero):
        trajectory, segment, turn int32 · position int32 (in its segment) · token_id int32 · source int8 · eligible bool
        advantage, weight, return float64 (credit is computed in float64; what the critic is fitted to)
        rollout_logp, old_logp, new_logp, entropy, ratio float32 (NaN where not eligible)
        clip_state int8 (0 free, -1 clipped low, +1 clipped high) · ref_logp float32
        value, new_value float32: the critic's, before the token, when credit was computed and in this update
        final_value float32: the critic's, after the token, at the last one of a truncated trajectory, else NaN
    """

    step: int
    update: int
    columns: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"a credit table has one row per token, but its columns differ in length: {lengths}")

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise DataError(f"the credit table has no column {name!r} (not computed); it has {sorted(self.columns)}")
        return self.columns[name]


# ------------------------------------------------------------------------------------------------ showing


@dataclass(frozen=True)
class View:
    """The same facts three ways: `html` for a live notebook, `text` for a terminal and a diff, `png` for a web page.

    The last line of a cell is enough to see it: Jupyter picks the richest form that it can draw.
    """

    html: str
    text: str
    png: bytes | None = field(default=None, repr=False)

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.png is not None:
            bundle["image/png"] = self.png
        return bundle

    def __str__(self) -> str:
        return self.text
