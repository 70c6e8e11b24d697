"""Which tokens take part in what: seven switches, each set to the policy's actions or to the whole response.

    the advantage mask    gae_over · whiten_over · kl_reward_over · critic_over
    the loss mask         loss_over · entropy_over · kl_loss_over

Agent-R1's paper (arXiv 2511.14460) switches the first group off, then both; its code never shipped the switches. Here
each stands alone, because at gamma = lambda = 1 the advantages of action tokens before whitening do not depend on what
stands between them, so a gap between the two settings must come from one of the others.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.learn.batch import Batch
from workbench.types.settings import check_settings, one_of
from workbench.types.tensors import Tensor

ADVANTAGE_MASK = ("gae_over", "whiten_over", "kl_reward_over", "critic_over")
LOSS_MASK = ("loss_over", "entropy_over", "kl_loss_over")
SETS = ("actions", "response")
EITHER = one_of(*SETS)


@dataclass(frozen=True)
class Masks:
    """Everything over the action tokens, unless said otherwise. A single switch overrides what its group says (None: as
    the group). "response" is everything after the segment's first prompt: actions, replies and the template's literals.
    """

    advantage_mask: Annotated[bool, "false: the four below treat what the environment said as if it were actions"] = True
    loss_mask: Annotated[bool, "false: gradients flow to those tokens, too"] = True
    gae_over: Annotated[str | None, EITHER, "the timeline that discounts and bootstraps"] = None
    whiten_over: Annotated[str | None, EITHER, "whose advantages the mean and deviation of whitening are taken over"] = None
    kl_reward_over: Annotated[str | None, EITHER, "which tokens pay for leaving the reference (kl_in = reward)"] = None
    critic_over: Annotated[str | None, EITHER, "where the critic is fitted"] = None
    loss_over: Annotated[str | None, EITHER, "the policy gradient"] = None
    entropy_over: Annotated[str | None, EITHER, "the entropy bonus"] = None
    kl_loss_over: Annotated[str | None, EITHER, "the pull towards the reference (kl_in = loss)"] = None

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.masks")

    def over(self, switch: str) -> str:
        """"actions" or "response": what a switch stands at, by itself or by its group."""
        group = self.advantage_mask if switch in ADVANTAGE_MASK else self.loss_mask
        return getattr(self, switch) or ("actions" if group else "response")

    def tokens(self, switch: str, batch: Batch) -> Tensor:
        """bool [T]: the tokens that a switch lets through, whatever the weight of their rows."""
        return batch.eligible_T if self.over(switch) == "actions" else batch.response_T

    def widened(self, switches: tuple[str, ...] = (*ADVANTAGE_MASK, *LOSS_MASK)) -> str | None:
        """The switches that stand at "response", in words, or None: law 1 wants an exception to name itself."""
        names = [switch for switch in switches if self.over(switch) == "response"]
        return f"masks: {', '.join(names)} = response" if names else None
