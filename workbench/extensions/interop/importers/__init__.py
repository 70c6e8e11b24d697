"""Reading rollouts that other frameworks wrote. Which one it was is seen from the content, not from names.

    found = read_rollouts("outputs/completions")       a file, or a folder of them
    found.sequences     token ids, masks, logprobs, as they were found, fit or not: what the lint looks at
    found.groups        the trajectories that are whole, as our own types: what views and estimators take
    found.missing       what the framework did not write, and how to make it

Neither torch nor transformers is needed. A damaged line is named by its number and skipped; nothing is lost silently.
"""

from __future__ import annotations

from workbench.extensions.interop.importers.reading import looks_like_rollouts, read_rollouts

__all__ = ["looks_like_rollouts", "read_rollouts"]
