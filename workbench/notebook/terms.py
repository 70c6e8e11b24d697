"""The loss term of a token, written out: from what the attempt earned to what the token adds to the loss of an update.

Every number is recomputed by the functions that training calls, from what the run stored, and held against it: advantage
and ratio token by token, the loss as the sum over all tokens.

Axis letters: N trajectories · T tokens of the whole batch · A tokens that get credit, in the order of time.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from workbench.notebook.credit import step_facts
from workbench.run.store import Run
from workbench.training.stored import config_of_run
from workbench.types import CreditTable
from workbench.types.errors import DataError

Row = dict[
    str, Any
]  # name, text; "array": the name of the numbers per token that stand before the text
CLIP_WORDS = {
    "0": "free",
    "-1": "held at the lower bound: no gradient",
    "1": "held at the upper bound: no gradient",
    "2": "held by the dual clip: no gradient",
}
DENOMINATORS = {
    "token-mean": "trained tokens of the update",
    "seq-mean-token-mean": "attempts, each the mean of its tokens",
    "seq-mean-token-sum": "attempts, each the sum of its tokens",
    "fixed-length": "attempts times a fixed length",
}


class _Whitened(CreditInputs):
    """The same inputs; what the estimator has whitened is kept as it was before."""

    def whitened(self, advantage_A: torch.Tensor) -> torch.Tensor:
        vars(self)["before_A"] = advantage_A
        return super().whitened(advantage_A)


@dataclass(frozen=True, eq=False)
class StepTerms:
    """The terms of all tokens of one stored update; `of` makes them, `written` has those of one attempt."""

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
        algorithm, batch = config_of_run(run, ["algorithm"]).algorithm, step_facts(run, step)
        found = stored_loss(table, algorithm)
        if found is None:
            raise DataError(
                f"step {step}, update {table.update} stored no logprobs of the policy: there is no loss to write out"
            )
        used_T = torch.from_numpy(table["used"].copy())
        kept_N = batch.scored_N & algorithm.filter.kept(
            batch.reward_N, batch.group_of_trajectory_N, batch.scored_N
        )
        made = credit_inputs(algorithm, batch, kept_N)
        inputs = _Whitened(**{each.name: getattr(made, each.name) for each in fields(made)})
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
            *found,
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
        """(rows in the order of computing, numbers per token of the attempt) of attempt `number`, counted over all groups.
        NaN: the number does not exist for this token."""
        at = self.table["trajectory"] == number
        rows, arrays_T = [*self._credit_rows(number)], {}
        for each, values_T in (*self._advantages(number), *self._losses()):
            rows.append(each)
            if values_T is not None:
                arrays_T[each["array"]] = values_T
        rows += self._checks()
        return rows, {
            name: np.asarray(values_T, np.float64)[at] for name, values_T in arrays_T.items()
        }

    # -------------------------------------------------------------------------------------------- from rewards to credit

    def _credit_rows(self, number: int) -> list[Row]:
        batch, inputs = self.inputs.batch, self.inputs
        if not bool(inputs.kept_N[number]):
            why = "left out by the filter" if bool(batch.scored_N[number]) else "not scored"
            return [
                {
                    "name": "reward",
                    "text": f"{float(batch.reward_N[number])!r}, {why}: it weighs nothing",
                }
            ]
        raw, seen = float(batch.reward_N[number]), float(inputs.reward_N[number])
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
                    "text": f"mean {mean!r}, std {std!r} (n − 1) of {count} attempts"
                    + (", all the same: there is nothing to compare" if flat else ""),
                }
            )
        return rows

    def _group(self, number: int) -> tuple[int, float, float, bool]:
        inputs, group = self.inputs, int(self.inputs.group_N[number])
        found = group_statistics(inputs.reward_N, inputs.group_N, inputs.kept_N)
        return (
            int(found.count[group]),
            float(found.mean[group]),
            float(found.std[group]),
            bool(found.flat[group]),
        )

    def _advantages(self, number: int) -> list[tuple[Row, Any]]:
        inputs, algorithm, found = self.inputs, self.algorithm, []
        if algorithm.estimator.per != "attempt":
            found.append(
                (
                    {"name": "paid here", "array": "paid", "text": "at this token, of the reward"},
                    self._at(inputs.reward_A),
                )
            )
        if inputs.value_A is not None:
            found.append(
                (
                    {
                        "name": "value",
                        "array": "expected",
                        "text": "what the critic expected before it",
                    },
                    self._at(inputs.value_A),
                )
            )
        said = _formula(
            self.algorithm,
            float(inputs.reward_N[number]),
            self._group(number) if bool(inputs.kept_N[number]) else None,
        )
        before_A = vars(inputs).get("before_A")
        if before_A is not None:
            over = before_A[inputs.whiten_T[inputs.token_A]].double()
            found.append(
                (
                    {
                        "name": "before whitening",
                        "array": "before",
                        "text": f"by {algorithm.estimator.function.__name__}",
                    },
                    self._at(before_A),
                )
            )
            if len(over) > 1:
                said = (
                    f"= (that − {float(over.mean())!r}) / √({float(over.var())!r} + {WHITEN_EPSILON}): mean and variance of "
                    f"{len(over)} tokens"
                )
        trained_T = np.where(
            self.credit.weight_T.numpy() != 0, self.credit.advantage_T.double().numpy(), np.nan
        )
        found.append(({"name": "advantage", "array": "advantage", "text": said}, trained_T))
        return found

    def _at(self, values_A: torch.Tensor) -> np.ndarray:
        """Numbers of the timeline [T], NaN beside it."""
        found = np.full(len(self.table["used"]), np.nan)
        found[self.inputs.token_A.numpy()] = values_A.double().numpy()
        return found

    # -------------------------------------------------------------------------------------------- from credit to the loss

    def _losses(self) -> list[tuple[Row, Any]]:
        found: list[tuple[Row, Any]] = []
        for name in ("new_logp", "old_logp"):
            found.append(
                (
                    {
                        "name": "logprob " + name[:3],
                        "array": name,
                        "text": "nats, when the update was made"
                        if name == "new_logp"
                        else "nats, by the weights that the step began with",
                    },
                    self._of_used(self.table[name][self.used]),
                )
            )
        found += [
            (
                {"name": "ratio", "array": "ratio", "text": _ratio_words(self.algorithm.objective)},
                self._of_used(self.result.ratio_M),
            ),
            (
                {"name": "clip", "array": "clip", "words": CLIP_WORDS, "text": ""},
                self._of_used(self.result.clip_state_M),
            ),
            (
                {
                    "name": "loss of the token",
                    "array": "loss",
                    "text": _loss_words(self.algorithm.objective),
                },
                self._of_used(self.result.loss_M),
            ),
        ]
        if (sampler := self.result.figures.get("sampler_weight")) is not None:
            found.append(
                (
                    {"name": "sampler's weight", "array": "sampler", "text": "in the loss already"},
                    self._of_used(sampler),
                )
            )
        for name, term_T in self.terms_T().items():
            weight_T, denominator = self.shares[name]
            label, key = {
                "policy": ("adds to the loss", "adds"),
                "entropy": ("entropy adds", "entropy_adds"),
                "kl": ("KL adds", "kl_adds"),
            }[name]
            if name == "policy":
                found += [
                    (
                        {
                            "name": "weight",
                            "array": "weight",
                            "text": f"eligibility, and how {self.algorithm.reduction} counts",
                        },
                        self._of_used(weight_T[self.used]),
                    ),
                    (
                        {
                            "name": "denominator",
                            "text": f"{denominator!r}: {DENOMINATORS[self.algorithm.reduction]}",
                        },
                        None,
                    ),
                ]
            adds_T = torch.where(weight_T != 0, term_T * weight_T / denominator, torch.nan)
            found.append(
                (
                    {
                        "name": label,
                        "array": key,
                        "text": "= loss × weight / denominator" if name == "policy" else "",
                    },
                    adds_T.numpy(),
                )
            )
        return found

    def _of_used(self, values_M: Any) -> np.ndarray:
        found = np.full(len(self.table["used"]), np.nan)
        found[self.used] = (
            values_M.detach().numpy() if isinstance(values_M, torch.Tensor) else values_M
        )
        return found

    # -------------------------------------------------------------------------------------------- against what is stored

    def differing(self) -> dict[str, int]:
        """How many tokens of the update differ in a bit from what is stored, by column."""
        table, used = self.table, self.used
        made = {
            "advantage": self.credit.advantage_T.numpy(),
            "weight": self.credit.weight_T.numpy(),
            "ratio": self._of_used(self.result.ratio_M).astype(np.float32),
        }
        return {
            name: int((values[used] != table[name][used]).sum()) for name, values in made.items()
        }

    def _checks(self) -> list[Row]:
        differs = {name: count for name, count in self.differing().items() if count}
        said = (
            "advantage, weight and ratio of every token are the stored ones, to the last bit"
            if not differs
            else "NOT what is stored: "
            + ", ".join(f"{name} of {count} tokens" for name, count in differs.items())
        )
        whole = f"{self.loss!r} over all {len(self.used)} tokens"
        if self.stored is not None:
            whole += (
                ", the stored loss to the last bit"
                if self.loss == self.stored
                else f"; stored is {self.stored!r}"
            )
        return [{"name": "sum", "text": whole}, {"name": "check", "text": said}]


# ------------------------------------------------------------------------------------------------ formulas in words


def _formula(
    algorithm: Algorithm, reward: float, group: tuple[int, float, float, bool] | None
) -> str:
    """Of an attempt's advantage, where its group's statistics are all that it takes; else by which function."""
    function = algorithm.estimator.function
    if function not in (group_relative, rloo) or group is None:
        return f"by {function.__name__}"
    count, mean, std, flat = group
    if flat or count < 2:
        return "nothing to compare with: exactly 0"
    if function is rloo:
        return f"= ({reward!r} − {mean!r}) × {count} / {count - 1}"
    return f"= ({reward!r} − {mean!r})" + (
        f" / ({std!r} + {STD_EPSILON})" if algorithm.normalize_std else ""
    )


def _ratio_words(objective: Objective) -> str:
    if isinstance(objective, GSPOObjective):
        return "= exp of the mean of new − old over its segment, trained tokens only"
    return "= exp(new − old logprob)"


def _loss_words(objective: Objective) -> str:
    if isinstance(objective, (ClipObjective, GSPOObjective)):
        bounds = f"{1 - objective.clip_low:.6g}, {1 + objective.clip_high:.6g}"
        dual = getattr(objective, "dual_clip", 0.0)
        return f"= −min(ratio × advantage, ratio held within [{bounds}] × advantage)" + (
            f", at most {dual} × |advantage| where that is negative" if dual else ""
        )
    if isinstance(objective, CISPOObjective):
        return f"= −(ratio held within [{1 - objective.clip_low:.6g}, {1 + objective.clip_high:.6g}]) × advantage × logprob"
    return f"by {type(objective).__name__}"
