"""Which settings of a configuration contradict each other, and which cannot act beside the others (invariant 11).

A part whose settings depend on each other says so itself: `inert_settings()` of the environment family, of the
collecting, of the layout. What depends on several parts stands here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from workbench.basics.settings import Inert
from workbench.engines.config import NO_SLEEP_ON_CPU
from workbench.engines.layout import ADAPTER_RANKS
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.algorithms.liveness import (
    check_sizes,
    inert_settings,
    remarks,
    scales_again,
    updates_of_a_step,
)
from workbench.training.sections import Config
from workbench.training.starting import obstacles
from workbench.training.task_choice import refuse_what_cannot_choose
from workbench.values.errors import ConfigError
from workbench.worlds.privileged import tells


def refuse_contradictions(config: Config) -> None:
    """Raises ConfigError for settings of which no training can be made."""
    config.family  # raises where environment and interface do not go together
    algorithm = config.algorithm
    train = config.train
    check_sizes(algorithm, train.group_size)
    if train.group_size < getattr(algorithm, "min_group_size", 1):
        raise ConfigError(
            f"{algorithm.name} compares trajectories within a group and needs train.group_size >= "
            f"{algorithm.min_group_size}, got {train.group_size}"
        )
    if impossible := obstacles(config, config.learner.num_processes):
        raise ConfigError(". ".join(impossible))
    if not config.layout.has_server and getattr(config.engine, "tensor_parallel", 1) > 1:
        raise ConfigError(
            f"engine.tensor_parallel = {config.engine.tensor_parallel}: without a server vLLM lives in the process "
            "that trains, on its one device; set layout.kind = 'one_node'"
        )
    if config.layout.has_server and config.kind_of("engine") != "vllm":
        raise ConfigError(
            f"layout.kind = {config.layout.kind!r} has a vLLM server, and engine.kind = {config.kind_of('engine')!r} "
            "lives in the process that trains; set engine.kind = 'vllm', or layout.kind = 'one_device'"
        )
    if getattr(config.engine, "sleep", False):
        _refuse_sleep(config)
    if config.layout.adapters == "routes":
        _refuse_adapters_alone(config)
    if config.policy.base_bits:
        _refuse_trained_bits(config)
    if config.critic.sees == "state" and needs_critic(algorithm):
        _refuse_telling(config)
    if config.sampling.tasks != "fresh":
        refuse_what_cannot_choose(config)
    if train.on_alarm != "off" and config.learner.num_processes > 1:
        raise ConfigError(
            f"train.on_alarm = {train.on_alarm!r} with learner.num_processes = {config.learner.num_processes}: one "
            "process looks at the signals, and the others would go on without it; set train.on_alarm = 'off'"
        )
    if train.staleness and train.on_alarm == "restore":
        raise ConfigError(
            "train.on_alarm = 'restore' with train.staleness = 1: the next trajectories would be those of the weights "
            "that were given up; set train.staleness = 0, or train.on_alarm = 'slow'"
        )
    if train.staleness and not getattr(algorithm, "sampler_cap", 0):
        raise ConfigError(
            "train.staleness = 1 learns from trajectories of older weights, and nothing weighs for them: set "
            "algorithm.sampler_cap (2, for one), the most that a token of another policy counts"
        )
    if config.collect.temperature == 0:
        raise ConfigError(
            "collect.temperature = 0 makes all trajectories of a task alike, so that nothing can be "
            "compared; training samples at a temperature above 0 (evaluation is greedy by itself)"
        )
    if algorithm.minibatches > train.tasks_per_step * train.group_size:
        raise ConfigError(
            f"algorithm.minibatches = {algorithm.minibatches} cuts a step of {train.tasks_per_step} x "
            f"{train.group_size} trajectories into more parts than it has"
        )


def _refuse_telling(config: Config) -> None:
    if config.critic.trunk == "policy":
        raise ConfigError(
            "critic.sees = 'state' with critic.trunk = 'policy': one forward pass is the policy's and the critic's, "
            "so whatever the critic read the policy would have read; set critic.trunk = 'own'"
        )
    if not tells(config.env):
        raise ConfigError(
            f"critic.sees = 'state': environments of kind {config.kind_of('env')!r} have no privileged() that says "
            "what they know besides; give them one, or set critic.sees = 'policy'"
        )


def _refuse_sleep(config: Config) -> None:
    if config.train.staleness:
        raise ConfigError(
            "engine.sleep with train.staleness = 1: vLLM samples while weights are learned; set "
            "engine.sleep = false"
        )
    if config.learner.lora_rank:
        raise ConfigError(
            "engine.sleep with learner.lora_rank: vLLM's sleep lost adapters in silence (vllm#53888), and that "
            "it does not here was not proven; set engine.sleep = false"
        )


def _refuse_adapters_alone(config: Config) -> None:
    rank = config.learner.lora_rank
    largest = ADAPTER_RANKS[-1]
    if not rank:
        raise ConfigError(
            "layout.adapters = 'routes' sends adapters alone, and without learner.lora_rank all weights are "
            "trained; set learner.lora_rank, or layout.adapters = 'merged'"
        )
    if rank > largest:
        raise ConfigError(
            f"layout.adapters = 'routes': vLLM takes adapters of rank {largest} at most, and "
            f"learner.lora_rank = {rank}; layout.adapters = 'merged' takes any"
        )
    if config.layout.has_server and config.engine.tensor_parallel > 1:
        raise ConfigError(
            f"layout.adapters = 'routes' with engine.tensor_parallel = {config.engine.tensor_parallel}: each "
            "device would hold parts of an adapter, of which it cannot be told yet whether they arrived; set "
            "layout.adapters = 'merged'"
        )


def _refuse_trained_bits(config: Config) -> None:
    if not config.learner.lora_rank:
        raise ConfigError(
            "policy.base_bits = 4 holds weights in four bits, which cannot be trained; set learner.lora_rank to train "
            "adapters beside them, or policy.base_bits = 0"
        )
    if config.learner.num_processes > 1:
        raise ConfigError(
            f"policy.base_bits = 4 with learner.num_processes = {config.learner.num_processes}: weights in four bits "
            "are not spread over processes; set learner.num_processes = 1, or policy.base_bits = 0"
        )


def inert_settings_of(config: Config) -> Iterator[Inert]:
    """What cannot act, by dotted key."""
    algorithm = config.algorithm
    train = config.train
    yield Inert(
        "engine.device",
        True,
        "the embedded engine samples where the policy lives; set policy.device",
    )
    yield Inert(
        "engine.sleep", config.layout.has_server, "a server has devices of its own (layout.kind)"
    )
    yield Inert("engine.sleep", config.policy.device == "cpu", NO_SLEEP_ON_CPU)
    yield Inert(
        "learner.offload",
        config.learner.offload and config.policy.device == "cpu",
        "on a CPU everything lies in the host's memory",
    )
    yield Inert(
        "learner.seed",
        updates_of_a_step(algorithm, train.tasks_per_step, train.group_size) == algorithm.epochs,
        "nothing is shuffled where a pass is one update",
    )
    for mask in fields(algorithm.masks):
        yield Inert(
            f"algorithm.masks.{mask.name}",
            config.collect.history == "fresh",
            "with collect.history = 'fresh' "
            "every reply stands in the prompt of the next segment, so that the response is the actions and "
            "nothing else",
        )
    for part in ("env", "collect", "layout", "learner", "sampling"):
        own = getattr(getattr(config, part), "inert_settings", list)()
        yield from (Inert(f"{part}.{name}", dead, why) for name, dead, why in own)
    for setting in fields(config.critic):
        yield Inert(
            f"critic.{setting.name}",
            not needs_critic(algorithm),
            f"algorithm {config.kind_of('algorithm')!r} needs no critic",
        )
    yield Inert(
        "critic.value_coef",
        config.critic.trunk == "own",
        "a critic with its own trunk has its own optimizer (critic.lr); set critic.trunk='policy'",
    )
    yield Inert(
        "algorithm.rewards.normalize",
        scales_again(algorithm),
        f"{algorithm.name} takes any shift and scale of these rewards off again by itself",
    )
    for name, dead, why in inert_settings(algorithm, train.tasks_per_step, train.group_size):
        yield Inert(f"algorithm.{name}", dead, why)


def remarks_on(config: Config) -> list[str]:
    """What should be known before a run begins although nothing is wrong."""
    algorithm = config.algorithm
    collect = config.collect
    notes = remarks(algorithm, config.train.tasks_per_step, config.train.group_size)
    if (collect.temperature != 1 or collect.top_p != 1) and not algorithm.sampler_cap:
        notes.append(
            f"collect.temperature = {collect.temperature} and top_p = {collect.top_p}: trajectories are sampled from "
            "a modified distribution, but the loss scores the policy's own; algorithm.sampler_cap (2, for one) "
            "weights for it"
        )
    updates = updates_of_a_step(algorithm, config.train.tasks_per_step, config.train.group_size)
    if algorithm.reference.in_loss and (updates > 1 or config.train.staleness):
        notes.append(
            f"algorithm.reference.kl_in = 'loss' and {updates} updates per step: {algorithm.reference.kl_estimator} "
            "estimates the divergence for tokens of the policy itself, and after the first update they are those of an "
            "older one, by which nothing weights, so that the gradient of this term is off; make one update per step, or "
            "set algorithm.reference.kl_in = 'reward'"
        )
    if algorithm.reference.in_loss and algorithm.reference.kl_estimator == "k1":
        notes.append(
            "algorithm.reference.kl_estimator = 'k1' in the loss pulls nowhere: its gradient is zero on average and "
            "only adds noise; take k2 or k3 there, or algorithm.reference.kl_in = 'reward'"
        )
    return notes
