"""The rollouts that every writer is given: sampled once by our own engine from the policy that ships, written as JSON.

    python -m tests.imported.recorded OUT.json

Two frozen lakes, three trajectories each, at most three turns. Per turn: the ids of the whole prompt, the sampled ids,
their logprobs, and the same as chat messages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import workbench as wb
from workbench.values import Source, Trajectory

SETTINGS = {"env.max_turns": 3, "seed": 0}
TASKS, TRAJECTORIES = 2, 3


def recorded() -> dict:
    """{"rollouts": one object per trajectory, "stop": the id that ends a turn}."""
    session = wb.open_session(wb.load_config("frozenlake", SETTINGS))
    groups = wb.rollout(session, TASKS, group_size=TRAJECTORIES)
    rollouts = [
        _rollout(number, trajectory, session.chat.token_texts)
        for number, group in enumerate(groups)
        for trajectory in group
    ]
    return {"rollouts": rollouts, "policy": str(Path("data/policies/frozenlake-tiny").resolve())}


def _rollout(task: int, trajectory: Trajectory, texts) -> dict:
    messages = [
        {"role": message.role, "content": message.text}
        for message in trajectory.first_observation.messages
    ]
    turns, prompt = [], []
    (segment,) = trajectory.segments
    for span in segment.spans:
        ids = span.token_ids.tolist()
        if span.source is Source.POLICY:
            said = "".join(texts(ids[:-1]))  # without the token that ends the turn
            turns.append(
                {
                    "prompt_ids": list(prompt),
                    "completion_ids": ids,
                    "messages": list(messages),
                    "text": said,
                    "logprobs": [round(float(value), 6) for value in span.logprobs],
                }
            )
            messages.append({"role": "assistant", "content": said})
            reply = trajectory.turns[span.turn].reply
            messages += [{"role": message.role, "content": message.text} for message in reply]
        prompt += ids
    return {
        "task": task,
        "attempt": trajectory.attempt,
        "reward": trajectory.reward,
        "turns": turns,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(recorded()))
