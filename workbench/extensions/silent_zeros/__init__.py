"""Silent zeros in somebody else's trainer, before its first step:

    from workbench.extensions.silent_zeros import check_rewards
    check_rewards(trainer, "answer")

Neither torch nor TRL is imported here.
"""

from __future__ import annotations

from workbench.extensions.silent_zeros.check import CheckedRewards, check_rewards

__all__ = ["CheckedRewards", "check_rewards"]
