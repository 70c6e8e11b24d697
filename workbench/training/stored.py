"""The configuration of a stored run, as far as it can be had here: code that it names may be missing, or foreign."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from workbench.basics.extensions import has_service, service
from workbench.basics.plugins import load_named
from workbench.run.code import changed_code, named_code, why_foreign
from workbench.run.store import Run
from workbench.training.config import KINDS, Config, from_dict
from workbench.values.errors import ConfigError, WorkbenchError

LOADER = "policy.loader"
FETCHED = "why_not_fetched"  # of an extension


@dataclass(frozen=True)
class RunConfig:
    """`config` has None for each part in `missing`, which says why; a policy that is missing is one whose loader cannot be
    had. `notes`: what else is to be said of its code."""

    config: Config
    missing: Mapping[str, str]
    notes: tuple[str, ...] = ()


def stored_config(run: Run) -> RunConfig:
    """The configuration in force, without the parts whose code cannot be had here. Nothing that a run from elsewhere
    names is imported, unless it was opened with `trust` (invariant 16). Raises ConfigError for what is no configuration."""
    named = named_code(run.config)
    parts = {key.partition(".")[0] for key in named}
    loader = {"policy"} if LOADER in named else set()
    if foreign := why_foreign(run):
        kept = sorted(parts & set(KINDS))
        config = from_dict(run.config, without=kept)
        missing = dict.fromkeys({*kept, *loader}, f"not imported: {foreign}")
        return RunConfig(config, _with_policy(run, config, missing))
    missing = {}
    for part in sorted(parts & set(KINDS)):
        try:
            from_dict(run.config, without=set(KINDS) - {part})
        except WorkbenchError as error:
            missing[part] = str(error)
    config = from_dict(run.config, without=missing)
    try:
        if loader:
            load_named(named[LOADER], LOADER)
    except ConfigError as error:
        missing["policy"] = str(error)
    missing = _with_policy(run, config, missing)
    return RunConfig(config, missing, tuple(changed_code(run, without=missing)))


def _with_policy(run: Run, config: Config, missing: dict[str, str]) -> dict[str, str]:
    reason = why_unfetched(run, config)
    return missing | {"policy": reason} if reason else missing


def why_unfetched(run: Run, config: Config) -> str:
    """Why the policy that a run names cannot be had without a download that nobody asked for; "" where it can."""
    if run.trust or config.policy.loader or not has_service(FETCHED):
        return ""
    return service(FETCHED, "the policy of a run")(config.policy.name)


def config_of_run(run: Run, needs: Collection[str] = (*KINDS, "policy")) -> Config:
    """The configuration in force. Raises ConfigError where one of the parts that are needed cannot be had here; others are
    then None."""
    stored = stored_config(run)
    for part in needs:
        if part in stored.missing:
            raise ConfigError(f"{part} of run {run.name}: {stored.missing[part]}")
    return stored.config
