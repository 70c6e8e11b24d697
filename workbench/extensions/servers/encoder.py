"""Vectors of texts from any encoder that transformers can load: what dense search (envs/search/dense.py) asks for.

    encode = encoder("BAAI/bge-large-en-v1.5")      # hf download BAAI/bge-large-en-v1.5 fetches it, once
    encode(["who built the mill"], True)        # [1, width]; True: these are queries

A query and a passage are prefixed as the model was trained: BGE takes an instruction before queries, E5 a word before
each; other names get no prefix. What is pooled is the first token's state (BGE) or the mean over the text's own tokens.

Sources: Xiao et al. 2023 (arXiv 2309.07597, BGE); Wang et al. 2022 (arXiv 2212.03533, E5). The published models were not
run here; the tests make a tiny random one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from workbench.engines.policy import load_weights, open_folder, read_pretrained
from workbench.values.errors import ConfigError, PolicyError

BGE_QUERY = "Represent this sentence for searching relevant passages: "
POOLINGS = ("cls", "mean")


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """(texts, query) -> [texts, width] float32.

    pooling               "cls": the first token's last state; "mean": over the tokens that are no padding
    query, passage        what stands before a query, before a passage
    most_tokens           a longer text is cut there
    batch_size            texts that pass through the model at once, longest first, so that little is padding
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    pooling: str = "mean"
    query: str = ""
    passage: str = ""
    most_tokens: int = 512
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"an encoder's pooling is {' or '.join(POOLINGS)}, got {self.pooling!r}"
            )

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], query: bool) -> np.ndarray:
        prefixed = [(self.query if query else self.passage) + text for text in texts]
        vectors: list[np.ndarray | None] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(prefixed[index]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            for index, vector in zip(batch, self._encoded([prefixed[index] for index in batch])):
                vectors[index] = vector
        return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)

    def _encoded(self, texts: list[str]) -> np.ndarray:
        tokens = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.most_tokens, return_tensors="pt"
        )
        tokens = tokens.to(self.model.device)
        states_NTD = self.model(**tokens).last_hidden_state
        if self.pooling == "cls":
            pooled_ND = states_NTD[:, 0]
        else:
            mask_NT1 = tokens["attention_mask"].unsqueeze(-1).to(states_NTD.dtype)
            pooled_ND = (states_NTD * mask_NT1).sum(dim=1) / mask_NT1.sum(dim=1).clamp(min=1)
        return pooled_ND.float().cpu().numpy()


@cache
def encoder(name: str) -> TextEncoder:
    """The encoder in this folder or of this name in the local cache of the hub, on CUDA where there is one, with the pooling
    and prefixes of its family (told by the name: bge, e5). A run that somebody else made may name it: it is looked at like
    any model, and nothing is downloaded. Raises PolicyError where it cannot be loaded."""
    from transformers import AutoModel, AutoTokenizer

    try:
        folder = open_folder(name, reader=AutoModel, download=False)
        tokenizer = read_pretrained(AutoTokenizer, folder, name)
        model = load_weights(AutoModel, folder, name, spare="pooler.")
    except PolicyError as error:
        raise PolicyError(f"the encoder {name!r} cannot be loaded: {error}") from error
    if tokenizer.padding_side != "right" or tokenizer.pad_token is None:
        raise PolicyError(
            f"the encoder {name!r} pads on the {tokenizer.padding_side} with {tokenizer.pad_token!r}; "
            "expected a padding token on the right, as encoders of the BERT kind have it"
        )
    model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    limit = min(getattr(model.config, "max_position_embeddings", 512), 512)
    family = name.rstrip("/").rpartition("/")[2].lower()
    if family.startswith("bge"):
        return TextEncoder(model, tokenizer, "cls", BGE_QUERY, most_tokens=limit)
    if family.startswith("e5"):
        return TextEncoder(model, tokenizer, "mean", "query: ", "passage: ", most_tokens=limit)
    return TextEncoder(model, tokenizer, most_tokens=limit)
