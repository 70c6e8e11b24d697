"""The lint where TRL trains. Two lines, after the trainer is made and before `trainer.train()`:

    from workbench.extensions.trl_live import attach_trl
    attach_trl(trainer)

Neither torch nor TRL is imported here.
"""

from __future__ import annotations

from workbench.extensions.trl_live.attach import LiveLint, attach_trl

__all__ = ["LiveLint", "attach_trl"]
