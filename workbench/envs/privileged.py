"""What an environment knows and the policy is not shown, told to a critic: environments of `PrivilegedFamily` are asked for it
after every answer (`runners.EnvAnswer.privileged`), others never. It goes into the turn and into no prompt."""
from __future__ import annotations

from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.shared import opened


def tells(family: EnvFamily) -> bool:
    """Whether environments of this family have `privileged()`."""
    with opened(family) as env:
        return hasattr(env, "privileged")


class PrivilegedFamily:
    """`family`, whose environments are asked what they know. Anything else about it is as it was."""

    def __init__(self, family: EnvFamily) -> None:
        self._family = family

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self._family, name)

    def make(self) -> Any:
        return _Telling(self._family.make())


class _Telling:
    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def told(self) -> str:
        return self._env.privileged()
