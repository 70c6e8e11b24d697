"""Many trajectories in other people's environments, with a scripted policy, wherever they run."""

from __future__ import annotations

import functools
import os

from data.make.tiny_tokenizer import build_tokenizer
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.world_rules.replayed import RULES as R20
from workbench.linting import Evidence, check
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.values import StopReason
from workbench.values.seeds import rng_at
from workbench.worlds.splits import tasks

# ADAPTER_ATTEMPTS=1000 plays as many as were played when the adapters were made: minutes each on two cores.
COUNTS = {"quick": 12, "full": int(os.environ.get("ADAPTER_ATTEMPTS", 240))}
GARBAGE = (
    "",
    "no tags",
    "<think></think><answer></answer>",
    "<answer>x</answer>",
    "<think></think><answer>]][[</answer>",
)


@functools.lru_cache
def spoken():
    tokenizer = build_tokenizer(["Some words, and 0 1 2 3 4 5 6 7 8 9."] * 3, vocab_size=300)
    return tokenizer, ChatFormat.from_tokenizer(tokenizer)


def some_trajectories(family, texts, count, runner="inline", at_once=1_000):
    """`count` trajectories, four a task, so many `at_once`; an action is one of `texts`, or garbage one time in ten."""
    tokenizer, chat = spoken()

    def script(request):
        rng = rng_at(request.seed)
        of = GARBAGE if rng.random() < 0.1 else texts
        return [
            *tokenizer.encode(of[rng.integers(len(of))], add_special_tokens=False),
            min(chat.stop_ids),
        ]

    engine = ScriptedEngine(script, context_length=200_000)
    config = CollectConfig(
        env_runner=runner, env_workers=2, env_deadline_s=300.0, max_turn_tokens=200
    )
    chosen = tasks(family, "train", count // 4)
    return [
        group
        for first in range(0, len(chosen), at_once // 4)
        for group in collect(
            chosen[first : first + at_once // 4],
            family=family,
            engine=engine,
            chat=chat,
            config=config,
            group_size=4,
            address=(0, "test", first + 1),
        )
    ]


def facts(groups):
    """What must be the same wherever a trajectory was played."""
    return [
        (
            t.task.id,
            t.attempt,
            t.stop_reason,
            t.error,
            t.reward,
            t.success,
            [
                (turn.text, turn.reward, tuple(message.text for message in turn.reply))
                for turn in t.turns
            ],
        )
        for group in groups
        for t in group
    ]


def all_well(family, texts, count, workers=True, at_once=1_000):
    """The groups, after: no trajectory failed; worker processes say the same; rewards replay (R20); a group is one prompt."""
    groups = some_trajectories(family, texts, count, at_once=at_once)
    faults = [
        (t.task.id, t.stop_reason, t.info)
        for group in groups
        for t in group
        if t.stop_reason
        not in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED, StopReason.MAX_TURNS)
    ]
    assert not faults, faults[:3]
    assert sum(map(len, groups)) == count
    if workers or count == COUNTS["full"]:
        pairs = zip(
            facts(some_trajectories(family, texts, count, "processes", at_once)),
            facts(groups),
            strict=True,
        )
        others = [pair for pair in pairs if pair[0] != pair[1]]
        assert not others, (len(others), *others[:2])
    assert all(
        trajectory.first_observation == group[0].first_observation
        for group in groups
        for trajectory in group
    )
    answer = check(Evidence(tuple(map(tuple, groups)), family=family), R20)["R20"]
    assert answer.status == "passed", answer
    return groups
