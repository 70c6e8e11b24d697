"""The lint of verl's batches. Two lines, in the process that runs the trainer, before `trainer.fit()`:

    from workbench.extensions.verl_live import attach_verl
    attach_verl()

Neither torch nor verl is imported here.
"""

from __future__ import annotations

from workbench.extensions.verl_live.attach import VerlLint, attach_verl, lint_verl

__all__ = ["VerlLint", "attach_verl", "lint_verl"]
