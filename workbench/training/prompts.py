"""Whether a first prompt leaves room for an answer: said before anything is sampled, not by trajectories without a turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.rollouts.config import CollectConfig
from workbench.values import Task
from workbench.values.errors import ChatFormatError, ConfigError
from workbench.worlds import tasks as env_tasks
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvAnswer, EnvRunner

if TYPE_CHECKING:
    from workbench.chat import ChatFormat
    from workbench.training.config import Config

LOOKED_AT = 2  # tasks that are begun, and given back


def refuse_without_room(
    tasks: Sequence[Task],
    *,
    family: EnvFamily,
    chat: ChatFormat,
    config: CollectConfig,
    runner: EnvRunner,
    holds: int | None,
) -> None:
    """Raises ConfigError where none of the first two tasks leaves room for an answer, or can begin by these settings. `holds`: tokens of a sequence in the
    engine, where they are known. What raises or hangs is not this check's business."""
    lengths = {}
    with suppress(ChatFormatError):
        lengths = _lengths(tasks[:LOOKED_AT], family, chat, runner)
    most = config.max_context
    limit = min(filter(None, (most, holds)), default=None)
    if limit is None or not lengths or min(lengths.values()) < limit:
        return
    task = min(lengths, key=lengths.get)
    enough = lengths[task] + config.max_turn_tokens
    held = "" if holds is None else f" (the engine holds {holds})"
    if holds is None or enough <= holds:
        remedy = f"set collect.max_context to {enough} or more{held}"
    else:
        remedy = (
            f"the engine holds {holds} tokens in all: shorten what the environment shows, or take a policy with a "
            "longer context"
        )
    bound = f"collect.max_context is {most}" if most else f"the engine holds {holds}"
    raise ConfigError(
        f"the first prompt of task {task} has {lengths[task]} tokens, and {bound}: there is no room for an answer, "
        f"so every trajectory would end without a turn; {remedy}"
    )


def _lengths(
    tasks: Sequence[Task], family: EnvFamily, chat: ChatFormat, runner: EnvRunner
) -> dict[str, int]:
    """Task -> tokens of its first prompt; none at all where one of them did not begin."""
    keys = {f"{task.id}#prompt": task for task in tasks}
    try:
        for key, task in keys.items():
            runner.reset(key, family, task, 0)
        answers: list[EnvAnswer] = []
        while len(answers) < len(keys):
            answers += runner.poll(0.05)
        errors = [answer.error for answer in answers if answer.error]
        if len(errors) == len(keys) and all(
            error.startswith(f"{ConfigError.__name__}: ") for error in errors
        ):
            raise ConfigError(f"no trajectory can begin: {errors[0].partition(': ')[2]}")
        if not all(answer.observation for answer in answers):
            return {}
        lengths = {}
        for answer in answers:
            lengths[keys[answer.key].id] = sum(map(len, chat.open(answer.observation)))
        return lengths
    finally:
        for key in keys:
            runner.close(key)


def refuse_config_without_room(config: Config) -> None:
    """The same where nothing has been opened yet, as far as it can be told without the model: a limit that the
    configuration sets, and a policy that lies here. Raises ConfigError, PolicyError, ChatFormatError."""
    holds = getattr(config.engine, "max_context", None)
    if config.collect.max_context is None and holds is None:
        return
    from workbench.chat import ChatFormat
    from workbench.engines.policy import is_folder, load_tokenizer, shipped_policies

    name = config.policy.name
    if config.policy.loader or name not in shipped_policies() and not is_folder(name):
        return  # to be made or downloaded: by the process that trains
    chat = ChatFormat.from_tokenizer(
        load_tokenizer(name), template_flags=dict(config.policy.template_flags)
    )
    tasks = env_tasks(
        config.family,
        "train",
        LOOKED_AT,
        seed=config.seed,
        step=1,
        per_step=config.train.tasks_per_step,
    )
    runner = config.collect.runner()
    try:
        refuse_without_room(
            tasks,
            family=config.family,
            chat=chat,
            config=config.collect,
            runner=runner,
            holds=holds,
        )
    finally:
        runner.shutdown()
