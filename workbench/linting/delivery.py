"""Do the weights that learn reach the engine that samples? (R33, R34, R35)

An engine with a copy of its own is asked after every sync, with prompts whose logprobs a plain forward pass knows
(engines/vllm_check). It refuses to go on by itself; these rules read the same figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.basics.findings import Checked, Finding, Place, RuleResult
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule


def check_arrival(evidence: Evidence) -> Iterator[RuleResult]:
    """Every tensor arrived bit for bit, and prompts that no cache can hold are answered from them."""
    came = evidence.delivery
    yield Checked(came.tensors)
    if came.lost is not None:
        yield Finding(
            f"of the weights of version {came.version}, {came.lost}", Place(step=evidence.step)
        )
    elif not came.gap.within(*came.allowed) or came.head_came is False:
        yield Finding(
            f"the engine was given the weights of version {came.version} and answers by others: its logprobs differ "
            f"from a plain forward pass by {came.gap}, allowed are mean {came.allowed[0]:g} and max "
            f"{came.allowed[1]:g}"
            + "; the output head is an older one"
            * (came.head_came is False),
            Place(step=evidence.step),
        )


def check_reuse(evidence: Evidence) -> Iterator[RuleResult]:
    """A prompt that was asked before the sync is computed anew after it."""
    came = evidence.delivery
    yield Checked(came.gap_seen.tokens)
    if came.reused_tokens or (
        came.gap.within(*came.allowed) and not came.gap_seen.within(*came.allowed)
    ):
        yield Finding(
            f"after the weights of version {came.version} came, {came.reused_tokens} tokens of a prompt were taken from "
            f"the cache of those before; its logprobs differ from a plain forward pass by {came.gap_seen}, those of "
            f"new prompts by {came.gap}",
            Place(step=evidence.step),
        )


def check_handed(evidence: Evidence) -> Iterator[RuleResult]:
    """Weights that were put together for the engine answer as what learns does."""
    gap = evidence.handed.gap
    (mean, largest) = evidence.handed.allowed
    yield Checked(0 if gap is None else gap.tokens)
    if gap is not None and not gap.within(mean, largest):
        yield Finding(
            f"the weights that were put together for the engine do not equal the learner's: logprobs differ by "
            f"{gap}, allowed are mean {mean:g} and max {largest:g}",
            Place(step=evidence.step),
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R33",
        "the weights that were sent are those that the engine samples from",
        "the engine samples by older weights, by parts of them or by noise, while every step says that they are new.",
        "load what was sent, all of it, and prepare again what the engine packs or ties; then take a digest of what arrived "
        "and compare its logprobs with a plain forward pass. Answers that merely changed prove nothing.",
        ("delivery",),
        check_arrival,
        "sync",
    ),
    Rule(
        "R34",
        "no token attends to keys and values of older weights",
        "prompts that come again, as all of a group do, are answered half by old weights: their logprobs are of no policy.",
        "drop cached prefixes with every sync, or let the version of the weights be part of a prefix (cache_salt).",
        ("delivery",),
        check_reuse,
        "sync",
    ),
    Rule(
        "R35",
        "the weights handed to the engine equal the learner's",
        "the engine samples from a frozen policy while adapters or parts of the weights learn: looks like stale weights, "
        "and no reward moves.",
        "merge adapters with their scale, and gather every part, before the weights are handed over.",
        ("handed",),
        check_handed,
        "sync",
    ),
)
