"""Agents of other people's packages, as the guide has them: real packages, the shipped policy, the embedded engine.

They want an environment of their own: `make test-agents`. Elsewhere these tests are skipped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.training.config import load_config
from workbench.values import StopReason, trajectories_of

pytest.importorskip("agents", reason="needs other people's agents: make test-agents")

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/agents.md"
BLOCKS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
PROGRAMS = dict(BLOCKS)
# Program -> how its calls are placed, beside the first: what it must come to, and what it cannot.
WAYS = {
    "my_agent": ({"extends"}, {"fork"}),
    "with_agents_sdk": ({"extends"}, {"fork"}),
    "with_smolagents": ({"fork"}, set()),
    "with_langgraph": ({"extends"}, {"fork"}),
    "with_pydantic_ai": ({"extends"}, {"fork"}),
    "with_sub_agents": ({"extends"}, set()),
}
NOT_FOLLOWED = {
    "with_agents_sdk": ["strict"],
    "with_pydantic_ai": ["strict"],
    "with_smolagents": ["tool_choice"],
    "with_sub_agents": ["strict"],
}


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The guide's programs, as files that can be imported."""
    for name, source in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(f"import json\n{source}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def config_of(name: str, **settings):
    return load_config(
        "search",
        {
            "env": wb.agents(f"{name}:solve", tasks="world_qa"),
            "train.steps": 2,
            "train.tasks_per_step": 4,
            "train.group_size": 4,
            "evaluation.num_tasks": 4,
            "algorithm.minibatches": 1,
            "env.not_followed": NOT_FOLLOWED.get(name, []),
            **settings,
        },
    )


def kept_calls(run, step: int) -> Counter:
    """What the engine said in a step, call by call: (ids, logprobs), from the journal, written before a call was answered."""
    kept: Counter = Counter()
    for path in (run.path / "calls").glob(f"train-{step:06d}-*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            logprobs = np.array(record["logprobs"], np.float32)
            kept[tuple(record["token_ids"]), logprobs.tobytes()] += 1
    return kept


def trained_spans(groups) -> Counter:
    """The sampled spans of all trajectories, as they would be trained."""
    spans = [
        span
        for trajectory in trajectories_of(groups)
        for segment in trajectory.segments
        for span in segment.spans
        if span.sampled
    ]
    return Counter(
        (tuple(span.token_ids.tolist()), np.asarray(span.logprobs, np.float32).tobytes())
        for span in spans
    )


@pytest.mark.parametrize("name", WAYS)
def test_it_trains_as_it_is(name, guide):
    """Two steps: nothing fails, the lint finds nothing, and what is trained is what was sampled, call by call."""
    run = wb.train_here(config_of(name), guide / "run")
    assert len(run.steps()) == 2 and wb.lint(run).ok
    groups = run.groups(2)
    trajectories = trajectories_of(groups)
    assert {t.stop_reason for t in trajectories} <= {
        StopReason.TERMINATED,
        StopReason.ENV_TRUNCATED,
        StopReason.MAX_TURNS,
        StopReason.CONTEXT_FULL,
    }, Counter(t.error for t in trajectories)
    kept = kept_calls(run, 2)
    assert trained_spans(groups) == kept and kept.total() > 16
    ways = Counter(turn.info["call"]["way"] for t in trajectories for turn in t.turns)
    must, never = WAYS[name]
    assert must <= set(ways) and never.isdisjoint(ways), ways
    # Negative control: one token of another value is seen.
    assert trained_spans([[_bent(trajectories[0])], *groups[1:]]) != kept


def _bent(trajectory):
    """The trajectory with another token in the place of the first that was sampled."""
    segment = trajectory.segments[0]
    spans = list(segment.spans)
    place = next(number for number, span in enumerate(spans) if span.sampled)
    ids = spans[place].token_ids.copy()
    ids[0] += 1
    spans[place] = replace(spans[place], token_ids=ids)
    return replace(
        trajectory, segments=(replace(segment, spans=tuple(spans)), *trajectory.segments[1:])
    )


def test_sub_agents_are_conversations_of_their_own(guide):
    session = wb.open_session(config_of("with_sub_agents"))
    [group] = wb.rollout(session, 1)
    names = {turn.info["call"]["conversation"] for t in group for turn in t.turns}
    assert len(names) >= 2 and "main" in names
