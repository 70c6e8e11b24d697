"""Ids and masks of a generation (R1 R3 R4 R7 R11): what will be trained beside what was sampled.

Each function yields findings whose place is a row and a token of its completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.extensions.trl_live.journal import AnswerEdit, SampledAnswer, SampledTokens
from workbench.extensions.trl_live.rows import SampledRows
from workbench.linting.messages import many
from workbench.linting.rule import RuleResult
from workbench.look.escape import visible

UNHEARD = (
    "what the sampler answered: it was not heard making these rows (another model than the trainer's, or a server of "
    "the rollout function's own)"
)
TextOf = Callable[[Sequence[int]], str]
SHORTEST = 3  # characters of a prompt that is looked for in tokens


def _quoted(ids: Sequence[int], text_of: TextOf) -> str:
    """A token as id and text."""
    return f"id {int(ids[0])} {text_of([int(ids[0])])!r}" if len(ids) else "nothing"


def _looked_at(count: int, authors: Sequence[SampledTokens]) -> Iterator[RuleResult]:
    """What was checked, and that the rows which the sampler was not heard to make were not."""
    yield Checked(count)
    if not all(author.known for author in authors):
        yield NotChecked(UNHEARD)


# ------------------------------------------------------------------------------------------------ R1, R3


def answers_kept(
    generated: SampledRows, authors: Sequence[SampledTokens], text_of: TextOf
) -> Iterator[RuleResult]:
    """R1: a row has the sampler's answers as they were, token for token."""
    looked = 0
    for row, author in enumerate(authors):
        if not author.known:
            continue
        looked += len(author.starts)
        for departure in author.departures:
            finding = _departure(generated, row, departure, text_of)
            if finding is not None:
                yield finding
    yield from _looked_at(looked, authors)


def prompts_kept(
    generated: SampledRows, authors: Sequence[SampledTokens], exchanges: Sequence[SampledAnswer]
) -> Iterator[RuleResult]:
    """R1: the prompt of a row is the one that its answer was sampled after, and no piece of it.

    Asked of rows that no answer was laid to, where an answer has the row's very tokens.
    """
    for row, author in enumerate(authors):
        prompt = generated.prompt_ids[row]
        if author.known or not len(prompt):
            continue
        longer = next(
            (
                len(exchange.prompt)
                for exchange in exchanges
                if _is_a_piece(prompt, exchange.prompt)
                and np.array_equal(exchange.answer, generated.completion_ids[row])
            ),
            None,
        )
        if longer is not None:
            yield Finding(
                f"its completion was sampled after a prompt of {longer} tokens, and {len(prompt)} of these are its prompt "
                "in training: the loss conditions on another prompt",
                generated.place(row),
            )


def _is_a_piece(part: np.ndarray, whole: np.ndarray) -> bool:
    """It begins or ends so, and is longer."""
    size = len(part)
    return size < len(whole) and (
        np.array_equal(whole[:size], part) or np.array_equal(whole[-size:], part)
    )


def _departure(
    generated: SampledRows, row: int, departure: AnswerEdit, text_of: TextOf
) -> Finding | None:
    ids = generated.completion_ids[row]
    rest = ids[departure.at :]
    left = departure.left
    if not len(rest) and len(ids) >= generated.settings.longest:
        return None  # cut at the limit for completions
    place = generated.place(row, departure.at)
    if len(left) == 1 and int(left[0]) in generated.settings.stops:
        return Finding(
            f"the sampler ended its answer here with {_quoted(left, text_of)}, and the row does not have it: the policy "
            "never learns to stop",
            place,
            ERROR,
        )
    if not len(rest):
        return Finding(
            f"the sampler went on with {many(len(left))} more ({_quoted(left, text_of)} ...), and the row ends here: the "
            "end of an answer was cut off",
            place,
            NOTE,
            len(left),
        )
    what = f"the sampler answered {_quoted(left, text_of)} here, and the row has {_quoted(rest, text_of)}"
    if generated.fits and not generated.trained(row)[departure.at]:
        return Finding(
            f"{what}, which is not trained: the end of an answer was cut off", place, NOTE
        )
    answer = text_of(departure.answer.tolist())
    begun = text_of(ids[departure.start :].tolist())
    if begun.startswith(answer) or answer.startswith(begun):
        what += ": the same text as other tokens, tokenized again"
    return Finding(f"{what}. Logprobs and credit are of tokens that were never sampled", place)


def mask_is_authorship(
    generated: SampledRows, authors: Sequence[SampledTokens], text_of: TextOf
) -> Iterator[RuleResult]:
    """R3: the loss counts what the sampler answered, and nothing else."""
    looked = 0
    for row, author in enumerate(authors):
        if not author.known:
            continue
        trained = generated.trained(row)
        looked += len(trained)
        again = author.departures[0].at if author.departures else len(trained)
        extra = np.flatnonzero(trained & ~author.sampled)
        extra = extra[extra < again]  # behind it, R1 says why
        if len(extra):
            ids = generated.completion_ids[row][extra[0] :]
            yield Finding(
                f"the loss counts {many(len(extra))} that the policy did not sample, the first {_quoted(ids, text_of)} in "
                f"{text_of(ids[:12].tolist())!r}: text of a tool, an environment or a template",
                generated.place(row, int(extra[0])),
                ERROR,
                len(extra),
            )
        if trained.any():
            yield from _lost(generated, row, author, trained, text_of)
    yield from _looked_at(looked, authors)


def _lost(
    generated: SampledRows, row: int, author: SampledTokens, trained: np.ndarray, text_of: TextOf
) -> Iterator[RuleResult]:
    """Sampled tokens that are not trained. A whole answer that is left out may be meant; a part of one is a mask that does
    not lie on its tokens."""
    for start, stop in author.stretches():
        kept = trained[start:stop]
        lost = start + np.flatnonzero(~kept)
        if not len(lost):
            continue
        ids = generated.completion_ids[row][lost[0] :]
        if not kept.any():
            yield Finding(
                f"an answer of {many(stop - start)} is left out of training whole, while others of the row are trained",
                generated.place(row, start),
                NOTE,
                stop - start,
            )
            continue
        yield Finding(
            f"the loss leaves out {many(len(lost))} of an answer of {many(stop - start)}, the first {_quoted(ids, text_of)}",
            generated.place(row, int(lost[0])),
            ERROR,
            len(lost),
        )


# ------------------------------------------------------------------------------------------------ R4


def padding(generated: SampledRows, pad_id: int | None) -> Iterator[RuleResult]:
    """R4: padded arrays hold the rows, and masks are 1 where a row is and 0 where padding is."""
    if not generated.fits:
        shape = generated.padded.get("completion_ids", np.zeros(0)).shape
        yield Finding(
            f"{len(generated)} completions were made, and the padded array of them has the shape {list(shape)}: rows are "
            "missing, or cut",
            generated.place(0),
        )
        return
    for row in range(len(generated)):
        yield from _prompt_padding(generated, row)
        yield from _completion_padding(generated, row, pad_id)
        yield from _tool_padding(generated, row)
    yield Checked(2 * len(generated))


def _prompt_padding(generated: SampledRows, row: int) -> Iterator[Finding]:
    ids = generated.prompt_ids[row]
    padded = generated.padded["prompt_ids"][row]
    mask = generated.padded["prompt_mask"][row] != 0
    expected = np.arange(len(padded)) >= len(padded) - len(ids)
    if not np.array_equal(mask, expected):
        first = int((mask != expected).argmax())
        side = (
            "padding is attended to"
            if mask[first]
            else "the prompt's own tokens are not attended to"
        )
        yield Finding(
            f"prompt_mask is {int(mask[first])} at [{row}, {first}] though the prompt's {many(len(ids))} stand at the end "
            f"(left padding): {side}",
            generated.place(row),
            ERROR,
            int((mask != expected).sum()),
        )
    elif not np.array_equal(padded[expected], ids):
        yield Finding("prompt_ids are not the prompt that was sampled from", generated.place(row))


def _completion_padding(generated: SampledRows, row: int, pad_id: int | None) -> Iterator[Finding]:
    ids = generated.completion_ids[row]
    padded = generated.padded["completion_ids"][row]
    mask = generated.padded["completion_mask"][row] != 0
    expected = np.arange(len(padded)) < len(ids)
    if not np.array_equal(padded[expected], ids):
        first = int((padded[: len(ids)] != ids).argmax())
        yield Finding(
            f"completion_ids holds id {int(padded[first])} where id {int(ids[first])} was made",
            generated.place(row, first),
        )
        return
    if not mask.any() and len(ids):
        return  # left out as a whole: R5 and R11
    differ = np.flatnonzero(mask != expected)
    if not len(differ):
        return
    first = int(differ[0])
    if mask[first]:
        what = "completion_mask is 1 on padding"
    else:
        what = (
            f"completion_mask is 0 at id {int(padded[first])}, which stands inside the completion"
        )
        if pad_id is not None and (padded[differ] == pad_id).all():
            what += (
                ": it has the id of padding, so the mask was made by comparing ids, and the policy's own token is taken "
                "for padding"
            )
        elif int(padded[first]) in generated.settings.stops:
            what += ": the stop token is not trained, so the policy never learns to stop"
    yield Finding(what, generated.place(row, first), ERROR, len(differ))


def _tool_padding(generated: SampledRows, row: int) -> Iterator[Finding]:
    if generated.tool_mask is None or "tool_mask" not in generated.padded:
        return
    given = generated.tool_mask[row] != 0
    length = len(generated.completion_ids[row])
    if len(given) != length:
        return  # the lengths of lists are compared with all others
    used = generated.padded["tool_mask"][row, :length] != 0
    if used.any() and not np.array_equal(used, given):
        first = int((used != given).argmax())
        yield Finding(
            f"tool_mask is {int(used[first])} here, and was made as {int(given[first])}",
            generated.place(row, first),
            ERROR,
            int((used != given).sum()),
        )


# ------------------------------------------------------------------------------------------------ R7


def prompts_of_rows(generated: SampledRows, text_of: TextOf) -> Iterator[RuleResult]:
    """R7: a row goes on from its own prompt: `prompts[i]`, whose columns its reward function gets, is in `prompt_ids[i]`."""
    asked = [_last_words(prompt) for prompt in generated.prompts]
    if len(asked) != len(generated):
        yield NotChecked("a prompt for each row")
        return
    texts: dict[bytes, str] = {}
    for ids in generated.prompt_ids:
        if ids.tobytes() not in texts:
            texts[ids.tobytes()] = text_of(ids.tolist())
    looked = 0
    for row, words in enumerate(asked):
        text = texts[generated.prompt_ids[row].tobytes()]  # spelled out as the words are
        if not words:
            continue
        if words in text:
            looked += 1
            continue
        others = [
            n
            for n, other in enumerate(asked)
            if len(other) > SHORTEST and other != words and other in text
        ]
        if others:
            looked += 1
            yield Finding(
                f"its prompt_ids are of prompt {generated.group_of(others[0])}, not of the one that its reward function is "
                "handed: rows came back in another order than they were asked",
                generated.place(row),
            )
    yield Checked(looked)
    if not looked:
        yield NotChecked("prompts that can be found in the tokens")


def _last_words(prompt: Any) -> str:
    """The text of a prompt's last message."""
    if isinstance(prompt, str):
        return visible(prompt.strip())
    if not isinstance(prompt, (list, tuple)) or not prompt or not isinstance(prompt[-1], dict):
        return ""
    content = prompt[-1].get("content")
    return visible(content.strip()) if isinstance(content, str) else ""


# ------------------------------------------------------------------------------------------------ R11


def cut_rows(generated: SampledRows, authors: Sequence[SampledTokens]) -> Iterator[RuleResult]:
    """R11: what the trainer takes for cut was cut, and its masks agree about it."""
    settings = generated.settings
    severity = ERROR if settings.leaves_out_cut else NOTE
    for row, author in enumerate(authors):
        ids = generated.completion_ids[row]
        if not len(ids):
            continue
        is_cut = generated.is_cut(row)
        last = int(ids[-1])
        place = generated.place(row, len(ids) - 1)
        if author.ended is True and is_cut and author.sampled[-1]:
            yield Finding(
                f"the sampler ended here by its stop token, id {last}, which the trainer does not know "
                f"({sorted(settings.stops)}): it takes the completion for one that was cut",
                place,
                severity,
            )
        elif author.ended is False and not is_cut and author.sampled[-1]:
            yield Finding(
                f"the limit cut it off at id {last}, and the trainer takes it for one that ended",
                place,
                severity,
            )
        yield from _masks_of_cut(generated, row, is_cut)
    yield Checked(len(generated))


def _masks_of_cut(generated: SampledRows, row: int, is_cut: bool) -> Iterator[Finding]:
    flag = f"mask_truncated_completions={generated.settings.leaves_out_cut}"
    alive = bool((generated.padded["completion_mask"][row] != 0).any())
    if "tool_mask" in generated.padded:
        length = len(generated.completion_ids[row])
        tools = bool((generated.padded["tool_mask"][row, :length] != 0).any())
        sampled = generated.tool_mask is None or bool(generated.tool_mask[row].any())
        if tools != alive and sampled:
            yield Finding(
                f"completion_mask {'keeps' if alive else 'leaves out'} it, tool_mask {'keeps' if tools else 'leaves out'} it",
                generated.place(row),
            )
            return
    if alive and is_cut and generated.settings.leaves_out_cut:
        yield Finding(
            f"it was cut at {many(len(generated.completion_ids[row]))} and is trained, though {flag}",
            generated.place(row),
        )
    elif not alive and not (is_cut and generated.settings.leaves_out_cut):
        words = "it was cut" if is_cut else "it ended by its stop token"
        yield Finding(f"{words} and is left out of training, though {flag}", generated.place(row))
