"""Inside a worker process for environments: several of them, one call after the other, until the connection ends."""
from __future__ import annotations

import json
import socket

import workbench.envs  # noqa: F401  (so that every fork has it already)
from workbench.envs.base import Env, EnvFamily
from workbench.envs.runners import EnvAnswer, answer_call, close_env
from workbench.envs.workers.env_wire import encode_answer
from workbench.envs.workers.frames import serve_calls
from workbench.envs.workers.values import rebuild
from workbench.types import Observation, StepResult, Task
from workbench.types.errors import WorkbenchError


def serve(connection: socket.socket, answer_bytes: int) -> None:
    """The calls:

        ["reset", slot, family, task, dynamics seed] · ["step", slot, action text] · ["drop", slot] (no answer)

    Whatever an environment raises is an answer; here that includes KeyboardInterrupt, since Ctrl-C never gets here.
    """
    envs: dict[str, Env] = {}
    families: dict[str, EnvFamily] = {}

    def reset(slot: str, described: dict, task: dict, dynamics_seed: int) -> Observation:
        name = json.dumps(described)
        if name not in families:  # one family for all its environments, as in the trainer
            families[name] = rebuild(described)
        envs[slot] = families[name].make()
        return envs[slot].reset(Task(**task), dynamics_seed)

    def step(slot: str, action_text: str) -> StepResult:
        return envs[slot].step(action_text)

    def answer(verb: str, slot: str, *rest) -> bytes | None:
        if verb == "drop":
            return close_env(envs.pop(slot, None))
        call = {"reset": reset, "step": step}[verb]
        return _encoded(answer_call(slot, lambda: call(slot, *rest), envs, caught=BaseException), answer_bytes)

    serve_calls(connection, answer)


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
