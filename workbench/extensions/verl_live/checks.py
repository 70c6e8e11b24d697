"""What is asked of a batch of verl beside what is asked of any file of rollouts (R3 R4 R6 R16 R23).

Advantages are computed once more, in float64, by the definition of the estimator that the trainer names:

    grpo    a row's reward less the mean of its group, divided by the group's standard deviation (over n - 1) + 1e-6
    rloo    a row's reward less the mean of the others of its group
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.verl_live.batch import BY_TOKEN, VerlBatch

SLACK = 2e-3  # of advantages, which verl computes in float32
NATS = 0.02  # a mean difference of logprobs that rounding does not make
SURE = 0.05  # nats: a token that the trainer gives less than exp(-0.05) was not certain
TURNS = 4  # messages of a conversation with a tool's answer between two of the policy's
KNOWN = ("grpo", "rloo")
EPSILON = 1e-6  # verl adds it to a standard deviation


@dataclass(frozen=True)
class AdvantageSettings:
    """How the trainer makes advantages. `estimator`: "" where it is not known."""

    estimator: str = ""
    divides_by_spread: bool = True


# ------------------------------------------------------------------------------------------------ R3, R4


def mask_is_the_policys(batch: VerlBatch) -> Iterator[RuleResult]:
    """R3: what is trained was sampled, as far as the number of turns and the sampler's logprobs say it."""
    trained = batch.trained_NR
    attended = batch.attended_NR
    if trained is None or attended is None or trained.shape != attended.shape:
        yield NotChecked("responses, attention_mask and a response_mask of their width")
        return
    turns = batch.others.get("__num_turns__")
    if turns is not None:
        rows = [row for row in np.flatnonzero(np.asarray(turns) >= TURNS) if attended[row].any()]
        whole = [row for row in rows if (trained[row] | ~attended[row]).all()]
        yield Checked(len(rows))
        if whole:
            row = int(whole[0])
            yield Finding(
                f"its conversation has {int(turns[row])} turns, and the loss counts all of {int(attended[row].sum())} tokens of "
                f"the response: what tools answered is trained ({len(whole)} of {len(rows)} such rows)",
                batch.place(row, 0),
                ERROR,
                len(whole),
            )
    yield from _never_sampled(batch, trained)


def _never_sampled(batch: VerlBatch, trained: np.ndarray) -> Iterator[RuleResult]:
    """verl gives tokens of tools the logprob 0; a trained one that the trainer is not certain of was not sampled."""
    given = batch.get("rollout_log_probs")
    own = batch.get("old_log_probs")
    if given is None or own is None or given.shape != trained.shape or own.shape != trained.shape:
        yield NotChecked("log-probabilities of sampler and trainer", "tokens that nobody sampled")
        return
    if not given[trained].any():  # R12 says it
        return
    yield Checked(int(trained.sum()))
    foreign = trained & (given == 0) & (own < -SURE)
    if foreign.any():
        row = int(foreign.any(axis=1).argmax())
        token = int(foreign[row].argmax())
        yield Finding(
            f"the loss counts {int(foreign[row].sum())} tokens to which the sampler gave a logprob of exactly 0, as verl does "
            f"for tokens of tools, while the trainer gives the first {own[row, token]:.3g}: the policy did not sample them",
            batch.place(row, token),
            ERROR,
            int(foreign.sum()),
        )


def layout(batch: VerlBatch) -> Iterator[RuleResult]:
    """R4: tensors have a row and a token for each other; masks are 1 where tokens are; padding is outside."""
    responses = batch.get("responses")
    if responses is None:
        yield NotChecked("responses")
        return
    for name in BY_TOKEN:
        values = batch.get(name)
        if values is not None and values.shape != responses.shape:
            yield Finding(
                f"{name} has the shape {values.shape}, and responses {responses.shape}",
                batch.place(0),
            )
    yield Checked(len(batch))
    attended = batch.attended_NR
    if attended is None:
        yield NotChecked("an attention_mask of rows and tokens", "padding")
        return
    for what, wrong in _misplaced(batch, attended).items():
        if wrong.any():
            row = int(wrong.any(axis=1).argmax())
            token = int(wrong[row].argmax())
            count = int(wrong.any(axis=1).sum())
            yield Finding(
                f"{what} ({count} of {len(batch)} rows)", batch.place(row, token), ERROR, count
            )


def _misplaced(batch: VerlBatch, attended: np.ndarray) -> Mapping[str, np.ndarray]:
    """What is wrong -> bool, [N, tokens]."""
    wrong: dict[str, np.ndarray] = {}
    trained = batch.trained_NR
    if trained is not None and trained.shape == attended.shape:
        wrong["response_mask counts padding"] = trained & ~attended
    wrong["attention_mask goes on behind padding of the response"] = (
        attended[:, 1:] & ~attended[:, :-1]
    )
    return wrong | _misplaced_ids(batch, attended)


def _misplaced_ids(batch: VerlBatch, attended: np.ndarray) -> Mapping[str, np.ndarray]:
    """Of ids and positions over prompt and response."""
    wrong: dict[str, np.ndarray] = {}
    responses = batch.arrays["responses"]
    ids = batch.get("input_ids")
    prompts = batch.get("prompts")
    mask = batch.arrays["attention_mask"] != 0
    if ids is not None and ids.shape[1] >= responses.shape[1]:
        tail = ids[:, ids.shape[1] - responses.shape[1] :]
        wrong["input_ids end in other ids than responses"] = (tail != responses) & attended
    if ids is not None and prompts is not None and ids.shape[1] >= prompts.shape[1]:
        width = prompts.shape[1]
        ahead = mask[:, :width]
        wrong["input_ids begin with other ids than prompts"] = (ids[:, :width] != prompts) & ahead
        wrong["attention_mask has padding inside or behind the prompt"] = (
            ~ahead[:, 1:] & ahead[:, :-1]
        )
    places = batch.get("position_ids")
    if places is not None and places.shape == mask.shape:
        counted = np.cumsum(mask, axis=1) - 1
        wrong["position_ids do not count the tokens"] = (places != counted) & mask
    return wrong


# ------------------------------------------------------------------------------------------------ R6, R16


def advantages_follow(batch: VerlBatch, settings: AdvantageSettings) -> Iterator[RuleResult]:
    """R6: the advantages are those that rewards, groups and the estimator come to."""
    used = batch.get("advantages")
    rewards = batch.get("token_level_rewards")
    trained = batch.trained_NR
    if used is None or rewards is None or trained is None or batch.uids is None:
        yield NotChecked("advantages, token_level_rewards, response_mask and uid")
        return
    if settings.estimator not in KNOWN:
        name = repr(settings.estimator) if settings.estimator else "the trainer's estimator"
        yield NotChecked(f"a definition of {name} here ({', '.join(KNOWN)} have one)", "their size")
        return
    wanted = expected_advantages(batch, rewards.sum(axis=1), settings)[:, None] * trained
    wrong = np.abs(used - wanted) > SLACK * np.maximum(1.0, np.abs(wanted))
    yield Checked(int(trained.sum()))
    rows = np.flatnonzero(wrong.any(axis=1))
    if len(rows):
        row = int(rows[0])
        token = int(wrong[row].argmax())
        where = "" if trained[row, token] else ", where the loss counts nothing"
        yield Finding(
            f"its advantage is {used[row, token]:+.4g}{where}, and rewards, uid and {settings.estimator} come to "
            f"{wanted[row, token]:+.4g} ({len(rows)} of {len(batch)} rows)",
            batch.place(row, token),
            ERROR,
            len(rows),
        )


def expected_advantages(
    batch: VerlBatch, earned: np.ndarray, settings: AdvantageSettings
) -> np.ndarray:
    """One number a row [N]."""
    credit = np.zeros(len(earned))
    for rows in batch.groups.values():
        group = earned[rows]
        if settings.estimator == "rloo":
            others = max(len(group) - 1, 1)
            credit[rows] = group if len(group) == 1 else group - (group.sum() - group) / others
        elif len(group) == 1:
            credit[rows] = group / (1 + EPSILON if settings.divides_by_spread else 1)
        else:
            spread = group.std(ddof=1) + EPSILON if settings.divides_by_spread else 1.0
            credit[rows] = (group - group.mean()) / spread
    return credit


def rewards_lie_where_tokens_are(batch: VerlBatch) -> Iterator[RuleResult]:
    """R16: rewards are numbers, on tokens of their response."""
    looked = 0
    attended = batch.attended_NR
    for name in ("token_level_scores", "token_level_rewards"):
        values = batch.get(name)
        if values is None:
            continue
        looked += len(values)
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(bad.any(axis=1).argmax())
            yield Finding(
                f"{name} holds {values[row][bad[row]][0]} ({int(bad.any(axis=1).sum())} of {len(values)} rows)",
                batch.place(row, int(bad[row].argmax())),
            )
        if attended is not None and attended.shape == values.shape:
            outside = (values != 0) & ~attended
            if outside.any():
                row = int(outside.any(axis=1).argmax())
                token = int(outside[row].argmax())
                yield Finding(
                    f"{name} has {values[row, token]:.4g} on padding ({int(outside.any(axis=1).sum())} of {len(values)} rows): "
                    "an estimator that goes token by token never sees it",
                    batch.place(row, token),
                )
    yield Checked(looked)
    if not looked:
        yield NotChecked("token_level_scores or token_level_rewards")


# ------------------------------------------------------------------------------------------------ R23


def sampler_agrees(batch: VerlBatch) -> Iterator[RuleResult]:
    """R23: the sampler's log-probabilities are the trainer's, before the first update."""
    given = batch.get("rollout_log_probs")
    own = batch.get("old_log_probs")
    trained = batch.trained_NR
    if given is None or own is None or trained is None or given.shape != own.shape:
        yield NotChecked(
            "log-probabilities of sampler and trainer (actor_rollout_ref.rollout.calculate_log_probs=True)"
        )
        return
    # R3 and R12 speak of trained tokens without a logprob of the sampler.
    trained = trained & ~((given == 0) & (own < -SURE))
    gap = np.abs(given - own)
    yield Checked(int(trained.sum()))
    if not trained.any() or gap[trained].mean() <= NATS:
        return
    mean = float(gap[trained].mean())
    by_row = (gap * trained).sum(axis=1) / np.maximum(trained.sum(axis=1), 1)
    row = int(by_row.argmax())
    words = f"rollout_log_probs differ from old_log_probs by {mean:.3g} nats a token, here by {by_row[row]:.3g}"
    words += _shifted(given, own, trained, mean)
    yield Finding(words, batch.place(row), ERROR if mean > 0.1 else NOTE, len(batch))


def _shifted(given: np.ndarray, own: np.ndarray, trained: np.ndarray, mean: float) -> str:
    """Whether the two agree one token apart; "" where they do not."""
    for shift, what in ((1, "one token late"), (-1, "one token early")):
        moved = np.roll(given, -shift, axis=1)
        both = trained & np.roll(trained, -shift, axis=1)
        both[:, [0, -1]] = False
        if both.sum() > 8 and np.abs(moved - own)[both].mean() < 0.2 * mean:
            return f"; they agree where rollout_log_probs are {what}"
    return ""
