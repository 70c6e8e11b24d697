"""Runs where Inspect is installed: what its own readers find in a log.

python read_inspect.py LOG.eval
"""

import json
import sys

from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries

log = read_eval_log(sys.argv[1])
header = read_eval_log(sys.argv[1], header_only=True)
assert [s.id for s in read_eval_log_sample_summaries(sys.argv[1])] and header.samples is None
again = read_eval_log_sample(sys.argv[1], log.samples[0].id, log.samples[0].epoch)
assert again.messages == log.samples[0].messages


def message_of(message):
    calls = [[call.function, call.arguments] for call in getattr(message, "tool_calls", None) or ()]
    return [message.role, message.text, calls, message.source]


print(
    json.dumps(
        {
            "status": log.status,
            "model": log.eval.model,
            "task": log.eval.task,
            "metadata": log.eval.metadata,
            "scores": {
                score.name: [
                    score.metrics["mean"].value,
                    score.scored_samples,
                    score.unscored_samples,
                ]
                for score in log.results.scores
            },
            "samples": [
                {
                    "id": s.id,
                    "epoch": s.epoch,
                    "scores": {name: score.value for name, score in (s.scores or {}).items()},
                    "metadata": s.metadata,
                    "target": s.target,
                    "input": len(s.input),
                    "error": s.error and s.error.message,
                    "output": s.output.completion,
                    "messages": [message_of(message) for message in s.messages],
                }
                for s in log.samples
            ],
        }
    )
)
