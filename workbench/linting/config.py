"""How training is checked before it learns."""
from __future__ import annotations

from dataclasses import dataclass

from workbench.types.errors import ConfigError


@dataclass(frozen=True)
class LintConfig:
    """`mode`: "assert", an error finding ends the run before the update that it would spoil · "warn", it is said and
    stored, and training goes on · "off". Rules that perturb settings run once, before the first step (`start`)."""

    mode: str = "assert"
    start: bool = True           # knobs, gradient, isolated environments: once, before the first step
    samples: int = 4             # attempts of a step that the slower rules look at (rendering, environments anew)

    def __post_init__(self) -> None:
        if self.mode not in ("assert", "warn", "off"):
            raise ConfigError(f"lint.mode is 'assert', 'warn' or 'off', got {self.mode!r}")
        if self.samples < 1:
            raise ConfigError(f"lint.samples is at least 1 attempt, got {self.samples}; lint.mode='off' checks nothing")
