"""A model of SentencePiece whose tables write long texts for a character is refused, before a text
is shown to it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from workbench.extensions.bounds.piece_models import growth
from workbench.extensions.bounds.tokenizers import MOST_TIMES, check_growth
from workbench.values.errors import PolicyError

NORMALIZER, DENORMALIZER, TRAINER = 3, 5, 2
TREE = (8).to_bytes(4, "little") + bytes(8)


def varint(number):
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number, value):
    """A field of protobuf's: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def table(size):
    return field(1, b"mine") + field(2, TREE + b"y\0" + b"x" * size + b"\0") + field(3, 1)


def tokenizer(model):
    pieces = SimpleNamespace(serialized_model_proto=lambda: model)
    return SimpleNamespace(sp_model=pieces, get_vocab=lambda: {"a": 0}, encode=lambda text: [])


PIECES = b"".join(field(1, field(1, b"a") + b"\x15\0\0\0\0" + field(3, 1)) for _ in range(3))


@pytest.mark.parametrize(
    ("number", "part"), [(NORMALIZER, "its normalizer"), (DENORMALIZER, "its denormalizer")]
)
def test_a_table_with_a_long_text_is_refused(number, part):
    with pytest.raises(PolicyError, match=f"^{part} has up to 65 char.*Take tokenizer.model"):
        check_growth(tokenizer(PIECES + field(number, table(MOST_TIMES + 1))))
    check_growth(tokenizer(PIECES + field(number, table(MOST_TIMES))))  # negative control


def test_the_last_of_several_tables_counts_too():
    twice = field(NORMALIZER, table(1)) + field(NORMALIZER, table(300))
    with pytest.raises(PolicyError, match="up to 300 characters"):
        check_growth(tokenizer(twice))


def test_a_long_text_for_what_is_unknown_is_refused():
    with pytest.raises(PolicyError, match="its unknown piece has up to 1,000 characters"):
        check_growth(tokenizer(field(TRAINER, field(3, 7) + field(44, b"?" * 1000))))
    check_growth(tokenizer(field(TRAINER, field(44, b" ? "))))  # negative control


@pytest.mark.parametrize("model", [b"\x1a\x7f", b"\xff" * 11, b"\x1b", b"\x80", b"\x19\0"])
def test_bytes_that_are_no_model_are_refused_in_words(model):
    with pytest.raises(PolicyError, match="cannot be read, so that nothing bounds"):
        check_growth(tokenizer(model))


def test_a_trained_model_is_read_as_its_library_reads_it(tmp_path):
    pytest.importorskip("sentencepiece")
    made, bent = (trained(tmp_path, size) for size in (None, 200))
    assert all(size <= 20 for _, size in growth(made))
    assert max(size for _, size in growth(bent)) == 200
    with pytest.raises(PolicyError, match="up to 200 characters for one"):
        check_growth(tokenizer(bent))
    check_growth(tokenizer(made))  # negative control


def trained(folder, size):
    """A small model; where `size` is given its table writes so many letters for each q."""
    import sentencepiece

    rules = {}
    if size is not None:
        path = folder / "rules.tsv"
        path.write_text("71\t" + " ".join(["78"] * size) + "\n")
        rules = {"normalization_rule_tsv": str(path)}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over a lazy dog"] * 20),
        model_writer=written,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **rules,
    )
    return written.getvalue()
