"""Small random models of many families, sessions of several turns played on an engine, and the gap to a plain forward.

Axis letters: T tokens of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import transformers as hf

from workbench.engines.base import Completion, Request

VOCAB = 64
STOP = 5
SHAPE = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=STOP,
    pad_token_id=0,
)
SLIDING = dict(sliding_window=8)

# Heads of latent attention: keys of 12 numbers, values of 6. One dense layer, two of experts.
LATENT = dict(
    num_key_value_heads=4,
    kv_lora_rank=8,
    q_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    moe_intermediate_size=16,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
)

# name -> (model class, config of a shape). Windows are smaller than the sequences that the tests play.
FAMILIES: dict[str, tuple] = {
    "qwen2": (hf.Qwen2ForCausalLM, lambda shape: hf.Qwen2Config(**shape)),
    "qwen3": (
        hf.Qwen3ForCausalLM,
        lambda shape: hf.Qwen3Config(**shape, head_dim=8, tie_word_embeddings=True),
    ),
    "llama": (hf.LlamaForCausalLM, lambda shape: hf.LlamaConfig(**shape)),
    "gemma": (hf.GemmaForCausalLM, lambda shape: hf.GemmaConfig(**shape, head_dim=8)),
    "gemma2": (hf.Gemma2ForCausalLM, lambda shape: hf.Gemma2Config(**shape, head_dim=8, **SLIDING)),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        lambda shape: hf.Gemma3TextConfig(
            **shape,
            head_dim=8,
            **SLIDING,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "gpt2": (
        hf.GPT2LMHeadModel,
        lambda shape: hf.GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=shape["max_position_embeddings"],
            bos_token_id=1,
            eos_token_id=STOP,
        ),
    ),
    "mistral": (
        hf.MistralForCausalLM,
        lambda shape: hf.MistralConfig(**shape, head_dim=8, **SLIDING),
    ),
    "deepseek_v3": (hf.DeepseekV3ForCausalLM, lambda shape: hf.DeepseekV3Config(**shape | LATENT)),
    "mamba": (
        hf.MambaForCausalLM,
        lambda shape: hf.MambaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            state_size=4,
            bos_token_id=1,
            eos_token_id=STOP,
            pad_token_id=0,
        ),
    ),
}
WITH_KEYS_AND_VALUES = [name for name in FAMILIES if name != "mamba"]


def tiny(
    family: str, seed: int = 0, positions: int = 256, window: int | None = None
) -> torch.nn.Module:
    """A random model whose attention matters: weights are several times what initialisation gives. It has `positions`;
    `window`: how far back its sliding layers see (None: `SLIDING`).

    (A recurrent model amplifies rounding with the size of its weights: its step by step and its whole-sequence form
    are different sums.)
    """
    make, config = FAMILIES[family]
    torch.manual_seed(seed)
    made = config(SHAPE | {"max_position_embeddings": positions})
    if window is not None:
        made.sliding_window = window
    model = make(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2.0 if family == "mamba" else 5.0)
    return model


@dataclass
class Played:
    """One session: its tokens, and for each sampled one its index and the engine's logprob."""

    ids: np.ndarray
    sampled: list[tuple[int, float]] = field(default_factory=list)
    prompt_tokens: int = 0  # first prompt
    env_tokens: int = 0  # observations that were answered by a turn
    turns: int = 0


def ask(
    number: int, session: str, prompt, *, seed: int | None = None, max_new_tokens: int = 6, **others
) -> Request:
    return Request(
        id=number,
        session=session,
        prompt_ids=np.asarray(prompt),
        seed=1000 + number if seed is None else seed,
        max_new_tokens=max_new_tokens,
        stop_ids=others.pop("stop_ids", frozenset({STOP})),
        **others,
    )


def drain(engine, limit: int = 500) -> list[Completion]:
    """Poll until nothing comes any more; every request must be answered within `limit` ticks."""
    completions, idle = [], 0
    for _ in range(limit):
        found = engine.poll()
        completions += found
        idle = 0 if found else idle + 1
        if idle > 60:
            break
    return completions


def play(
    engine,
    prompts,
    *,
    turns: int = 3,
    max_new_tokens: int = 6,
    observation: int = 4,
    seed: int = 0,
    history=lambda ids, turn: ids,
    **sampling,
) -> list[Played]:
    """Sessions of several turns, no barrier: each goes on as soon as its turn is done, with an observation appended.

    `history(ids, turn)` may rewrite the past before the next turn.
    """
    rng = np.random.default_rng(seed)
    sessions = {
        f"s{index}": Played(np.asarray(ids), prompt_tokens=len(ids))
        for index, ids in enumerate(prompts)
    }
    observations = {
        name: [rng.integers(6, VOCAB, observation) for _ in range(turns)] for name in sessions
    }
    waiting: dict[int, str] = {}

    def submit(name: str) -> None:
        number = len(sessions) * sessions[name].turns + list(sessions).index(name)
        waiting[number] = name
        engine.submit(
            ask(number, name, sessions[name].ids, max_new_tokens=max_new_tokens, **sampling)
        )

    for name in sessions:
        submit(name)
    for _ in range(2000):
        for completion in engine.poll():
            assert completion.error is None, completion.error
            played = sessions[name := waiting.pop(completion.request_id)]
            start = len(played.ids)
            played.sampled += [
                (start + offset, float(logp)) for offset, logp in enumerate(completion.logprobs)
            ]
            played.ids = np.concatenate([played.ids, completion.token_ids])
            played.turns += 1
            if played.turns < turns:
                reply = observations[name][played.turns]
                played.env_tokens += len(reply)
                before = len(played.ids)
                played.ids = history(np.concatenate([played.ids, reply]), played.turns)
                if len(played.ids) != before + len(
                    reply
                ):  # rewritten: earlier samples were of another sequence
                    played.sampled = []
                submit(name)
        if not waiting:
            return list(sessions.values())
    raise AssertionError(f"{len(waiting)} sessions were never answered")


def prompts(count: int, *, low: int = 5, high: int = 20, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(6, VOCAB, rng.integers(low, high)) for _ in range(count)]


def plain_logprobs(model, ids, temperature: float = 1.0) -> torch.Tensor:
    """log p(ids[t] | ids[:t]) for t >= 1, index t at t, by one plain forward pass; [T] with NaN at 0."""
    with torch.no_grad():
        logits = model(
            input_ids=torch.as_tensor(np.asarray(ids), dtype=torch.long)[None], use_cache=False
        ).logits[0]
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    tokens = torch.as_tensor(np.asarray(ids), dtype=torch.long)
    chosen = logp[:-1].gather(1, tokens[1:, None])[:, 0]
    return torch.cat([torch.tensor([float("nan")]), chosen])


def worst_gap(model, sessions: list[Played], temperature: float = 1.0) -> float:
    """Largest difference between an engine's logprob and the plain forward's, over all sampled tokens."""
    worst = 0.0
    for played in sessions:
        plain = plain_logprobs(model, played.ids, temperature)
        for index, logp in played.sampled:
            worst = max(worst, abs(float(plain[index]) - logp))
    assert sum(len(played.sampled) for played in sessions) > 0
    return worst
