"""The loss term of a token, written out: from what the trajectory earned to what the token adds to the loss of an update.

Every number is recomputed by the functions that training calls, from what the run stored, and compared with it: advantage
and ratio token by token, the loss as the sum over all tokens.

Axis letters: N trajectories · T tokens of the whole batch · A tokens that get credit, in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, CreditInputs, Share, TokenLoss, shares_of
from workbench.learn.algorithms.credit import credit_inputs
from workbench.learn.algorithms.estimators import group_relative, rloo
from workbench.learn.algorithms.objectives import (
    CISPOObjective,
    ClipObjective,
    GSPOObjective,
    Objective,
)
from workbench.learn.ops.gae import WHITEN_EPSILON
from workbench.learn.ops.group import STD_EPSILON, group_statistics
from workbench.learn.ops.loss import masked_sum_over
from workbench.learn.replay import stored_loss
from workbench.look.cells.credit import step_facts
from workbench.run.store import Run
from workbench.training.stored import config_of_run
from workbench.values import CreditTable
from workbench.values.errors import DataError

# name, text; "array": the name of the numbers per token that stand before the text
Row = dict[str, Any]
TermRow = tuple[Row, np.ndarray | None]  # a row, and its numbers [T] if it has any
ROUNDINGS = 4  # by which two processors' exponentials and roots may lie apart
CLIP_WORDS = {
    "0": "free",
    "-1": "clipped at the lower bound: no gradient",
    "1": "clipped at the upper bound: no gradient",
    "2": "clipped by the dual clip: no gradient",
}
DENOMINATORS = {
    "token-mean": "trained tokens of the update",
    "seq-mean-token-mean": "trajectories, each the mean of its tokens",
    "seq-mean-token-sum": "trajectories, each the sum of its tokens",
    "fixed-length": "trajectories times a fixed length",
}


class _Whitened(CreditInputs):
    """The same inputs; what the estimator has whitened is kept as it was before."""

    def whitened(self, advantage_A: torch.Tensor) -> torch.Tensor:
        vars(self)["before_A"] = advantage_A
        return super().whitened(advantage_A)


@dataclass(frozen=True, eq=False)
class StepTerms:
    """The terms of all tokens of one stored update; `of` makes them, `written` has those of one trajectory."""

    algorithm: Algorithm
    table: CreditTable
    credit: Credit
    inputs: _Whitened
    shares: Mapping[str, Share]
    used: np.ndarray  # indices into T
    result: TokenLoss  # of the tokens `used`
    stored: (
        float | None
    )  # the loss that the run logged; None: the step made several updates, or logged none

    @classmethod
    def of(cls, run: Run, step: int, table: CreditTable) -> StepTerms:
        """Raises ConfigError where the run's algorithm cannot be had here, and DataError where nothing was stored to compute
        a loss from."""
        algorithm = config_of_run(run, ["algorithm"]).algorithm
        batch = step_facts(run, step)
        stored = stored_loss(table, algorithm)
        if stored is None:
            raise DataError(
                f"step {step}, update {table.update} stored no logprobs of the policy: there is no loss to write out"
            )
        used_T = torch.from_numpy(table["used"].copy())
        kept_N = batch.scored_N & algorithm.filter.kept(
            batch.reward_N, batch.group_of_trajectory_N, batch.scored_N
        )
        made = credit_inputs(algorithm, batch, kept_N)
        inputs = _Whitened(**{member.name: getattr(made, member.name) for member in fields(made)})
        algorithm.estimator(inputs)
        credit = algorithm.credit(batch)
        logged = next((row for row in run.metrics_rows() if row["step"] == step), {})
        single = len(run.updates(step)) == 1
        return cls(
            algorithm,
            table,
            credit,
            inputs,
            shares_of(algorithm, batch, credit, used_T),
            *stored,
            logged.get("loss") if single else None,
        )

    def terms_T(self) -> dict[str, torch.Tensor]:
        """[T] of each term of the policy's loss, before weighting, float64, 0 where the update did not use a token."""
        terms = {
            "policy": self.result.loss_M,
            "entropy": self.result.entropy_loss_M,
            "kl": self.result.kl_loss_M,
        }
        place = torch.from_numpy(self.used)
        return {
            name: torch.zeros(len(self.table["used"]), dtype=torch.float64).index_copy(
                0, place, term_M.detach().double()
            )
            for name, term_M in terms.items()
            if name in self.shares and term_M is not None
        }

    @property
    def loss(self) -> float:
        """The policy's loss of the update, summed up as the learner does."""
        return sum(
            float(masked_sum_over(term_T, *self.shares[name]))
            for name, term_T in self.terms_T().items()
        )

    def written(self, number: int) -> tuple[list[Row], dict[str, np.ndarray]]:
        """(rows in the order of computing, numbers per token of the trajectory) of trajectory `number`, counted over all groups.
        NaN: the number does not exist for this token."""
        at = self.table["trajectory"] == number
        rows = [*self._credit_rows(number)]
        arrays_T = {}
        for row, values_T in (*self._advantages(number), *self._losses()):
            rows.append(row)
            if values_T is not None:
                arrays_T[row["array"]] = values_T
        rows += self._checks()
        return rows, {
            name: np.asarray(values_T, np.float64)[at] for name, values_T in arrays_T.items()
        }

    # -------------------------------------------------------------------------------------------- from rewards to credit

    def _credit_rows(self, number: int) -> list[Row]:
        batch = self.inputs.batch
        inputs = self.inputs
        if not bool(inputs.kept_N[number]):
            why = "left out by the filter" if bool(batch.scored_N[number]) else "not scored"
            return [
                {
                    "name": "reward",
                    "text": f"{float(batch.reward_N[number])!r}, {why}: it weighs nothing",
                }
            ]
        raw = float(batch.reward_N[number])
        seen = float(inputs.reward_N[number])
        rows = [
            {
                "name": "reward",
                "text": repr(raw) + ("" if raw == seen else f", as the estimator sees it {seen!r}"),
            }
        ]
        if self.algorithm.estimator.says("compares"):
            count, mean, std, flat = self._group(number)
            rows.append(
                {
                    "name": "its group",
                    "text": f"mean {mean!r}, std {std!r} (n − 1) of {count} trajectories"
                    + (": zero variance, so no advantage from a group baseline" if flat else ""),
                }
            )
        return rows

    def _group(self, number: int) -> tuple[int, float, float, bool]:
        inputs = self.inputs
        group = int(self.inputs.group_N[number])
        statistics = group_statistics(inputs.reward_N, inputs.group_N, inputs.kept_N)
        return (
            int(statistics.count[group]),
            float(statistics.mean[group]),
            float(statistics.std[group]),
            bool(statistics.flat[group]),
        )

    def _advantages(self, number: int) -> list[TermRow]:
        inputs = self.inputs
        estimator = self.algorithm.estimator
        rows = []
        if estimator.per != "attempt":
            paid_T = self._at(inputs.reward_A)
            rows.append(_row("paid here", "paid", paid_T, "part of the reward paid at this token"))
        if inputs.value_A is not None:
            value_T = self._at(inputs.value_A)
            rows.append(_row("value", "expected", value_T, "the critic's value before this token"))
        group = self._group(number) if bool(inputs.kept_N[number]) else None
        formula = _formula(self.algorithm, float(inputs.reward_N[number]), group)
        before_A = vars(inputs).get("before_A")
        if before_A is not None:
            function = f"by {estimator.function.__name__}"
            rows.append(_row("before whitening", "before", self._at(before_A), function))
            over = before_A[inputs.whiten_T[inputs.token_A]].double()
            if len(over) > 1:
                formula = (
                    f"= (that − {float(over.mean())!r}) / √({float(over.var())!r} + {WHITEN_EPSILON}): mean and variance of "
                    f"{len(over)} tokens"
                )
        weighs_T = self.credit.weight_T.numpy() != 0
        trained_T = np.where(weighs_T, self.credit.advantage_T.double().numpy(), np.nan)
        return [*rows, _row("advantage", "advantage", trained_T, formula)]

    def _at(self, values_A: torch.Tensor) -> np.ndarray:
        """Numbers of the timeline [T], NaN beside it."""
        values_T = np.full(len(self.table["used"]), np.nan)
        values_T[self.inputs.token_A.numpy()] = values_A.double().numpy()
        return values_T

    # -------------------------------------------------------------------------------------------- from credit to the loss

    def _losses(self) -> list[TermRow]:
        objective = self.algorithm.objective
        result = self.result
        new_T = self._of_used(self.table["new_logp"][self.used])
        old_T = self._of_used(self.table["old_logp"][self.used])
        began = "nats, by the weights that the step began with"
        clip_T = self._of_used(result.clip_state_M)
        loss_T = self._of_used(result.loss_M)
        rows = [
            _row("logprob new", "new_logp", new_T, "nats, when the update was made"),
            _row("logprob old", "old_logp", old_T, began),
            _row("ratio", "ratio", self._of_used(result.ratio_M), _ratio_words(objective)),
            ({"name": "clip", "array": "clip", "words": CLIP_WORDS, "text": ""}, clip_T),
            _row("loss of the token", "loss", loss_T, _loss_words(objective)),
        ]
        sampler = result.figures.get("sampler_weight")
        if sampler is not None:
            sampler_T = self._of_used(sampler)
            rows.append(_row("sampler's weight", "sampler", sampler_T, "in the loss already"))
        for name, term_T in self.terms_T().items():
            rows += self._shares_of_loss(name, term_T)
        return rows

    def _shares_of_loss(self, term: str, term_T: torch.Tensor) -> Iterator[TermRow]:
        """What each token adds to the loss by one of its terms; for the policy's also by which weight and denominator."""
        weight_T, denominator = self.shares[term]
        adds_T = torch.where(weight_T != 0, term_T * weight_T / denominator, torch.nan).numpy()
        if term == "entropy":
            yield _row("entropy adds", "entropy_adds", adds_T, "")
        elif term == "kl":
            yield _row("KL adds", "kl_adds", adds_T, "")
        else:
            reduction = self.algorithm.reduction
            counts = f"eligibility, and how {reduction} counts"
            yield _row("weight", "weight", self._of_used(weight_T[self.used]), counts)
            meaning = f"{denominator!r}: {DENOMINATORS[reduction]}"
            yield {"name": "denominator", "text": meaning}, None
            yield _row("adds to the loss", "adds", adds_T, "= loss × weight / denominator")

    def _of_used(self, values_M: Any) -> np.ndarray:
        values_T = np.full(len(self.table["used"]), np.nan)
        values_T[self.used] = (
            values_M.detach().numpy() if isinstance(values_M, torch.Tensor) else values_M
        )
        return values_T

    # -------------------------------------------------------------------------------------------- against what is stored

    def differing(self, roundings: int = 0) -> dict[str, int]:
        """How many tokens of the update differ from what is stored by more than so many roundings (0: in a bit), by column."""
        table = self.table
        used = self.used
        made = {
            "advantage": self.credit.advantage_T.numpy(),
            "weight": self.credit.weight_T.numpy(),
            "ratio": self._of_used(self.result.ratio_M).astype(np.float32),
        }
        counts = {}
        for name, values in made.items():
            stored = table[name][used]
            near = roundings * np.spacing(np.abs(stored))
            counts[name] = int((~(np.abs(values[used] - stored) <= near)).sum())
        return counts

    def _checks(self) -> list[Row]:
        differs = {name: count for name, count in self.differing().items() if count}
        check = "advantage, weight and ratio of every token are the stored ones, to the last bit"
        if differs:
            counts = ", ".join(f"{name} of {count} tokens" for name, count in differs.items())
            check = f"NOT what is stored: {counts}"
            if not any(self.differing(ROUNDINGS).values()):
                check = (
                    f"what is stored but for the last digit, as another processor rounds: {counts}"
                )
        whole = f"{self.loss!r} over all {len(self.used)} tokens"
        if self.stored is not None:
            whole += (
                ", the stored loss to the last bit"
                if self.loss == self.stored
                else f"; stored is {self.stored!r}"
            )
        return [{"name": "sum", "text": whole}, {"name": "check", "text": check}]


def _row(name: str, array: str, values_T: np.ndarray, text: str) -> TermRow:
    return {"name": name, "array": array, "text": text}, values_T


# ------------------------------------------------------------------------------------------------ formulas in words


def _formula(
    algorithm: Algorithm, reward: float, group: tuple[int, float, float, bool] | None
) -> str:
    """Of a trajectory's advantage, where its group's statistics are all that it takes; else by which function."""
    function = algorithm.estimator.function
    if function not in (group_relative, rloo) or group is None:
        return f"by {function.__name__}"
    count, mean, std, flat = group
    if flat or count < 2:
        return "nothing to compare with: exactly 0"
    if function is rloo:
        return f"= ({reward!r} − {mean!r}) × {count} / {count - 1}"
    return f"= ({reward!r} − {mean!r})" + (
        f" / ({std!r} + {STD_EPSILON})" if algorithm.estimator.normalize_std else ""
    )


def _ratio_words(objective: Objective) -> str:
    if isinstance(objective, GSPOObjective):
        return "= exp of the mean of new − old over its segment, trained tokens only"
    return "= exp(new − old logprob)"


def _loss_words(objective: Objective) -> str:
    if isinstance(objective, (ClipObjective, GSPOObjective)):
        bounds = f"{1 - objective.clip_low:.6g}, {1 + objective.clip_high:.6g}"
        dual = getattr(objective, "dual_clip", 0.0)
        return f"= −min(ratio × advantage, clip(ratio, {bounds}) × advantage)" + (
            f", at most {dual} × |advantage| where that is negative" if dual else ""
        )
    if isinstance(objective, CISPOObjective):
        return f"= −clip(ratio, {1 - objective.clip_low:.6g}, {1 + objective.clip_high:.6g}) × advantage × logprob"
    return f"by {type(objective).__name__}"
