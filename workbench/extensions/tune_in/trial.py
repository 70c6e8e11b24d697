"""Sample the same training tasks under several settings, and count how the turns were read.

    tuned = tune_in("Qwen/Qwen2.5-0.5B-Instruct", "frozenlake", tasks=4)
    tuned.best.settings      # {"interface.prompt": "full", "interface.format": "lenient"}

Only training tasks are played: settings must not be chosen on the tasks that are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.extensions.tune_in.advice import advice_on
from workbench.extensions.tune_in.view import tune_in_view
from workbench.rollouts.collect import collect
from workbench.rollouts.evaluate import Score, evaluate_baselines
from workbench.training.config import load_config
from workbench.training.session import Session, open_session
from workbench.values import Group, StopReason, Task, Trajectory, Turn, View, trajectories_of
from workbench.values.errors import ConfigError
from workbench.values.stats import wilson_interval
from workbench.values.view import HasView
from workbench.worlds.base import Wrapped

FULL = {"interface.prompt": "full"}
LENIENT = {**FULL, "interface.format": "lenient"}
ROOMY = {**LENIENT, "collect.max_turn_tokens": 256, "collect.temperature": 0.7}
# What is tried, after the settings as they are.
TRIALS: Mapping[str, Mapping[str, Any]] = {
    "full prompt": FULL,
    "full prompt, lenient": LENIENT,
    "full, lenient, 256 tokens, temperature 0.7": ROOMY,
}
# ... and, where an environment asks for thoughts, the last one without them.
NO_THOUGHT = ("env.think", "env.calls.think")
AS_IT_IS = "as it is"

MOST = 10_000  # tasks, trajectories of each, and turns of a trajectory


@dataclass(frozen=True)
class RefusedTurns:
    """Turns that were refused with the same words: how many, and one of them, as the policy wrote it."""

    complaint: str
    turns: int
    example: str


@dataclass(frozen=True)
class TrialRow:
    """What came of one set of settings.

    `strict`: turns that the strict format takes, `valid`: those that were read, forgiven ones among them. `cut`: turns that
    ended at the limit on tokens. `success`, None where the environment does not say, is of trajectories that no limit of
    this trial cut. `flat`: groups whose trajectories all earned the same; they teach nothing.
    """

    name: str
    settings: Mapping[str, Any]
    trajectories: int = 0
    turns: int = 0
    strict: int = 0
    valid: int = 0
    cut: int = 0
    tokens: float = 0.0  # of a turn, on average
    longest: int = 0  # tokens of a turn
    prompt: int = 0  # tokens of the longest first prompt
    success: float | None = None
    reward: float | None = None
    flat: float = 0.0
    seconds: float = 0.0
    forgiven: Mapping[str, int] = None  # what, in how many turns
    failures: tuple[RefusedTurns, ...] = ()
    stops: Mapping[str, int] = None  # how trajectories ended
    refused: str = ""  # why it could not be tried

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share of valid turns (Wilson's, as if turns of one trajectory were independent)."""
        return wilson_interval(self.valid, self.turns)


@dataclass(frozen=True, repr=False)
class TuneIn(HasView):
    """A row for each set of settings that was tried, baselines on the same tasks, and advice."""

    policy: str
    env: str
    rows: tuple[TrialRow, ...]
    baselines: tuple[Score, ...]
    limits: Mapping[str, Any]
    advice: tuple[str, ...] = ()

    @property
    def best(self) -> TrialRow:
        """The row with the largest share of valid turns; of equal ones the earliest, which changes least."""
        tried = [row for row in self.rows if row.turns]
        return max(tried, key=lambda row: row.valid / row.turns) if tried else self.rows[0]

    @property
    def view(self) -> View:
        return tune_in_view(self)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        rows = [
            {**vars(row), "failures": [vars(failure) for failure in row.failures]}
            for row in self.rows
        ]
        return {
            "policy": self.policy,
            "env": self.env,
            "limits": dict(self.limits),
            "rows": rows,
            "baselines": [score.row() for score in self.baselines],
            "advice": list(self.advice),
        }


class _FewTurns(Wrapped):
    """A family whose trajectories end after so many turns."""

    max_turns = 0

    def __init__(self, inside: Any, turns: int) -> None:
        super().__init__(inside)
        self.max_turns = min(turns, inside.max_turns)


def tune_in(
    policy: Any,
    env: Any,
    settings: Mapping[str, Any] = {},
    *,
    tasks: int = 4,
    attempts: int = 2,
    turns: int = 4,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TuneIn:
    """Let a policy play a few training tasks under several settings, and see how many of its turns can be read.

    policy    name or folder of a policy, or a Session that is open
    env       a preset, a .toml file, or an environment of one's own
    settings  changed before anything is tried
    tasks, attempts, turns   training tasks, trajectories of each, and the most turns of a trajectory
    trials    settings by a name; None: TRIALS. The settings as they are come first.

    Raises ConfigError and PolicyError where nothing can be opened; settings that an environment refuses are a row that
    says why.
    """
    if min(tasks, attempts, turns) < 1 or max(tasks, attempts, turns) > MOST:
        raise ConfigError(
            f"tune-in plays at least one task, once, for one turn, and at most {MOST:,} of each; got {tasks} tasks, "
            f"{attempts} attempts, {turns} turns"
        )
    session = _opened(policy, env, settings)
    base = session.config
    begun = {AS_IT_IS: {}, **(_trials(base) if trials is None else trials)}
    drawn = session.train_tasks(0, tasks)
    rows = []
    for name, changed in begun.items():
        row = _tried(session, base, name, changed, drawn, attempts, turns)
        say(
            f"{name}: {row.refused or f'{row.valid} of {row.turns} turns valid, {row.seconds:.0f} s'}"
        )
        rows.append(row)
    baselines = evaluate_baselines(drawn, family=base.family, seed=base.seed, attempts=attempts)
    tuned = TuneIn(
        session.policy.name,
        base.kind_of("env"),
        tuple(rows),
        tuple(baselines),
        {"tasks": tasks, "attempts": attempts, "turns": turns, "seed": base.seed},
    )
    return replace(tuned, advice=tuple(advice_on(tuned, base, session)))


def _opened(policy: Any, env: Any, settings: Mapping[str, Any]) -> Session:
    if isinstance(policy, Session):
        return policy
    return open_session(load_config(env, {"policy.name": str(policy), **settings}), quiet=True)


def _trials(config: Any) -> dict[str, Mapping[str, Any]]:
    trials = dict(TRIALS)
    for key in NO_THOUGHT:
        part = config
        for name in key.split("."):
            part = getattr(part, name, None)
        if part is True:
            trials["the same, without thoughts"] = {**ROOMY, key: False}
    return trials


def _tried(
    session: Session,
    base: Any,
    name: str,
    changed: Mapping[str, Any],
    tasks: Sequence[Task],
    attempts: int,
    turns: int,
) -> TrialRow:
    """The row of one set of settings."""
    try:
        config = load_config(base, changed)
        family = config.family
    except ConfigError as error:
        return TrialRow(name, changed, refused=str(error), forgiven={}, stops={})
    began = time.perf_counter()
    groups = collect(
        tasks,
        family=_FewTurns(family, turns),
        engine=session.engine,
        chat=session.chat,
        config=config.collect,
        group_size=attempts,
        address=(base.seed, "tune-in"),
    )
    row = counted(groups, family.max_turns)
    return replace(row, name=name, settings=changed, seconds=time.perf_counter() - began)


def counted(groups: Sequence[Group], max_turns: int) -> TrialRow:
    """The figures of trajectories, without name and settings. `max_turns`: of the environment itself."""
    trajectories = trajectories_of(groups)
    played = [turn for trajectory in trajectories for turn in trajectory.turns]
    known = [turn for turn in played if "valid_format" in turn.info]
    valid = [turn for turn in known if turn.info["valid_format"]]
    lengths = list(_lengths(trajectories))
    return TrialRow(
        "",
        {},
        trajectories=len(trajectories),
        turns=len(known),
        strict=sum("forgiven" not in turn.info for turn in valid),
        valid=len(valid),
        cut=sum(turn.finish == "length" for turn in played),
        tokens=_mean(lengths) or 0.0,
        longest=max(lengths, default=0),
        prompt=max(map(_prompt, trajectories), default=0),
        success=_success(trajectories, max_turns),
        reward=_mean([t.reward for t in trajectories if t.reward is not None]),
        flat=_mean([len({t.reward for t in group}) == 1 for group in groups]) or 0.0,
        forgiven=_counts(note for turn in valid for note in turn.info.get("forgiven", ())),
        failures=_failures(known),
        stops=_counts(t.stop_reason.value for t in trajectories),
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    """How often each occurs, the most frequent first."""
    return dict(Counter(names).most_common())


def _success(trajectories: Sequence[Trajectory], max_turns: int) -> float | None:
    """Of those that this trial did not cut; None where nobody says."""
    known = []
    for trajectory in trajectories:
        cut = trajectory.stop_reason is StopReason.MAX_TURNS and len(trajectory.turns) < max_turns
        if trajectory.success is not None and not cut:
            known.append(trajectory.success)
    return _mean(known)


def _mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return sum(values) / len(values) if values else None


def _failures(turns: Sequence[Turn]) -> tuple[RefusedTurns, ...]:
    """Refused turns by what was said of them, the most frequent first."""
    examples: dict[str, str] = {}
    count: Counter[str] = Counter()
    for turn in turns:
        if not turn.info["valid_format"]:
            complaint = str(turn.info.get("doubt") or turn.info.get("complaint") or "not said")
            count[complaint] += 1
            examples.setdefault(complaint, turn.text)
    return tuple(RefusedTurns(what, number, examples[what]) for what, number in count.most_common())


def _lengths(trajectories: Sequence[Trajectory]) -> Iterator[int]:
    """Sampled tokens of each turn."""
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for span in segment.spans:
                if span.logprobs is not None:
                    yield len(span.token_ids)


def _prompt(trajectory: Trajectory) -> int:
    """Tokens before the first sampled one."""
    length = 0
    for segment in trajectory.segments[:1]:
        for span in segment.spans:
            if span.logprobs is not None:
                break
            length += len(span.token_ids)
    return length
