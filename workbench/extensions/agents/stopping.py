"""Stop texts: a turn ends at the token with which one of them is there.

    ids      Answer : 4 \\n Observ ation : Sun ny <|im_end|>
    stop     "Observation:"
    kept     Answer : 4 \\n Observ ation :

Engines know stop tokens and no texts, so a turn is sampled to its end and cut. That is exact: a token depends on those before
it and on nothing behind it, so what is kept is what would have been sampled by an engine that stops there. What is cut off is
in no segment; it costs time. A stop text may end inside a token: that token is kept whole, as it was sampled.

The tokens of the stop text were sampled, so they stay and are trained: with them the policy ended its turn. The program is
given the text before them, as clients expect. Nothing is tokenized again: where the program sends that text back, the
sampled ids stand for it, those of the stop text included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.engines.base import Completion


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """(where the first of the stop texts begins, which one it is): the one that is complete first, of several the longest;
    None: there is none."""
    begins = [(text.find(stop), stop) for stop in stops]
    there = [(start + len(stop), -len(stop), stop) for start, stop in begins if start >= 0]
    if not there:
        return None
    end, _, stop = min(there)
    return end - len(stop), stop


def cut_at_stop(
    completion: Completion, stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> Completion:
    """The turn up to the token that completes a stop text; as it is where there is none. A turn that was cut did not end with
    a stop token: its `finish` is "length"."""
    ids = completion.token_ids
    if not stops or completion.error is not None or first_stop(decode(ids), stops) is None:
        return completion
    low = 0
    high = len(ids)
    while low < high:  # the fewest tokens that hold one
        middle = (low + high) // 2
        if first_stop(decode(ids[:middle]), stops) is None:
            low = middle + 1
        else:
            high = middle
    plain = completion.plain_logprobs
    return replace(
        completion,
        token_ids=ids[:low],
        logprobs=completion.logprobs[:low],
        plain_logprobs=None if plain is None else plain[:low],
        finish="length",
    )
