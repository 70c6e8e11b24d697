"""How much memory will a run need: `workbench doctor --plan CONFIG`. For one process, without loading any weights.

Each moment of a step holds other things; the plan is the one that holds most. Lengths are the longest that the config
allows (every answer as long as `collect.max_turn_tokens`, every attempt as many turns as there may be), so a policy that
answers briefly stays below.

    plan(load_config("frozenlake"))                            a table, with what dominates and what to do
    plan(load_config("frozenlake", {"policy.name": "./model"}))     a folder with nothing but a config.json is enough
"""
from __future__ import annotations

import math
import os
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

from workbench.doctor.fake_step import Shapes, StepBytes, fake_step
from workbench.doctor.trials import run_probe
from workbench.engines.intake import position_numbers
from workbench.engines.policy import SHIPPED
from workbench.envs import tasks as env_tasks
from workbench.learn.algorithms.base import needs_critic
from workbench.training.config import Config
from workbench.types import Observation, View
from workbench.types.errors import ConfigError, PolicyError
from workbench.views import markup
from workbench.views.words import aligned

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MOMENTS = ("evaluating", "sampling", "updating", "saving")
CHARACTERS_A_TOKEN = 3.5     # where there is no tokenizer to ask
MESSAGE_TOKENS = 8           # what a chat template writes around a message
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
OBJECTS_A_TOKEN = 100        # bytes of a stored token: arrays of spans, batch and credit table, several copies of each
VERIFIED = 30_000_000        # parameters of the largest model that was compared with a real run
NOT_COUNTED = (
    "worker processes of environments (about 8 MB each) and what environments themselves hold",
    "what a single operation needs inside, and memory that the allocator keeps in pieces",
    "other processes: each rank of several holds all of this again, and its buckets for the exchange of gradients",
)


@dataclass(frozen=True)
class Item:
    """One use of memory: how much, when, and why."""

    name: str
    bytes: int
    moments: tuple[str, ...]  # of MOMENTS
    why: str
    place: str = "device"     # "device": where the policy lives | "host"


@dataclass(frozen=True)
class MemoryPlan:
    """All items, and how much memory there is. `limits`: bytes by place (None: not known)."""

    name: str
    device: str
    parameters: int
    items: tuple[Item, ...]
    limits: dict[str, int | None]
    remarks: tuple[str, ...]

    def at(self, moment: str, place: str) -> int:
        return sum(i.bytes for i in self.items if moment in i.moments and self._place(i) == place)

    def _place(self, item: Item) -> str:
        return "host" if self.device == "cpu" else item.place

    @cached_property
    def totals(self) -> dict[str, tuple[str, int]]:
        """Place -> (the moment that needs most there, bytes)."""
        places = dict.fromkeys(self._place(item) for item in self.items)
        return {place: max(((moment, self.at(moment, place)) for moment in MOMENTS), key=lambda pair: pair[1])
                for place in sorted(places)}

    @property
    def ok(self) -> bool:
        return all(self.limits.get(place) is None or need <= self.limits[place]
                   for place, (_, need) in self.totals.items())

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    @property
    def verdicts(self) -> tuple[str, ...]:
        lines = []
        for place, (moment, need) in self.totals.items():
            there = self.limits.get(place)
            largest = max((i for i in self.items if moment in i.moments and self._place(i) == place),
                          key=lambda item: item.bytes)
            where = "main memory" if place == "host" else f"memory of {self.device}"
            fits = "" if there is None else f"; {_size(there)} there are: " + ("enough" if need <= there else "TOO LITTLE")
            lines.append(f"{where}: {_size(need)} at most, while {moment}{fits}. Largest: {largest.name}, "
                         f"{_size(largest.bytes)} ({largest.bytes / need:.0%})")
            if there is not None and need > there:
                lines.append(f"  -> {_advice(largest.name)}")
        return tuple(lines)

    def _rows(self) -> list[list[str]]:
        return [[item.name, *(_size(item.bytes) if moment in item.moments else "" for moment in MOMENTS), item.why]
                for item in self.items]

    @property
    def text(self) -> str:
        rows = [["", *MOMENTS, ""], *self._rows()]
        for place in self.totals:
            rows.append([f"together ({place})", *(_size(self.at(moment, place)) for moment in MOMENTS), ""])
        head = f"Memory of one process: {self.name}, {self.parameters / 1e6:,.1f} million parameters, on {self.device}"
        notes = [*self.remarks, *(f"not counted: {words}" for words in NOT_COUNTED)]
        return "\n".join([head, aligned(rows, right=range(1, 1 + len(MOMENTS)), indent="  "), "", *self.verdicts, "", *notes])

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "name": self.name, "device": self.device, "parameters": self.parameters,
                "items": [asdict(item) for item in self.items], "limits": self.limits,
                "peak": {place: {"moment": moment, "bytes": need} for place, (moment, need) in self.totals.items()},
                "verdicts": list(self.verdicts), "remarks": list(self.remarks), "not_counted": list(NOT_COUNTED)}

    @property
    def view(self) -> View:
        rows = [[markup.cell(row[0]), *map(markup.number_cell, row[1:-1]), markup.cell(row[-1])]
                for row in self._rows()]
        rows += [[markup.cell(f"together ({place})"), *(markup.number_cell(_size(self.at(m, place))) for m in MOMENTS),
                  markup.cell("")] for place in self.totals]
        said = [markup.note(line) if self.ok else markup.warning(line) for line in self.verdicts]
        return markup.finished(markup.card(
            markup.heading(f"Memory of one process: {self.name}"), *said,
            markup.table(rows, markup.head_cells(["", *MOMENTS, ""], right=MOMENTS)),
            *map(markup.note, [*self.remarks, *(f"not counted: {words}" for words in NOT_COUNTED)])), self.text)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return self.view._repr_mimebundle_()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@dataclass(frozen=True)
class Lengths:
    """The longest attempt that the config allows, in tokens; `counted` by the policy's tokenizer, else guessed."""

    prompt: int
    attempt: int
    answers: int  # of `attempt`: sampled
    counted: bool


# ------------------------------------------------------------------------------------------------ the plan


def plan(config: Config, *, limits: dict[str, int | None] | None = None, baseline: int | None = None) -> MemoryPlan:
    """Estimate one process's memory. Raises PolicyError where the model's config cannot be read.

    `limits` and `baseline` (bytes of a process that has imported everything and computed a little) are found out by
    trying, which takes some seconds, unless they are given.
    """
    name = config.policy.name
    model_config, folder = _model_config(name)
    if not hasattr(config.engine, "prefill_tokens"):
        raise ConfigError(f"engine {type(config.engine).__name__} does not say how much it keeps; plan with "
                          "engine.kind='transformers'")
    device = _device(config.policy.device)
    lengths = _lengths(config, model_config, folder)
    shapes = _shapes(config, lengths)
    critic = config.critic.trunk if needs_critic(config.algorithm) else None
    rows = min(config.engine.max_rows, _sessions(config))
    try:
        step = fake_step(model_config, shapes, critic=critic, bf16=config.learner.precision == "bf16",
                         entropy_has_gradient=bool(config.algorithm.entropy_coef),
                         prefill=(max(rows, config.engine.prefill_tokens), rows),
                         engine_bytes=BYTES[config.engine.dtype])
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise PolicyError(f"{name}: no causal language model can be made from its config.json "
                          f"({type(error).__name__}: {error})") from error
    if baseline is None:
        baseline = measured_baseline()
    items = _items(config, model_config, step, shapes, lengths, critic, baseline, on_cpu=device == "cpu")
    return MemoryPlan(name, device, step.parameters, tuple(items), _limits(device) if limits is None else limits,
                      _remarks(config, step, shapes, lengths, device))


def _items(config: Config, model_config: PreTrainedConfig, step: StepBytes, shapes: Shapes, lengths: Lengths,
           critic: str | None, baseline: int, *, on_cpu: bool) -> list[Item]:
    weights, own = step.parameters, step.trunk_parameters
    engine_dtype, policy_dtype = config.engine.dtype, config.policy.dtype
    reference = "; the reference policy" if "ref_logp_T" in config.algorithm.requires else ""
    positions, position_bytes = _cache(config, model_config, lengths)
    tokens, evaluated = _attempts(config) * lengths.attempt, _evaluated(config) * lengths.attempt
    always, playing = MOMENTS, ("evaluating", "sampling")
    slabs = 2 * model_config.get_text_config(decoder=True).num_hidden_layers
    items = [
        Item("Python and torch", baseline, always, "a process that imported everything, measured", "host"),
        Item("policy's weights", weights * BYTES[policy_dtype] + step.buffers, always,
             f"{policy_dtype}, kept as it was{reference}"),
        Item("engine's weights", weights * BYTES[engine_dtype] + step.buffers, always, f"{engine_dtype}, its own copy"),
        Item("learner's weights", weights * 4 + step.buffers, always, "float32, trained"),
        Item("optimizer", weights * 8, always, "AdamW: two moments, from the first update on"),
        Item("keys and values", positions * position_bytes, always if on_cpu else MOMENTS[:-1],
             f"{positions:,} positions of {position_bytes:,} bytes (engine.cache_tokens = {config.engine.cache_tokens:,})"),
        Item("cache that grows", positions * position_bytes // slabs, playing, "keys or values of one layer, once more"),
        Item("sampling", step.sampling, playing, f"a tick of {config.engine.prefill_tokens:,} tokens"),
        Item("gradients", step.trainable_bytes, ("updating",), "float32, of the policy"),
        Item("activations", step.activations, ("updating",),
             f"{shapes.rows} x {shapes.length} tokens, logits of {shapes.trained} (learner.micro_batch_tokens = "
             f"{config.learner.micro_batch_tokens:,})"),
        Item("trajectories", tokens * OBJECTS_A_TOKEN, ("sampling", "updating"), f"{tokens:,} tokens at most, as arrays",
             "host"),
        Item("attempts evaluated", evaluated * OBJECTS_A_TOKEN, always,
             f"{evaluated:,} tokens at most (evaluation.num_tasks = {config.evaluation.num_tasks:,}, attempts = "
             f"{config.evaluation.attempts}); mostly kept by the allocator", "host"),
        Item("copies to save", (weights + own) * 12, ("saving",), "weights and moments, each once more", "host"),
    ]
    if critic == "own":
        items += [Item("critic", own * 4, always, "float32: a trunk of its own (critic.trunk='policy' shares it)"),
                  Item("critic's optimizer", own * 8, always, "two moments"),
                  Item("critic's gradients", own * 4, ("updating",), "float32")]
    return [item for item in items if item.bytes]


def _attempts(config: Config) -> int:
    return config.train.tasks_per_step * config.train.group_size


def _sessions(config: Config) -> int:
    """Attempts that are played at the same time, of a step or of an evaluation."""
    return max(_attempts(config), _evaluated(config))


def _evaluated(config: Config) -> int:
    return config.evaluation.num_tasks * config.evaluation.attempts


def _shapes(config: Config, lengths: Lengths) -> Shapes:
    budget, attempts = config.learner.micro_batch_tokens, _attempts(config)
    length = lengths.attempt - 1
    rows = max(1, min(attempts, budget // max(1, length)))
    return Shapes(rows, length, rows * lengths.answers, several=attempts > rows)


def _cache(config: Config, model_config: PreTrainedConfig, lengths: Lengths) -> tuple[int, int]:
    """(positions that the engine keeps at most, bytes of one): sessions of a collect or an evaluation, whole."""
    if config.engine.cache == "off":
        return 0, 0
    reach = math.ceil(lengths.attempt / 64) * 64
    positions = min(config.engine.cache_tokens, _sessions(config) * reach)
    return positions, position_numbers(model_config.get_text_config(decoder=True)) * BYTES[config.engine.dtype]


# ------------------------------------------------------------------------------------------------ lengths


def _lengths(config: Config, model_config: PreTrainedConfig, folder: Path | None) -> Lengths:
    """Play a few tasks at random and count: nothing else knows how long an environment's words are."""
    family, rng = config.env, np.random.default_rng(0)
    count, counted = _counter(folder)
    prompts, replies = [], []
    for task in env_tasks(family, "train", 4):
        env = family.make()
        prompts.append(count(env.reset(task, 0)))
        result = env.step(family.random_action(env, rng))
        replies.append(count(result.observation))
    text = model_config.get_text_config(decoder=True)
    context = min(filter(None, (getattr(text, "max_position_embeddings", None) or 1 << 20, config.engine.max_context,
                                config.collect.max_context)))
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
        return sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) + MESSAGE_TOKENS for text in words)

    return count, tokenizer is not None


# ------------------------------------------------------------------------------------------------ the machine


def measured_baseline() -> int:
    """Bytes of a process that has imported what training imports and made one update of a toy model."""
    found = run_probe("baseline")[0]
    if found.state != "ok":
        raise ConfigError(f"the memory of an idle process could not be measured: {found.fact}; {found.advice}")
    return int(re.search(r"(\d+) bytes", found.fact)[1])


def _device(name: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _limits(device: str) -> dict[str, int | None]:
    import torch

    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            host = min(host, int(Path(path).read_text()))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    there = device != "cpu" and torch.cuda.is_available()
    return {"host": host, "device": torch.cuda.get_device_properties(device).total_memory if there else None}


def _model_config(name: str) -> tuple[PreTrainedConfig, Path | None]:
    """Of a folder (its config.json is enough), a shipped policy, or a name on the hub."""
    folder = next((path for path in (Path(name).expanduser(), SHIPPED / name) if (path / "config.json").is_file()), None)
    if folder is None and Path(name).expanduser().is_dir():
        raise PolicyError(f"{name} holds no config.json; give the folder that `save_pretrained` wrote, or one with just "
                          "that file")
    if folder is None and name.startswith(("/", ".", "~")):
        raise PolicyError(f"no folder {name!r}; give one that holds a config.json, a shipped policy, or a name on the hub")
    try:
        return AutoConfig.from_pretrained(folder or name, trust_remote_code=False), folder
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"{name}: its config.json cannot be read ({str(error).splitlines()[0]}); give a folder that holds "
                          "it, a shipped policy, or a name on the hub with network") from error


def _remarks(config: Config, step: StepBytes, shapes: Shapes, lengths: Lengths, device: str) -> tuple[str, ...]:
    how = "counted with its tokenizer" if lengths.counted else \
        f"guessed at {CHARACTERS_A_TOKEN} characters a token: the folder has no tokenizer"
    lines = [f"lengths: prompt {lengths.prompt}, attempt up to {lengths.attempt} tokens, {lengths.answers} of them "
             f"sampled; {how}"]
    if device != "cpu" or step.parameters > VERIFIED:
        lines.append(f"not compared with a real run: that was done on CPU, up to {VERIFIED / 1e6:.0f} million parameters "
                     "(within 20 %)")
    if hasattr(config.engine, "block_tokens"):
        lines.append("vllm takes what its own settings allow it beside weights and cache; that is not counted")
    return tuple(lines)


def _advice(largest: str) -> str:
    if largest == "activations":
        return "lower learner.micro_batch_tokens (results stay the same), or learner.precision='bf16'"
    if largest == "keys and values":
        return ("lower engine.cache_tokens (idle attempts are computed again), or train.tasks_per_step and "
                "evaluation.num_tasks")
    if largest == "trajectories":
        return "lower train.tasks_per_step, train.group_size or collect.max_turn_tokens"
    if largest == "attempts evaluated":
        return "lower evaluation.num_tasks, evaluation.attempts or collect.max_turn_tokens"
    return ("take a smaller model: weights, gradients and moments of one are there whole; engine.dtype='bfloat16' halves "
            "the engine's, critic.trunk='policy' saves a critic's")


def _size(number: int) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
