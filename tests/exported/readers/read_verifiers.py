"""Runs where verifiers 0.4 is installed: what its own reader of traces finds in a folder.

python read_verifiers.py FOLDER
"""

import json
import sys
from pathlib import Path

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace
from verifiers.v1.utils.trace_store import read_episodes

found = []
for episode in read_episodes(Path(sys.argv[1]), Trace[WireTaskData, State, WireAgentConfig]):
    [trace] = episode.traces
    [branch] = trace.branches
    found.append(
        {
            "group": episode.group.id,
            "ok": trace.ok,
            "reward": trace.reward if all(trace.rewards.values()) else None,
            "roles": [message.role for message in branch.messages],
            "texts": [message.content for message in branch.messages],
            "calls": [
                [call.name, call.arguments]
                for message in branch.messages
                for call in getattr(message, "tool_calls", None) or ()
            ],
            "ids": branch.token_ids,
            "mask": branch.sampled_mask,
            "logprobs": branch.logprobs,
            "turns": len(trace.calls),
            "stop": trace.stop_condition,
            "errors": [error.message for error in trace.errors],
        }
    )
print(json.dumps(found))
