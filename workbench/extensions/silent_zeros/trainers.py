"""What is asked about, taken out of a trainer of TRL, or of a tokenizer with what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from workbench.extensions.silent_zeros.rewards import (
    RewardFunction,
    asks_for,
    name_of,
    reward_functions,
)
from workbench.extensions.silent_zeros.token_path import TokenPath
from workbench.values.errors import ConfigError, DataError, shortened

MOST_STOPS = 1_000
MOST_IDS = 1 << 31  # of a tokenizer that does not say how many it has


@dataclass(frozen=True, eq=False)
class RewardsSource:
    """Where rows, functions and the way to them come from.

    leaves_out_cut  completions without a stop token are left out of the loss
    unseen          part -> what it lacks
    """

    name: str
    path: TokenPath
    functions: Sequence[RewardFunction]
    rows: Any
    columns: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    leaves_out_cut: bool = False
    unseen: Mapping[str, str] = field(default_factory=dict)

    def chosen(self, most: int) -> tuple[list[int], list[dict[str, Any]]]:
        """(numbers, rows) of as many rows at most, spread over all of them; the first ones of what has no length."""
        if hasattr(self.rows, "__len__") and hasattr(self.rows, "__getitem__"):
            count = min(most, len(self.rows))
            numbers = [k * len(self.rows) // count for k in range(count)]
            rows = [self._columns_of(self.rows[number]) for number in numbers]
        else:
            rows = [self._columns_of(row) for row in islice(self.rows, most)]
            numbers = list(range(len(rows)))
        if not rows:
            raise DataError(
                "there are no rows to ask about: hand over rows=, a list of rows or a data set"
            )
        return numbers, rows

    def _columns_of(self, row: Any) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            raise DataError(
                f"rows are dicts of columns, or a data set; one of them is {shortened(row)} "
                f"({type(row).__name__})"
            )
        return self.columns(row)


def source_of_trainer(
    trainer: Any, rewards: Any, rows: Any, parser: Any, longest: Any
) -> RewardsSource:
    """Of a `trl.GRPOTrainer`. What is given beside it is taken in place of the trainer's own."""
    args = trainer.args
    unseen: dict[str, str] = {}
    functions = _functions_of(trainer, unseen) if rewards is None else reward_functions(rewards)
    if getattr(trainer, "rollout_func", None) is not None:
        unseen["stop"] = (
            "how a rollout_func makes completions; they are taken to be made as the trainer does"
        )
    return RewardsSource(
        f"TRL, {type(trainer).__name__}",
        _path_of(trainer, parser, longest),
        functions,
        trainer.train_dataset if rows is None else rows,
        partial(_signature_columns, trainer),
        bool(args.mask_truncated_completions),
        unseen,
    )


def _functions_of(trainer: Any, unseen: dict[str, str]) -> list[RewardFunction]:
    """The trainer's functions; models that pay, and rewards of environments, are not asked."""
    weights = [float(weight) for weight in trainer.reward_weights]
    names = getattr(trainer, "reward_func_names", map(name_of, trainer.reward_funcs))
    given = {"trainer_state": trainer.state, "log_extra": _log_nothing, "log_metric": _log_nothing}
    if getattr(trainer, "environment_factories", None) or getattr(trainer, "tools", None):
        unseen["scorer"] = (
            "play with tools or environments; functions that need them are not paid here"
        )
    functions = []
    for function, name, weight in zip(trainer.reward_funcs, names, weights):
        if hasattr(function, "parameters") and hasattr(function, "forward"):
            unseen[name] = f"what the model {name} pays: it compares nothing with known words"
        elif asks_for(function, "environments"):
            unseen[name] = f"what {name} pays: it asks for environments that were played"
        else:
            functions.append(RewardFunction(name, function, "trl", weight, given))
    return functions


def _path_of(trainer: Any, parser: Any, longest: Any) -> TokenPath:
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    options = {"chat_template": trainer.chat_template, "tools": trainer.tools or None}
    further = dict(trainer.args.generation_kwargs or {})
    texts = further.get("stop_strings") or further.get("stop") or ()
    stops = getattr(trainer, "eos_token_ids", None) or [tokenizer.eos_token_id]
    return TokenPath(
        tokenizer,
        frozenset(int(stop) for stop in stops if stop is not None),
        (texts,) if isinstance(texts, str) else tuple(texts),
        # transformers keeps the text that it stops at; vLLM leaves it out unless it is told otherwise
        not trainer.args.use_vllm or bool(further.get("include_stop_str_in_output")),
        trainer.args.max_completion_length if longest is None else longest,
        parser=parser,
        parse_ids=_response_parser(trainer, tokenizer) if parser is None else None,
        template_options=options | dict(trainer.chat_template_kwargs or {}),
    )


def _response_parser(trainer: Any, tokenizer: Any) -> Callable[..., Any] | None:
    """How TRL reads a completion where the tokenizer says how its answers are written."""
    templates = (getattr(tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))
    if not any(template is not None for template in templates):
        return None
    from trl.chat_template_utils import parse_response

    def parse(ids: list[int], prompt_ids: list[int]) -> Any:
        return parse_response(tokenizer, ids, prefix=prompt_ids, tools=trainer.tools or None)

    return parse


def _signature_columns(trainer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that the trainer's loader leaves of a row."""
    if not trainer.args.remove_unused_columns:
        return dict(row)
    getattr(trainer, "_set_signature_columns_if_needed")()
    kept = getattr(trainer, "_signature_columns")
    return {name: value for name, value in row.items() if name in kept}


def _log_nothing(*args: Any, **named: Any) -> None:
    """In the place of TRL's loggers."""


def source_of_tokenizer(
    tokenizer: Any,
    rewards: Any,
    rows: Any,
    stops: Any,
    longest: int | None,
    parser: Any,
    further: Mapping[str, Any],
) -> RewardsSource:
    """Of a tokenizer of Hugging Face, and of what the trainer takes beside it."""
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise DataError(
            f"check_rewards takes a trl.GRPOTrainer or a tokenizer of transformers; got {shortened(tokenizer)}. Load one "
            'with AutoTokenizer.from_pretrained("your model")'
        )
    lacking = [name for name, value in (("rewards", rewards), ("rows", rows)) if value is None]
    if lacking:
        raise ConfigError(
            f"with a tokenizer, check_rewards needs {' and '.join(lacking)}: the reward function, or several, and the rows "
            "of your data"
        )
    path = dict(further)
    path["template_options"] = dict(path.get("template_options") or {})
    ids, texts = _stops_of(tokenizer, stops)
    return RewardsSource(
        type(tokenizer).__name__,
        TokenPath(tokenizer, ids, texts, most_tokens=longest, parser=parser, **path),
        reward_functions(rewards),
        rows if not isinstance(rows, Mapping) else [rows],
    )


def _stops_of(
    tokenizer: Any, stops: Iterable[int | str] | None
) -> tuple[frozenset[int], tuple[str, ...]]:
    """(ids, texts): a text that is one special token of the tokenizer counts as its id. Without any id the tokenizer's own
    end of sequence is one."""
    if stops is None or isinstance(stops, (int, str)):
        stops = () if stops is None else (stops,)
    stops = list(islice(stops, MOST_STOPS + 1))
    if len(stops) > MOST_STOPS:
        raise ConfigError(f"stops are a few token ids and texts, at most {MOST_STOPS:,}")
    known = len(tokenizer) if hasattr(tokenizer, "__len__") else MOST_IDS
    ids: set[int] = set()
    texts: list[str] = []
    own = tokenizer.eos_token_id
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    for stop in stops:
        if isinstance(stop, str) and stop not in special:
            texts.append(stop)
        elif isinstance(stop, str):
            ids.add(int(tokenizer.convert_tokens_to_ids(stop)))
        elif 0 <= stop < known:
            ids.add(int(stop))
        else:
            raise ConfigError(
                f"stops are texts and token ids, from 0 to {known - 1:,}; one of them is {shortened(stop)}"
            )
    if not ids and own is not None:
        ids.add(int(own))
    return frozenset(ids), tuple(texts)
