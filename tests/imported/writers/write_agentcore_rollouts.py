"""Runs where agentcore-rl-toolkit 0.2.0 and tinker are installed: its trajectory manager makes a tree of each rollout and
its records, and they are put down as the loop of `backends/tinker_api/train.py` does.

    python write_agentcore_rollouts.py RECORDED.json OUT_FOLDER

`agentcore_rollouts.json` holds append-only rollouts, one record each; `agentcore_rollouts_forked.json` those of an agent
that leaves its thoughts out of what it sends back, so that every turn is a record of its own.
"""

import dataclasses
import json
import sys
from importlib.metadata import version
from pathlib import Path

from agentcore_rl_toolkit.backends.tinker_api.data import Episode, training_data
from agentcore_rl_toolkit.rollout_gateway import BaseTrace, TrajectoryManager, TurnRecord


def without_thought(turn, k):
    """Ids of a prompt in which an earlier answer is shorter: two tokens of it are gone."""
    ids = list(turn["prompt_ids"])
    return ids[:93] + ids[95:] if k else ids


def episode_of(rollout, index, forked):
    manager = TrajectoryManager()
    sid = f"rollout-{rollout['task']}-{rollout['attempt']}"
    for k, turn in enumerate(rollout["turns"]):
        record = TurnRecord(
            prompt_ids=without_thought(turn, k) if forked else turn["prompt_ids"],
            output_ids=turn["completion_ids"],
            finish_reason="stop",
            output_log_probs=turn["logprobs"],
        )
        said = {"role": "assistant", "content": turn["text"]}
        manager.record_turn(
            sid, turn=record, prompt_messages=turn["messages"], response_message=said
        )
    base = BaseTrace(index=index, group_index=rollout["task"], rollout_id=sid)
    records = manager.get_trajectory(sid, base_sample=base, reward=rollout["reward"])
    return Episode(sid, rollout["reward"], records)


def main(recorded, out):
    rollouts = json.loads(Path(recorded).read_text())["rollouts"]
    for name, forked in (("agentcore_rollouts", False), ("agentcore_rollouts_forked", True)):
        groups = [
            [episode_of(r, k, forked) for k, r in enumerate(rollouts) if r["task"] == task]
            for task in (0, 1)
        ]
        training_data(groups)  # refuses what it would not train on
        text = json.dumps(
            [[dataclasses.asdict(episode) for episode in group] for group in groups],
            default=lambda value: value.value,
        )
        (Path(out) / f"{name}.json").write_text(text + "\n")
    print(f"agentcore-rl-toolkit {version('agentcore-rl-toolkit')}")


main(*sys.argv[1:])
