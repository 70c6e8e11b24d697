"""The samplers of a trainer listened to for as long as rows are made: `generate`, `generate_batch`, TRL's vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from workbench.basics.replacing import replaced
from workbench.extensions.trl_live.journal import AnswerJournal, AnswerSampling, settings_of
from workbench.extensions.trl_live.weights import marks_of


@contextmanager
def hearing(trainer: Any, journal: AnswerJournal) -> Iterator[None]:
    """Note every exchange with the trainer's model, or with its vLLM, in the journal."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    vllm = getattr(trainer, "vllm_generation", None)
    used: list[Any] = []  # the settings of the call that is being made
    with ExitStack() as stack:
        _listen(stack, inner, "_prepare_generation_config", partial(_prepared, used))
        _listen(stack, model, "generate", partial(_generated, journal, used, model))
        _listen(stack, model, "generate_batch", partial(_batch_generated, journal))
        if vllm is not None:
            _listen(stack, vllm, "generate", partial(_served, journal, vllm))
        yield


def _prepared(used: list[Any], original: Any, *args: Any, **named: Any) -> Any:
    """Of `model._prepare_generation_config`: the settings with all defaults filled in."""
    result = original(*args, **named)
    used.append(result[0])
    return result


def _generated(
    journal: AnswerJournal, used: list[Any], model: Any, original: Any, *args: Any, **named: Any
) -> Any:
    used.clear()
    journal.sampled_with.append(marks_of(model))
    result = original(*args, **named)
    ids = named.get("input_ids", named.get("inputs", args[0] if args else None))
    if ids is not None:
        sampling = settings_of(used[-1]) if used else None
        journal.note_generate(ids, named.get("attention_mask"), result, sampling)
    return result


def _batch_generated(
    journal: AnswerJournal, original: Any, inputs: Any, *args: Any, **named: Any
) -> Any:
    result = original(inputs, *args, **named)
    outputs = list(result.values())
    prompts = [getattr(output, "prompt_ids", ids) for output, ids in zip(outputs, inputs)]
    config = named.get("generation_config")
    sampling = None if config is None else settings_of(config)
    journal.note_lists(prompts, [output.generated_tokens for output in outputs], sampling)
    return result


def _served(
    journal: AnswerJournal, vllm: Any, original: Any, prompts: Any, *args: Any, **named: Any
) -> Any:
    result = original(prompts, *args, **named)
    journal.note_lists(prompts, result[1], _of_vllm(vllm))
    return result


def _listen(stack: ExitStack, owner: Any, name: str, listener: Any) -> None:
    """Until the stack is closed, `owner.name(...)` calls `listener(original, ...)`. Nothing where there is no such method."""
    if hasattr(owner, name):
        stack.enter_context(replaced(owner, name, lambda straight: partial(listener, straight)))


def _of_vllm(vllm: Any) -> AnswerSampling:
    def number(name: str, usual: float) -> float:
        value = getattr(vllm, name, None)
        return usual if value is None else float(value)

    top_k = int(number("top_k", 0))
    return AnswerSampling(
        True,
        number("temperature", 1.0),
        number("top_p", 1.0),
        max(top_k, 0),  # -1 is vLLM's word for all
        number("min_p", 0.0),
        number("repetition_penalty", 1.0),
        by="vLLM",
    )
