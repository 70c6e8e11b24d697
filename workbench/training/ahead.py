"""Sampling while training (train.staleness = 1): the trajectories of the next step are sampled while this one is learned from.

    step k      learn from its trajectories ───────────────▶ weights k
    step k + 1  sample, by the weights k - 1 ──────────▶ trajectories, for the next turn of the loop

New weights reach the engine between two rollouts and never within one. So every trajectory of a step is of one version, none is
older than the bound, and nothing that was sampled is thrown away: tasks that take long are as frequent as they are drawn.
(Noukhovitch et al. 2024, arXiv 2410.18252; admission instead of discarding: Fu et al. 2025, arXiv 2505.24298.) What was sampled
depends on step, seed and weights alone, not on which side was faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from workbench.engines.base import Completion
from workbench.training.instruments import Instrument
from workbench.training.session import Session, everybodys, rollout
from workbench.training.step import StepRollout, StepWatchers, synchronise
from workbench.values import Groups
from workbench.values.errors import EngineError
from workbench.worlds.base import Wrapped

LONGEST_STOP_S = 30.0  # that a rollout may take to notice that nobody waits for it any more


class Ahead:
    """The rollout of one step ahead. One at a time: `take` it before the next one begins."""

    def __init__(self, session: Session, instruments: Sequence[Instrument], last: int) -> None:
        """`last`: the run's last step; nothing is sampled beyond it."""
        self._session = session
        self._instruments = instruments
        self._last = last
        self._under_way: _Rollout | None = None

    def begin(self, step: int, *, start: bool = False) -> None:
        """Hand the learner's weights to the engine and sample this step with them. `start`: see `Instrument.begin`."""
        if step <= self._last:
            synchronise(self._session)
            self.begin_as_it_is(step, start=start)

    def begin_as_it_is(self, step: int, *, start: bool = False) -> None:
        """The same with the weights that the engine has."""
        watches = StepWatchers(self._session, step, self._instruments, start=start)
        self._under_way = _Rollout(self._session, step, watches)

    def wait(self) -> None:
        """Until nothing is being sampled: then the engine may be used for something else."""
        if self._under_way is not None:
            self._under_way.thread.join()

    def take(self, step: int) -> StepRollout | None:
        """The trajectories of a step, of all processes; None where they were not begun. Raises what sampling them raised."""
        sampled = self._under_way
        self._under_way = None
        if sampled is None:
            return None
        sampled.thread.join()
        if sampled.error is not None:
            raise sampled.error
        groups = sampled.groups
        if self._session.place[1] > 1:
            groups = everybodys(sampled.tasks, groups)
        return StepRollout(groups, sampled.watches, sampled.seconds)

    def stop(self) -> None:
        """Abandon what is under way; nothing of it was stored."""
        if self._under_way is not None:
            self._under_way.engine.abandoned = True
            self._under_way.thread.join(LONGEST_STOP_S)
            self._under_way = None


class _Rollout:
    """A rollout in a thread of its own."""

    def __init__(self, session: Session, step: int, watches: StepWatchers) -> None:
        import torch

        self.tasks = session.train_tasks(step)
        self.watches = watches
        self.engine = _Abandonable(watches.engine)
        self.groups = Groups()
        self.error: BaseException | None = None
        self.seconds = 0.0
        # A setting of each thread: another number rounds otherwise.
        threads = torch.get_num_threads()

        def sample() -> None:
            torch.set_num_threads(threads)
            started = time.perf_counter()
            try:
                self.groups = rollout(
                    session,
                    self.tasks,
                    step=step,
                    purpose="train",
                    engine=self.engine,
                    own_share=True,
                )
            except BaseException as error:  # raised where it is waited for
                self.error = error
            self.seconds = time.perf_counter() - started

        self.thread = threading.Thread(target=sample, name=f"workbench-step-{step}", daemon=True)
        self.thread.start()


class _Abandonable(Wrapped):
    """An engine that stops a rollout which nobody waits for."""

    abandoned = False

    def poll(self) -> list[Completion]:
        if self.abandoned:
            raise EngineError("abandoned: the run ended while its next step was being sampled")
        return self._inside.poll()
