"""Other ids of the same text that give the recorded logprobs: what was sampled, where no journal has it.

Whoever decodes a turn and encodes it again keeps its text and loses its ids. The logprobs that were recorded are still those of the
sampled ids, so at each place the token is looked for that the remaining text begins with and that has the recorded logprob there.

Axis letters: M sampled tokens that are looked at · V vocabulary · L tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.extensions.engine_audit.claims import Claims
from workbench.extensions.engine_audit.forward import NOW, Forward

CLOSE = 1e-3  # nats: rounding of float32 leaves 7e-6 at most, two other tokens are seldom that near
SURE = -0.01  # a token likelier than this has a logprob that many have
MOST_TURNS = 4
MOST_TOKENS = 48
LEAST = 3  # places that must agree before anything is said


def recovered_ids(
    forward: Forward, claims: Claims, tokenizer: Any, turn_M: np.ndarray, off_U: np.ndarray
) -> str | None:
    """A turn that other ids of the same text reproduce, in words; None where none is found.

    `tokenizer`: with `id_to_token` and `get_vocab_size`; `turn_M`: each token's turn [M]; `off_U`: turns that disagree [U].
    """
    texts = [tokenizer.id_to_token(token) or "" for token in range(tokenizer.get_vocab_size())]
    for turn in np.flatnonzero(off_U)[:MOST_TURNS].tolist():
        tokens_M = np.flatnonzero(turn_M == turn)[:MOST_TOKENS]
        recorded = claims.plain_M[tokens_M]
        if not np.isfinite(recorded).all():
            continue
        row = int(claims.sequences.row_M[tokens_M[0]])
        first = int(claims.sequences.place_M[tokens_M[0]])
        ids = claims.sequences.ids[row]
        own = ids[first : first + len(tokens_M)].tolist()
        sampled = _spelled(forward, texts, ids[:first].tolist(), own, recorded)
        if sampled is not None:
            return _in_words(texts, own, sampled, claims, int(tokens_M[0]))
    return None


def _in_words(
    texts: Sequence[str], own: Sequence[int], sampled: Sequence[int], claims: Claims, m: int
) -> str:
    at = next(place for place, token in enumerate(sampled) if token != own[place])
    return (
        f"in trajectory {claims.trajectory_M[m]}, turn {claims.turn_M[m]}, the recorded logprobs are those of other ids of the same "
        f"text: its token {at} was sampled as {texts[sampled[at]]!r} and is trained as {texts[own[at]]!r}; {len(sampled)} recorded "
        "logprobs agree with the ids that were found"
    )


def _spelled(
    forward: Forward,
    texts: Sequence[str],
    before: Sequence[int],
    own: Sequence[int],
    recorded: np.ndarray,
) -> list[int] | None:
    """Ids of the text of `own`, not `own` itself, that have the recorded logprobs after `before`; None: there are none."""
    text = "".join(texts[token] for token in own)
    spelled: list[int] = []
    telling = 0
    for number in recorded.tolist():
        if not text:
            break
        logp_V = _next(forward, [*before, *spelled])
        near = np.flatnonzero(np.abs(logp_V - number) < CLOSE).tolist()
        fitting = [token for token in near if texts[token] and text.startswith(texts[token])]
        if not fitting:
            return None
        token = min(fitting, key=lambda candidate: abs(logp_V[candidate] - number))
        telling += number < SURE
        spelled.append(token)
        text = text[len(texts[token]) :]
    return spelled if spelled != own[: len(spelled)] and telling >= LEAST else None


def _next(forward: Forward, ids: Sequence[int]) -> np.ndarray:
    """Logprobs of what may follow [V], by the learner's weights."""
    ids_QL = np.array([ids], np.int64)
    logits_QLV = forward.plain.logits(forward.known[NOW], ids_QL, None)
    return logits_QLV[0, -1].float().log_softmax(-1).double().cpu().numpy()
