"""What each of the seven mask switches, and each of their two groups, changes on one batch.

    wb.show_mask_switches(groups, algorithm, facts=wb.facts(session, groups))

The published ablations are the rows of the two groups: there everything else is as the algorithm is set. A single
switch of a term that the algorithm lacks is shown with that term, and its row says so. Every number comes from
`algorithm.credit`, called twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, LOSS_MASK
from workbench.learn.batch import Batch
from workbench.notebook.credit import Facts, credited, facts_of, with_facts
from workbench.notebook.credit_settings import chosen, has_setting, inert_of, named, with_settings
from workbench.types import Group, View
from workbench.types.errors import ConfigError, DataError
from workbench.views.credited import changed_tokens, largest_change
from workbench.views.mask_switches import ROUNDING, SwitchEffect, show_switches

SMALL_COEF = 0.01  # of a term that is added only so that a switch has something to act on
GROUPS = ("advantage_mask", "loss_mask")
PAID, UNPAID = "KL in the reward", "no KL in the reward"


def show_mask_switches(
    groups: Sequence[Group],
    algorithm: Algorithm | str = "ppo",
    *,
    facts: Facts = None,
    lam: float = 0.5,
) -> View:
    """What each of the seven mask switches, and each of their two groups, changes on this batch.

    `facts` as in `credit_editor`; they must be known in the whole response (`wb.facts`). Advantages are compared at
    gamma = lambda = 1 and at gamma = 1, lambda = `lam`, before whitening (where it can be switched off) and after it.
    The groups are shown with the algorithm as it is set, the advantage mask once more with the KL paid in the reward,
    or without where the algorithm pays it there; a single switch of a term which the algorithm lacks (entropy, the pull
    towards a reference) is shown with that term, and the row says so.
    """
    algorithm = chosen(algorithm)
    batch = with_facts(Batch.from_groups(groups), facts_of(groups, facts))
    base = with_settings(
        algorithm, {f"masks.{f}": v for f, v in vars(type(algorithm.masks)()).items()}
    )
    effects = [
        _effect(batch, base, lam, name, _terms_for(base, name))
        for name in (*ADVANTAGE_MASK, *LOSS_MASK)
    ]
    effects.append(_effect(batch, base, lam, "advantage_mask", {}))
    paid = _terms_for(base, "kl_reward_over")
    extra = _effect(batch, base, lam, "advantage_mask", paid or {"kl_coef": 0.0})
    if not extra.error:
        effects.append(replace(extra, variant=PAID if paid else UNPAID))
    effects.append(_effect(batch, base, lam, "loss_mask", {}))
    response = batch.response_T & ~batch.eligible_T
    always = algorithm.whitens and not has_setting(algorithm, "whiten")
    return show_switches(
        effects,
        title=f"mask switches: {named(algorithm)}",
        groups=GROUPS,
        tokens=f"{int(batch.eligible_T.sum()):,} action tokens, {int(response.sum()):,} further tokens in the responses"
        f", {int((~batch.response_T).sum()):,} in first prompts",
        told=_told(effects, list(_timelines(base, lam))),
        remark=f"{named(algorithm)} always whitens: it has no unwhitened advantages to show"
        if always
        else "",
    )


def _timelines(base: Any, lam: float) -> dict[str, Any]:
    """The algorithm under the settings of gamma and lambda that are compared, by name."""
    if not (has_setting(base, "gamma") and has_setting(base, "lam")):
        return {"as set": base}
    return {"γ = λ = 1": base(gamma=1.0, lam=1.0), f"γ = 1, λ = {lam:g}": base(gamma=1.0, lam=lam)}


def _terms_for(algorithm: Any, switch: str) -> dict[str, Any]:
    """What must be set so that this switch has something to act on."""
    if switch == "entropy_over":
        return {} if algorithm.entropy_coef else {"entropy_coef": SMALL_COEF}
    if (place := {"kl_reward_over": "reward", "kl_loss_over": "loss"}.get(switch)) is None:
        return {}
    coef = {} if algorithm.kl_coef else {"kl_coef": SMALL_COEF}
    return coef | ({} if algorithm.kl_in == place else {"kl_in": place})


def _effect(
    batch: Batch, base: Any, lam: float, switch: str, added: Mapping[str, Any]
) -> SwitchEffect:
    """One switch at "response" (or one group off), all others as they are by default; `added` is set besides."""
    try:
        base = with_settings(base, added)
    except ConfigError as error:
        return SwitchEffect(switch, error=str(error))
    told, settings = (
        ", ".join(f"{name} = {value}" for name, value in added.items()),
        _timelines(base, lam),
    )
    wide = {f"masks.{switch}": False if switch in GROUPS else "response"}
    discounted = list(settings.values())[
        -1
    ]  # that gae_over cannot act at gamma = lambda = 1 is to be seen, not told
    if why := inert_of(discounted, batch).get(f"masks.{switch}"):
        return SwitchEffect(switch, inert=why, set_for_it=told)
    try:
        was, now = credited(batch, base), credited(batch, with_settings(base, wide))
        largest = {name: _largest(batch, algorithm, wide) for name, algorithm in settings.items()}
    except (ConfigError, DataError) as error:
        return SwitchEffect(switch, error=str(error), set_for_it=told)
    returns = (
        None if now.return_T is None else int(changed_tokens(now.return_T, was.return_T).sum())
    )
    counts = {
        key.removeprefix("tokens_"): (int(was.notes[key]), int(now.notes[key]))
        for key in now.notes
        if key.startswith("tokens_") and now.notes[key] != was.notes[key]
    }
    return SwitchEffect(
        switch,
        int(changed_tokens(now.advantage_T, was.advantage_T).sum()),
        returns,
        int((now.weight_T != was.weight_T).sum()),
        largest,
        counts,
        told,
    )


def _largest(
    batch: Batch, algorithm: Any, wide: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """The largest change of an action token's advantage: before whitening (None: it cannot be switched off), after it
    (None: it does not whiten)."""

    def change(of: Any) -> float:
        return largest_change(
            credited(batch, with_settings(of, wide)).advantage_T,
            credited(batch, of).advantage_T,
            batch.eligible_T.numpy(),
        )

    if not algorithm.whitens:
        return change(algorithm), None
    plain = change(algorithm(whiten=False)) if has_setting(algorithm, "whiten") else None
    return plain, change(algorithm)


def _told(effects: Sequence[SwitchEffect], settings: Sequence[str]) -> list[str]:
    """What the numbers bear out about the advantage mask, in sentences; nothing where they do not."""
    found = {effect.variant or effect.name: effect for effect in effects if effect.largest}
    if len(settings) < 2 or "gae_over" not in found:
        return []

    def change(row: str, setting: str) -> float:
        return (found[row].largest[setting][0] or 0.0) if row in found else float("inf")

    one, lower = settings
    names = {
        "advantage_mask": "advantage mask (row `advantage_mask = false`)",
        UNPAID: f"advantage mask (row `advantage_mask = false, {UNPAID}`)",
        "gae_over": "timeline (gae_over)",
    }
    row = next((name for name in names if change(name, one) <= ROUNDING), None)
    told = []
    if row is not None:
        told.append(
            f"at {one}, before whitening, no action token's advantage depends on the {names[row]}: the largest "
            f"change is {change(row, one):.1g}"
        )
        if change(row, lower) > ROUNDING:
            told.append(f"at {lower} it does: by up to {change(row, lower):.2g}")
    moved = [
        name
        for name in (*ADVANTAGE_MASK, *LOSS_MASK)
        if name in found and change(name, one) > ROUNDING
    ]
    if row is not None and moved:
        told.append(
            f"so what can still change there before whitening comes from {', '.join(moved)}"
        )
    return told
