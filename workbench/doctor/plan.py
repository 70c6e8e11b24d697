"""How much memory will a run need: `workbench doctor --plan CONFIG`. For one process, without loading any weights.

Each moment of a step holds other things; the plan is the one that holds most. Lengths are the longest that the config
allows (every answer as long as `collect.max_turn_tokens`, every attempt as many turns as there may be), so a policy
that answers briefly stays below.

    plan(load_config("frozenlake"))                            a table, with what dominates and what to do
    plan(load_config("frozenlake", {"policy.name": "./model"}))     a folder with nothing but a config.json is enough

All items but the activations are products of counts in the config. Activations are measured: one forward pass of the
model, built from its config on tensors that have a shape and no memory, and the bytes that it keeps for its backward
pass. On top come the logits with their gradients (`LOGITS`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

from workbench.doctor.learner_memory import (
    BYTES,
    LOGITS,
    learner_items,
    policy_items,
    processes_that_share,
)
from workbench.doctor.memory import MOMENTS, Item, MemoryPlan
from workbench.doctor.model_size import ModelSize, model_size
from workbench.doctor.trials import run_probe
from workbench.engines.adapter_route import rank_of_places
from workbench.engines.intake import position_numbers
from workbench.engines.policy import SHIPPED
from workbench.envs import tasks as env_tasks
from workbench.envs.shared import opened
from workbench.training.config import Config
from workbench.training.starting import obstacles
from workbench.types import Observation
from workbench.types.errors import ConfigError, PolicyError
from workbench.views.words import count

CHARACTERS_A_TOKEN = 3.5  # where there is no tokenizer to ask
MESSAGE_TOKENS = 8  # what a chat template writes around a message
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
OBJECTS_A_TOKEN = (
    100  # bytes of a stored token: arrays of spans, batch and credit table, several copies of each
)
VERIFIED = 30_000_000  # parameters of the largest model that was compared with a real run


@dataclass(frozen=True)
class Lengths:
    """The longest attempt that the config allows, in tokens; `counted` by the policy's tokenizer, else guessed."""

    prompt: int
    attempt: int
    answers: int  # of `attempt`: sampled
    counted: bool


@dataclass(frozen=True)
class _Work:
    """How much is done at once. A micro-batch keeps as much as `rows` of `tokens` tokens (`shape` in words), `trained` of
    which have logits; `attempts` belong to a step, `evaluated` to an evaluation."""

    rows: int
    tokens: int
    trained: int
    shape: str
    attempts: int
    evaluated: int


# ------------------------------------------------------------------------------------------------ the plan


def plan(
    config: Config, *, limits: dict[str, int | None] | None = None, baseline: int | None = None
) -> MemoryPlan:
    """Estimate one process's memory. Raises PolicyError where the model's config cannot be read.

    `limits` and `baseline` (bytes of a process that has imported everything and computed a little) are found out by
    trying, which takes some seconds, unless they are given.
    """
    name = config.policy.name
    model_config, folder = _model_config(name)
    if not hasattr(config.engine, "prefill_tokens"):
        raise ConfigError(
            f"engine {type(config.engine).__name__} does not say how much it keeps; plan with "
            "engine.kind='transformers'"
        )
    device = config.policy.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = _lengths(config, model_config, folder)
    work = _work(config, lengths, packed=device == "cpu" and config.learner.layout == "auto")
    try:
        size = model_size(model_config, work.rows, work.tokens, config.learner)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise PolicyError(
            f"{name}: no causal language model can be made from its config.json "
            f"({type(error).__name__}: {error})"
        ) from error
    if baseline is None:
        baseline = measured_baseline()
    items = _items(config, model_config, size, work, lengths, baseline, on_cpu=device == "cpu")
    return MemoryPlan(
        name,
        device,
        size.parameters,
        tuple(items),
        _limits(device) if limits is None else limits,
        _remarks(config, size, lengths, device),
    )


def _items(
    config: Config,
    model_config: PreTrainedConfig,
    size: ModelSize,
    work: _Work,
    lengths: Lengths,
    baseline: int,
    *,
    on_cpu: bool,
) -> list[Item]:
    tokens, evaluated = work.attempts * lengths.attempt, work.evaluated * lengths.attempt
    items = [
        Item(
            "Python and torch",
            baseline,
            MOMENTS,
            "a process that imported everything, measured",
            "host",
        ),
        *policy_items(config, size),
        *_engine_items(config, model_config, size, work, lengths, on_cpu=on_cpu),
        *learner_items(config, size, work.shape, work.trained, on_cpu=on_cpu),
        Item(
            "trajectories",
            tokens * OBJECTS_A_TOKEN,
            ("sampling", "updating"),
            f"{tokens:,} tokens at most, as arrays",
            "host",
        ),
        Item(
            "attempts evaluated",
            evaluated * OBJECTS_A_TOKEN,
            MOMENTS,
            f"{evaluated:,} tokens at most (evaluation.num_tasks = {config.evaluation.num_tasks:,}, attempts = "
            f"{config.evaluation.attempts}); mostly kept by the allocator",
            "host",
        ),
    ]
    return [item for item in items if item.bytes]


def _engine_items(
    config: Config,
    model_config: PreTrainedConfig,
    size: ModelSize,
    work: _Work,
    lengths: Lengths,
    *,
    on_cpu: bool,
) -> Iterator[Item]:
    """Of an engine in this process; or of each device of a server, which has nothing to do with the learner's moments."""
    weights, dtype = (
        size.parameters * BYTES[config.engine.dtype] + size.buffers,
        config.engine.dtype,
    )
    positions, position_bytes = _cache(config, model_config, work, lengths)
    settings = f"positions of {position_bytes:,} bytes (engine.cache_tokens = {config.engine.cache_tokens:,})"
    if config.layout.has_server:
        yield from _server_items(
            config, size, weights, positions * position_bytes, f"{positions:,} {settings}"
        )
        return
    slabs = 2 * model_config.get_text_config(decoder=True).num_hidden_layers
    sampled = min(config.engine.max_rows, max(work.attempts, work.evaluated)) * size.vocabulary
    sleeps = getattr(config.engine, "sleep", False)
    awake = tuple(moment for moment in MOMENTS if not (sleeps and moment == "updating"))
    yield Item("engine's weights", weights, awake, f"{dtype}, its own copy")
    yield Item(
        "engine's weights, asleep",
        weights * sleeps,
        ("updating",),
        f"{dtype}, while weights are learned (engine.sleep)",
        "host",
    )
    yield Item(
        "keys and values",
        positions * position_bytes,
        MOMENTS if on_cpu else awake[:-1],
        f"{positions:,} {settings}",
    )
    yield Item(
        "cache that grows",
        positions * position_bytes // slabs,
        ("evaluating", "sampling"),
        "keys or values of one layer, once more",
    )
    yield Item(
        "sampling",
        LOGITS * sampled * BYTES[dtype],
        ("evaluating", "sampling"),
        "logits of all attempts that are decoded at once",
    )


def _server_items(
    config: Config, size: ModelSize, weights: int, cached: int, settings: str
) -> Iterator[Item]:
    """Of each device of a server beside the learner, `cached` bytes of keys and values over all of them."""
    parts, copies, dtype = (
        config.engine.tensor_parallel,
        config.layout.data_parallel,
        config.engine.dtype,
    )
    yield Item(
        "engine's weights",
        math.ceil(weights / parts),
        MOMENTS,
        f"{dtype}, of the server: a copy over {count(parts, 'device')} (engine.tensor_parallel)",
        "server",
    )
    yield Item(
        "keys and values",
        math.ceil(cached / parts / copies),
        MOMENTS,
        f"{settings}, over {count(parts * copies, 'device')}",
        "server",
    )
    if config.layout.adapters == "routes":
        place = rank_of_places(config.learner.lora_rank)
        yield Item(
            "place of an adapter",
            size.trained * place // config.learner.lora_rank * BYTES[dtype],
            MOMENTS,
            f"{dtype}, of rank {place} (layout.adapters = 'routes')",
            "server",
        )
    if dtype != "float32":
        yield Item(
            "weights as the server has them",
            weights,
            ("saving",),
            f"{dtype}: its answers are held against them",
        )


def _work(config: Config, lengths: Lengths, *, packed: bool) -> _Work:
    """`packed`: segments stand end to end in one row, those of a group behind one prompt, as a learner on a CPU has them."""
    attempts, group = config.train.tasks_per_step * config.train.group_size, config.train.group_size
    whole = lengths.attempt - 1  # the last one is predicted, not fed
    tail, budget = whole - lengths.prompt, config.learner.micro_batch_tokens
    evaluated = config.evaluation.num_tasks * config.evaluation.attempts
    if not packed:
        rows = max(1, min(attempts, budget // max(1, whole)))
        return _Work(
            rows, whole, rows * lengths.answers, f"{rows} x {whole} tokens", attempts, evaluated
        )
    fitting = [
        n
        for n in range(1, attempts + 1)
        if math.ceil(n / group) * lengths.prompt + n * tail <= budget
    ]
    segments = max(fitting, default=1)
    tokens = math.ceil(segments / group) * lengths.prompt + segments * tail
    rows = math.ceil(
        tokens / whole
    )  # attention is block by block, so what it keeps grows with the tokens alone
    return _Work(
        rows,
        math.ceil(tokens / rows),
        segments * lengths.answers,
        f"{count(segments, 'segment')} packed into {tokens} tokens",
        attempts,
        evaluated,
    )


def _cache(
    config: Config, model_config: PreTrainedConfig, work: _Work, lengths: Lengths
) -> tuple[int, int]:
    """(positions that the engine keeps at most, bytes of one): sessions of a collect or an evaluation, whole."""
    if config.engine.cache == "off":
        return 0, 0
    reach = math.ceil(lengths.attempt / 64) * 64
    positions = min(config.engine.cache_tokens, max(work.attempts, work.evaluated) * reach)
    return positions, position_numbers(model_config.get_text_config(decoder=True)) * BYTES[
        config.engine.dtype
    ]


# ------------------------------------------------------------------------------------------------ lengths


def _lengths(config: Config, model_config: PreTrainedConfig, folder: Path | None) -> Lengths:
    """Play a few tasks at random and count: nothing else knows how long an environment's words are."""
    family, rng = config.env, np.random.default_rng(0)
    tokens_in, counted = _counter(folder)
    prompts, replies = [], []
    for task in env_tasks(family, "train", 4):
        play = getattr(family, "random_action", None)
        with opened(family) as env:
            prompts.append(tokens_in(env.reset(task, 0)))
            result = env.step(play(env, rng) if callable(play) else "")
        replies.append(tokens_in(result.observation))
    text = model_config.get_text_config(decoder=True)
    context = min(
        filter(
            None,
            (
                getattr(text, "max_position_embeddings", None) or 1 << 20,
                config.engine.max_context,
                config.collect.max_context,
            ),
        )
    )
    answer, turns = config.collect.max_turn_tokens, family.max_turns
    prompt = min(max(prompts), context - 1)
    attempt = min(context, prompt + turns * (answer + max(replies)))
    share = answer / (answer + max(replies))
    return Lengths(prompt, attempt, max(1, math.ceil((attempt - prompt) * share)), counted)


def _counter(folder: Path | None):
    # Asked for one where there is none, transformers makes one that knows no words.
    there = folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False) if there else None

    def count(observation: Observation) -> int:
        words = [message.text for message in observation.messages]
        if tokenizer is None:
            return sum(math.ceil(len(text) / CHARACTERS_A_TOKEN) + MESSAGE_TOKENS for text in words)
        return sum(
            len(tokenizer(text, add_special_tokens=False)["input_ids"]) + MESSAGE_TOKENS
            for text in words
        )

    return count, tokenizer is not None


# ------------------------------------------------------------------------------------------------ the machine


def measured_baseline() -> int:
    """Bytes of a process that has imported what training imports and made one update of a toy model."""
    found = run_probe("baseline")[0]
    if found.state != "ok":
        raise ConfigError(
            f"the memory of an idle process could not be measured: {found.fact}; {found.advice}"
        )
    return int(re.search(r"(\d+) bytes", found.fact)[1])


def _limits(device: str) -> dict[str, int | None]:
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            host = min(host, int(Path(path).read_text()))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    there = device != "cpu" and torch.cuda.is_available()
    most = torch.cuda.get_device_properties(device).total_memory if there else None
    return {
        "host": host,
        "device": most,
        "server": most,
    }  # its devices are taken to be like this one


def _model_config(name: str) -> tuple[PreTrainedConfig, Path | None]:
    """Of a folder (its config.json is enough), a shipped policy, or a name on the hub."""
    places = (Path(name).expanduser(), SHIPPED / name)
    folder = next((path for path in places if (path / "config.json").is_file()), None)
    if folder is None and Path(name).expanduser().is_dir():
        raise PolicyError(
            f"{name} holds no config.json; give the folder that `save_pretrained` wrote, or one with "
            "just that file"
        )
    if folder is None and name.startswith(("/", ".", "~")):
        raise PolicyError(
            f"no folder {name!r}; give one that holds a config.json, a shipped policy, or a name on the "
            "hub"
        )
    try:
        return AutoConfig.from_pretrained(folder or name, trust_remote_code=False), folder
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f"{name}: its config.json cannot be read ({str(error).splitlines()[0]}); give a folder that "
            "holds it, a shipped policy, or a name on the hub with network"
        ) from error


def _remarks(config: Config, size: ModelSize, lengths: Lengths, device: str) -> tuple[str, ...]:
    how = (
        "counted with its tokenizer"
        if lengths.counted
        else f"guessed at {CHARACTERS_A_TOKEN} characters a token: the folder has no tokenizer"
    )
    lines = [
        f"lengths: prompt {lengths.prompt}, attempt up to {lengths.attempt} tokens, {lengths.answers} of them "
        f"sampled; {how}"
    ]
    if device != "cpu" or size.parameters > VERIFIED:
        lines.append(
            f"not compared with a real run: that was done on CPU, up to {VERIFIED / 1e6:.0f} million "
            "parameters (within 20 %, most within 10 %)"
        )
    if (processes := config.learner.num_processes) > 1:
        shared = (
            "; what is trained is dealt out over them" if processes_that_share(config) > 1 else ""
        )
        lines.append(
            f"{processes} processes: each holds as much, in the memory of its own device and of its host{shared}"
        )
    lines += [
        f"cannot be started here: {words}"
        for words in obstacles(config, processes, gpus=torch.cuda.device_count())
    ]
    if hasattr(config.engine, "block_tokens"):
        lines.append(
            "vllm takes what its own settings allow it beside weights and cache; that is not counted"
        )
    return tuple(lines)
