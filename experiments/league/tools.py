"""The tools, each attached as its authors document it, at the settings that suit runs of some dozen steps.

A tool may give the trainer's class (`kind`), is attached once the trainer is made, and says at the end which alarms it raised:
what its authors mean to call somebody (warnings and errors; notes and information are none).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Alarm:
    """`kind` is the tool's own name for it: a rule or a detector. `step` is None where the tool gives none."""

    kind: str
    level: str
    step: int | None
    words: str


class Tool:
    """A tool on one run."""

    name = ""
    package = ""  # as it is installed
    module = ""  # as it is imported

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kind(self, base: type, tokenizer: Any) -> Callable[..., Any]:
        """The class of trainer, or what makes one."""
        return base

    def attach(self, trainer: Any) -> None:
        """Before training."""

    def alarms(self) -> list[Alarm]:
        """After it."""
        raise NotImplementedError

    @classmethod
    def version(cls) -> str:
        try:
            return version(cls.package)
        except PackageNotFoundError:
            return "of this repository"


class Ours(Tool):
    """`attach_trl(trainer)`. Errors count, notes do not."""

    name = "workbench"
    package = "agent-rl-workbench"
    module = "workbench"

    def attach(self, trainer: Any) -> None:
        from workbench.extensions.trl_live import attach_trl

        self.lint = attach_trl(trainer, say=lambda text: None)

    def alarms(self) -> list[Alarm]:
        if self.lint.failures:
            raise RuntimeError(f"the lint failed itself: {self.lint.failures[0]}")
        return [
            Alarm(rule, "error", finding.place and finding.place.step, finding.what)
            for rule, finding in self.lint.report.errors
        ]


class Martingale(Tool):
    """`MartingaleGRPOTrainer` over the trainer, its alarms as they are raised live; all of the run, hence no halt."""

    name = "martingale"
    package = "martingale"
    module = "martingale"

    def kind(self, base: type, tokenizer: Any) -> Callable[..., Any]:
        from martingale.integrations.trl import MartingaleRecorder, build_trainer_class

        watched = type("Watched" + base.__name__, (build_trainer_class(), base), {})
        recorder = MartingaleRecorder(str(self.folder / "martingale"), tokenizer=tokenizer)
        return partial(watched, flight_recorder=recorder, halt_on_error=False)

    def attach(self, trainer: Any) -> None:
        logging.getLogger("martingale").setLevel(logging.CRITICAL)
        self.monitor = trainer.martingale_monitor

    def alarms(self) -> list[Alarm]:
        return [
            Alarm(alarm.kind, alarm.level, alarm.step, alarm.message)
            for alarm in self.monitor.alarms
        ]


class Rlprobe(Tool):
    """`attach(trainer, run_dir)` with the trainer's samples, then its doctor over the whole recording."""

    name = "rlprobe"
    package = "rlprobe"
    module = "rlprobe"

    def attach(self, trainer: Any) -> None:
        from rlprobe.integrations.trl import attach

        attach(trainer, self.folder / "rlprobe")

    def alarms(self) -> list[Alarm]:
        from rlprobe.doctor import diagnose

        return [
            Alarm(finding.signature_id, finding.severity, finding.first_step, finding.explanation)
            for finding in diagnose(self.folder / "rlprobe")
            if finding.severity in ("warn", "critical")
        ]


class Rldoctor(Tool):
    """`RLDoctorCallback`, live at its own pace, and its diagnosis of the whole log at the end."""

    name = "rldoctor"
    package = "rldoctor"
    module = "rl_doctor"

    def attach(self, trainer: Any) -> None:
        from rl_doctor.integrations.trl import RLDoctorCallback

        logging.getLogger("rl-doctor").setLevel(logging.CRITICAL)
        self.callback = RLDoctorCallback()
        trainer.add_callback(self.callback)

    def alarms(self) -> list[Alarm]:
        from rl_doctor import Severity

        monitor = self.callback.monitor
        monitor.check()
        return [
            Alarm(
                finding.detector,
                finding.severity.name.lower(),
                None,
                f"{finding.title}: {finding.summary}",
            )
            for finding in monitor.latest.problems
            if finding.severity >= Severity.WARNING
        ]


class Rlwatch(Tool):
    """`rlwatch.attach(trainer=trainer)` with the package of the dip test. Its floor of entropy, 1 nat, is above what a tiny
    policy has when it is well, and its windows are longer than these runs: both are set to fit."""

    name = "rlwatch"
    package = "rlwatch"
    module = "rlwatch"
    settings: Mapping[str, Mapping[str, Any]] = {
        "entropy_collapse": {"threshold": 0.1, "consecutive_steps": 20},
        "reward_hacking": {"warmup_steps": 20},
        "reward_mean_drift": {"warmup_steps": 15, "consecutive_steps": 20},
        "alerts": {"cooldown_steps": 10},
    }

    def attach(self, trainer: Any) -> None:
        import rlwatch

        logging.getLogger("rlwatch").setLevel(logging.CRITICAL)
        storage = {"log_dir": str(self.folder / "rlwatch")}
        self.monitor = rlwatch.attach(
            framework="trl", trainer=trainer, storage=storage, **self.settings
        )

    def alarms(self) -> list[Alarm]:
        return [
            Alarm(row["detector"], row["severity"], row["step"], row["message"])
            for row in self.monitor.store.get_alerts(self.monitor.run_id)
        ]


TOOLS: Mapping[str, type[Tool]] = {
    tool.name: tool for tool in (Ours, Martingale, Rlprobe, Rldoctor, Rlwatch)
}
