"""The vocabulary of the workbench: task, message, span, segment, turn, trajectory, group, credit table, view.

Standard library and numpy only; every other room may import it. The names below are imported from here; what else is in
this room (settings, errors, seeds, stats, findings, canonical JSON) is imported from its own module.
"""

from workbench.types.trajectories import (
    Group,
    Message,
    Observation,
    StepResult,
    StopReason,
    Task,
    Text,
    ToolCall,
    Trajectory,
    Turn,
    trajectories_of,
)
from workbench.types.groups import Groups
from workbench.types.tokens import CreditTable, Sampling, Segment, Source, Span
from workbench.types.view import View

__all__ = [
    "CreditTable",
    "Group",
    "Groups",
    "Message",
    "Observation",
    "Sampling",
    "Segment",
    "Source",
    "Span",
    "StepResult",
    "StopReason",
    "Task",
    "Text",
    "ToolCall",
    "Trajectory",
    "Turn",
    "View",
    "trajectories_of",
]
