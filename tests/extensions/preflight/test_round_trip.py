"""A tokenizer that alters texts without a word is refused when a policy is loaded; one that knows few letters is not."""

from __future__ import annotations

import json
import os
import time
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.chat.chat_families import FAMILIES, tokenizer_of
from workbench.engines.policy import load_policy, load_tokenizer, shipped_policies
from workbench.extensions.preflight.round_trip import TEXTS, damages, refuse_damaged_tokenizer
from workbench.values.errors import PolicyError

LOST = {
    "spaces": {"type": "Replace", "pattern": {"String": " "}, "content": ""},
    "digits": {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": ""},
    "accents": {
        "type": "Sequence",
        "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}],
    },
    "upper case": {"type": "Lowercase"},
    "line breaks and tabs": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
}
KINDS = ("qwen3", "llama3.1", "gemma3", "phi3")
# A folder with a pretrained model's tokenizer, where one is at hand.
REAL = os.environ.get("WORKBENCH_REAL_POLICY", "")


def with_normalizer(tokenizer, normalizer) -> PreTrainedTokenizerFast:
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    own = [spec["normalizer"]] if spec["normalizer"] else []
    spec["normalizer"] = {"type": "Sequence", "normalizers": [normalizer, *own]}
    return rebuilt(spec)


def rebuilt(spec) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)))


def without_digits(tokenizer) -> PreTrainedTokenizerFast:
    """A copy whose vocabulary has lost every token with a digit."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    model = spec["model"]
    gone = {token for token in model["vocab"] if any(c.isdigit() for c in token)}
    model["vocab"] = {token: id for token, id in model["vocab"].items() if token not in gone}
    model["merges"] = [pair for pair in model["merges"] if not gone & {*pair, "".join(pair)}]
    return rebuilt(spec)


def test_there_are_thirty_texts_in_five_scripts_in_normal_form():
    assert len(TEXTS) == len(set(TEXTS)) == 30
    assert all(unicodedata.normalize("NFC", text) == text for text in TEXTS)
    letters = "".join(TEXTS)
    for script in ("LATIN", "GREEK", "CYRILLIC", "DEVANAGARI", "CJK"):
        assert any(unicodedata.name(c, "").startswith(script) for c in letters), script


@pytest.mark.parametrize("name", [*shipped_policies(), *FAMILIES])
def test_shipped_policies_and_published_families_are_sound(name):
    tokenizer = tokenizer_of(name) if name in FAMILIES else load_tokenizer(name)
    assert damages(tokenizer) == []


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("family", KINDS)
def test_a_damaged_tokenizer_is_refused_with_what_it_alters(family, lost):
    damaged = with_normalizer(tokenizer_of(family), LOST[lost])
    with pytest.raises(PolicyError) as refused:
        refuse_damaged_tokenizer(damaged, "mine")
    words = str(refused.value)
    assert words.startswith("mine: the tokenizer alters texts") and "tokenizer.json" in words
    assert lost in words.partition("(")[2]


def test_a_vocabulary_that_lost_its_digits_is_refused():
    with pytest.raises(PolicyError, match="digits"):
        refuse_damaged_tokenizer(without_digits(tokenizer_of("qwen3")), "mine")


def test_a_decoder_that_is_gone_is_refused():
    spec = json.loads(tokenizer_of("qwen3").backend_tokenizer.to_str()) | {"decoder": None}
    with pytest.raises(PolicyError, match="alters texts"):
        refuse_damaged_tokenizer(rebuilt(spec), "mine")


def few_letters(alphabet: str, unknown: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer that was made with these characters alone."""
    core = Tokenizer(models.BPE(unk_token=unknown))
    core.decoder = decoders.Fuse()
    special = [unknown] if unknown else []
    core.train_from_iterator(
        [alphabet],
        trainers.BpeTrainer(
            vocab_size=60, special_tokens=special, show_progress=False, initial_alphabet=[*alphabet]
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token=unknown)


@pytest.mark.parametrize("unknown", [None, "<unk>"])
def test_one_that_was_made_with_few_letters_is_loaded(unknown):
    """It cannot write them at all, and alters nothing that it can."""
    assert damages(few_letters("abcdefghijklmnopqrstuvwxyz .,", unknown)) == []
    # Negative control: it has letters for them, and mixes them up.
    mixed = few_letters("abcdefghijklmnopqrstuvwxyz .,", unknown)
    spec = json.loads(mixed.backend_tokenizer.to_str())
    spec["decoder"] = {"type": "Replace", "pattern": {"String": "o"}, "content": "0"}
    assert damages(rebuilt(spec))


def test_a_vocabulary_of_words_says_itself_what_it_does_not_know():
    core = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    assert damages(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")) == []


def test_loading_a_policy_refuses_it(tmp_path):
    folder = tmp_path / "damaged"
    policy = load_policy("frozenlake-tiny")
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    assert load_policy(folder).tokenizer is not None
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": LOST["digits"]}))
    with pytest.raises(PolicyError, match="alters texts without a word"):
        load_policy(folder)


@pytest.mark.full
@pytest.mark.skipif(not Path(REAL).is_dir() or not REAL, reason="WORKBENCH_REAL_POLICY names none")
@pytest.mark.parametrize("lost", LOST)
def test_a_pretrained_models_tokenizer_is_sound_and_its_damaged_copies_are_refused(lost):
    real = load_tokenizer(REAL)
    began = time.process_time()
    assert damages(real) == []
    assert time.process_time() - began < 0.5  # 0.04 s of 49,152 tokens
    with pytest.raises(PolicyError, match=lost):
        refuse_damaged_tokenizer(with_normalizer(real, LOST[lost]), "real")
    with pytest.raises(PolicyError, match="digits"):
        refuse_damaged_tokenizer(without_digits(real), "real")
