"""What alarms did to a run (train.on_alarm = "slow" or "restore"), as its events say: written down before it was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class AlarmEvent(NamedTuple):
    """After this step the learning rate fell to a tenth; `restored`: to the checkpoint of which step weights and optimizer
    went back first (None: they stayed)."""

    step: int
    restored: int | None


def alarm_events(events: Iterable[Mapping[str, Any]]) -> dict[int, AlarmEvent]:
    """By step. Several alarms of one step act once."""
    acted = [event for event in events if event["kind"] == "alarm" and event.get("slower")]
    return {event["step"]: AlarmEvent(event["step"], event.get("restored")) for event in acted}
