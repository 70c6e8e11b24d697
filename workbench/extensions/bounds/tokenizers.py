"""What a stranger's tokenizer could make of a text, told by its parts, whatever text it will be shown.

A tokenizer is no program, but it rewrites texts before and after: a part that writes two letters for each "q", forty times
over, fills the memory with the first text that has one, and no trial shows it that text. So the most that its normalizer and
its decoder could make of one character is counted, and the longest text that one token stands for.

    check_growth(tokenizer)       raises PolicyError, which says what is wrong with which part
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, normalizers

from workbench.extensions.bounds.piece_models import growth, longest_text
from workbench.values.errors import PolicyError

MOST_TIMES = 64  # so many characters may become of one; of published tokenizers some 20
MOST_BEFORE = 256  # characters that may be put before each text, or each word
MOST_STEPS = 256  # parts of a normalizer or decoder, one after the other
LONGEST_TOKEN = 4_096  # characters; in published vocabularies some 1,000 spaces
MOST_ADDED = 64  # tokens that stand around each text
LONGEST_WORD = 10_000  # characters of a word that is looked up piece by piece; 100 as a rule
_CURE = "Take tokenizer.json from where the model was first published"
_LENGTHS = ("continuing_subword_prefix", "end_of_word_suffix", "unk_token")
# What may stand between characters; anything else that matches nothing matches it before any letter.
_LOOKS_AROUND = re.compile(r"\(\?[^:]|\\[bBAGzZKXyY]|[\^$]|\(\*")


def check_growth(tokenizer: Any) -> None:
    """Raises PolicyError for a tokenizer whose texts could grow without a bound that matters. One
    that runs on neither `tokenizers` nor SentencePiece is code of transformers' own, and no part of
    it is somebody else's but its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            _check_part(name, getattr(backend, name, None))
        _check_model(backend.model)
    _check_pieces(getattr(tokenizer, "sp_model", None))
    longest = max(map(len, tokenizer.get_vocab()), default=0)
    if longest > LONGEST_TOKEN:
        raise _refused("its vocabulary", f"a token of {longest:,} characters", LONGEST_TOKEN)
    if (added := len(tokenizer.encode(""))) > MOST_ADDED:
        raise _refused("its post_processor", f"{added:,} tokens around each text", MOST_ADDED)


def _check_part(name: str, part: Any) -> None:
    if part is None:
        return
    steps = _steps(json.loads(part.__getstate__()))
    if len(steps) > MOST_STEPS:
        raise _refused(f"its {name}", f"{len(steps):,} steps", MOST_STEPS)
    times = 1.0
    for step in steps:
        before = max((len(str(step.get(key) or "")) for key in ("prepend", "prefix")), default=0)
        if before > MOST_BEFORE:
            raise _refused(f"its {name}", f"{before:,} characters before each text", MOST_BEFORE)
        # One that gives up over a text would end what reads each answer; published decoders have none.
        if name == "decoder" and "Regex" in (step.get("pattern") or ()):
            raise PolicyError(
                f"its decoder has an expression, and plain texts are expected. {_CURE}"
            )
        times *= _times(step)
        if times > MOST_TIMES:
            raise _refused(
                f"its {name}", f"up to {times:,.0f} characters for one of a text", MOST_TIMES
            )


def _check_pieces(pieces: Any) -> None:
    """Of a model of SentencePiece, which normalizes by a table of its own, and writes texts by
    another one."""
    if pieces is None:
        return
    try:
        sizes = [*growth(pieces.serialized_model_proto())]
    except ValueError as error:
        raise PolicyError(
            "its model of SentencePiece cannot be read, so that nothing bounds what it makes of a "
            f"text: {error}. Take tokenizer.model from where the model was first published"
        ) from error
    for part, size in sizes:
        if size > MOST_TIMES:
            what = f"up to {size:,} characters for one of a text"
            raise _refused(part, what, MOST_TIMES, "tokenizer.model")


def _check_model(model: Any) -> None:
    for key in _LENGTHS:
        length = len(getattr(model, key, None) or "")
        if length > MOST_BEFORE:
            raise _refused(f"its model's {key}", f"{length:,} characters", MOST_BEFORE)
    word = getattr(model, "max_input_chars_per_word", 0)
    if word > LONGEST_WORD:
        raise _refused("its model", f"words of {word:,} characters", LONGEST_WORD)


def _steps(part: Any) -> list[Mapping[str, Any]]:
    """A part as the row of steps that it takes, sequences within sequences laid end to end."""
    steps = []
    pending = [part]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict):
            inner = [item for item in value.values() if isinstance(item, list)]
            if value.get("type") == "Sequence" and inner:
                pending += reversed(inner)
            else:
                steps.append(value)
    return steps


def _times(step: Mapping[str, Any]) -> float:
    """How many characters may become of one in this step."""
    if step.get("type") == "Replace":
        return _of_replacing(step.get("pattern"), str(step.get("content", "")))
    if step.get("type") == "Precompiled":
        return longest_text(base64.b64decode(str(step.get("precompiled_charsmap") or "")))
    return 1.0


def _of_replacing(pattern: Any, content: str) -> float:
    if isinstance(pattern, dict) and pattern.get("String"):
        return max(1.0, len(content) / len(pattern["String"]))
    expression = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
    nothing = bool(_LOOKS_AROUND.search(expression)) or _matches_nothing(expression)
    return max(1.0, len(content) + nothing)


def _matches_nothing(expression: str) -> bool:
    try:
        marked = normalizers.Replace(Regex(expression), "x")
        return any(len(marked.normalize_str(letter)) > 1 for letter in "a0 ")
    except Exception:  # of the library: an expression that it does not take after all
        return True


def _refused(part: str, what: str, most: int, file: str = "tokenizer.json") -> PolicyError:
    return PolicyError(
        f"{part} has {what}, and {most:,} is the most that is taken: texts would fill the memory. "
        f"Take {file} from where the model was first published"
    )
