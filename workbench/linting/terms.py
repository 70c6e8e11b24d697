"""Which tokens each term of the loss is taken over: sampled ones (R10), and the same ones for every attempt (R11).

Both read the declared mask switches, so that an ablation is no error.

Axis letters: N trajectories · K turns (flat) · T tokens (flat).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from workbench.linting.attempts import FAULTS, Attempts
from workbench.linting.credit import columns_of
from workbench.linting.credit_oracle import CRITICS, gives_its_own, kind_of, over
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, Said
from workbench.types import Source, StopReason
from workbench.types.findings import ERROR, NOTE, Finding, Looked, Missing

# term -> (column of its weights; without one it is the policy's), the switch that widens it
TERMS: Mapping[str, tuple[str, str]] = {
    "policy": ("weight", "loss_over"), "entropy": ("entropy_weight", "entropy_over"),
    "kl": ("kl_weight", "kl_loss_over"), "critic": ("critic_weight", "critic_over"),
}


def active_terms(algorithm: Any, columns: Mapping[str, np.ndarray]) -> list[str]:
    """The terms of the loss by the algorithm's settings; without one, those that the columns know of."""
    if algorithm is None or not hasattr(algorithm, "entropy_coef"):
        return [term for term, (column, _) in TERMS.items() if column in columns]
    critic = kind_of(algorithm) in CRITICS or "value_T" in getattr(algorithm, "requires", ())
    is_on = {"policy": True, "entropy": bool(algorithm.entropy_coef), "critic": critic,
             "kl": bool(getattr(algorithm, "kl_coef", 0)) and getattr(algorithm, "kl_in", "loss") == "loss"}
    return [term for term in TERMS if is_on[term] or TERMS[term][0] in columns]


def allowed_T(evidence: Evidence, attempts: Attempts, term: str) -> np.ndarray:
    """bool [T]: where a term may be taken, as declared."""
    algorithm = evidence.algorithm
    masks = getattr(algorithm, "masks", None)
    if masks is not None and over(masks, TERMS[term][1]) == "response":
        return attempts.response_T
    named = evidence.credit is not None and evidence.credit.widened is not None
    if named and (algorithm is None or kind_of(algorithm) is None):
        return np.ones(attempts.num_tokens, bool)  # supervised fine-tuning, say: it gives its reason itself
    return attempts.sampled_T


# ------------------------------------------------------------------------------------------------ R10


def _only_sampled(evidence: Evidence) -> Iterator[Said]:
    attempts = evidence.attempts
    sources = [("", columns_of(evidence))] if evidence.credit is not None else []
    sources += [(f"update {update.table.update}: ", dict(update.table.columns)) for update in evidence.updates]
    if attempts is None or not sources:
        yield Missing("trajectories or a batch" if attempts is None else "the credit, or the credit table of an update")
        return
    for where, columns in sources:
        if any(len(values_T) != attempts.num_tokens for values_T in columns.values()):
            yield Finding(f"{where}its columns are not one number per token of the trajectories")
            continue
        yield Looked(int((~attempts.sampled_T).sum()))
        everywhere_T = np.zeros(attempts.num_tokens, bool)
        for term in active_terms(evidence.algorithm, columns):
            may_T = allowed_T(evidence, attempts, term)
            everywhere_T |= may_T
            weight_T = columns.get(TERMS[term][0], columns["weight"])
            yield from _strays(evidence, attempts, (weight_T != 0) & ~may_T, f"{where}counts in the {term} term")
        yield from _strays(evidence, attempts, ~np.isnan(columns["advantage"]) & (columns["advantage"] != 0)
                           & ~allowed_T(evidence, attempts, "policy"), f"{where}has an advantage")
        if "used" in columns:
            yield from _strays(evidence, attempts, columns["used"] & ~everywhere_T, f"{where}was trained")


def _strays(evidence: Evidence, attempts: Attempts, stray_T: np.ndarray, what: str) -> Iterator[Finding]:
    at = np.flatnonzero(stray_T)
    if not len(at):
        return
    first = int(at[0])
    source = Source(int(attempts.source_T[first])).name
    who = "shown again, not sampled here" if source == "POLICY" else "not sampled by the policy"
    length = int(np.append(np.diff(at) != 1, True).argmax()) + 1
    yield Finding(f"{what}, but it is {source}, {who} ({len(at)} such tokens in all, in "
                  f"{len(np.unique(attempts.row_T[at]))} trajectories), and no mask switch says so",
                  attempts.place(first, evidence.step, length), count=len(at))


# ------------------------------------------------------------------------------------------------ R11


def _alike(evidence: Evidence) -> Iterator[Said]:
    attempts = evidence.attempts
    if attempts is None:
        yield Missing("trajectories or a batch")
        return
    if evidence.groups:
        yield from _limits(evidence, attempts)
        yield from _ends(evidence, attempts)
    columns = columns_of(evidence)
    if columns is None or any(len(values_T) != attempts.num_tokens for values_T in columns.values()):
        yield Missing("the credit, or the credit table of an update")
        return
    yield Looked(attempts.num_trajectories)
    yield from _same_terms(evidence, attempts, columns)
    yield from _whole_turns(evidence, attempts, columns)
    yield from _nobody_left_out(evidence, attempts, columns)


def _limits(evidence: Evidence, attempts: Attempts) -> Iterator[Said]:
    """Flags of the batch against stop reasons; stop reasons against what is declared of limits."""
    yield Looked(attempts.num_trajectories)
    batch = evidence.batch
    if batch is not None and batch.num_trajectories == attempts.num_trajectories:
        for name in ("terminated_N", "truncated_N", "context_full_N"):
            mine, theirs = getattr(attempts, name), getattr(batch, name).numpy()
            for n in np.flatnonzero(mine != theirs).tolist():
                yield Finding(f"{name} of the batch is {bool(theirs[n])}, but it ended by "
                              f"{evidence.trajectories[n].stop_reason.value}", evidence.place(n))
    most = getattr(evidence.family, "max_turns", None)
    for n, t in enumerate(evidence.trajectories):
        if t.stop_reason is StopReason.MAX_TURNS and most is not None and len(t.turns) != most:
            yield Finding(f"ended by max_turns after {len(t.turns)} turns; the limit is {most}", evidence.place(n))
        elif most is not None and len(t.turns) > most:
            yield Finding(f"has {len(t.turns)} turns; the limit is {most}", evidence.place(n))
        if t.stop_reason in FAULTS and t.scored:
            yield Finding(f"ended by {t.stop_reason.value} and counts as scored: what broke earned nothing, not zero",
                          evidence.place(n))
        elif not t.scored and t.stop_reason not in FAULTS and t.error is None and t.turns and all(
                turn.reward is not None for turn in t.turns):
            # Of our own collecting only: elsewhere the scoring of an outcome may have failed.
            yield Finding(f"ended by {t.stop_reason.value}, every turn has its reward, nothing broke, yet it counts as "
                          "unscored: it leaves baseline and loss", evidence.place(n),
                          ERROR if evidence.collect is not None and t.outcome is None else NOTE)
        elif t.stop_reason is StopReason.TERMINATED and not t.turns:
            yield Finding("ended as if its task were over, without a turn", evidence.place(n))


def _ends(evidence: Evidence, attempts: Attempts) -> Iterator[Said]:
    """A turn that says it stopped ends in a stop token; one that says it was cut does not."""
    if evidence.chat is None or not getattr(evidence.chat, "stop_ids", None):
        return
    stops = np.array(sorted(evidence.chat.stop_ids))
    token_E = np.flatnonzero(attempts.sampled_T)
    row_E, turn_E = attempts.row_T[token_E], attempts.turn_T[token_E]
    last = np.append((np.diff(row_E) != 0) | (np.diff(turn_E) != 0), True)[:len(token_E)]
    stopped = np.isin(attempts.token_id_T[token_E[last]], stops)
    yield Looked(int(last.sum()))
    for token, row, turn, ended in zip(token_E[last].tolist(), row_E[last].tolist(), turn_E[last].tolist(),
                                       stopped.tolist()):
        turns = evidence.trajectories[row].turns
        if not 0 <= turn < len(turns):
            continue  # turn numbers are another rule's matter
        finish = turns[turn].finish
        if (finish == "stop") != ended:
            yield Finding(f"turn {turn} says finish={finish!r}, but its last sampled token is "
                          f"{'a' if ended else 'no'} stop token", attempts.place(token, evidence.step))


def _same_terms(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """An attempt counts in every term of the loss, or in none; token by token where terms are taken per token."""
    weight_T, algorithm = columns["weight"], evidence.algorithm
    counted_N = _any_by_row(attempts, weight_T)
    by_turn = algorithm is None or kind_of(algorithm) in (None, "TurnPPO")
    for term in active_terms(algorithm, columns)[1:]:
        other_T = columns.get(TERMS[term][0], weight_T)
        if term == "critic" and by_turn:
            wrong = np.flatnonzero((_any_by_row(attempts, other_T) != counted_N) & attempts.acted_N)
            places = [(int(n), attempts.place_of_row(int(n), evidence.step), 1) for n in wrong]
        else:
            at = np.flatnonzero(attempts.sampled_T & ((other_T != 0) != (weight_T != 0)))
            rows, first, count = np.unique(attempts.row_T[at], return_index=True, return_counts=True)
            places = [(int(n), attempts.place(int(at[i]), evidence.step), int(c))
                      for n, i, c in zip(rows, first, count)]
        for n, place, count in places:
            cut = " (a limit ended this attempt)" if attempts.truncated_N[n] else ""
            counts = "does not count" if counted_N[n] else "counts"
            yield Finding(f"{counts} in the {term} term, unlike in the policy's{cut}: {count} sampled tokens", place,
                          NOTE if gives_its_own(algorithm) else ERROR, count)


def _any_by_row(attempts: Attempts, weight_T: np.ndarray) -> np.ndarray:
    at = attempts.sampled_T & (weight_T != 0)
    return np.bincount(attempts.row_T[at], minlength=attempts.num_trajectories) > 0


def _whole_turns(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """The tokens of a turn are trained all or none; a cut turn too."""
    token_E = np.flatnonzero(attempts.sampled_T)
    row_E, turn_E, on_E = attempts.row_T[token_E], attempts.turn_T[token_E], columns["weight"][token_E] != 0
    inside = (row_E[1:] == row_E[:-1]) & (turn_E[1:] == turn_E[:-1])
    for i in np.flatnonzero(inside & (on_E[1:] != on_E[:-1])).tolist():
        row, turn = int(row_E[i]), int(turn_E[i])
        own = (row_E == row) & (turn_E == turn)
        cut = ""
        if evidence.groups and 0 <= turn < len(evidence.trajectories[row].turns):
            cut = " (it was cut)" if evidence.trajectories[row].turns[turn].finish == "length" else ""
        yield Finding(f"{int((own & on_E).sum())} of the {int(own.sum())} sampled tokens of turn {turn}{cut} are "
                      "trained, the others are not", attempts.place(int(token_E[i + 1]), evidence.step),
                      NOTE if gives_its_own(evidence.algorithm) else ERROR)


def _nobody_left_out(evidence: Evidence, attempts: Attempts, columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Scored attempts of one group weigh the same, unless a declared filter chooses among them."""
    algorithm = evidence.algorithm
    if algorithm is None or getattr(getattr(algorithm, "filter", None), "keep", "all") == "within_group":
        return
    severity = NOTE if kind_of(algorithm) is None else ERROR
    counted_N = _any_by_row(attempts, columns["weight"])
    compared_N = attempts.scored_N & attempts.acted_N
    kept_G = np.bincount(attempts.group_N[compared_N & counted_N], minlength=attempts.num_groups) > 0
    for n in np.flatnonzero(compared_N & ~counted_N & kept_G[attempts.group_N]).tolist():
        why = f"it ended by {evidence.trajectories[n].stop_reason.value}" if evidence.groups else (
            "a limit ended it" if attempts.truncated_N[n] else "no limit ended it")
        yield Finding(f"is scored and weighs nothing, while siblings of its group are trained ({why}); no declared "
                      "filter chooses among the attempts of a group", attempts.place_of_row(n, evidence.step), severity)


RULES: tuple[Rule, ...] = (
    Rule(
        "R10", "only sampled tokens count in loss, KL, entropy and critic",
        means="the policy is trained to write what the environment or the template wrote, or is pulled by a divergence "
              "at tokens that it never chose: the KL term explodes, the reward collapses later.",
        mend="weigh every term by what was sampled in this segment; if observation tokens are to take part, say so by "
             "the switches of algorithm.masks.",
        needs=(), check=_only_sampled,
        threads=("Search-R1#21", "RAGEN#54", "unsloth#5673", "slime#1370", "verl#2337", "SkyRL#710"),
    ),
    Rule(
        "R11", "attempts that a limit cut short are treated like others",
        means="an attempt counts in one term of the loss and not in another, or silently not at all: what is learned "
              "about running out of room is decided by a mask that nobody chose.",
        mend="take every mask from one weight per attempt; where overlong attempts are to be left out, do it by a "
             "filter or a reward that is declared; keep stop reasons, flags and finish as they were recorded.",
        needs=(), check=_alike,
        threads=("trl#4976", "OpenRLHF#1243", "OpenRLHF#1252"),
    ),
)
