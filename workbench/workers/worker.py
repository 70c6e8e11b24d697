"""Inside a worker process: several environments, one call after the other, until the connection ends."""
from __future__ import annotations

import json
import socket
import time
from typing import Any

import workbench.envs  # noqa: F401  (so that every fork has it already)
from workbench.envs.base import Env, EnvFamily
from workbench.envs.runners import EnvAnswer, answer_call, close_env
from workbench.errors import WorkbenchError
from workbench.processes.frames import frame, read_call
from workbench.processes.values import rebuild
from workbench.types import Observation, StepResult, Task
from workbench.workers.wire import TIMES, encode_answer


def serve(connection: socket.socket, answer_bytes: int) -> None:
    """Answer calls in the order in which they come:

        ["reset", slot, family, task, dynamics seed] · ["step", slot, action text] · ["drop", slot] (no answer)

    Whatever an environment raises is an answer; here that includes KeyboardInterrupt, since Ctrl-C never gets here.
    """
    envs: dict[str, Env] = {}
    families: dict[str, EnvFamily] = {}
    connection.sendall(frame(TIMES.pack(0.0, time.monotonic())))  # deadlines count from here on
    while (call := read_call(connection)) is not None:
        verb, slot, *rest = call
        if verb == "drop":
            close_env(envs.pop(slot, None))
            continue

        def run(verb=verb, slot=slot, rest=rest) -> Observation | StepResult:
            if verb == "step":
                return envs[slot].step(*rest)
            described, task, dynamics_seed = rest
            name = json.dumps(described)
            if name not in families:  # one family for all its environments, as in the trainer
                families[name] = rebuild(described)
            envs[slot] = families[name].make()
            return envs[slot].reset(Task(**task), dynamics_seed)

        answer = answer_call(slot, run, envs, caught=BaseException)
        content = _encoded(answer, answer_bytes)
        connection.sendall(frame(TIMES.pack(answer.seconds, time.monotonic()) + content))


def _encoded(answer: EnvAnswer, answer_bytes: int) -> bytes:
    try:
        content = encode_answer(answer)
    except WorkbenchError as error:
        content = encode_answer(EnvAnswer(answer.key, error=str(error)))
    except BaseException as error:  # a mapping of the environment's own may raise anything when it is read (law 10)
        words = f"its answer cannot be sent: {type(error).__name__}"
        content = encode_answer(EnvAnswer(answer.key, error=words))
    if len(content) > answer_bytes:
        words = (f"its answer takes {len(content):,} bytes; at most {answer_bytes:,} are taken "
                 "(collect.env_answer_bytes)")
        content = encode_answer(EnvAnswer(answer.key, error=words))
    return content
