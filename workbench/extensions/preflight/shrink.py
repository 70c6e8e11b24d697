"""The configuration of a published architecture, made small: few layers, one of each kind, and narrow ones.

    for config in small_configs(model.config): ...      ways to make it small, the smallest first; not every one can be built

A configuration is taken apart into its fields, which are shrunk by their names and by what they hold, and built anew by its
own class, so that whatever that class works out of its fields fits them. Lists with an entry for each layer, numbers of
layers, and fields of single layers go with the layers that are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

VOCABULARY = 512
LAYERS = 2
WIDTH = 64
HEADS = 4
EXPERTS = 4
SPREAD = (
    0.2  # of the weights: as small as models begin, attention would hardly see what it attends to
)
LONGEST_PERIOD = 12  # of kinds of layers that come back
DIVISORS = (16, 8, 4, 2)  # of all widths, where they depend on each other
# Fields of a transformers configuration -> what they are in a narrow one; only those that it has are set.
NARROW: Mapping[str, int] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "hidden_size_per_layer_input": WIDTH // 4,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
    "moe_shared_expert_intermediate_size": WIDTH,
    "q_lora_rank": WIDTH // 2,
    "kv_lora_rank": WIDTH // 2,
    "qk_nope_head_dim": WIDTH // HEADS,
    "qk_rope_head_dim": WIDTH // HEADS,
    "v_head_dim": WIDTH // HEADS,
    "linear_num_key_heads": HEADS // 2,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": WIDTH // HEADS,
    "linear_value_head_dim": WIDTH // HEADS,
}
# ... and what they are at most in every small one.
FEW: Mapping[str, int] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_top_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "num_mtp_layers": 0,
    "num_nextn_predict_layers": 0,
    # Of linear attention: what is computed at once, where few tokens are.
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "block_size": 16,
}
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "top_k_experts", "moe_top_k")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# No arguments of the class, or of no meaning to a model without weights.
LEFT_OUT = ("model_type", "transformers_version", "architectures", "id2label", "label2id", "dtype")
WIDTHS = re.compile(r"size|dim|rank|width|(^|_)d_|embd|inner|channels|ffn|state|expand_v")
NO_WIDTHS = re.compile(
    r"vocab|window|chunk|conv|kernel|position|patch|image|group|block|batch|length"
)
OF_LAYERS = re.compile(r"layer|idx|indices")
PERIODS = re.compile(r"period|interval|pattern|freq|sparse_step")


class Layers(NamedTuple):
    """The layers of `count` that are kept, by their old numbers."""

    count: int
    kept: Sequence[int]


def small_configs(config: Any) -> Iterator[Any]:
    """The configuration, made small in one way after the other. What its class does not bear is left out."""
    # Without special tokens no row of the embedding stands still; some classes insist on them.
    for token, divisor in product((None, VOCABULARY - 1), (0, *DIVISORS, 1)):
        try:
            yield _built(config, divisor, token)
        except Exception:  # whatever a published class says of fields that do not fit each other
            continue


def _built(config: Any, divisor: int, token: int | None) -> Any:
    """`divisor`: of all widths; 0: widths as `NARROW` has them. `token`: the id of all special tokens."""
    fields = {name: value for name, value in config.to_dict().items() if name not in LEFT_OUT}
    names = dict(getattr(config, "attribute_map", {}))
    fields = _small(fields, names, divisor) | dict.fromkeys(TOKENS, token)
    for name, part in vars(config).items():
        if hasattr(part, "to_dict"):  # of text, of pictures
            fields[name] = _built(part, divisor, token)
    return type(config)(**fields)


def _small(fields: Mapping[str, Any], names: Mapping[str, str], divisor: int) -> dict[str, Any]:
    """`names`: transformers' own name of a field -> the one that this class has for it."""
    small = dict(fields)
    count_name = names.get("num_hidden_layers", "num_hidden_layers")
    layers = Layers(0, ())
    if isinstance(fields.get(count_name), int):
        layers = _layers(fields, fields[count_name])
        small |= _with_layers(fields, layers)
        small[count_name] = len(layers.kept)
    small |= _few(small, names)
    small |= _narrow(small, names) if divisor == 0 else _divided(small, divisor)
    if "initializer_range" in small:
        small["initializer_range"] = SPREAD
    return small


# ------------------------------------------------------------------------------------------------ layers


def _layers(fields: Mapping[str, Any], count: int) -> Layers:
    """The first layer of each kind, two at least, and a whole period where kinds come back by one."""
    kinds: dict[str, int] = {}
    for layer in range(count):
        kinds.setdefault(repr(_kind(fields, count, layer)), layer)
    periods = [
        value
        for name, value in fields.items()
        if PERIODS.search(name) and isinstance(value, int) and 1 < value <= LONGEST_PERIOD
    ]
    first = set(range(min(count, max([LAYERS, *periods])))) if periods else set()
    kept = set(kinds.values()) | first
    for layer in range(count):
        if len(kept) < LAYERS:
            kept.add(layer)
    return Layers(count, sorted(kept))


def _kind(fields: Mapping[str, Any], count: int, layer: int) -> list[Any]:
    """What the fields say of one layer."""
    said_of_it: list[Any] = []
    for name, value in fields.items():
        if _is_by_layer(name, value, count):
            said_of_it.append(value[layer])
        elif _holds_numbers(name, value, count):
            said_of_it.append(layer in value)
        elif name == "per_layer_config":
            said_of_it.append({int(key): entry for key, entry in value.items()}.get(layer))
        elif name == "num_kv_shared_layers" and isinstance(value, int):
            said_of_it.append(layer >= count - value)
        elif name in ("first_k_dense_replace", "num_dense_layers") and isinstance(value, int):
            said_of_it.append(layer < value)
    return said_of_it


def _with_layers(fields: Mapping[str, Any], layers: Layers) -> dict[str, Any]:
    """The fields that speak of single layers, of those that are kept."""
    changed: dict[str, Any] = {}
    place = {layer: number for number, layer in enumerate(layers.kept)}
    for name, value in fields.items():
        if _is_by_layer(name, value, layers.count):
            kept = [value[layer] for layer in layers.kept]
            changed[name] = "".join(kept) if isinstance(value, str) else kept
        elif _holds_numbers(name, value, layers.count):
            changed[name] = [place[layer] for layer in value if layer in place]
        elif name == "per_layer_config":
            old = {int(key): dict(entry) for key, entry in value.items()}
            changed[name] = {place[layer]: old[layer] for layer in layers.kept if layer in old}
        elif name == "num_kv_shared_layers" and isinstance(value, int):
            changed[name] = sum(layer >= layers.count - value for layer in layers.kept)
    return changed


def _is_by_layer(name: str, value: Any, count: int) -> bool:
    """Whether a field has an entry for each layer."""
    sequence = isinstance(value, (list, tuple)) or isinstance(value, str) and "pattern" in name
    return sequence and len(value) == count and count > LAYERS


def _holds_numbers(name: str, value: Any, count: int) -> bool:
    """Whether a field holds numbers of layers."""
    if not isinstance(value, (list, tuple)) or not OF_LAYERS.search(name):
        return False
    return all(type(number) is int and 0 <= number < count for number in value)


# ------------------------------------------------------------------------------------------------ widths


def _few(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Fewer experts and a smaller vocabulary."""
    changed: dict[str, Any] = {}
    for name, most in FEW.items():
        own = names.get(name, name)
        if isinstance(fields.get(own), int):
            changed[own] = min(most, fields[own])
    has_experts = any(fields.get(names.get(name, name)) for name in COUNTS)
    for name in CHOSEN if has_experts else ():
        own = names.get(name, name)
        if own in fields and fields[own] is None:
            changed[own] = 2
    return changed


def _narrow(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in NARROW.items():
        own = names.get(name, name)
        if fields.get(own) is not None:
            changed[own] = value
    changed |= _shared_heads(fields, names)
    by_layer = fields.get("per_layer_config") or {}
    changed_layers = {}
    for layer, entry in by_layer.items():
        # Still as many times as wide as the other layers.
        changed_layers[layer] = {
            name: NARROW[name] * max(1, value // fields[name]) if name in NARROW else value
            for name, value in entry.items()
        }
    return changed | ({"per_layer_config": changed_layers} if by_layer else {})


def _shared_heads(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """How many heads share keys: all on their own where they did, else a half."""
    own = names.get("num_key_value_heads", "num_key_value_heads")
    shared = fields.get(own)
    heads = fields.get(names.get("num_attention_heads", "num_attention_heads"))
    if not isinstance(shared, int):
        return {}
    return {own: HEADS if shared == heads else min(shared, HEADS // 2)}


def _divided(fields: Mapping[str, Any], divisor: int) -> dict[str, Any]:
    """All widths by one number, so that those that depend on each other still fit. Raises ValueError where one cannot be."""
    changed: dict[str, Any] = {}
    for name, value in fields.items():
        is_width = WIDTHS.search(name) and not NO_WIDTHS.search(name) and type(value) is int
        if not is_width or value < 2:
            continue
        if value % divisor:
            raise ValueError(f"{name} = {value} is no multiple of {divisor}")
        changed[name] = value // divisor
    return changed
