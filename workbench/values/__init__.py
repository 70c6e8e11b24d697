"""The vocabulary of the workbench: task, message, span, segment, turn, trajectory, group, credit table, view.

Standard library and numpy only; every other package may import it. The names below are imported from here; what else is
in this package (addresses, errors, seeds, intervals) is imported from its own module.
"""

from workbench.values.groups import Groups
from workbench.values.tokens import CreditTable, Sampling, Segment, Source, Span
from workbench.values.trajectories import (
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
    sum_of,
    trajectories_of,
)
from workbench.values.view import View

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
    "sum_of",
    "trajectories_of",
]
