"""Logprobs of sampled tokens, as clients ask for them: of the model's own softmax, whatever temperature and top-p bend."""

from __future__ import annotations

from workbench.chat import ChatFormat
from workbench.engines.base import Completion
from workbench.extensions.agents.messages import SampledText

LEAST_LOGP = -9999.0  # what is sent for less: JSON has no infinity
HALF = "\ufffd"  # what a character looks like whose bytes are not all there


def sampled_texts(chat: ChatFormat, completion: Completion) -> tuple[SampledText, ...]:
    """Every sampled token, those of calls too; the one that ends the turn is no text and is left out."""
    plain = completion.plain_logprobs
    logprobs = completion.logprobs if plain is None else plain
    ids = completion.token_ids.tolist()
    if ids and ids[-1] in chat.stop_ids:
        ids.pop()
    texts = chat.token_texts(ids)
    return tuple(
        _shown(chat, token, text, float(logp)) for token, text, logp in zip(ids, texts, logprobs)
    )


def _shown(chat: ChatFormat, token: int, text: str, logp: float) -> SampledText:
    is_whole = HALF not in chat.encoder.backend.decode([token], skip_special_tokens=False)
    as_bytes = tuple(text.encode()) if is_whole else None
    return SampledText(text, as_bytes, max(logp, LEAST_LOGP))
