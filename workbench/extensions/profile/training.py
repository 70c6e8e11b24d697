"""Training with its time taken apart (`workbench train --profile`).

While such a run lasts, the functions that do a step's work are replaced by ones that note their seconds; what is computed is
the same to the last bit. Each step's line of the run's clock then has, beside its phases,

    profile/prefill, profile/decode ...   seconds of the wall of a section; `..._cpu`: of the CPU, in its own threads
    profile/prefill_tokens ...            tokens that passed through the model there, and `..._gflop` of its linear layers
    profile/product_gflops                what this device does per second in a matrix product, in each one's precision
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from workbench.basics.replacing import replaced
from workbench.engines.cohort_runner import CohortRunner
from workbench.engines.slot_runner import SlotRunner
from workbench.extensions.profile.sections import Sections
from workbench.extensions.profile.table import PREFIX, profile_table
from workbench.learn import update
from workbench.learn.learner import Learner
from workbench.learn.microbatch import MicroBatch, output_head
from workbench.learn.optimizer import TrainedWeights
from workbench.run.recording import RunWriter
from workbench.training import ahead, loop, step
from workbench.training.session import Session

SIZES = {"cpu": 512}  # rows of the matrices that are multiplied to see what a device can do
SECONDS = 0.3  # that this takes
OTHER_SIZE = 8192


def profiled_training(train: Callable[..., Any]) -> Callable[..., Any]:
    """`train` (config, path, ...) -> run, with its time taken apart: written to the run's clock, printed in the end."""

    def profiled(config: Any, out: Path, *others: Any) -> Any:
        with _Profile():
            run = train(config, out, *others)
        if os.environ.get("RANK", "0") == "0":
            print(profile_table(run.clock_rows(), run.metrics_rows(), run.config))
        return run

    return profiled


class _Profile(ExitStack):
    """Within this block, steps of training are measured."""

    def __enter__(self) -> _Profile:
        super().__enter__()
        self.sections = Sections(self._settle)
        self._session: Session | None = None
        self._replace(loop, "train_step", self._stepping)
        for module in (step, ahead):
            self._section(module, "rollout", "collect")
        for name in ("before", "after"):
            self._section(step.StepWatchers, name, "lint")
        self._replace(RunWriter, "write_clock", self._writing)
        return self

    def _settle(self) -> None:
        """Wait for a device that works on while Python goes on."""
        if self._session is not None and self._session.policy.model.device.type == "cuda":
            torch.cuda.synchronize()

    def _replace(self, owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
        self.enter_context(replaced(owner, name, make))

    def _section(self, owner: Any, name: str, section: str, of: str = "") -> None:
        """Note the seconds of a function as a section, where it runs within the section `of`; not what the lint does with
        it, whose time is its own."""

        def make(straight: Callable) -> Callable:
            def noted(*args: Any, **kwargs: Any) -> Any:
                if not self._counts(of):
                    return straight(*args, **kwargs)
                with self.sections.within(section):
                    return straight(*args, **kwargs)

            return noted

        self._replace(owner, name, make)

    def _counts(self, of: str) -> bool:
        within = self.sections.is_within
        return not within("lint") and (not of or within(of))

    def _stepping(self, straight: Callable) -> Callable:
        def noted(session: Session, *args: Any, **kwargs: Any) -> Any:
            if self._session is None:
                self._session = session
                self._open(session)
            if kwargs.get("ahead") is None:
                self.sections.taken()  # an evaluation came between
            return straight(session, *args, **kwargs)

        return noted

    def _open(self, session: Session) -> None:
        """Note the parts of this session's steps."""
        self._size = _layers(session.learner.models.policy.module)
        self._section(type(session.engine), "poll", "engine", "collect")
        for name in ("reset", "step", "poll"):
            self._section(type(session.runner), name, "environment", "collect")
        self._replace(SlotRunner, "_pass", self._passing_slots)
        self._replace(CohortRunner, "_pass", self._passing_cohort)
        self._section(Learner, "update", "update")
        self._section(Learner, "logprobs", "logprobs", "update")
        self._replace(update, "token_scores", self._scoring)
        self._section(Accelerator, "backward", "backward", "update")
        for name in ("grad_norm", "scale_down", "step"):
            self._section(TrainedWeights, name, "optimizer", "update")

    def _passing_slots(self, straight: Callable) -> Callable:
        def noted(runner: Any, slab: Any, rows: Any, takes: list[int]) -> Any:
            section = "prefill" if max(takes) > 1 else "decode"
            with self._passing("collect", section, sum(takes), len(rows)):
                return straight(runner, slab, rows, takes)

        return noted

    def _passing_cohort(self, straight: Callable) -> Callable:
        def noted(runner: Any, cohort: Any) -> Any:
            section = "prefill" if cohort.first else "decode"
            tokens = cohort.ids.numel() if cohort.first else len(cohort.rows)
            with self._passing("collect", section, tokens, tokens):
                return straight(runner, cohort)

        return noted

    def _scoring(self, straight: Callable) -> Callable:
        def noted(
            model: nn.Module, head: nn.Module, micro: MicroBatch, *args: Any, **named: Any
        ) -> Any:
            with self._passing(
                "update", "forward", micro.input_ids_BL.numel(), len(micro.token_M)
            ) as flop:
                if self._counts("update"):
                    self.sections.count("backward_gflop", 2 * flop)
                return straight(model, head, micro, *args, **named)

        return noted

    def _passing(self, of: str, section: str, tokens: int, scored: int) -> _Pass:
        return _Pass(self, of, section, tokens, scored)

    def _writing(self, straight: Callable) -> Callable:
        def noted(writer: RunWriter, number: int, clock: Any) -> None:
            taken = {f"{PREFIX}{name}": amount for name, amount in self.sections.taken().items()}
            session = self._session
            device = session.policy.model.device.type
            half = session.config.learner.precision == "bf16"
            dtypes = {
                "engine": session.policy.model.dtype,
                "learner": torch.bfloat16 if half else torch.float32,
            }
            for name, dtype in dtypes.items():
                taken[f"{PREFIX}{name}_product_gflops"] = _product_gflops(device, dtype)
            taken[f"{PREFIX}steps"] = 1
            straight(writer, number, {**clock, **taken})

        return noted


class _Pass:
    """One pass through the model: its section, and what went through."""

    def __init__(self, profile: _Profile, of: str, section: str, tokens: int, scored: int) -> None:
        self._sections = profile.sections
        self._counted = profile._counts(of)
        self._section = profile.sections.within(section)
        self._name = section
        self._tokens = tokens
        body, head = profile._size
        self._gflop = 2e-9 * (body * tokens + head * scored)

    def __enter__(self) -> float:
        if self._counted:
            self._sections.count(f"{self._name}_tokens", self._tokens)
            self._sections.count(f"{self._name}_gflop", self._gflop)
            self._section.__enter__()
        return self._gflop

    def __exit__(self, *error: Any) -> None:
        if self._counted:
            self._section.__exit__(*error)


def _layers(model: nn.Module) -> tuple[int, int]:
    """Weights of the linear layers but the output head, and of that."""
    head = output_head(model)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    body = sum(module.weight.numel() for module in linear if module is not head)
    return body, head.weight.numel()


@lru_cache
def _product_gflops(device: str, dtype: torch.dtype) -> float:
    """10^9 operations per second of one large matrix product, with as many threads as training has."""
    size = SIZES.get(device, OTHER_SIZE)
    left = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    until = perf_counter() + SECONDS
    while perf_counter() < until:
        began = perf_counter()
        product = left @ left
        product[0, 0].item()  # waits for the device
        best = min(best, perf_counter() - began)
    return 2e-9 * size**3 / best
