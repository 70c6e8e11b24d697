"""Tokenizers of published families, small: each family's real added tokens, real template and kind of BPE.

The templates come with the TRL package (a development dependency), letter by letter as published. Flags of the added
tokens are those of the published `tokenizer.json` files: Qwen's `<think>` and `<tool_call>` are added, but not special.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import trl
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(trl.__file__).parent / "chat_templates"

QWEN_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
QWEN_PLAIN = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
QWEN3_PLAIN = (*QWEN_PLAIN, "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|finetune_right_pad_id|>",
)
GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_PLAIN = ("\n\n", "\n\n\n", "  ", "   ", "<table>", "</table>", "<blockquote>")
PHI_RSTRIP = ("<|assistant|>", "<|end|>", "<|system|>", "<|user|>", "<|placeholder1|>")
DEEPSEEK_SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
DEEPSEEK_PLAIN = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
COHERE_SPECIAL = (
    "<BOS_TOKEN>",
    "<EOP_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
)
GPTOSS_SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)

# name: (template file, special tokens, other added tokens, bos, eos, pad)
FAMILIES: dict[str, tuple] = {
    "qwen2.5": ("qwen2_5", QWEN_SPECIAL, QWEN_PLAIN, None, "<|im_end|>", "<|endoftext|>"),
    "qwen3": ("qwen3", QWEN_SPECIAL, QWEN3_PLAIN, None, "<|im_end|>", "<|endoftext|>"),
    "qwen3-2507": (
        "qwen3_instruct_2507",
        QWEN_SPECIAL,
        QWEN3_PLAIN,
        None,
        "<|im_end|>",
        "<|endoftext|>",
    ),
    "llama3": ("llama3", LLAMA_SPECIAL, (), "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>"),
    "llama3.1": (
        "llama3_1",
        LLAMA_SPECIAL,
        (),
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|finetune_right_pad_id|>",
    ),
    "gemma": ("gemma", GEMMA_SPECIAL, GEMMA_PLAIN, "<bos>", "<eos>", "<pad>"),
    "gemma3": ("gemma3", GEMMA_SPECIAL, GEMMA_PLAIN, "<bos>", "<eos>", "<pad>"),
    "phi3": ("phi3", ("<|endoftext|>",), PHI_RSTRIP, None, "<|endoftext|>", "<|endoftext|>"),
    "deepseek-r1": (
        "deepseek_r1_distill",
        DEEPSEEK_SPECIAL,
        DEEPSEEK_PLAIN,
        DEEPSEEK_SPECIAL[0],
        DEEPSEEK_SPECIAL[1],
        DEEPSEEK_SPECIAL[1],
    ),
    "cohere": (
        "cohere",
        COHERE_SPECIAL,
        (),
        "<BOS_TOKEN>",
        "<|END_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
    ),
    "gpt-oss": ("gptoss", GPTOSS_SPECIAL, (), "<|startoftext|>", "<|return|>", "<|endoftext|>"),
}

TEXT = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant. user assistant system tool model ipython\n\n"
    "Where is the goal?\nYou moved. Left Right Up Down <answer> || \n\n\n environment observation response function\n"
    "name arguments description parameters type object string properties required look up a word 0 1 2 3 4 5 6 7 8 9\n"
)
# Qwen2's own pre-tokenizer: newlines join with what stands before them, digits stand alone.
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@lru_cache
def tokenizer_of(family: str, *, pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """A small tokenizer of this family. `pad_is_eos`: the pad token is the end-of-turn, a famous trap."""
    template, special, plain, bos, eos, pad = FAMILIES[family]
    core = (
        _sentencepiece_like(special, plain)
        if family.startswith("gemma")
        else byte_level(family, special, plain)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        pad_token=eos if pad_is_eos else pad,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


def byte_level(family: str, special: tuple[str, ...], plain: tuple[str, ...]) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC() if family.startswith("qwen") else None
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        [TEXT] * 4,
        trainers.BpeTrainer(
            vocab_size=420,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    core.add_tokens(
        [
            AddedToken(token, special=False, normalized=False, rstrip=token in PHI_RSTRIP)
            for token in plain
        ]
    )
    return core


def _sentencepiece_like(special: tuple[str, ...], plain: tuple[str, ...]) -> Tokenizer:
    """Gemma's kind: spaces are U+2581, rare characters are bytes, control tokens stand in the vocabulary itself."""
    core = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_256 = [f"<0x{byte:02X}>" for byte in range(256)]
    lines = [line for line in TEXT.split("\n") if line] * 4
    words = [
        word.replace(" ", "▁") for line in lines for word in line.replace(" ", "\0 ").split("\0")
    ]
    core.train_from_iterator(
        words,
        trainers.BpeTrainer(
            vocab_size=620,
            show_progress=False,
            special_tokens=[*special, "<unk>", *plain, *bytes_256],
            initial_alphabet=["\n", "▁", *map(chr, range(0x21, 0x7F))],
        ),
    )
    # The trainer adds all of them as special tokens; published files list only some, and the bytes not at all.
    spec = json.loads(core.to_str())
    spec["added_tokens"] = [
        dict(token, special=token["content"] in (*special, "<unk>"))
        for token in spec["added_tokens"]
        if token["content"] not in bytes_256
    ]
    return Tokenizer.from_str(json.dumps(spec))
