"""Planted causes of one symptom: recorded logprobs that do not agree with the learner's. Each acts on a real session in training.

A case is a kind, a preset, an algorithm, a strength and a seed; `tried` trains a little, plants it, trains on, and keeps what R23's
finding names, and what is named where evidence is withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from mismatch_kit import (
    add_adapter,
    half_precision,
    keep_back,
    lie_about_sampling,
    shift_logprobs,
    shift_positions,
)

from workbench.extensions.engine_audit import live
from workbench.extensions.engine_audit.attribution import (
    DELIVERY,
    ENGINE,
    STALENESS,
    TOKENS,
    Attribution,
)
from workbench.linting.in_training import TrainingLint
from workbench.training import step as training_step
from workbench.training.config import load_config
from workbench.training.session import Session, open_session
from workbench.values import Group, Segment, Source
from workbench.values.seeds import rng_at

SMALL = {
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "evaluation.num_tasks": 4,
    "lint.mode": "warn",
    "lint.start": False,
    "learner.lr": 1e-3,
}
PRESETS = (
    "bandit",
    "bandit",
    "bandit",
    "bandit",
    "frozenlake",
    "sokoban",
    "frozenlake-ppo",
)  # as often
ALGORITHMS = ("grpo", "rloo", "reinforce_pp", "gspo", "dapo", "cispo", "dr_grpo")
WITHHELD = ("journal", "versions", "weights", "held")
CLEAN = "clean"


@dataclass(frozen=True)
class Case:
    """`plant` acts on a session after `before` honest steps; `after` steps follow. `strength`: in words."""

    kind: str
    what: str
    strength: str
    plant: Callable[[Session], None]
    preset: str = "frozenlake"
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    before: int = 2
    after: int = 2


@dataclass(frozen=True)
class Outcome:
    """`gap`: R23 found one; `named`: the causes that its finding names; `withheld`: those named without this evidence."""

    gap: bool
    named: tuple[str, ...]
    words: str
    withheld: dict[str, tuple[str, ...]]


def tried(case: Case, withheld: Sequence[str] = ()) -> Outcome:
    """Train, plant, train on, until R23 finds a gap or the steps are made."""
    config = load_config(case.preset, SMALL | {"seed": case.seed} | case.settings)
    session = open_session(config, quiet=True)
    asked: list[dict[str, Attribution | None]] = []
    real_cause = live.mismatch_cause
    real_rollout = training_step.rollout

    def asking(evidence: Any) -> str:
        # While the engine still holds what it sampled with.
        withouts = {"": (), **{name: (name,) for name in withheld}}
        asked.append({name: live.step_attribution(evidence, of) for name, of in withouts.items()})
        return real_cause(evidence)

    live.mismatch_cause = asking
    try:
        outcome = _trained(session, case, asked)
    finally:
        live.mismatch_cause = real_cause
        training_step.rollout = real_rollout
    if not asked or not outcome:
        return Outcome(False, (), "", {})
    others = dict(asked[-1])
    attribution = others.pop("")
    causes = {name: () if other is None else other.causes for name, other in others.items()}
    assert attribution is None or str(attribution) in outcome, "R23's finding says it"
    named = () if attribution is None else attribution.causes
    return Outcome(True, named, outcome, causes)


def _trained(session: Session, case: Case, asked: list[Any]) -> str:
    """R23's finding, in words."""
    lint = TrainingLint()
    for step in range(1, case.before + case.after + 1):
        if step == case.before + 1:
            case.plant(session)
        report = training_step.train_step(session, step, instruments=[lint]).lint
        if asked:
            findings = [answer.findings for answer in report.answers if answer.rule == "R23"]
            return " ".join(finding.what for finding in findings[0])
    return ""


# ------------------------------------------------------------------------------------------------ staleness, delivery


def lag(session: Session, steps: int, *, honest: bool, mixed: bool = False) -> None:
    """From now on a sync loads the weights of so many steps ago: `honest` with their number, else with the new one.
    `mixed`: the second half of a step's tasks is sampled by the newest, as where weights are published meanwhile."""
    engine = session.engine
    sync = engine.sync
    newest = {name: tensor.clone() for name, tensor in session.learner.weights().items()}
    held = [(newest, session.learner.version)]

    def load(weights: Any, version: int) -> None:
        engine._policy_version = -1  # else it refuses an older number
        sync(weights, version)

    def lagging(weights: Any, version: int) -> None:
        held.append(({name: tensor.clone() for name, tensor in weights.items()}, version))
        old, number = held[max(len(held) - 1 - steps, 0)]
        load(old, number if honest else version)

    real = training_step.rollout

    def in_halves(session: Session, tasks: Sequence[Any], **settings: Any) -> list[Group]:
        half = len(tasks) // 2
        groups = [*real(session, tasks[:half], **settings)]
        if engine.policy_version != held[-1][1]:
            load(*held[-1])
        return [*groups, *real(session, tasks[half:], **settings)]

    engine.sync = lagging
    if mixed:
        training_step.rollout = in_halves


Change = Callable[
    [str, Mapping[str, torch.Tensor]], torch.Tensor
]  # (name, all weights) -> what arrives under it


def change_on_the_way(session: Session, change: Change) -> None:
    """From now on a sync loads something else than it is given."""
    sync = session.engine.sync

    def changed(weights: Mapping[str, torch.Tensor], version: int) -> None:
        # What shares storage stays shared: the engine refuses ties that come with two values.
        made: dict[int, torch.Tensor] = {}
        for name, tensor in weights.items():
            if tensor.data_ptr() not in made:
                made[tensor.data_ptr()] = change(name, weights)
        sync({name: made[tensor.data_ptr()] for name, tensor in weights.items()}, version)

    session.engine.sync = changed


def _with_noise(size: float) -> Change:
    def noisy(name: str, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tensor = weights[name]
        generator = torch.Generator().manual_seed(len(name))
        spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
        return tensor + size * spread * torch.randn(tensor.shape, generator=generator)

    return noisy


def _with_layers_swapped(part: str) -> Change:
    def swapped(name: str, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        other = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
        for layer, instead in other.items():
            if layer in name and part in name:
                return weights[name.replace(layer, instead)]
        return weights[name]

    return swapped


# ------------------------------------------------------------------------------------------------ engine


def cap_logits(session: Session, cap: float) -> None:
    """Its logits are squeezed, as by a soft cap that the trainer does not have."""
    session.engine._model.lm_head.register_forward_hook(
        lambda module, args, output: cap * torch.tanh(output / cap)
    )


def scale_logits(session: Session, factor: float) -> None:
    """Its logits are multiplied, as where a model's own scale of them is left out."""
    session.engine._model.lm_head.register_forward_hook(
        lambda module, args, output: output * factor
    )


def scale_attention(session: Session, factor: float) -> None:
    """Its queries are scaled, as by another attention kernel."""
    for name, module in session.engine._model.named_modules():
        if name.endswith("q_proj"):
            module.register_forward_hook(lambda module, args, output: output * factor)


def set_norm_eps(session: Session, eps: float) -> None:
    """Its norms have another epsilon than the model's configuration says."""
    for module in session.engine._model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = eps


def set_activation(session: Session, kind: str) -> None:
    """Its feed-forward layers have another activation."""
    kinds = {
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }
    for module in session.engine._model.modules():
        if hasattr(module, "act_fn"):
            del module.act_fn  # a module is no plain function
            module.act_fn = kinds[kind]


def scale_frequencies(session: Session, factor: float) -> None:
    """Its rotary positions turn faster or slower."""
    for module in session.engine._model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq *= factor


def bias_a_logit(session: Session, by: float) -> None:
    """Some tokens are made likelier or less likely, as by a bias that was left set."""

    def biased(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[..., 20:40] += by
        return output

    session.engine._model.lm_head.register_forward_hook(biased)


def heat(session: Session, temperature: float) -> None:
    """It samples at another temperature than anybody asked for."""
    sample = session.engine._sample
    session.engine._sample = lambda rows, logits: sample(rows, logits / temperature)


def say_float32(session: Session) -> None:
    """It computes in bfloat16 and says otherwise."""
    session.engine.config = replace(session.engine.config, dtype="float32")


# ------------------------------------------------------------------------------------------------ other ids


def encode_answers_anew(session: Session) -> None:
    """Every answer is decoded and encoded again; where ids are more or fewer, logprobs are filled up or cut."""
    backend = session.chat.encoder.backend

    def again(segment: Segment) -> Segment:
        spans = []
        for span in segment.spans:
            if span.sampled:
                text = backend.decode(span.token_ids.tolist(), skip_special_tokens=False)
                ids = backend.encode(text, add_special_tokens=False).ids
                span = _with_ids(span, ids)
            spans.append(span)
        return Segment(tuple(spans))

    _change_rollouts(again)


def split_answers(session: Session, share: int) -> None:
    """Every `share`-th answer with a token of several characters has it in single ones: a tokenizer of other merges."""
    backend = session.chat.encoder.backend
    count = [0]

    def split(segment: Segment) -> Segment:
        spans = []
        for span in segment.spans:
            count[0] += span.sampled
            if span.sampled and count[0] % share == 0:
                span = _with_ids(span, _in_characters(backend, span.token_ids.tolist()))
            spans.append(span)
        return Segment(tuple(spans))

    _change_rollouts(split)


def repeat_first_token(session: Session) -> None:
    """The prompt is encoded with its first token twice, as where a template and a tokenizer each put one."""

    def doubled(segment: Segment) -> Segment:
        first, *others = segment.spans
        ids = np.concatenate([first.token_ids[:1], first.token_ids])
        return Segment((replace(first, token_ids=ids), *others))

    _change_rollouts(doubled)


def lose_a_token_of_replies(session: Session) -> None:
    """Replies of the environment are encoded without their last token, as where white space is stripped."""

    def stripped(segment: Segment) -> Segment:
        spans = []
        for span in segment.spans:
            if span.source in (Source.ENV, Source.PROMPT) and len(span.token_ids) > 1:
                span = replace(span, token_ids=span.token_ids[:-1])
            spans.append(span)
        return Segment(tuple(spans))

    _change_rollouts(stripped)


def change_prompts(session: Session, at: int) -> None:
    """A token of every prompt is trained as another one, as where white space is put otherwise."""

    def changed(segment: Segment) -> Segment:
        first, *others = segment.spans
        ids = first.token_ids.copy()
        ids[at % len(ids)] = (ids[at % len(ids)] + 1) % 40
        return Segment((replace(first, token_ids=ids), *others))

    _change_rollouts(changed)


def _in_characters(backend: Any, ids: Sequence[int]) -> list[int]:
    """The ids with the first token that has several characters spelled in single ones."""
    for at, token in enumerate(ids):
        text = backend.id_to_token(token)
        letters = [backend.token_to_id(letter) for letter in text]
        if len(letters) > 1 and None not in letters:
            return [*ids[:at], *letters, *ids[at + 1 :]]
    return list(ids)


def _with_ids(span: Any, ids: Sequence[int]) -> Any:
    def fitted(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        return np.concatenate([values, np.repeat(values[-1:], len(ids))])[: len(ids)]

    return replace(
        span,
        token_ids=np.array(ids, np.int32),
        logprobs=fitted(span.logprobs),
        plain_logprobs=fitted(span.plain_logprobs),
    )


def _change_rollouts(change: Callable[[Segment], Segment]) -> None:
    """What is collected for training is changed; `tried` puts the real function back."""
    real = training_step.rollout

    def changed(*args: Any, **settings: Any) -> list[Group]:
        groups = []
        for group in real(*args, **settings):
            members = []
            for trajectory in group:
                segments = tuple(map(change, trajectory.segments))
                members.append(replace(trajectory, segments=segments))
            groups.append(Group(tuple(members), group.greedy))
        return groups

    training_step.rollout = changed


# ------------------------------------------------------------------------------------------------ the cases


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """`count` cases of each kind, and as many clean runs: presets, algorithms, strengths and seeds are drawn."""
    makers = {
        STALENESS: _stale,
        DELIVERY: _undelivered,
        ENGINE: _other_engine,
        TOKENS: _other_tokens,
        CLEAN: _clean,
    }
    for kind, maker in makers.items():
        for number in range(count):
            yield _drawn(maker, number, rng_at("attribution", seed, kind, number))


def further_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """`count` cases of each way of planting that `cases` does not have: they were written after what they are to judge, and before it was
    tried on them."""
    for what, maker in FURTHER.items():
        for number in range(count):
            yield _drawn(maker, number, rng_at("attribution", seed, "further", what, number))


def _drawn(maker: Callable[[int, Any], Case], number: int, rng: Any) -> Case:
    """A case in a training that is drawn."""
    preset = str(rng.choice(PRESETS))
    settings: dict[str, Any] = {}
    if preset != "frozenlake-ppo":
        settings["algorithm.kind"] = str(rng.choice(ALGORITHMS))
    settings["learner.lr"] = float(rng.choice([3e-4, 1e-3, 3e-3]))
    case = maker(number, rng)
    return replace(
        case, preset=preset, seed=int(rng.integers(1000)), settings=settings | case.settings
    )


def _stale(number: int, rng: Any) -> Case:
    steps = int(rng.integers(1, 5))
    mixed = number % 2 == 1
    words = f"{steps} steps behind" + ", half of the tasks" * mixed
    plant = _bound(lag, steps, honest=True, mixed=mixed)
    return Case(STALENESS, "old weights, named as such", words, plant, after=steps + 1)


def _undelivered(number: int, rng: Any) -> Case:
    steps = int(rng.integers(1, 5))
    kind = number % 5
    if kind < 2:
        plant = _bound(lag, steps, honest=False)
        words = f"{steps} steps behind"
        return Case(DELIVERY, "old weights under the new number", words, plant, after=steps + 1)
    if kind == 2:
        plant = _bound(lag, 100, honest=False)
        return Case(DELIVERY, "no sync does anything", "from step 3", plant, after=3)
    if kind == 3:
        part = ("lm_head.weight", "layers.0.", "layers.1.", "mlp.", "embed_tokens")[number // 5 % 5]
        plant = _bound(keep_back, lambda name: part in name)
        return Case(DELIVERY, "a part stays behind", part, plant, after=2)
    rank = int(rng.integers(1, 4))
    plant = _bound(add_adapter, rank, 0.3)
    return Case(DELIVERY, "an adapter is not merged", f"rank {rank}", plant, after=1)


def _other_engine(number: int, rng: Any) -> Case:
    heated = float(rng.choice([0.6, 0.8, 1.25, 1.5]))
    nucleus = float(rng.choice([0.7, 0.8, 0.9]))
    sign = int(rng.choice([-1, 1]))
    cap = float(rng.choice([8.0, 15.0]))
    factor = float(rng.choice([0.9, 1.1, 1.3]))
    rows: list[tuple[str, str, Callable[..., None], dict[str, Any]]] = [
        (
            "temperature not said",
            f"{heated:g}",
            lie_about_sampling,
            {"collect.temperature": heated},
        ),
        ("top-p not said", f"{nucleus:g}", lie_about_sampling, {"collect.top_p": nucleus}),
        ("logits scaled", f"{factor:g}", _bound(scale_logits, factor), {}),
        ("temperature that nobody asked for", f"{heated:g}", _bound(heat, heated), {}),
        ("head in bfloat16", "", _bound(half_precision, True), {}),
        ("bfloat16, called float32", "", say_float32, {"engine.dtype": "bfloat16"}),
        ("positions", f"{sign:+d}", _bound(shift_positions, sign), {}),
        ("logprobs of the neighbour", f"{sign:+d}", _bound(shift_logprobs, sign), {}),
        ("soft cap", f"{cap:g}", _bound(cap_logits, cap), {}),
        ("attention scaled", f"{factor:g}", _bound(scale_attention, factor), {}),
    ]
    what, strength, plant, settings = rows[number % len(rows)]
    return Case(ENGINE, what, strength, plant, settings=settings, before=1 + number % 3, after=1)


def _other_tokens(number: int, rng: Any) -> Case:
    heated = float(rng.choice([1.6, 2.0]))
    hot = {"collect.temperature": heated, "train.tasks_per_step": 4}
    share = int(rng.choice([1, 3, 6]))
    rows: list[tuple[str, str, Callable[..., None], dict[str, Any]]] = [
        ("answers decoded and encoded again", f"temperature {heated:g}", encode_answers_anew, hot),
        ("answers of other merges", f"every {share}.", _bound(split_answers, share), {}),
        ("first token twice", "", repeat_first_token, {}),
        ("answers of other merges", "every 8.", _bound(split_answers, 8), {}),
        ("prompts and replies stripped", "", lose_a_token_of_replies, {}),
    ]
    what, strength, plant, settings = rows[number % len(rows)]
    return Case(TOKENS, what, strength, plant, settings=settings, before=1 + number % 3, after=3)


def _clean(number: int, rng: Any) -> Case:
    rows: list[dict[str, Any]] = [
        {},
        {"collect.temperature": 0.7},
        {"collect.top_p": 0.8},
        {"engine.dtype": "bfloat16", "learner.lr": 3e-4},
        {"learner.precision": "bf16", "learner.lr": 3e-4},
        {"learner.layout": "padded"},
        {"engine.cache": "off"},
        {"collect.history": "window"},
        {"train.group_size": 8},
        {"collect.temperature": 1.4, "collect.top_p": 0.9},
    ]
    settings = rows[number % len(rows)]
    words = ", ".join(f"{name} = {value}" for name, value in settings.items()) or "as it is"
    return Case(CLEAN, "nothing", words, lambda session: None, settings=settings, after=3)


def _never_synced(number: int, rng: Any) -> Case:
    plant = _bound(lag, 100, honest=True)
    return Case(STALENESS, "no sync does anything, and the old number stays", "", plant, after=3)


def _noisy(number: int, rng: Any) -> Case:
    size = float(rng.choice([0.003, 0.01, 0.03]))
    plant = _bound(change_on_the_way, _with_noise(size))
    return Case(DELIVERY, "noise on the way", f"{size:g} of a tensor's spread", plant)


def _swapped(number: int, rng: Any) -> Case:
    part = str(rng.choice(["self_attn.o_proj", "mlp.down_proj", "input_layernorm"]))
    plant = _bound(change_on_the_way, _with_layers_swapped(part))
    return Case(DELIVERY, "two layers changed places", part, plant)


def _scaled(number: int, rng: Any) -> Case:
    factor = float(rng.choice([0.97, 1.01, 1.03]))
    plant = _bound(change_on_the_way, lambda name, held: held[name] * factor)
    return Case(DELIVERY, "all weights scaled on the way", f"{factor:g}", plant)


def _other_norm(number: int, rng: Any) -> Case:
    eps = float(rng.choice([1e-3, 1e-2, 1e-1]))
    return Case(
        ENGINE, "norms with another epsilon", f"{eps:g}", _bound(set_norm_eps, eps), after=1
    )


def _other_activation(number: int, rng: Any) -> Case:
    kind = str(rng.choice(["gelu", "gelu_tanh", "quick_gelu"]))
    return Case(ENGINE, "another activation", kind, _bound(set_activation, kind), after=1)


def _other_base(number: int, rng: Any) -> Case:
    factor = float(rng.choice([0.5, 0.8, 2.0]))
    plant = _bound(scale_frequencies, factor)
    return Case(ENGINE, "rotary positions of another base", f"{factor:g}", plant, after=1)


def _biased(number: int, rng: Any) -> Case:
    by = float(rng.choice([-1.0, 0.3, 1.0]))
    return Case(ENGINE, "some logits are biased", f"{by:+g}", _bound(bias_a_logit, by), after=1)


def _other_prompt(number: int, rng: Any) -> Case:
    at = int(rng.integers(3, 8))
    words = f"token {at}"
    return Case(TOKENS, "a token of prompts is another", words, _bound(change_prompts, at), after=1)


FURTHER: dict[str, Callable[[int, Any], Case]] = {
    "never synced": _never_synced,
    "noisy": _noisy,
    "swapped": _swapped,
    "scaled": _scaled,
    "norm": _other_norm,
    "activation": _other_activation,
    "base": _other_base,
    "biased": _biased,
    "prompt": _other_prompt,
}


def _bound(plant: Callable[..., None], *args: Any, **settings: Any) -> Callable[[Session], None]:
    return lambda session: plant(session, *args, **settings)
