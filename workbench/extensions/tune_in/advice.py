"""What to change, from the figures of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.engines.policy import num_parameters
from workbench.extensions.tune_in.sizes import toy_settings

OFTEN = 0.2  # share of turns cut at the limit that is too many
ENOUGH = 0.5  # share of valid turns with which training by reward has something to go by


def advice_on(tuned: Any, config: Any, session: Any) -> Iterator[str]:
    """Sentences, the most useful first. Settings are written as --set takes them."""
    best = tuned.best
    if not best.turns:
        yield "no trajectory had a turn that the environment judged; see why in the table"
        return
    as_it_is = tuned.rows[0]
    words = " ".join(f"--set {key}={_word(value)}" for key, value in best.settings.items())
    if words and best.valid > as_it_is.valid * best.turns / max(as_it_is.turns, 1):
        yield f"take the settings of {best.name!r}: {words}"
    if best.valid < ENOUGH * best.turns:
        yield (
            f"at best {best.valid} of {best.turns} turns were valid: begin with demonstrations of the solver, workbench "
            "warm-start POLICY ENV --out FOLDER, or give interface.format_reward"
        )
    yield from _on_lengths(best, config)
    if tuned.limits["attempts"] > 1 and best.flat > ENOUGH:
        yield (
            f"in {best.flat:.0%} of the groups all trajectories earned the same, and such a group teaches nothing: more "
            "trajectories a task (train.group_size), easier tasks, or a warm start"
        )
    model = session.policy.model
    size = num_parameters(model)
    # What the trial itself answers is left out.
    tried = ("interface.prompt", "collect.temperature", "workbench tune-in")
    for remark in toy_settings(config, size, model.device.type == "cpu"):
        if not remark.startswith(tried):
            yield remark


def _on_lengths(best: Any, config: Any) -> Iterator[str]:
    limit = best.settings.get("collect.max_turn_tokens", config.collect.max_turn_tokens)
    if best.cut == best.turns:
        yield (
            f"every turn ran into the limit of {limit} tokens: the policy does not end its turns by itself; look at its "
            "stop tokens, and raise collect.max_turn_tokens"
        )
    elif best.cut > OFTEN * best.turns:
        yield (
            f"{best.cut} of {best.turns} turns were cut at {limit} tokens: --set collect.max_turn_tokens={2 * limit}"
        )
    elif best.longest and best.longest < limit / 3:
        yield (
            f"no turn was longer than {best.longest} tokens: collect.max_turn_tokens = {2 * best.longest} is enough"
        )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
