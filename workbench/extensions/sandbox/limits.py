"""What a sandbox may take, and how it is shut in: settings of tools and environments that run code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.basics.settings import above, at_least, check_settings, one_of
from workbench.values.errors import ConfigError

TIERS = ("namespaces", "landlock")  # of our own, in the order in which "auto" tries them
BY_COMMAND = ("bubblewrap", "docker", "apptainer")  # through an installed program, by name only


@dataclass(frozen=True)
class SandboxSettings:
    """Bounds of the sandbox that a trajectory's code runs in."""

    tier: Annotated[
        str,
        one_of("auto", *TIERS, *BY_COMMAND),
        "namespaces (a root, processes and network of its own), landlock "
        "(no files, no children), or auto: the first that works on this machine; bubblewrap, docker or apptainer: through "
        "that program (files, no children)",
    ] = "auto"
    seconds: Annotated[float, above(0, most=600), "of the wall clock for one call"] = 5.0
    cpu_s: Annotated[
        int, at_least(1, most=86_400), "seconds of the processor, for a process as long as it lives"
    ] = 60
    memory_mb: Annotated[
        int,
        at_least(64, most=1_048_576, why="an interpreter alone takes about 40"),
        "of address space, for each process",
    ] = 256
    disk_mb: Annotated[
        int, at_least(1, most=1_048_576), "of files in all, and of each (landlock: there are none)"
    ] = 16
    processes: Annotated[
        int, at_least(1, most=10_000), "at once, with threads and forks (landlock: always 1)"
    ] = 8
    files: Annotated[int, at_least(16, most=1_000_000), "open at once"] = 64
    output_bytes: Annotated[
        int, at_least(1, most=1_000_000), "of what a call prints that are kept"
    ] = 16_000
    deterministic: Annotated[
        bool, "clock, chance and listings are the same twice, so that a replay compares"
    ] = True
    seed: Annotated[int, "of chance in the sandbox, the same for all trajectories"] = 0
    programs: Annotated[
        bool,
        "programs of this machine (/usr/bin) may be started, by tier namespaces alone; their clock and "
        "chance do not stand still",
    ] = False
    warm: Annotated[
        int, at_least(0, most=1_000), "sandboxes that are begun before they are asked for"
    ] = 1

    def __post_init__(self) -> None:
        check_settings(self, "sandbox")
        if self.programs and self.tier not in ("auto", "namespaces"):
            raise ConfigError(
                f"sandbox.programs = true needs sandbox.tier = 'namespaces' (or 'auto'): a sandbox of tier {self.tier!r} "
                "has no children"
            )
