"""The learner's processes as one server sees them: the first one speaks for all, the others hear what came of it."""

from __future__ import annotations

import os
from typing import Any


class ServerRanks:
    """This process among those that torchrun or accelerate started; alone, it has nobody to tell. `cpu`: the policy is on
    the CPU (whoever asks accelerate first fixes its device for the whole process)."""

    def __init__(self, cpu: bool) -> None:
        self._state = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=cpu)

    @property
    def rank(self) -> int:
        return 0 if self._state is None else self._state.process_index

    @property
    def speaks(self) -> bool:
        return self.rank == 0

    def meet(self) -> None:
        """Wait until all are here."""
        if self._state is not None:
            self._state.wait_for_everyone()

    def hear(self, value: Any) -> Any:
        """The first process's `value`; those of the others are not looked at."""
        if self._state is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]
