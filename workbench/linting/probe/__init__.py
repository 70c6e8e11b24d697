"""What the learner makes of a batch (`probe.py`), beside a computation that shares nothing with it (`plain.py`)."""
from workbench.linting.probe.probe import MAX_PARAMETERS, LearnerProbe, probe_of

__all__ = ["MAX_PARAMETERS", "LearnerProbe", "probe_of"]
