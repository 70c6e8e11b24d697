"""The names under which vLLM is told of our end of a sync (vllm_transfer). No vllm is imported here."""

BACKEND = "workbench"  # of its weight transfer
EXTENSION = "workbench.engines.vllm_transfer.WorkerCalls"  # of its workers
