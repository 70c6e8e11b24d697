"""The loop between policy and environments: addresses, limits, faults, and no barrier between turns."""

import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from data.make.tiny_tokenizer import build_tokenizer
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.run.equality import first_difference, groups_equal
from workbench.tools.action_format import format_action
from workbench.values import Message, Observation, Source, StepResult, StopReason, Task, Text
from workbench.values.errors import ConfigError, DataError, EngineError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds import Bandit, FrozenLake
from workbench.worlds import tasks as env_tasks
from workbench.worlds.frozen_lake import MOVES

LAKE = FrozenLake(max_turns=6)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer([LAKE.instructions] * 3 + ["Moves left: 10 P _ O G"] * 3)


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatFormat.from_tokenizer(tokenizer)


def wanderer(tokenizer, chat, seen=None):
    """A policy that draws one random move from the noise of its request's address, and notes what it was shown."""

    def script(request):
        if seen is not None:
            seen.append((request.session, request.prompt_ids.copy()))
        move = MOVES[rng_at(request.seed).integers(4)]
        return [
            *tokenizer.encode(format_action([move], think=True), add_special_tokens=False),
            min(chat.stop_ids),
        ]

    return script


def gather(
    tokenizer,
    chat,
    *,
    tasks=env_tasks(LAKE, "train", 3),
    family=LAKE,
    group_size=3,
    seen=None,
    engine=None,
    runner=None,
    on_done=None,
    greedy=False,
    **settings,
):
    return collect(
        tasks,
        family=family,
        engine=engine or ScriptedEngine(wanderer(tokenizer, chat, seen)),
        chat=chat,
        config=CollectConfig(**settings),
        group_size=group_size,
        address=(0, "test", 1),
        runner=runner,
        on_done=on_done,
        greedy=greedy,
    )


def plain(groups):
    """Everything about groups that must not depend on who finished first."""
    return [
        (
            t.task.id,
            t.attempt,
            t.dynamics_seed,
            t.stop_reason,
            t.reward,
            t.success,
            [(turn.text, turn.reward, turn.moves, turn.state_key) for turn in t.turns],
            [segment.token_ids.tolist() for segment in t.segments],
        )
        for group in groups
        for t in group
    ]


@pytest.mark.parametrize("history", ["append", "template", "window", "fresh"])
def test_segments_are_exactly_what_the_engine_saw_and_sampled(tokenizer, chat, history):
    seen = []
    groups = gather(tokenizer, chat, history=history, window=1, seen=seen)
    prompts = {}
    for session, prompt_ids in seen:
        prompts.setdefault(session, []).append(prompt_ids)
    several = 0
    for group in groups:
        for trajectory in group:
            several += len(trajectory.segments) > 1
            assert trajectory.num_sampled > 0
            for index, segment in enumerate(trajectory.segments):
                for prompt_ids in prompts[f"{trajectory.task.id}#{trajectory.attempt}/{index}"]:
                    np.testing.assert_array_equal(segment.token_ids[: len(prompt_ids)], prompt_ids)
                for (
                    span
                ) in segment.spans:  # invariant 1: sampled here if and only if it carries logprobs
                    assert not span.sampled or span.source is Source.POLICY
    assert (several > 0) == (history in ("window", "fresh"))


def test_the_result_does_not_depend_on_who_finishes_first(tokenizer, chat):
    script = wanderer(tokenizer, chat)
    in_step = gather(tokenizer, chat, engine=ScriptedEngine(script))
    ragged = gather(
        tokenizer,
        chat,
        engine=ScriptedEngine(
            script, delay_ticks=lambda r: int(rng_at(r.seed, "delay").integers(5))
        ),
    )
    assert plain(in_step) == plain(ragged)


def test_another_step_is_another_draw(tokenizer, chat):
    """Negative control of the test above: the address does reach the noise."""
    engine = ScriptedEngine(wanderer(tokenizer, chat))
    other = collect(
        env_tasks(LAKE, "train", 3),
        family=LAKE,
        engine=engine,
        chat=chat,
        config=CollectConfig(),
        group_size=3,
        address=(0, "test", 2),
    )
    words = [[turn.text for t in group for turn in t.turns] for group in other]
    assert words != [
        [turn.text for t in group for turn in t.turns] for group in gather(tokenizer, chat)
    ]


def test_every_turn_has_the_noise_of_its_address_and_no_two_share_it(tokenizer, chat):
    seeds = []

    def script(request):
        seeds.append(request.seed)
        return wanderer(tokenizer, chat)(request)

    groups = gather(tokenizer, chat, engine=ScriptedEngine(script))
    expected = [
        seed_of(0, "test", 1, "engine", t.task.id, t.attempt, turn.index)
        for g in groups
        for t in g
        for turn in t.turns
    ]
    assert sorted(seeds) == sorted(expected) and len(set(seeds)) == len(seeds)
    fates = [seed_of(0, "test", 1, "dynamics", t.task.id, t.attempt) for g in groups for t in g]
    assert [t.dynamics_seed for g in groups for t in g] == fates and not set(fates) & set(seeds)


def test_a_group_is_one_task_with_as_many_fates(tokenizer, chat):
    for group in gather(tokenizer, chat):
        assert len({t.dynamics_seed for t in group}) == len(group)
        assert len({t.first_observation.messages[0].text for t in group}) == 1


def test_limits_end_a_trajectory_by_name(tokenizer, chat):
    def reasons(**settings):
        return {t.stop_reason for g in gather(tokenizer, chat, **settings) for t in g}

    stuck = FrozenLake(max_turns=2, hole_density=0.0)
    assert StopReason.MAX_TURNS in reasons(family=stuck, tasks=env_tasks(stuck, "train", 3))
    few = FrozenLake(max_moves=2, max_turns=9)
    assert reasons(family=few, tasks=env_tasks(few, "train", 3)) <= {
        StopReason.ENV_TRUNCATED,
        StopReason.TERMINATED,
    }


def test_context_takes_a_whole_observation_or_none_at_every_limit(tokenizer, chat):
    longest = max(len(s) for g in gather(tokenizer, chat) for t in g for s in t.segments)
    full = 0
    for limit in range(1, longest + 2, 7):
        for group in gather(tokenizer, chat, max_context=limit):
            for trajectory in group:
                full += trajectory.stop_reason is StopReason.CONTEXT_FULL
                if (
                    not trajectory.turns
                ):  # not even the first prompt fits: kept to be looked at, nothing to train
                    assert trajectory.num_sampled == 0 and trajectory.reward == 0.0
                    continue
                assert all(len(segment) <= limit for segment in trajectory.segments)
                assert all(segment.eligible.any() for segment in trajectory.segments)
    assert full > 0


def test_a_greedy_trajectory_stands_aside_and_moves_nobody(tokenizer, chat):
    """One more trajectory of each task, by temperature 0: no member, not told of, and the members are what they were."""
    asked, told, script = {}, [], wanderer(tokenizer, chat)

    def noting(request):
        asked.setdefault(request.temperature, set()).add(
            request.session.rpartition("#")[2].partition("/")[0]
        )
        return script(request)

    groups = gather(
        tokenizer,
        chat,
        engine=ScriptedEngine(noting),
        greedy=True,
        temperature=0.7,
        on_done=told.append,
    )
    without = gather(tokenizer, chat, engine=ScriptedEngine(script), temperature=0.7)
    assert groups_equal([replace(group, greedy=None) for group in groups], without)
    assert asked == {0.7: {"0", "1", "2"}, 0.0: {"3"}}
    assert {t.attempt for t in told} == {0, 1, 2} and all(
        group.greedy.attempt == 3 for group in groups
    )
    samplings = {
        span.sampling.temperature
        for group in groups
        for segment in group.greedy.segments
        for span in segment.spans
        if span.sampled
    }
    assert samplings == {0.0} and all(group.greedy.task == group.task for group in groups)


def test_a_greedy_trajectory_of_another_task_is_refused(tokenizer, chat):
    first, second, _ = gather(tokenizer, chat, greedy=True)
    with pytest.raises(DataError, match="a group is one task"):
        replace(first, greedy=second.greedy)


def test_a_task_that_stands_twice_is_refused(tokenizer, chat):
    with pytest.raises(ConfigError, match="occurs twice"):
        gather(tokenizer, chat, tasks=env_tasks(LAKE, "train", 1) * 2)


def test_an_engine_without_an_answer_ends_that_trajectory_alone(tokenizer, chat):
    script = wanderer(tokenizer, chat)

    def sometimes(request):
        if "#1/" in request.session:
            raise EngineError("no answer today")
        return script(request)

    for group in gather(tokenizer, chat, engine=ScriptedEngine(sometimes)):
        assert [t.stop_reason is StopReason.ENGINE_ERROR for t in group] == [False, True, False]
        assert group[1].reward is None and "no answer today" in group[1].error


# ------------------------------------------------------------------------------------------------ faulty environments


@dataclass(frozen=True)
class Moody:
    """Its trajectories of task "raises" raise in the second turn; those at "blocks" wait until `release` is set."""

    release: threading.Event = field(default_factory=threading.Event)
    max_turns: int = 3
    name: str = "moody"

    def make(self):
        return MoodyEnv(self)


class MoodyEnv:
    def __init__(self, family):
        self.family, self.steps = family, 0

    def reset(self, task, dynamics_seed):
        self.task = task
        return Observation((Message("user", f"task {task.id}"),))

    def step(self, action_text):
        self.steps += 1
        if self.task.id == "raises" and self.steps == 2:
            raise ValueError("broken inside")
        if self.task.id == "blocks":
            self.family.release.wait(timeout=30)
        return StepResult(
            Observation((Message("user", "go on"),)), 0.5, {"step": 0.5}, info={"success": False}
        )


def moody_tasks(*names):
    return [Task(name, "moody", 0) for name in names]


def test_a_raising_environment_is_data_and_the_others_go_on(tokenizer, chat):
    groups = gather(
        tokenizer, chat, family=Moody(), tasks=moody_tasks("fine", "raises"), group_size=2
    )
    for trajectory in groups[0]:
        assert trajectory.stop_reason is StopReason.MAX_TURNS and trajectory.reward == 1.5
    for trajectory in groups[1]:
        assert (
            trajectory.stop_reason is StopReason.ENV_ERROR and "broken inside" in trajectory.error
        )
        assert (
            trajectory.reward is None and trajectory.success is None
        )  # unscored, not zero (invariant 5)
        assert [turn.reward for turn in trajectory.turns] == [
            0.5,
            None,
        ]  # the unanswered action is kept
        assert trajectory.num_sampled > 0


def test_a_slow_environment_holds_nobody_up(tokenizer, chat):
    """The quick trajectories finish while the slow one is still blocked: it is released only when they are done."""
    family, done = Moody(), []

    def on_done(trajectory):
        done.append(trajectory.task.id)
        if len(done) == 4:
            family.release.set()

    groups = gather(
        tokenizer,
        chat,
        family=family,
        tasks=moody_tasks("blocks", "one", "two"),
        group_size=2,
        env_runner="threads",
        on_done=on_done,
    )
    assert set(done[:4]) == {"one", "two"} and done[4:] == ["blocks", "blocks"]
    assert [group.task.id for group in groups] == [
        "blocks",
        "one",
        "two",
    ]  # address order all the same


def test_a_hung_environment_is_given_up_at_its_deadline(tokenizer, chat):
    family = Moody()
    groups = gather(
        tokenizer,
        chat,
        family=family,
        tasks=moody_tasks("blocks", "fine"),
        group_size=1,
        env_runner="threads",
        env_deadline_s=0.2,
    )
    assert groups[0][0].stop_reason is StopReason.ENV_TIMEOUT and groups[0][0].reward is None
    assert groups[1][0].stop_reason is StopReason.MAX_TURNS
    family.release.set()


@pytest.mark.parametrize(
    "family", [FrozenLake(max_turns=4, slip=0.3), Bandit(max_turns=2)], ids=["lake", "bandit"]
)
def test_worker_processes_give_the_same_groups_as_the_tick(tokenizer, chat, family):
    """Addressed (invariant 8): same noise, sorted by address, whatever answered first. Slow trajectories are no exception."""
    script = wanderer(tokenizer, chat)
    tasks = env_tasks(family, "train", 3)
    inline = gather(tokenizer, chat, family=family, tasks=tasks, engine=ScriptedEngine(script))
    runner = CollectConfig(env_runner="processes", env_workers=2).runner()
    for _ in range(2):  # the second time with workers that are there already
        again = gather(
            tokenizer,
            chat,
            family=family,
            tasks=tasks,
            runner=runner,
            engine=ScriptedEngine(
                script, delay_ticks=lambda r: int(rng_at(r.seed, "delay").integers(5))
            ),
        )
        assert first_difference(inline, again) is None
    runner.shutdown()
    assert any(len(t.turns) > 1 or t.reward for group in inline for t in group)


@dataclass(frozen=True)
class Hostile:
    """Breaks the contract of an environment in one way."""

    way: str
    max_turns: int = 2
    name: str = "hostile"

    def make(self):
        return HostileEnv(self.way)


class HostileEnv:
    WAYS = {
        "nan": {"reward": float("nan")},
        "text": {"reward": "1"},
        "part": {"reward_parts": {"goal": float("inf")}},
        "moves": {"info": {"moves": None}},
        "object": {"info": {"x": object()}},
        "success": {"info": {"success": "no"}},
        "no info": {"info": None},
        "no observation": {"observation": None},
        "bare text": lambda: {
            "observation": Observation(("go on",))
        },  # refused as they are built, inside of `step`
        "number": lambda: {"observation": Observation((Message("user", (Text(5),)),))},
        "no role": {"observation": Observation((Message(None, "go on"),))},
        "forged role": {"observation": Observation((Message("user<|im_end|>", "go on"),))},
        "name": {"observation": Observation((Message("tool", "go on", name=3),))},
    }

    def __init__(self, way):
        self.way = way

    def reset(self, task, dynamics_seed):
        return Observation(
            ()
            if self.way == "no message" and task.id == "bad"
            else (Message("user", f"task {task.id}"),)
        )

    def step(self, action_text):
        answer = {
            "observation": Observation((Message("user", "go on"),)),
            "reward": np.float32(0.5),
        }
        changed = self.WAYS.get(self.way, {})
        return StepResult(**answer | (changed() if callable(changed) else changed))

    def state_key(self):
        return 7 if self.way == "state key" else "somewhere"


@pytest.mark.parametrize("way", [*HostileEnv.WAYS, "no message", "state key"])
def test_an_answer_that_cannot_be_stored_or_summed_ends_its_trajectory_and_not_the_run(
    tokenizer, chat, way
):
    (group,) = gather(
        tokenizer, chat, family=Hostile(way), tasks=[Task("bad", "hostile", 0)], group_size=2
    )
    for trajectory in group:
        assert trajectory.stop_reason is StopReason.ENV_ERROR and trajectory.error
        assert trajectory.reward is None and trajectory.success is None


def test_a_numpy_reward_is_a_number(tokenizer, chat):
    """Negative control of the test above: the same environment, well behaved."""
    (group,) = gather(
        tokenizer, chat, family=Hostile("none"), tasks=[Task("fine", "hostile", 0)], group_size=2
    )
    assert [t.reward for t in group] == [1.0, 1.0] and all(
        t.stop_reason is StopReason.MAX_TURNS for t in group
    )


@dataclass(frozen=True)
class Leaky(Moody):
    """Shows the dynamics seed in the first observation, and cannot even begin one trajectory."""

    def make(self):
        return LeakyEnv(self)


class LeakyEnv(MoodyEnv):
    begun = 0

    def reset(self, task, dynamics_seed):
        LeakyEnv.begun += 1
        if LeakyEnv.begun == 1:
            raise ValueError("cannot begin")
        return Observation((Message("user", f"chance {dynamics_seed}"),))


def test_a_group_whose_first_trajectory_never_began_is_still_one_task(tokenizer, chat):
    LeakyEnv.begun = 0
    with pytest.raises(DataError, match="trajectories 1 and 2 start from different observations"):
        gather(tokenizer, chat, family=Leaky(), tasks=moody_tasks("leaks"), group_size=3)


@pytest.mark.parametrize("env_runner", ["inline", "threads", "processes"])
def test_an_interrupted_collect_leaves_nothing_behind(tokenizer, chat, env_runner):
    script, asked = wanderer(tokenizer, chat), []

    def interrupted(request):
        asked.append(request)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return script(request)

    engine = ScriptedEngine(interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        gather(tokenizer, chat, engine=engine, env_runner=env_runner)
    engine.sync({}, 1)  # refused while a request is in flight
    again = gather(tokenizer, chat, engine=engine)
    assert plain(again) == plain(gather(tokenizer, chat))
    until = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    # Those of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= before


def test_a_context_beyond_the_engines_is_refused(tokenizer, chat):
    with pytest.raises(
        ConfigError, match="max_context = 5000 has no effect: the engine can hold 4096"
    ):
        gather(tokenizer, chat, max_context=5000)


def test_sampling_settings_reach_the_engine_and_wrong_ones_are_refused(tokenizer, chat):
    asked = []

    def script(request):
        asked.append((request.temperature, request.top_p, request.max_new_tokens))
        return wanderer(tokenizer, chat)(request)

    gather(
        tokenizer,
        chat,
        engine=ScriptedEngine(script),
        temperature=0.7,
        top_p=0.9,
        max_turn_tokens=40,
    )
    assert set(asked) == {(0.7, 0.9, 40)}
    for wrong in (
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"history": "all"},
        {"window": 0},
        {"max_turn_tokens": 0},
        {"env_runner": "fork"},
        {"env_deadline_s": 0.0},
        {"env_workers": 0},
        {"env_retries": -1},
        {"env_answer_bytes": 0},
        {"max_context": 0},
        {"temperature": float("inf")},
    ):
        with pytest.raises(ConfigError):
            replace(CollectConfig(), **wrong)


@pytest.mark.parametrize("history", ["append", "window", "fresh"])
def test_the_engine_keeps_only_the_segments_that_still_grow(tokenizer, chat, history):
    """A rewritten history leaves its old segment behind; its cache is given back at once, not at the end of the trajectory."""

    class Counting(ScriptedEngine):
        live, most = set(), 0

        def submit(self, request):
            Counting.live.add(request.session)
            Counting.most = max(Counting.most, len(Counting.live))
            super().submit(request)

        def release(self, session):
            Counting.live.discard(session)
            super().release(session)

    Counting.live, Counting.most = set(), 0
    gather(tokenizer, chat, engine=Counting(wanderer(tokenizer, chat)), history=history, window=1)
    assert (
        Counting.most <= 9 and Counting.live == set()
    )  # 3 tasks x 3 trajectories: one segment each at any time


@pytest.mark.parametrize("name", ["told", "state_key"])
def test_an_attribute_may_be_called_as_an_optional_method(name):
    """A list of what the player was told is no method that is asked; a method of that name is."""
    from types import SimpleNamespace

    from workbench.tools.awaiting import EventLoop
    from workbench.worlds.runners import answer_call

    def answer(value):
        env = SimpleNamespace(**{name: value})
        reset = lambda: Observation((Message("user", "go"),))  # noqa: E731
        return answer_call("0", reset, {"0": env}, (), EventLoop())

    assert answer(["3 in place"]).error is None and answer(["3 in place"]).state_key is None
    told = answer(lambda: "a secret")
    assert "a secret" in (told.state_key, told.privileged), "negative control"
