"""How completions were sampled (R12, R17): what the sampler really used beside what the trainer was told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.extensions.trl_live.journal import AnswerSampling
from workbench.linting.rule import RuleResult

# What bends the distribution beside the temperature, and the value at which it does not.
BENDING: Mapping[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class DeclaredSampling:
    """What the trainer's arguments say. `temperature` is what its log-probabilities are divided by."""

    temperature: float
    bending: Mapping[str, float]

    @property
    def is_plain(self) -> bool:
        return all(self.bending[name] == usual for name, usual in BENDING.items())


def declared_by(args: Any) -> DeclaredSampling:
    """From a GRPOConfig; its `generation_kwargs` have the last word on what bends."""
    given = args.generation_kwargs or {}
    bending = {}
    for name, usual in BENDING.items():
        value = given.get(name, getattr(args, name, usual))
        bending[name] = usual if value is None else value
    return DeclaredSampling(float(args.temperature), bending)


def samples_as_declared(
    step: int, declared: DeclaredSampling, samplings: Sequence[AnswerSampling], own_rollout: bool
) -> Iterator[RuleResult]:
    """R12: the sampler's settings are those that log-probabilities are computed for.

    `own_rollout`: a loop of the user's own samples, where top-p and the like may be meant.
    """
    for used in dict.fromkeys(samplings):
        place = Place(step=step)
        if not used.do_sample:
            yield Finding(
                f"{used.by} decoded greedily (do_sample=False): nothing is explored, and nothing was drawn from the "
                "distribution that is trained",
                place,
            )
            continue
        if abs(used.temperature - declared.temperature) > 1e-6:
            yield Finding(
                f"{used.by} sampled at temperature {used.temperature:g}, and the trainer's log-probabilities are at "
                f"temperature {declared.temperature:g} (args.temperature): ratios and gradients are of another "
                "distribution than was sampled from",
                place,
            )
        yield from _bent(used, declared, own_rollout, place)
    yield Checked(len(samplings))
    if not samplings:
        yield NotChecked("the sampler's settings")


def _bent(
    used: AnswerSampling, declared: DeclaredSampling, own_rollout: bool, place: Place
) -> Iterator[RuleResult]:
    for name, usual in BENDING.items():
        value = getattr(used, name)
        declared_value = declared.bending[name]
        if value != declared_value:
            yield Finding(
                f"{used.by} sampled with {name}={value:g}, and the trainer says {name}={declared_value:g}: another default won, "
                "as a model's own generation_config does over what is not set",
                place,
                NOTE if own_rollout else ERROR,
            )
        elif value != usual:
            yield Finding(
                f"{name}={value:g} bends what is sampled, and the trainer's log-probabilities do not know of it: tokens "
                "are likelier than they say",
                place,
                NOTE,
            )


def weights_are_current(step: int, trainer: Any) -> Iterator[RuleResult]:
    """R17: a sampler with a copy of its own was given the weights of this step."""
    if not trainer.args.use_vllm:
        yield NotChecked("a sampler with weights of its own (vLLM)")
        return
    loaded = getattr(trainer, "_last_loaded_step", None)
    if loaded is None:
        yield NotChecked("the step at which weights were last sent to vLLM")
        return
    yield Checked(1)
    now = trainer.state.global_step
    if loaded != now:
        yield Finding(
            f"vLLM samples by the weights of step {loaded}, and the trainer is at step {now}",
            Place(step=step),
        )
