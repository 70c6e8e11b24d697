"""Check an environment by playing it: `wb.check_env("frozenlake-4x4")`, `wb.check_env(Mine())`, `workbench check-env my_env:Mine`.

wb.check_env("my_env:Guess", policy="frozenlake-tiny")      also: do its prompts fit that policy's context?
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workbench.basics.annotated import shown
from workbench.basics.findings import Finding, LintReport
from workbench.basics.plugins import is_named
from workbench.chat import ChatFormat, Conversation
from workbench.engines.intake import model_context
from workbench.engines.policy import load_tokenizer, read_pretrained
from workbench.extensions.inspect_worlds.checks import EnvReport, check_family
from workbench.extensions.inspect_worlds.view import env_check_view
from workbench.extensions.scripted_play.words import TextPath
from workbench.rollouts.config import CollectConfig
from workbench.training.config import PRESETS, Config, load_config
from workbench.training.sections import PolicyConfig
from workbench.values import Observation, View
from workbench.values.errors import ConfigError, nearest
from workbench.values.view import HasView
from workbench.worlds import ENVS
from workbench.worlds import PRESETS as ENV_PRESETS

TASKS = 12  # tasks that are played
MOST_TASKS = 1_000_000  # of them: each is held in memory
FAMILY = ("name", "task", "make")  # what every family has


@dataclass(frozen=True, eq=False, repr=False)
class CheckedEnv(HasView):
    """The report of a checked environment. Shows itself."""

    report: EnvReport

    @property
    def ok(self) -> bool:
        """True where no check found an error; notes are no error."""
        return self.report.ok

    @property
    def findings(self) -> LintReport:
        return self.report.findings

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """(check, finding) of every error."""
        return self.findings.errors

    @property
    def view(self) -> View:
        return env_check_view(self.report)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        cost = self.report.cost
        return {
            **self.findings.as_dict(),
            "baselines": dict(self.report.baselines or {}),
            "problems": {"different": self.report.problems[0], "tasks": self.report.problems[1]},
            "cost": None if cost is None else dict(vars(cost)),
            "earned": [
                {
                    "policy": estimate.policy,
                    "attempts": estimate.attempts,
                    "turns": estimate.turns,
                    "success": _interval(estimate.success),
                    "return": _interval(estimate.reward),
                }
                for estimate in self.report.earned
            ],
        }


def _interval(estimate: Any) -> dict[str, float] | None:
    return (
        None
        if estimate is None
        else {name: getattr(estimate, name) for name in ("mean", "low", "high")}
    )


def check_env(
    env: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    policy: str | None = None,
    tasks: int = TASKS,
    budget_s: float = 3.0,
) -> CheckedEnv:
    """Play an environment and say what is wrong with it, each with how to fix it.

    `env`: a family; the name of a preset, of a kind (`frozenlake`), of a class of yours (`my_env:Guess`), or a .toml file; a
    config. `settings`: dotted overrides, as in `load_config`. `policy`: whose tokenizer says whether prompts fit; of a config or
    a file, that which it names. `tasks`: how many are played; `budget_s`: seconds for each way to play. Raises ConfigError for
    what is none of these, and for less than one task or too many.
    """
    if not 1 <= tasks <= MOST_TASKS:
        raise ConfigError(
            f"tasks is {tasks}: expected how many tasks are played, from 1 to {MOST_TASKS:,}"
        )
    if not 0 < budget_s < math.inf:
        raise ConfigError(
            f"budget_s is {budget_s}: expected seconds of playing, for each way to play, above 0"
        )
    with _no_silent_end():
        family, config = _family_and_config(env, settings or {})
        policy = policy or (config.policy.name if config is not None else None)
        fits = {} if policy is None else _token_limits(policy, config)
        return CheckedEnv(check_family(family, tasks=tasks, budget_s=budget_s, **fits))


@contextmanager
def _no_silent_end() -> Iterator[None]:
    """While an environment is played here, `os._exit` is an error of its: the process would end
    with a status of the environment's choice, 0 among them, and without a word. Forked children and
    other threads end as they want to."""
    process = os.getpid()
    end = os._exit

    def refused(status: int) -> None:
        if os.getpid() != process or threading.current_thread() is not threading.main_thread():
            end(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = end


def _family_itself(env: Any) -> Any:
    """What was handed over, if it is a family. Raises ConfigError for anything else."""
    if isinstance(env, type):
        raise ConfigError(
            f"expected an environment's family, got its class: make one of it, {env.__name__}(...)"
        )
    if missing := [part for part in FAMILY if not hasattr(env, part)]:
        raise ConfigError(
            f"expected an environment's family (with name, task(seed) and make()), its name or a config; got {shown(env)}, "
            f"which has no {' and no '.join(missing)}"
        )
    return env


def _family_and_config(env: Any, settings: Mapping[str, Any]) -> tuple[Any, Config | None]:
    """The family; and the config, where one that names a policy was given."""
    if isinstance(env, Config):
        return env.family, env
    if not isinstance(env, (str, Path)):
        if settings:
            raise ConfigError(
                "settings change what is named; set the fields of a family itself: dataclasses.replace(family, ...)"
            )
        return _family_itself(env), None
    name = str(env)
    if name.endswith(".toml") or name in PRESETS and name not in ENV_PRESETS:
        config = load_config(name, settings)
        return config.family, config
    if name in ENV_PRESETS and not settings:
        return ENV_PRESETS[name], None
    if name in ENVS or is_named(name):
        own = (
            load_config(name)
            if is_named(name) and not settings
            else load_config("frozenlake", {"env.kind": name, **settings})
        )
        return own.family, None
    if name in ENV_PRESETS:
        raise ConfigError(
            f"--set changes a kind or a file; {name!r} is a preset: name env.kind, {', '.join(ENVS)}"
        )
    raise ConfigError(
        f"no environment {name!r}; {nearest(name, [*ENV_PRESETS, *ENVS])}; or name one of your own, my_env:Guess, or a "
        ".toml file"
    )


def _token_limits(policy: str, config: Config | None) -> dict[str, Any]:
    """How a policy's tokenizer counts, what its context holds, and the way of its words to the world."""
    from transformers import AutoConfig

    collect = config.collect if config is not None else CollectConfig()
    flags = (config.policy if config is not None else PolicyConfig()).template_flags
    tokenizer = load_tokenizer(policy)
    chat = ChatFormat.from_tokenizer(tokenizer, template_flags=dict(flags))
    count: Callable[[Observation], int] = partial(_tokens, chat)
    model = SimpleNamespace(
        config=read_pretrained(AutoConfig, Path(tokenizer.name_or_path), policy)
    )
    held = model_context(
        model, getattr(config.engine, "max_context", None) if config is not None else None
    )
    return {
        "count_tokens": count,
        "max_context": min(collect.max_context or held, held),
        "max_turn_tokens": collect.max_turn_tokens,
        "way": TextPath(chat, collect),
    }


def _tokens(chat: ChatFormat, observation: Observation) -> int:
    return len(Conversation(chat, observation).prompt_ids)
