"""Random and ordinary values for the tests of the run folder: groups of every shape, a step's credit table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from workbench.run.recording import create_run
from workbench.training.config import PRESETS, to_dict
from workbench.values import (
    CreditTable,
    Group,
    Message,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Text,
    ToolCall,
    Trajectory,
    Turn,
    trajectories_of,
)

# Every code point there is, lone surrogates and NUL included: a policy may write half a character.
texts = st.text(st.characters(exclude_categories=[]), max_size=12)
numbers = st.floats(allow_nan=False)
seeds = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
mappings = st.dictionaries(texts, json_values, max_size=2)
parts = st.dictionaries(texts, numbers, max_size=2)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(st.builds(Text, texts, st.booleans()), max_size=2).map(tuple),
    st.none() | texts,
    st.none() | texts,
)
samplings = st.builds(
    Sampling, numbers, numbers, texts, st.sampled_from(["", "float32", "bfloat16"]), st.booleans()
)
float32s = st.floats(width=32, allow_nan=False)


@st.composite
def spans(draw):
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
    many = st.lists(float32s, min_size=len(ids), max_size=len(ids))
    source = draw(st.sampled_from(Source))
    logprobs = draw(st.none() | many) if source is Source.POLICY else None
    plain = draw(st.none() | many) if logprobs is not None else None
    return Span(
        source,
        draw(st.integers(0, 9)),
        ids,
        logprobs,
        plain,
        draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        draw(st.none() | samplings),
        sampled=logprobs is not None,
    )


segments = st.lists(spans(), max_size=4).map(lambda spans: Segment(tuple(spans)))
turns = st.builds(
    Turn,
    st.integers(0, 99),
    texts,
    st.sampled_from(["stop", "length"]),
    st.lists(texts, max_size=2).map(tuple),
    st.lists(st.builds(ToolCall, texts, mappings, st.none() | texts), max_size=2).map(tuple),
    st.lists(messages, max_size=2).map(tuple),
    st.none() | numbers,
    parts,
    st.none() | texts,
    mappings,
    st.none() | texts,
)


@st.composite
def groups(draw):
    task = Task(draw(texts), draw(texts), draw(seeds), draw(mappings), draw(mappings))
    first = Observation(draw(st.lists(messages, max_size=2)), draw(st.lists(mappings, max_size=1)))
    trajectories = draw(st.lists(st.integers(0, 99), min_size=1, max_size=2, unique=True))
    made = tuple(
        Trajectory(
            task,
            trajectory,
            draw(seeds),
            first,
            tuple(draw(st.lists(turns, max_size=2))),
            tuple(draw(st.lists(segments, max_size=2))),
            draw(st.sampled_from(StopReason)),
            draw(st.none() | numbers),
            draw(parts),
            draw(st.booleans()),
            draw(st.none() | st.booleans()),
            draw(st.none() | texts),
        )
        for trajectory in trajectories
    )
    return Group(made[:1], made[1]) if len(made) > 1 and draw(st.booleans()) else Group(made)


def stored_run(path: Path) -> Path:
    """A run of one step, as it lies on the disk; nothing was computed."""
    with create_run(path, to_dict(PRESETS["frozenlake"])) as writer:
        writer.write_step(1, ordinary_step())
        writer.commit_step(1, {"reward": 1.0}, {"seconds": 1.0})
    return path


def ordinary_step(
    seed: int = 0,
    *,
    num_groups: int = 2,
    group_size: int = 2,
    num_turns: int = 2,
    action: int = 3,
    reply: int = 2,
    prompt: int = 4,
) -> list[Group]:
    """What collecting makes: append-only trajectories of several turns, different for every seed."""
    rng = np.random.default_rng(seed)
    return [
        Group(
            tuple(
                _trajectory(rng, g, a, num_turns, action, reply, prompt) for a in range(group_size)
            )
        )
        for g in range(num_groups)
    ]


def _trajectory(
    rng, g: int, attempt: int, num_turns: int, action: int, reply: int, prompt: int
) -> Trajectory:
    spans = [
        Span(Source.SCAFFOLD, 0, [1]),
        Span(Source.PROMPT, 0, np.arange(prompt) + 10),
        Span(Source.SCAFFOLD, 0, [2]),
    ]
    turns = []
    for k in range(num_turns):
        spans += [
            Span(
                Source.POLICY,
                k,
                rng.integers(0, 500, action),
                -rng.exponential(1, action),
                policy_version=3,
                sampling=Sampling(engine="scripted", dtype="float32"),
                sampled=True,
            ),
            Span(Source.SCAFFOLD, k, [3]),
            Span(Source.ENV, k, rng.integers(0, 500, reply)),
            Span(Source.SCAFFOLD, k, [2]),
        ]
        turns.append(
            Turn(
                k,
                "<answer>Right || Down</answer>",
                "stop",
                ("Right", "Down"),
                (),
                (Message("user", "P_\n_G"),),
                -0.1,
                {"move": -0.1},
                f"s{k}",
                {"success": False, "valid_format": True, "moves": ["Right", "Down"]},
            )
        )
    first = Observation(
        (Message("system", (Text("Reach the goal.", True),)), Message("user", f"map {g}"))
    )
    return Trajectory(
        Task(f"lake-{g}", "frozenlake", g, {"map": ["SF", "FG"]}),
        attempt,
        int(rng.integers(2**62)),
        first,
        tuple(turns),
        (Segment(tuple(spans)),),
        StopReason.TERMINATED,
        float(rng.integers(2)),
        {"goal": 1.0},
        True,
        True,
    )


def credit_of(groups, step: int, update: int = 0) -> CreditTable:
    """A table with the columns that a learner writes; advantage is reward minus the mean of the group."""
    rows = [(n, segment) for n, t in enumerate(trajectories_of(groups)) for segment in t.segments]
    rewards = [np.array([t.reward for t in group]) for group in groups]
    advantage_N = np.concatenate([r - r.mean() for r in rewards])
    sizes = [len(segment) for _, segment in rows]
    eligible = np.concatenate([segment.eligible for _, segment in rows])
    logp = np.concatenate([segment.logprobs for _, segment in rows])
    trajectory = np.repeat([n for n, _ in rows], sizes).astype(np.int32)
    weight = eligible.astype(np.float64)
    return CreditTable(
        step,
        update,
        {
            "trajectory": trajectory,
            "segment": np.repeat(np.arange(len(rows)), sizes).astype(np.int32),
            "turn": np.concatenate([segment.turns for _, segment in rows]),
            "position": np.concatenate([np.arange(n) for n in sizes]).astype(np.int32),
            "token_id": np.concatenate([segment.token_ids for _, segment in rows]),
            "source": np.concatenate([segment.sources for _, segment in rows]),
            "eligible": eligible,
            "used": eligible,
            "advantage": advantage_N[trajectory] * weight,
            "weight": weight,
            "rollout_logp": logp,
            "old_logp": logp,
            "new_logp": logp,
            "entropy": np.where(eligible, np.float32(0.5), np.nan),
            "ratio": np.where(eligible, np.float32(1), np.nan),
            "clip_state": np.zeros(len(logp), np.int8),
        },
    )
