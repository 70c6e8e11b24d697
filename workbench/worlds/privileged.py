"""What an environment knows and the policy is not shown, told to a critic: environments of `PrivilegedFamily` are asked for it
after every answer (`runners.EnvAnswer.privileged`), others never. It goes into the turn and into no prompt."""

from __future__ import annotations

from workbench.worlds.base import EnvFamily, Wrapped
from workbench.worlds.shared import opened


def tells(family: EnvFamily) -> bool:
    """Whether environments of this family have `privileged()`."""
    with opened(family) as env:
        return hasattr(env, "privileged")


class PrivilegedFamily(Wrapped):
    """A family, whose environments are asked what they know. Anything else about it is as it was."""

    def make(self) -> _Telling:
        return _Telling(self._inside.make())


class _Telling(Wrapped):
    def told(self) -> str:
        return self._inside.privileged()
