"""The bias bench: what each algorithm's gradient is worth, on tasks where the true one is a formula."""

from workbench.bias.bench import BiasReport, BiasRow, bias_bench
from workbench.bias.claims import CLAIMS, Claim
from workbench.bias.tasks import TASKS, ExactTask

__all__ = ["BiasReport", "BiasRow", "CLAIMS", "Claim", "ExactTask", "TASKS", "bias_bench"]
