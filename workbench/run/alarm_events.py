"""The effects of alarms on a run (train.on_alarm = "slow" or "restore"), from its events, which are written first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class AlarmEvent(NamedTuple):
    """After `step` the learning rate fell to a tenth."""

    step: int
    restored: int | None  # step of the checkpoint that weights and optimizer went back to first


def alarm_events(events: Iterable[Mapping[str, Any]]) -> dict[int, AlarmEvent]:
    """By step. Several alarms of one step act once."""
    acted = [event for event in events if event["kind"] == "alarm" and event.get("slower")]
    return {event["step"]: AlarmEvent(event["step"], event.get("restored")) for event in acted}
