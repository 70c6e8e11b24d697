"""The loss that a trainer's settings name, by its definition, in float64 over the log-probabilities alone.

For each token t of a row with advantage A, p_t its log-probability now and o_t its old one, r_t = exp(p_t - o_t):

    grpo bnpo dr_grpo dapo luspo   -min(r A, clip(r, 1 - low, 1 + high) A)         PPO's clipped surrogate (1707.06347)
    cispo                          -A p min(r, high), the ratio held               MiniMax-M1 (2506.13585)
    sapo                           -A sigmoid(k (r - 1)) 4 / k                     soft gate, k by the sign of A

    plus beta (exp(q - p) - (q - p) - 1), q of the reference                       the estimator k3

r of a row instead of a token: the exponential of the mean of p - o (GSPO, 2507.18071). Terms are summed over trained
tokens and divided: by a row's tokens, then the rows (grpo, sapo); by the tokens of the micro-batch (bnpo); by rows x the
longest completion allowed (dr_grpo); by the tokens of the generation (dapo, cispo); by rows alone (luspo). The gradient of
this by p_t is what a step does to a token: that is what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.basics.tensors import Tensor, torch

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
KNOWN = (*CLIPPED, "cispo", "sapo")


@dataclass(frozen=True)
class LossSettings:
    """What names a loss, from the trainer and its arguments."""

    kind: str
    level: str  # of the ratio: "token" | "sequence"
    low: float
    high: float
    most: float | None  # delta: an upper bound of the ratio
    beta: float
    corrects_kl: bool
    sapo: tuple[float, float]  # for positive, for negative advantages
    longest: int
    accumulated: int  # micro-batches of an optimizer step
    per_generation: int  # optimizer micro-batches that a generation is split into
    processes: int
    off_policy: float | None
    corrects_sampler: bool
    top_entropy: float
    entropy_bonus: bool
    aux_loss: bool


@dataclass(frozen=True, eq=False)
class DeclaredLoss:
    """`gradient_NC` by the log-probabilities. `value` is None where another term that is not computed here is in it."""

    value: float | None
    gradient_NC: Any


def not_known(settings: LossSettings) -> str | None:
    """Why the loss is not computed here; None where it is."""
    if settings.kind not in KNOWN:
        return f"the definition of loss_type={settings.kind!r}"
    if settings.top_entropy < 1.0:
        return "the loss of the tokens with the highest entropy (top_entropy_quantile)"
    return None


def declared_loss(
    settings: LossSettings, inputs: Mapping[str, Any], logp_NC: Tensor
) -> DeclaredLoss:
    """The loss of a micro-batch as TRL hands it to its loss, and what it does to each log-probability."""
    with torch.enable_grad():
        now = logp_NC.detach().double().requires_grad_()
        total = _loss(settings, inputs, now)
        (gradient,) = torch.autograd.grad(total, now)
    value = None if settings.entropy_bonus or settings.aux_loss else float(total.detach())
    return DeclaredLoss(value, gradient.cpu().numpy())


def _loss(settings: LossSettings, inputs: Mapping[str, Any], now: Tensor) -> Tensor:
    mask = inputs["completion_mask"].double()
    if "tool_mask" in inputs:
        mask = mask * inputs["tool_mask"].double()
    credit = inputs["advantages"].double()
    credit = credit[:, None] if credit.dim() == 1 else credit
    old = inputs.get("old_per_token_logps")
    old = now.detach() if old is None else old.double()
    ratio = _ratio(settings, now - old, mask)
    terms = _terms(settings, ratio, credit, now)
    if settings.off_policy is not None:
        terms = terms * _kept(settings.off_policy, credit, now, old, inputs, mask)
    if settings.corrects_sampler:
        terms = terms * inputs["importance_sampling_ratio"].double()
    if settings.beta:
        gap = inputs["ref_per_token_logps"].double() - now
        penalty = torch.exp(gap) - gap - 1
        terms = terms + settings.beta * (penalty * ratio if settings.corrects_kl else penalty)
    return _reduced(settings, terms * mask, mask, inputs)


def _ratio(settings: LossSettings, gap: Tensor, mask: Tensor) -> Tensor:
    if settings.level == "token":
        return torch.exp(gap)
    return torch.exp((gap * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1))


def _terms(settings: LossSettings, ratio: Tensor, credit: Tensor, now: Tensor) -> Tensor:
    if settings.kind == "cispo":
        return -credit * now * ratio.clamp(max=settings.high).detach()
    if settings.kind == "sapo":
        slope = torch.where(credit > 0, settings.sapo[0], settings.sapo[1])
        return -credit * torch.sigmoid(slope * (ratio - 1)) * 4 / slope
    bounded = ratio if settings.most is None else ratio.clamp(max=settings.most)
    clipped = ratio.clamp(1 - settings.low, 1 + settings.high)
    return -torch.minimum(bounded * credit, clipped * credit)


def _kept(
    limit: float, credit: Tensor, now: Tensor, old: Tensor, inputs: Mapping[str, Any], mask: Tensor
) -> Tensor:
    """1 for rows with no negative advantage, or of which sampler and policy differ by less than `limit` nats a token."""
    sampler = inputs.get("sampling_per_token_logps")
    sampler = old if sampler is None else sampler.double()
    gap = torch.nan_to_num(sampler - now.detach(), nan=0.0) * mask
    mean = gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return ((credit >= 0) | (mean <= limit)).double()


def _reduced(
    settings: LossSettings, terms: Tensor, mask: Tensor, inputs: Mapping[str, Any]
) -> Tensor:
    if settings.kind in ("dapo", "cispo"):
        tokens = inputs["num_items_in_batch"].double().clamp(min=1) / settings.processes
        return terms.sum() * settings.per_generation / settings.accumulated / tokens
    if settings.kind in ("grpo", "sapo"):
        total = (terms.sum(1) / mask.sum(1).clamp(min=1)).mean()
    elif settings.kind == "bnpo":
        total = terms.sum() / mask.sum().clamp(min=1)
    elif settings.kind == "dr_grpo":
        total = terms.sum() / (len(terms) * settings.longest)
    else:
        total = terms.sum(1).mean()
    return total / settings.accumulated


def loss_settings(trainer: Any) -> LossSettings:
    """From a GRPOTrainer."""
    args = trainer.args
    return LossSettings(
        kind=args.loss_type,
        level=args.importance_sampling_level,
        low=args.epsilon,
        high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        most=args.delta,
        beta=args.beta,
        corrects_kl=args.use_bias_correction_kl,
        sapo=(args.sapo_temperature_pos, args.sapo_temperature_neg),
        longest=args.max_completion_length,
        accumulated=trainer.current_gradient_accumulation_steps,
        per_generation=args.steps_per_generation,
        processes=trainer.accelerator.num_processes,
        off_policy=args.off_policy_mask_threshold,
        corrects_sampler=args.use_vllm and args.vllm_importance_sampling_correction,
        top_entropy=args.top_entropy_quantile,
        entropy_bonus=bool(args.entropy_coef or args.use_adaptive_entropy),
        aux_loss=bool(getattr(trainer, "aux_loss_enabled", False)),
    )
