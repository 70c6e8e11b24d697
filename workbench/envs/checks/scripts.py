"""An attempt that is played by a script: everything that its environment answers, to be compared with another time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, EnvRunner
from workbench.envs.shared import opened
from workbench.types import Observation, StepResult, Task


WAIT_S = 0.2  # for a runner's answers, at a time; a runner has its own deadlines


class Script(NamedTuple):
    """An attempt to be played: `texts` are its actions, in order."""

    task: Task
    seed: int
    texts: tuple[str, ...]


def unplayable(family: EnvFamily) -> str | None:
    if not getattr(family, "deterministic", True):
        return f"an environment that is the same twice: {family.name} says that it is not"
    if getattr(family, "remote", False):
        return f"an environment of this process: {family.name} is remote"
    return None


def played_alone(family: EnvFamily, script: Script) -> list[Any]:
    """Everything that an environment of its own answers, in order."""
    said: list[Any] = []
    try:
        with opened(family) as env:
            said.append(said_by(env, env.reset(script.task, script.seed)))
            for text in script.texts:
                said.append(said_by(env, env.step(text)))
    except Exception as error:  # an environment may raise anything; that too has to be the same
        said.append(type(error).__name__)
    return said


def played_at_once(
    runner: EnvRunner, family: EnvFamily, scripts: Mapping[str, Script], patience: int = 1
) -> dict[str, list[Any]]:
    """What a runner answers to several attempts that are stepped in turns, by their keys. `patience`: how often it is asked
    for an answer that does not come."""
    said: dict[str, list[Any]] = {key: [] for key in scripts}
    for key, script in scripts.items():
        runner.reset(key, family, script.task, script.seed)
    waiting, idle = len(scripts), 0
    while waiting and idle < patience:
        answers = runner.poll(WAIT_S)
        idle = 0 if answers else idle + 1
        for answer in answers:
            waiting -= 1
            mine = said.setdefault(answer.key, [])
            mine.append(_answer(answer))
            texts = scripts[answer.key].texts if answer.key in scripts else ()
            if answer.error is None and len(mine) <= len(texts):
                runner.step(answer.key, texts[len(mine) - 1])
                waiting += 1
            else:
                runner.close(answer.key)
    return said


def _answer(answer: EnvAnswer) -> Any:
    if answer.error is not None:
        return answer.error.partition(":")[0]
    return (
        plain_answer(answer.result if answer.result is not None else answer.observation),
        answer.state_key,
    )


def said_by(env: Any, answer: Observation | StepResult) -> Any:
    return (plain_answer(answer), env.state_key() if hasattr(env, "state_key") else None)


def plain_answer(answer: Observation | StepResult | Any) -> Any:
    if not isinstance(answer, StepResult):
        return answer
    return (
        answer.observation,
        answer.reward,
        dict(answer.reward_parts),
        answer.terminated,
        answer.truncated,
        dict(answer.info),
    )


def parting(expected: list[Any], found: list[Any]) -> str:
    for k, (one, other) in enumerate(zip(expected, found)):
        if one != other:
            what = "the first observation" if k == 0 else f"the answer to action {k - 1}"
            return f"{what} is {_short(other)} instead of {_short(one)}"
    return f"it has {len(found)} answers instead of {len(expected)}"


def _short(said: Any) -> str:
    """The part of an answer that people look at, cut."""
    if isinstance(said, str):
        return f"an exception ({said})"
    answer, key = said
    if isinstance(answer, Observation):
        words = " ".join(message.text for message in answer.messages)
    else:
        words = f"{' '.join(message.text for message in answer[0].messages)!r}, reward {answer[1]}"
    words = words if len(words) <= 90 else f"... {words[-90:]}"
    return f"{words!r}" + (f" (state {key!r})" if key else "")
