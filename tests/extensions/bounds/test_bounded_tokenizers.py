"""A tokenizer of somebody else writes no text without an end, whatever word it waits for; weights are really there."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from workbench.basics.shipped import shipped_folder
from workbench.chat import ChatFormat
from workbench.engines.policy import load_policy, load_tokenizer
from workbench.extensions.bounds import model_files, trial
from workbench.extensions.bounds.tokenizers import MOST_TIMES, check_growth
from workbench.values.errors import ChatFormatError, PolicyError


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "mine"
    shutil.copytree(shipped_folder() / "frozenlake-tiny", made)
    return made


def replace(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def bend(folder: Path, **parts: dict) -> None:
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | parts))


def normalizer(*steps: dict) -> dict:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


DOUBLE = replace({"String": "q"}, "qq")
TABLE = "CAAAAAAAAAAAAAAA" + "eHh4" * 100 + "AAAA"  # a tree of 8 bytes, then a text of 300
GROWS = {
    "doubles, seven times": normalizer(*[DOUBLE] * 7),
    "doubles, in sequences of sequences": normalizer(
        {"type": "Sequence", "normalizers": [DOUBLE] * 4}, *[DOUBLE] * 4
    ),
    "an expression between letters": normalizer(*[replace({"Regex": "(?=q)"}, "q")] * 7),
    "an expression that may match nothing": normalizer(*[replace({"Regex": "q*"}, "q")] * 7),
    "one long text": normalizer(replace({"String": "q"}, "x" * 65)),
    "much before each text": normalizer({"type": "Prepend", "prepend": "x" * 257}),
    "a table with a long text": normalizer({"type": "Precompiled", "precompiled_charsmap": TABLE}),
    "too many steps": normalizer(*[{"type": "NFC"}] * 257),
    "the decoder": {"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 7}},
    "tokens around each text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "A", "type_id": 0}}],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"A": {"id": "A", "ids": [1] * 65, "tokens": ["a"] * 65}},
        }
    },
}


@pytest.mark.parametrize("what", GROWS)
def test_texts_that_could_grow_are_refused_before_a_text_does(what, folder):
    bend(folder, **GROWS[what])
    with pytest.raises(PolicyError, match="is the most that is taken"):
        load_tokenizer(folder)


def test_an_expression_in_the_decoder_is_refused(folder):
    bend(folder, decoder=replace({"Regex": "(a|aa)+$b"}, "x"))
    with pytest.raises(PolicyError, match="its decoder has an expression"):
        load_tokenizer(folder)


def test_a_pipe_beside_the_templates_is_not_waited_for(folder):
    (folder / "additional_chat_templates").mkdir()
    os.mkfifo(folder / "additional_chat_templates" / "x.jinja")
    with pytest.raises(PolicyError, match="not a regular file"):
        load_tokenizer(folder)


def test_a_token_that_stands_for_a_long_text_is_refused(folder):
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    token = dict(described["added_tokens"][0], id=490, content="z" * 4_097, special=False)
    described["added_tokens"] = [*described["added_tokens"], token]
    path.write_text(json.dumps(described))
    with pytest.raises(PolicyError, match="a token of 4,097 characters"):
        load_tokenizer(folder)


def test_negative_control_what_published_tokenizers_do_is_taken(folder):
    bend(
        folder,
        **normalizer(
            {"type": "NFKC"},
            {"type": "Prepend", "prepend": "▁"},
            replace({"String": " "}, "▁"),
            replace({"Regex": " {2,}"}, "▁"),
            replace({"Regex": r"(?<=\d)\s"}, " "),
        ),
    )
    load_tokenizer(folder)


def test_negative_control_without_the_look_one_word_grows_without_an_end(folder, monkeypatch):
    monkeypatch.setattr(trial, "check_growth", lambda tokenizer: None)
    bend(folder, **normalizer(*[DOUBLE] * 12))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("Say yes.") == "Say yes."
    assert len(tokenizer.backend_tokenizer.normalizer.normalize_str("q")) == 4_096 > MOST_TIMES
    with pytest.raises(PolicyError, match="characters for one of a text"):
        check_growth(tokenizer)


def test_an_expression_that_gives_up_is_an_error_in_words(folder):
    """The library raises what is no Exception."""
    split = {
        "type": "Split",
        "pattern": {"Regex": "(a|aa)+$b"},
        "behavior": "Isolated",
        "invert": False,
    }
    described = json.loads((folder / "tokenizer.json").read_text())
    steps = [split, *described["pre_tokenizer"]["pretokenizers"]]
    bend(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    encoder = ChatFormat.from_tokenizer(load_tokenizer(folder)).encoder
    assert encoder.run("a" * 8, later=True, plain=True)[0]  # all is well
    with pytest.raises(ChatFormatError, match="breaks down over a text"):
        encoder.run("a" * 20_000, later=True, plain=True)
    with pytest.raises(BaseException) as panic:
        encoder._bare_later.encode("a" * 20_000)
    assert not isinstance(panic.value, Exception)


# ------------------------------------------------------------------------------------------------ weights


def put_weights(path: Path, size: int, tensors: dict | None = None) -> None:
    """A file that says that it holds these tensors, of so many bytes, none of which is on the disk."""
    header = json.dumps(tensors or {}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)


def tensor(size: int) -> dict:
    return {"spare": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}


@pytest.mark.parametrize(
    "size, tensors, words",
    [
        (100 << 30, {}, "its tensors end at"),
        (100 << 30, tensor(100 << 30), "the rest is a hole"),
        (100 << 30, {"spare": 3}, "its tensors end at"),
    ],
)
def test_weights_that_are_not_there_are_not_read(size, tensors, words, folder):
    put_weights(folder / "spare.safetensors", size, tensors)
    with pytest.raises(PolicyError, match=words):
        load_policy(folder)


def test_a_hole_that_is_small_is_read(folder):
    """Negative control: a file beside the model's is taken as ever."""
    put_weights(folder / "spare.safetensors", 1 << 20, tensor(1 << 20))
    load_policy(folder)


def test_files_that_hold_far_more_than_the_model_are_not_read(folder, monkeypatch):
    load_policy(folder)
    monkeypatch.setattr(trial, "FEW_BYTES", 0)
    load_policy(folder)
    monkeypatch.setattr(trial, "BYTES_A_WEIGHT", 1)
    with pytest.raises(PolicyError, match="all of which would be read"):
        load_policy(folder)


def test_many_files_without_weights_are_bounded_together(folder):
    for number in range(3):
        (folder / f"more{number}.jinja").touch()
        os.truncate(folder / f"more{number}.jinja", model_files.LARGEST_OTHER)
    with pytest.raises(PolicyError, match="bytes together"):
        load_policy(folder)


def test_what_is_tried_takes_nothing_that_is_typed(folder, monkeypatch):
    """A library that asks the user whether to run code gets no answer."""
    reading, writing = os.pipe()
    os.write(writing, b"y\n")
    stood = os.dup(0)
    os.dup2(reading, 0)
    try:
        monkeypatch.setattr(
            trial,
            "check_growth",
            lambda tokenizer: exec("raise ValueError(os.read(0, 9))", {"os": os}),
        )
        with pytest.raises(PolicyError, match="ValueError: b''"):
            load_tokenizer(folder)
    finally:
        os.dup2(stood, 0)
        for fd in (reading, writing, stood):
            os.close(fd)
