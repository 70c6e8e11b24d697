"""R14: environments that share something are found, from inside or from outside. R20: what is recorded is what happened."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import pytest

from data.make.tiny_tokenizer import build_tokenizer
from workbench.basics.findings import Answer
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.adapters.gymnasium import Gymnasium
from workbench.extensions.scripted_play.reachable import parts
from workbench.extensions.world_rules.isolation import RULES
from workbench.extensions.world_rules.replayed import RULES as R20
from workbench.linting import Evidence, check
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.values import Message, Observation, StepResult, StopReason, Task, Trajectory, Turn
from workbench.values.seeds import rng_at
from workbench.worlds import PRESETS, FrozenLake, tasks
from workbench.worlds.frozen_lake import FrozenLakeEnv
from workbench.worlds.runners import InlineRunner

LAKE = FrozenLake(slip=0.4, max_moves=12)


def trajectory(family, task: Task, attempt: int, seed: int) -> Trajectory:
    """A trajectory of the random policy, recorded as collecting records it, without tokens."""
    env, rng, turns = family.make(), rng_at("test", task.id, attempt), []
    first, result = env.reset(task, seed), None
    stop = StopReason.MAX_TURNS
    while len(turns) < family.max_turns and stop is StopReason.MAX_TURNS:
        key = env.state_key() if hasattr(env, "state_key") else None
        text = family.random_action(env, rng) if rng.random() < 0.8 else "nonsense"
        result = env.step(text)
        turns.append(
            Turn(
                len(turns),
                text,
                moves=tuple(result.info.get("moves", ())),
                reply=result.observation.messages,
                reward=result.reward,
                reward_parts=dict(result.reward_parts),
                state_key=key,
                info=dict(result.info),
                tool_calls=result.tool_calls,
            )
        )
        stop = (
            StopReason.TERMINATED
            if result.terminated
            else StopReason.ENV_TRUNCATED
            if result.truncated
            else stop
        )
    return Trajectory(
        task, attempt, seed, first, tuple(turns), (), stop, success=result.info.get("success")
    )


@lru_cache
def recorded(name: str = "lake", count: int = 3) -> tuple[tuple[Trajectory, ...], ...]:
    family = LAKE if name == "lake" else PRESETS[name]
    return tuple(
        tuple(trajectory(family, task, a, 100 * t + a) for a in range(count))
        for t, task in enumerate(tasks(family, "train", 2))
    )


def isolated(family, groups=(), **evidence) -> Answer:
    return check(Evidence(groups, family=family, **evidence), RULES)["R14"]


def replayed(groups, family=LAKE, **evidence) -> Answer:
    return check(Evidence(tuple(map(tuple, groups)), family=family, **evidence), R20)["R20"]


# ------------------------------------------------------------------------------------------------ R14: clean


@pytest.mark.parametrize("name", PRESETS)
def test_our_environments_are_isolated_and_replay(name):
    groups = recorded(name)
    assert isolated(PRESETS[name], groups).status == "passed"
    assert (
        isolated(PRESETS[name]).status == "passed"
    )  # nothing was recorded: the random policy plays
    answer = replayed(groups, PRESETS[name])
    assert answer.status == "passed" and answer.looked == sum(
        len(t.turns) for group in groups for t in group
    )


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_the_other_runners_are_isolated(runner):
    assert (
        isolated(LAKE, recorded(), collect=CollectConfig(env_runner=runner, env_workers=2)).status
        == "passed"
    )


def test_an_environment_that_says_so_is_left_alone():
    @dataclass(frozen=True)
    class Searched(FrozenLake):
        remote: ClassVar[bool] = True

        def make(self):
            raise AssertionError("it is not to be touched")

    for answer in (isolated(Searched(), recorded()), replayed(recorded(), Searched())):
        assert answer.status == "not checked" and "remote" in answer.missing[0]


# ------------------------------------------------------------------------------------------------ R14: not


@dataclass(frozen=True)
class Counting:
    """Counts its turns; each variant keeps the count, or its chance, in another place that is shared."""

    kind: str = "own"
    shared: list = field(default_factory=lambda: [0])
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    lock: object = field(default_factory=threading.Lock)

    name: ClassVar[str] = "counting"
    max_turns: ClassVar[int] = 4
    everybody: ClassVar[list] = []

    def task(self, seed):
        return Task(f"counting/{seed}", self.name, seed)

    def make(self):
        if self.kind == "the same one":
            self.everybody.append(CountingEnv(self)) if not self.everybody else None
            return self.everybody[0]
        return {
            "in its class": InClass,
            "in its module": InModule,
            "alive": Alive,
            "a client": Client,
            "logs": Logs,
            "snapshot": Aliasing,
            "unchanged": Unchanged,
        }.get(self.kind, CountingEnv)(self)

    def random_action(self, env, rng):
        return f"go {rng.integers(3)}"


class CountingEnv:
    def __init__(self, family):
        self.count = family.shared if family.kind == "in its family" else [0]
        self.chance = family.rng if family.kind == "a generator" else None

    def reset(self, task, seed):
        self.count[0] = 0
        self.chance = self.chance or np.random.default_rng(seed)
        return Observation((Message("user", task.id),))

    def step(self, text):
        self.count[0] += 1
        words = f"{self.count[0]} {self.chance.integers(1000)}"
        return StepResult(Observation((Message("user", words),)), 0.0, truncated=self.count[0] >= 4)


class InClass(CountingEnv):
    counter: ClassVar[list] = [0]

    def __init__(self, family):
        super().__init__(family)
        self.count = InClass.counter


_MODULE = [0]


class InModule(CountingEnv):
    def reset(self, task, seed):
        _MODULE[0] = 0
        return super().reset(task, seed)

    def step(self, text):
        _MODULE[0] += 1
        return replace(super().step(text), reward=float(_MODULE[0]))


class Alive(CountingEnv):
    def __init__(self, family):
        super().__init__(family)
        self.client = ALIVE


ALIVE = (number for number in range(3))  # nobody can take down its state


class Logs(CountingEnv):
    """A logger and a lock, as every other library has them."""

    def __init__(self, family):
        super().__init__(family)
        self.log, self.lock = logging.getLogger("test.isolation"), family.lock

    def step(self, text):
        with self.lock:
            self.log.debug("%s", text)
        return super().step(text)


class Connection:
    def __init__(self):
        self.stream, self.calls = ALIVE, 0


class Client(CountingEnv):
    connection: ClassVar[Connection] = Connection()

    def __init__(self, family):
        super().__init__(family)
        self.client = self.connection

    def step(self, text):
        self.client.calls += 1
        return super().step(text)


class Unchanged(CountingEnv):
    table: ClassVar[dict] = {"a": [1, 2]}


class Aliasing(CountingEnv):
    def snapshot(self):
        return {"count": self.count, "chance": None}

    def restore(self, snapshot):
        self.count, self.chance = snapshot["count"], np.random.default_rng(5)


def test_trajectories_of_their_own_pass():
    assert (
        isolated(Counting()).status == "passed"
        and isolated(Counting("unchanged")).status == "passed"
    )


def test_loggers_and_locks_are_made_to_be_shared():
    logging.getLogger("test.isolation").debug("made")
    assert isolated(Counting("logs")).status == "passed"


def test_a_constant_in_a_class_is_no_news():
    """Gymnasium's classes hold a dict of metadata: it is everybody's, and only its changing would be one's business."""
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")
    answer = check(Evidence(family=Gymnasium("Blackjack-v1", max_turns=4)), [RULES[0]])["R14"]
    assert answer.status == "passed" and not answer.notes, answer


def test_something_alive_that_is_shared_is_a_note():
    answer = isolated(Counting("alive"))
    assert not answer.errors and "something alive" in answer.notes[0].what


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("in its class", "in common"),
        ("in its family", "in common"),
        ("the same one", "same environment twice"),
        ("in its module", "among 3 others"),
        ("a client", "changes as one is stepped"),
        ("a generator", "in common"),
        ("a generator", "twice in fresh environments"),
        ("snapshot", "snapshot"),
    ],
)
def test_negative_control_what_is_shared_is_found(kind, words):
    Counting.everybody.clear()
    answer = isolated(Counting(kind))
    assert any(words in finding.what for finding in answer.errors), answer


class OneForAll(InlineRunner):
    """A runner that makes one environment for all trajectories."""

    def reset(self, key, family, task, dynamics_seed):
        if self._envs:
            self._envs[key] = next(iter(self._envs.values()))
            self._ready.append(type(self)._answer(key, self._envs[key].reset(task, dynamics_seed)))
        else:
            super().reset(key, family, task, dynamics_seed)

    @staticmethod
    def _answer(key, observation):
        from workbench.worlds.runners import EnvAnswer

        return EnvAnswer(key, observation=observation)


class Crossed(InlineRunner):
    """A runner that steps the environment that was reset last."""

    def step(self, key, action_text):
        last = list(self._envs)[-1]
        super().step(last, action_text)
        self._ready[-1] = replace(self._ready[-1], key=key)


class Silent(InlineRunner):
    """A runner that loses an answer."""

    def step(self, key, action_text):
        if not key.endswith("#1"):
            super().step(key, action_text)


class OneForATask(InlineRunner):
    """A runner whose trajectories of the same task share an environment."""

    def reset(self, key, family, task, dynamics_seed):
        shared = [env for name, env in self._envs.items() if name.rpartition("#")[0] == task.id]
        super().reset(key, family if not shared else _Handing(shared[0]), task, dynamics_seed)


class _Handing:
    def __init__(self, env):
        self.make = lambda: env


@pytest.mark.parametrize("kind", [OneForAll, OneForATask, Crossed, Silent])
def test_negative_control_a_runner_that_mixes_trajectories_up(kind, monkeypatch):
    monkeypatch.setattr(CollectConfig, "runner", lambda self: kind())
    (finding,) = isolated(LAKE, recorded(), collect=CollectConfig()).errors
    assert "stepped by the runner" in finding.what


def test_live_environments_that_share_are_named():
    shared = Counting("in its class").make()
    mine, other = Counting().make(), Counting().make()
    live = {"t#0": mine, "t#1": other}
    assert not isolated(Counting(), environments=live).findings
    other.count = mine.count
    (finding,) = isolated(Counting(), environments=live).errors
    assert finding.place.trajectory == "t/1" and "share count" in finding.what
    assert isolated(Counting(), environments={"t#0": shared, "t#1": shared}).errors


def test_parts_are_the_objects_that_can_change():
    made = parts(LAKE.make())
    assert {type(value).__name__ for _, value in made.values()} == {"FrozenLakeEnv"}
    names = {path for path, _ in parts({"a": [np.zeros(2), (1, {"b": set()})]}).values()}
    assert names == {"", "['a']", "['a'][0]", "['a'][1][1]", "['a'][1][1]['b']"}
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert len(parts([frozen, "text", 1.5, len])) == 1


# ------------------------------------------------------------------------------------------------ R20


def changed(groups, index: int, **fields):
    """The same with a turn (the last) or the trajectory changed."""
    flat = [t for group in groups for t in group]
    t = flat[index]
    turn = {
        name: fields.pop(name)
        for name in list(fields)
        if name in Turn.__dataclass_fields__ and name != "index"
    }
    turns = (*t.turns[:-1], replace(t.turns[-1], **turn)) if turn else t.turns
    flat[index] = replace(t, turns=fields.pop("turns", turns), **fields)
    return [flat[:3], flat[3:]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reward": 7.0}, "reward recorded: 7.0"),
        ({"reward": None}, "reward recorded: None"),
        ({"reward_parts": {"goal": 1.0}}, "reward parts"),
        ({"moves": ("Up", "Up", "Up")}, "moves recorded"),
        ({"reply": (Message("user", "well done"),)}, "reply is recorded as 'well done'"),
        ({"state_key": "elsewhere"}, "in state 'elsewhere'"),
        ({"stop_reason": StopReason.MAX_TURNS}, "ended"),
        ({"first_observation": Observation((Message("user", "hello"),))}, "opens this task"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_negative_control_a_record_that_differs_is_named(fields, words):
    index = next(
        n
        for n, t in enumerate(t for group in recorded() for t in group)
        if t.stop_reason is not StopReason.MAX_TURNS and len(t.turns) < LAKE.max_turns
    )
    (finding,) = replayed(changed(recorded(), index, **fields)).errors
    assert words in finding.what and finding.place.index == index


def test_negative_control_success_and_a_trajectory_that_goes_on():
    first = recorded()[0][0]
    (finding,) = replayed(changed(recorded(), 0, success=not first.success)).errors
    assert "success" in finding.what
    longer = (*first.turns, replace(first.turns[-1], index=len(first.turns)))
    (finding,) = replayed(changed(recorded(), 0, turns=longer)).errors
    assert "over after turn" in finding.what or "state" in finding.what or "ended" in finding.what


def test_negative_control_two_trajectories_change_their_turns():
    """Rewards and replies of the sibling: the lake slipped otherwise there."""
    (one, two, three), others = recorded()
    swapped = [
        (
            replace(one, turns=two.turns, success=two.success, stop_reason=two.stop_reason),
            two,
            three,
        ),
        others,
    ]
    assert replayed(swapped).errors


def test_one_fate_for_a_group_is_found():
    group = [replace(t, dynamics_seed=recorded()[0][0].dynamics_seed) for t in recorded()[0]]
    found = replayed([group, recorded()[1]]).errors
    assert "2 of 3 trajectories of this task have the dynamics seed of another one" in found[0].what


def test_a_step_looks_at_a_few_others_each_time():
    groups, seen = recorded(), set()
    for step in range(3):
        answer = replayed(changed(groups, 4, reward=9.0), samples=2, step=step)
        seen.add(bool(answer.errors))
        assert answer.looked < sum(len(t.turns) for group in groups for t in group)
    assert seen == {True, False}


def test_faults_are_no_findings():
    """The last action was never answered."""
    for stop in (StopReason.ENV_TIMEOUT, StopReason.ENGINE_ERROR):
        groups = changed(
            recorded(),
            0,
            reward=None,
            reply=(),
            reward_parts={},
            moves=(),
            info={},
            stop_reason=stop,
            success=None,
        )
        assert not replayed(groups).findings
    (note,) = replayed(
        changed(
            recorded(), 0, reward=None, reply=(), stop_reason=StopReason.ENV_ERROR, success=None
        )
    ).findings
    assert note.severity == "note"
    nothing = replace(
        recorded()[0][0],
        first_observation=Observation(()),
        turns=(),
        stop_reason=StopReason.ENV_ERROR,
    )
    assert not replayed([[nothing]]).findings


def test_an_environment_that_is_not_the_same_twice_is_a_note():
    """A judge, a clock: it should have said so, and nobody's record is wrong."""
    ticks = iter(range(10_000))

    @dataclass(frozen=True)
    class Judged(FrozenLake):
        def make(self):
            env = super().make()
            step = env.step
            env.step = lambda text: replace(step(text), reward=float(next(ticks)))
            return env

    answer = replayed(recorded(), Judged(slip=0.4, max_moves=12))
    assert not answer.errors and "declare deterministic = False" in answer.notes[0].what


def test_what_collect_makes_replays():
    """Through the engine, the chat format and the runner, slips and unreadable answers included."""
    tokenizer = build_tokenizer([LAKE.instructions] * 3 + ["Moves left: 10 P _ O G"] * 3)
    chat = ChatFormat.from_tokenizer(tokenizer)

    def script(request):
        text = LAKE.random_action(None, rng_at(request.seed)) if request.seed % 4 else "nonsense"
        return [*tokenizer.encode(text, add_special_tokens=False), min(chat.stop_ids)]

    groups = collect(
        tasks(LAKE, "train", 2),
        family=LAKE,
        engine=ScriptedEngine(script),
        chat=chat,
        config=CollectConfig(),
        group_size=3,
        address=(0, "test", 1),
    )
    answer = replayed(groups)
    assert answer.status == "passed" and answer.looked >= 12


# ------------------------------------------------------------------------------------------------ shared on purpose


class Index:
    """What all trajectories look into, and are told that nobody changes."""

    read_only = True

    def __init__(self) -> None:
        self.asked = {"n": 0}


INDEX = Index()


class Searching(FrozenLakeEnv):
    """Looks into an index of all; with `counts`, each question is written down there."""

    counts = False

    def __init__(self, family) -> None:
        super().__init__(family)
        self.index = INDEX

    def step(self, action_text):
        self.index.asked["n"] += self.counts
        return super().step(action_text)


class Noting(Searching):
    counts = True


@pytest.mark.parametrize(("env", "status"), [(Searching, "passed"), (Noting, "found")])
def test_what_is_shared_read_only_is_no_finding_until_it_changes(env, status):
    family = type("Family", (FrozenLake,), {"make": lambda self: env(self)})(slip=0.4, max_moves=12)
    assert isolated(family, recorded()).status == status
