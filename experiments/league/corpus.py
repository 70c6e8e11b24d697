"""The corpus: every bug with its class, the words that say it, the line where it is planted, and its legitimate twin.

The words are regular expressions, written down before any tool ran: an alarm names a bug if one of them is in its text.
They hold for all tools alike.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.league import bugs
from tests.extensions.trl_live import trl_bugs
from tests.extensions.trl_live.trl_bugs import GAME, Planted, none_by_text, rollout_of
from tests.extensions.trl_live.trl_bugs import second_reward as length_reward

ROOT = Path(__file__).resolve().parents[2]
CLASSES = (
    "tokens",
    "masks",
    "credit",
    "rewards",
    "sampling",
    "loss",
    "weights",
    "evaluation",
)
TOOLS = {"tools": True, "max_completion_length": 48}
CHECKED = {"eval_strategy": "steps", "eval_steps": 8, "evaluates": True}


@dataclass(frozen=True)
class Bug:
    """A planted bug. `marker` is a line of its source where the source is more than one bug; `thread` where it was reported."""

    name: str
    kind: str
    twin: str
    words: str
    options: Mapping[str, Any] = field(default_factory=dict)
    after: Callable[[Any], None] | None = None
    thread: str = ""
    marker: str = ""

    @property
    def planted_at(self) -> str:
        """FILE:LINE below the repository's root."""
        return line_of(self.source(), self.marker)

    def source(self) -> Any:
        """What holds the bug: a hook, a class of trainer, a reward, a rollout, an environment, or rows."""
        if self.after is not None:
            return self.after
        for name in ("kind", "reward", "environment"):
            if name in self.options:
                return self.options[name]
        if "rollout" in self.options:
            return bugs.of_first_weights if self.marker == "stale" else rollout_of
        return Path(__file__)


def line_of(source: Any, marker: str) -> str:
    """FILE:LINE of the first line of the source that has the marker."""
    if isinstance(source, Path):
        path, lines, first = source, source.read_text(encoding="utf-8").splitlines(), 1
    else:
        path = Path(inspect.getsourcefile(source))
        lines, first = inspect.getsourcelines(source)
    offsets = [offset for offset, line in enumerate(lines) if marker in line]
    if not offsets:
        raise LookupError(f"{path.name}: no line of {source!r} has {marker!r}")
    return f"{path.relative_to(ROOT).as_posix()}:{first + offsets[0]}"


# ------------------------------------------------------------------------------------------------ twins

TWINS: Mapping[str, Mapping[str, Any]] = {
    "game": {"policy": GAME},
    "game-pad-is-eos": {"policy": GAME, "pad": "eos"},
    "game-cut-left-out": {"policy": GAME, "mask_truncated_completions": True},
    "game-uneven-prompts": {"policy": GAME, "data": "uneven"},
    "game-temperature-3": {"policy": GAME, "temperature": 3.0},
    "game-temperature-0.7": {"policy": GAME, "temperature": 0.7},
    "game-some-unscored": {"policy": GAME, "reward": none_by_text},
    "game-reference": {"policy": GAME, "beta": 0.05},
    "game-two-updates": {"policy": GAME, "num_iterations": 2},
    "game-evaluated": {"policy": GAME, **CHECKED},
    "search": {},
    "search-cut-left-out": {"mask_truncated_completions": True},
    "tools": TOOLS,
    "tools-cut-left-out": {
        **TOOLS,
        "max_completion_length": 10,
        "mask_truncated_completions": True,
    },
    "rollout": {"rollout": rollout_of()},
    "rollout-temperature-0.6": {"rollout": rollout_of(0.6), "temperature": 0.6},
    # legitimate settings beside them, of no bug's own: they may raise no alarm either
    "loss-dr-grpo": {"policy": GAME, "loss_type": "dr_grpo"},
    "loss-cispo": {"policy": GAME, "loss_type": "cispo", "epsilon_high": 5.0},
    "scale-batch": {"policy": GAME, "scale_rewards": "batch"},
    "scale-none": {"policy": GAME, "scale_rewards": "none"},
    "two-rewards": {
        "policy": GAME,
        "reward": [bugs.vowel_reward, length_reward],
        "reward_weights": [1.0, 0.5],
    },
    "adapters": {"policy": GAME, "adapters": True, "learning_rate": 1e-3},
    "top-p": {"policy": GAME, "top_p": 0.9},
    "accumulated": {
        "policy": GAME,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    },
    "entropy-bonus": {"policy": GAME, "entropy_coef": 0.01},
    "rollout-dummy-logprobs": {"rollout": rollout_of(logprobs="dummy")},
}


# ------------------------------------------------------------------------------------------------ bugs

# Of tests/extensions/trl_live: name -> (class, twin, words, marker).
KNOWN = {
    "others-environments": ("rewards", "tools", "environment", ""),
    "one-environment": ("rewards", "tools", "environment", ""),
    "tool-tokens-trained": ("masks", "tools", "did not sample|tool|env.?mask", ""),
    "tool-mask-shifted": ("masks", "tools", "did not sample|mask|shift", ""),
    "tool-mask-not-used": ("masks", "tools", "moves|mask|tool", ""),
    "kl-of-tools": ("loss", "tools", "moves|tool|KL", ""),
    "mask-from-ids": ("masks", "game-pad-is-eos", "comparing ids|pad|stop|end", ""),
    "stop-token-not-trained": ("masks", "game", "learns to stop|stop token|end token|EOS", ""),
    "cut-in-one-mask": ("masks", "tools-cut-left-out", "tool_mask|truncat|cut", ""),
    "cut-counts-as-ended": ("masks", "game-cut-left-out", "is trained|truncat|cut", ""),
    "second-stop-token": ("tokens", "search-cut-left-out", "does not know|stop|truncat", ""),
    "padding-attended": ("masks", "game-uneven-prompts", "attended|padding|input", ""),
    "tokenized-again": ("tokens", "game-temperature-3", "token[^.]*again|re-?tokeni", ""),
    "stop-token-dropped": ("tokens", "rollout", "never learns to stop|stop|EOS", "drops_stop:"),
    "rollout-mask-lost": ("masks", "rollout", "did not sample|mask", 'masks == "none"'),
    "rows-in-another-order": ("tokens", "rollout", "another order|other prompt", "reorders:"),
    "others-advantages": ("credit", "game", "credited|advantage", ""),
    "shuffled-apart": ("credit", "game", "advantage", ""),
    "others-rewards": ("rewards", "game", "returned|other row|order", ""),
    "unscored-is-zero": ("rewards", "game-some-unscored", "unscored|None|nan", ""),
    "reward-of-the-next-row": ("rewards", "game", "place|order|other row", ""),
    "reward-by-the-first-answer": ("rewards", "search", "place|order|other row", ""),
    "prompts-not-repeated": ("credit", "game", "different prompts|group", ""),
    "environment-starts-differ": ("credit", "tools", "different prompts|group", ""),
    "no-temperature-in-the-loss": ("loss", "game-temperature-0.7", "temperature", ""),
    "sampler-at-another-temperature": ("sampling", "game", "temperature", ""),
    "rollout-at-another-temperature": ("sampling", "rollout", "temperature|distribution", "0.6"),
    "greedy": ("sampling", "game", "greed|identical|zero.variance|same reward|deterministic", ""),
    "top-k-of-the-model": ("sampling", "game", "top.?k", ""),
    "logprobs-shifted": ("loss", "game", "shift|position|log.?prob", ""),
    "rollout-logprobs-shifted": (
        "sampling",
        "rollout",
        "shift|differ|scored|disagree",
        '"shifted"',
    ),
    "rollout-logprobs-plain": (
        "sampling",
        "rollout-temperature-0.6",
        "differ|temperature|scored|disagree",
        '"plain"',
    ),
    "another-denominator": ("loss", "game", "denominator|times as|gradient", ""),
    "wrong-sign": ("loss", "game", "times as|sign|reward (falls|fell|drop|declin)", ""),
}
ROLLOUT_MARKERS = {"rollout-at-another-temperature": "temperature=temperature,"}


def _known(planted: Planted) -> Bug:
    kind, twin, words, marker = KNOWN[planted.name]
    options = dict(planted.options)
    if options.get("tools") and options["max_completion_length"] == 120:
        options |= TOOLS
    return Bug(
        planted.name,
        kind,
        twin,
        words,
        options,
        planted.after,
        planted.thread,
        ROLLOUT_MARKERS.get(planted.name, marker),
    )


GAMES = {"policy": GAME}
NEW = (
    Bug(
        "optimizer-of-a-copy",
        "weights",
        "game",
        "weights? .*(unchanged|same)|same .*weights|frozen|no weight|gradient norm",
        GAMES,
        bugs.optimizer_of_a_copy,
    ),
    Bug(
        "warmup-never-ends",
        "weights",
        "game",
        "learning rate|warm.?up|same .*weights|vanish",
        GAMES | {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10**6},
        marker='"warmup_steps": 10**6',
    ),
    Bug(
        "updates-undone",
        "weights",
        "game",
        "weights? .*(unchanged|same)|same .*weights|frozen",
        GAMES,
        bugs.updates_undone,
    ),
    Bug(
        "sampler-keeps-first-weights",
        "weights",
        "game",
        "weights|stale|distribution",
        GAMES | {"kind": bugs.SamplesWithFirstWeights},
    ),
    Bug(
        "rollout-keeps-first-weights",
        "weights",
        "rollout",
        "weights|stale|log-?prob[^.]*differ",
        {"rollout": bugs.of_first_weights(rollout_of())},
        marker="stale",
    ),
    Bug(
        "trains-previous-rows",
        "weights",
        "game",
        "stale|old|lag|not of this|rows? came|earlier",
        GAMES | {"kind": bugs.TrainsPreviousRows},
    ),
    Bug(
        "reward-by-chance",
        "rewards",
        "game",
        "again|chance|random|asked|noise|place",
        GAMES | {"reward": bugs.reward_by_chance},
    ),
    Bug(
        "reward-cached-by-prompt",
        "rewards",
        "game",
        "same reward|zero.(variance|std)|identical|no (signal|variance)|alike",
        GAMES,
        bugs.cached_by_prompt,
    ),
    Bug(
        "scorer-fails-sometimes",
        "rewards",
        "game",
        "again|chance|fail|swallow|place|bimodal",
        GAMES,
        bugs.scorer_fails_sometimes,
    ),
    Bug(
        "paid-for-tool-text",
        "rewards",
        "tools",
        "tools? wrote|tool text|not written by",
        TOOLS | {"reward": bugs.paid_for_tool_text},
    ),
    Bug(
        "advantages-not-centred",
        "credit",
        "game",
        "advantage|centre|baseline",
        GAMES | {"kind": bugs.AdvantagesNotCentred},
    ),
    Bug(
        "advantages-over-the-batch",
        "credit",
        "game",
        "advantage",
        GAMES | {"kind": bugs.AdvantagesOverTheBatch},
    ),
    Bug(
        "negative-advantages-dropped",
        "credit",
        "game",
        "advantage",
        GAMES | {"kind": bugs.NegativeAdvantagesDropped},
    ),
    Bug(
        "half-of-the-rows",
        "loss",
        "game",
        "rows? came|times into|dropped|missing rows|lost",
        GAMES | {"kind": bugs.HalfOfTheRows},
    ),
    Bug(
        "reference-is-the-policy",
        "loss",
        "game-reference",
        "reference|KL",
        GAMES | {"beta": 0.05},
        bugs.reference_is_the_policy,
    ),
    Bug(
        "kl-of-wrong-sign",
        "loss",
        "game-reference",
        "KL|reference|times as",
        GAMES | {"beta": 0.05},
        bugs.kl_of_wrong_sign,
    ),
    Bug(
        "old-logprobs-are-new",
        "loss",
        "game-two-updates",
        "old|ratio|clip",
        GAMES | {"num_iterations": 2, "kind": bugs.OldLogprobsAreNew},
    ),
    Bug(
        "prompt-cut-in-training",
        "tokens",
        "game",
        "prompt|input",
        GAMES | {"kind": bugs.PromptCutInTraining},
    ),
    Bug(
        "evaluated-on-training-rows",
        "evaluation",
        "game-evaluated",
        "evaluat|held.?out|split|leak",
        GAMES | CHECKED,
        bugs.evaluated_on_training_rows,
    ),
    Bug(
        "evaluated-best-of-group",
        "evaluation",
        "game-evaluated",
        "evaluat|held.?out|best of",
        GAMES | CHECKED | {"kind": bugs.EvaluatesBestOfGroup},
    ),
    Bug(
        "answer-in-the-prompt",
        "evaluation",
        "game",
        "answer|leak",
        GAMES | {"data": bugs.with_the_answer()},
        marker="bugs.with_the_answer()",
    ),
)
BUGS = (*(_known(planted) for planted in trl_bugs.BUGS), *NEW)


def pattern(bug: Bug) -> re.Pattern[str]:
    return re.compile(bug.words, re.IGNORECASE)
