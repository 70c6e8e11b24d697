"""What each of the seven mask switches, and each of their two groups, changes on one batch.

    wb.show_mask_switches(groups, algorithm, facts=wb.facts(session, groups))

The published ablations are the rows of the two groups: there everything else is as the algorithm is set. A single
switch of a term that the algorithm lacks is shown with that term, and its row says so. Every number comes from
`algorithm.credit`, called twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, LOSS_MASK
from workbench.learn.batch import Batch
from workbench.look import doc, words
from workbench.look.cells.credit import Facts, credited, facts_of, with_facts
from workbench.look.cells.credit_settings import chosen, has_setting, inert_of, named, with_settings
from workbench.look.credited import Credited, changed_tokens, largest_change
from workbench.look.html import view_from
from workbench.look.looks import CARD, INK, MUTED, PANEL, Look
from workbench.values import Group, View
from workbench.values.errors import ConfigError, DataError

SMALL_COEF = 0.01  # of a term that is added only so that a switch has something to act on
GROUPS = ("advantage_mask", "loss_mask")
PAID = "KL in the reward"
UNPAID = "no KL in the reward"
ROUNDING = (
    1e-9  # a smaller change of an advantage is that of sums which were added up in another order
)
LEGEND = (
    "advantage, return, weight: tokens that change; then the largest change of an action token's advantage; "
    "last: tokens that a term of the loss is taken over"
)


@dataclass(frozen=True)
class SwitchEffect:
    """One switch turned to the whole response, everything else as it was.

    name          of the switch, or of the group of them
    advantages    tokens whose advantage changes
    returns       tokens whose return changes; None: there are no returns
    weights       tokens whose weight changes
    largest       name of a setting of gamma and lambda -> the largest change of an *action* token's advantage: before
                  whitening (None: this algorithm always whitens), after whitening (None: it never does)
    denominators  term of the loss -> (tokens before, after), where they differ
    set_for_it    what had to be set besides, so that it can act
    error         why it could not be turned here
    inert         why it cannot change anything
    variant       a word, where the same switch is also shown without what was set for it
    """

    name: str
    advantages: int = 0
    returns: int | None = None
    weights: int = 0
    largest: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    denominators: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    set_for_it: str = ""
    error: str = ""
    inert: str = ""
    variant: str = ""


def show_mask_switches(
    groups: Sequence[Group],
    algorithm: Algorithm | str = "ppo",
    *,
    facts: Facts = None,
    lam: float = 0.5,
) -> View:
    """What each of the seven mask switches, and each of their two groups, changes on this batch.

    `facts` as in `show_estimators`: a batch or a stored credit table; they must be known in the whole response (`wb.facts`). Advantages are compared at
    gamma = lambda = 1 and at gamma = 1, lambda = `lam`, before whitening (where it can be switched off) and after it.
    The groups are shown with the algorithm as it is set, the advantage mask once more with the KL paid in the reward,
    or without where the algorithm pays it there; a single switch of a term which the algorithm lacks (entropy, the pull
    towards a reference) is shown with that term, and the row says so.
    """
    algorithm = chosen(algorithm)
    batch = with_facts(Batch.from_groups(groups), facts_of(groups, facts))
    usual_masks = vars(type(algorithm.masks)())
    base = with_settings(algorithm, {f"masks.{name}": value for name, value in usual_masks.items()})
    effects = list(_effects(batch, base, lam))
    response = batch.response_T & ~batch.eligible_T
    always = algorithm.whitens and not has_setting(algorithm, "estimator.whiten")
    remark = f"{named(algorithm)} always whitens: it has no unwhitened advantages to show"
    return mask_switches_view(
        effects,
        title=f"mask switches: {named(algorithm)}",
        groups=GROUPS,
        tokens=f"{int(batch.eligible_T.sum()):,} action tokens, {int(response.sum()):,} further tokens in the responses"
        f", {int((~batch.response_T).sum()):,} in first prompts",
        sentences=_sentences(effects, list(_timelines(base, lam))),
        remark=remark if always else "",
    )


# ------------------------------------------------------------------------------------------------ the numbers


def _effects(batch: Batch, base: Algorithm, lam: float) -> Iterator[SwitchEffect]:
    for name in (*ADVANTAGE_MASK, *LOSS_MASK):
        yield _effect(batch, base, lam, name, _terms_for(base, name))
    yield _effect(batch, base, lam, "advantage_mask", {})
    paid = _terms_for(base, "kl_reward_over")
    extra = _effect(batch, base, lam, "advantage_mask", paid or {"reference.kl_coef": 0.0})
    if not extra.error:
        yield replace(extra, variant=PAID if paid else UNPAID)
    yield _effect(batch, base, lam, "loss_mask", {})


def _timelines(base: Algorithm, lam: float) -> dict[str, Algorithm]:
    """The algorithm under the settings of gamma and lambda that are compared, by name."""
    if not (has_setting(base, "estimator.gamma") and has_setting(base, "estimator.lam")):
        return {"as set": base}
    return {
        "γ = λ = 1": base(estimator={"gamma": 1.0, "lam": 1.0}),
        f"γ = 1, λ = {lam:g}": base(estimator={"gamma": 1.0, "lam": lam}),
    }


def _terms_for(algorithm: Algorithm, switch: str) -> dict[str, Any]:
    """What must be set so that this switch has something to act on."""
    if switch == "entropy_over":
        return {} if algorithm.entropy_coef else {"entropy_coef": SMALL_COEF}
    place = {"kl_reward_over": "reward", "kl_loss_over": "loss"}.get(switch)
    if place is None:
        return {}
    terms: dict[str, Any] = {}
    if not algorithm.reference.kl_coef:
        terms["reference.kl_coef"] = SMALL_COEF
    if algorithm.reference.kl_in != place:
        terms["reference.kl_in"] = place
    return terms


def _effect(
    batch: Batch, base: Algorithm, lam: float, switch: str, added: Mapping[str, Any]
) -> SwitchEffect:
    """One switch at "response" (or one group off), all others as they are by default; `added` is set besides."""
    try:
        base = with_settings(base, added)
    except ConfigError as error:
        return SwitchEffect(switch, error=str(error))
    set_for_it = ", ".join(f"{name} = {value}" for name, value in added.items())
    timelines = _timelines(base, lam)
    wide = {f"masks.{switch}": False if switch in GROUPS else "response"}
    # Of the last timeline: that gae_over cannot act at gamma = lambda = 1 is to be seen, not only to be read.
    discounted = list(timelines.values())[-1]
    why = inert_of(discounted, batch).get(f"masks.{switch}")
    if why:
        return SwitchEffect(switch, inert=why, set_for_it=set_for_it)
    try:
        was = credited(batch, base)
        now = credited(batch, with_settings(base, wide))
        largest = {name: _largest(batch, algorithm, wide) for name, algorithm in timelines.items()}
    except (ConfigError, DataError) as error:
        return SwitchEffect(switch, error=str(error), set_for_it=set_for_it)
    return SwitchEffect(
        switch,
        int(changed_tokens(now.advantage_T, was.advantage_T).sum()),
        None if now.return_T is None else int(changed_tokens(now.return_T, was.return_T).sum()),
        int((now.weight_T != was.weight_T).sum()),
        largest,
        _changed_denominators(was, now),
        set_for_it,
    )


def _changed_denominators(was: Credited, now: Credited) -> dict[str, tuple[int, int]]:
    changed = {}
    for key, tokens in now.notes.items():
        if key.startswith("tokens_") and tokens != was.notes[key]:
            changed[key.removeprefix("tokens_")] = (int(was.notes[key]), int(tokens))
    return changed


def _largest(
    batch: Batch, algorithm: Algorithm, wide: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """The largest change of an action token's advantage: before whitening (None: it cannot be switched off), after it
    (None: it does not whiten)."""

    def change(of: Algorithm) -> float:
        return largest_change(
            credited(batch, with_settings(of, wide)).advantage_T,
            credited(batch, of).advantage_T,
            batch.eligible_T.numpy(),
        )

    if not algorithm.whitens:
        return change(algorithm), None
    unwhitened = {"estimator.whiten": False}
    can_be_off = has_setting(algorithm, "estimator.whiten")
    plain = change(with_settings(algorithm, unwhitened)) if can_be_off else None
    return plain, change(algorithm)


def _sentences(effects: Sequence[SwitchEffect], settings: Sequence[str]) -> list[str]:
    """What the numbers bear out about the advantage mask, in sentences; nothing where they do not."""
    by_name = {effect.variant or effect.name: effect for effect in effects if effect.largest}
    if len(settings) < 2 or "gae_over" not in by_name:
        return []

    def change(name: str, setting: str) -> float:
        return (by_name[name].largest[setting][0] or 0.0) if name in by_name else float("inf")

    one, lower = settings
    names = {
        "advantage_mask": "advantage mask (row `advantage_mask = false`)",
        UNPAID: f"advantage mask (row `advantage_mask = false, {UNPAID}`)",
        "gae_over": "timeline (gae_over)",
    }
    same = next((name for name in names if change(name, one) <= ROUNDING), None)
    if same is None:
        return []
    sentences = [
        f"at {one}, before whitening, no action token's advantage depends on the {names[same]}: the largest "
        f"change is {change(same, one):.1g}"
    ]
    if change(same, lower) > ROUNDING:
        sentences.append(f"at {lower} it does: by up to {change(same, lower):.2g}")
    switches = [name for name in (*ADVANTAGE_MASK, *LOSS_MASK) if name in by_name]
    moved = [name for name in switches if change(name, one) > ROUNDING]
    if moved:
        sentences.append(
            f"so what can still change there before whitening comes from {', '.join(moved)}"
        )
    return sentences


# ------------------------------------------------------------------------------------------------ the view


def mask_switches_view(
    effects: Sequence[SwitchEffect],
    *,
    title: str,
    tokens: str,
    groups: Sequence[str] = (),
    sentences: Sequence[str] = (),
    remark: str = "",
) -> View:
    """A row per switch, the groups (named in `groups`) last.

    You will see for how many tokens advantage, return and weight change, by how much an action token's advantage
    changes at most (a dot: not at all; 1e-16 is rounding and counts as not at all), and which denominator counts other
    tokens. Above it `sentences` that these numbers bear out. `tokens` says what the batch holds, `remark` what
    else there is to know of the algorithm.
    """
    settings: dict[str, None] = {}
    for effect in effects:
        settings |= dict.fromkeys(effect.largest)
    changes = []
    for name in settings:
        changes += [f"{name}, unwhitened", f"{name}, whitened"]
    numbers = doc.numbers("advantage", "return", "weight", *changes)
    columns = ["switched to the response", *numbers, "counted in the loss"]
    rows = [_row(effect, list(settings), effect.name in groups) for effect in effects]
    notes: list[str] = []
    for effect in effects:
        notes += _notes(effect)
    return view_from(
        doc.Heading(title),
        doc.Note(tokens),
        *(doc.Block(f"→ {sentence}", bold=True) for sentence in sentences),
        doc.Note(LEGEND),
        doc.Table(columns, rows),
        doc.Note(remark) if remark else None,
        *map(doc.Note, notes),
    )


def _notes(effect: SwitchEffect) -> list[str]:
    variant = f", {effect.variant}" if effect.variant else ""
    notes = [f"{effect.name}{variant}: shown with {effect.set_for_it}"] if effect.set_for_it else []
    if effect.error or effect.inert:
        notes.append(f"{effect.name}: {effect.error or 'has no effect here: ' + effect.inert}")
    return notes


def _row(effect: SwitchEffect, settings: Sequence[str], is_group: bool) -> list[doc.Cell]:
    paper = PANEL if is_group else CARD
    name = effect.name
    if is_group:
        name += " = false" + (f", {effect.variant}" if effect.variant else "")
    head = doc.Cell(name, Look(paper, bold=True, mono=True, nowrap=True))
    dash = doc.Cell("—", Look(paper))
    if effect.error:
        why = doc.Cell("not possible", Look(paper, INK))
        return [head, *[dash] * (3 + 2 * len(settings)), why]
    if effect.inert:
        why = doc.Cell("no effect here", Look(paper, MUTED))
        return [head, *[dash] * (3 + 2 * len(settings)), why]
    returns = "—" if effect.returns is None else _count(effect.returns)
    counts = (_count(effect.advantages), returns, _count(effect.weights))
    cells = [head, *(doc.Cell(text, Look(paper)) for text in counts)]
    for setting in settings:
        for value in effect.largest.get(setting, (None, None)):
            cells.append(_change_cell(value, paper))
    counted = ", ".join(
        f"{term} {before:,} → {after:,}" for term, (before, after) in effect.denominators.items()
    )
    return [*cells, doc.Cell(counted or "·", Look(paper, INK if counted else MUTED))]


def _count(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "·"


def _change_cell(value: float | None, paper: str) -> doc.Cell:
    if value is None:
        return doc.Cell("—", Look(paper))
    title = f"largest change {value:.3g}"
    if value <= ROUNDING:
        return doc.Cell("·", Look(paper), title=title)
    return doc.Cell(words.number(value, 2), Look("#fde3c3"), title=title)
