"""The memory plan as a value: items, totals, a verdict with advice. Shows itself as text, in a notebook, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from workbench.types import View
from workbench.types.view import HasView
from workbench.views.doc import BlankLine, Heading, Note, Table, ViewDocument, WarningLine, numbers
from workbench.views.html import shown

MOMENTS = ("evaluating", "sampling", "updating", "saving")
NOT_COUNTED = (
    "worker processes of environments (about 8 MB each) and what environments themselves hold",
    "what a single operation needs inside, and memory that the allocator keeps in pieces",
    "other processes: each rank of several holds all of this again, and its buckets for the exchange of gradients",
)

# What to do where this item is the largest; for any other, SMALLER.
ADVICE = {
    "activations": "lower learner.micro_batch_tokens (results stay the same), learner.activation_checkpointing=true (the same "
    "results, a third more time), or learner.precision='bf16'",
    "keys and values": "lower engine.cache_tokens (idle attempts are computed again), or train.tasks_per_step and "
    "evaluation.num_tasks",
    "trajectories": "lower train.tasks_per_step, train.group_size or collect.max_turn_tokens",
    "attempts evaluated": "lower evaluation.num_tasks, evaluation.attempts or collect.max_turn_tokens",
}
SMALLER = (
    "take a smaller model: weights, gradients and moments of one are there whole; engine.dtype='bfloat16' "
    "halves the engine's, critic.trunk='policy' saves a critic's, learner.lora_rank trains adapters alone"
)


@dataclass(frozen=True)
class Item:
    """One use of memory: how much, when, and why."""

    name: str
    bytes: int
    moments: tuple[str, ...]  # of MOMENTS
    why: str
    place: str = "device"  # "device": where the policy lives | "host" | "server": each device of a server beside it


@dataclass(frozen=True, repr=False)
class MemoryPlan(HasView):
    """All items, and how much memory there is. `limits`: bytes by place (None: not known)."""

    name: str
    device: str
    parameters: int
    items: tuple[Item, ...]
    limits: dict[str, int | None]
    remarks: tuple[str, ...]

    def at(self, moment: str, place: str) -> int:
        return sum(i.bytes for i in self.items if moment in i.moments and self._place(i) == place)

    def _place(self, item: Item) -> str:
        return "host" if self.device == "cpu" else item.place

    @cached_property
    def totals(self) -> dict[str, tuple[str, int]]:
        """Place -> (the moment that needs most there, bytes)."""
        places = dict.fromkeys(self._place(item) for item in self.items)
        return {
            place: max(
                ((moment, self.at(moment, place)) for moment in MOMENTS), key=lambda pair: pair[1]
            )
            for place in sorted(places)
        }

    @property
    def ok(self) -> bool:
        return all(
            self.limits.get(place) is None or need <= self.limits[place]
            for place, (_, need) in self.totals.items()
        )

    @property
    def verdicts(self) -> tuple[str, ...]:
        lines = []
        for place, (moment, need) in self.totals.items():
            there = self.limits.get(place)
            largest = max(
                (i for i in self.items if moment in i.moments and self._place(i) == place),
                key=lambda item: item.bytes,
            )
            where = {"host": "main memory", "server": "memory of each device of the server"}.get(
                place, f"memory of {self.device}"
            )
            enough = "enough" if there is None or need <= there else "TOO LITTLE"
            fits = "" if there is None else f"; {_size(there)} there are: {enough}"
            lines.append(
                f"{where}: {_size(need)} at most, while {moment}{fits}. Largest: {largest.name}, "
                f"{_size(largest.bytes)} ({largest.bytes / need:.0%})"
            )
            if there is not None and need > there:
                lines.append(f"  -> {ADVICE.get(largest.name, SMALLER)}")
        return tuple(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "name": self.name,
            "device": self.device,
            "parameters": self.parameters,
            "items": [asdict(item) for item in self.items],
            "limits": self.limits,
            "peak": {
                place: {"moment": moment, "bytes": need}
                for place, (moment, need) in self.totals.items()
            },
            "verdicts": list(self.verdicts),
            "remarks": list(self.remarks),
            "not_counted": list(NOT_COUNTED),
        }

    @property
    def view(self) -> View:
        rows = [
            [
                item.name,
                *(_size(item.bytes) if moment in item.moments else "" for moment in MOMENTS),
                item.why,
            ]
            for item in self.items
        ]
        rows += [
            [f"together ({place})", *(_size(self.at(moment, place)) for moment in MOMENTS), ""]
            for place in self.totals
        ]
        head = f"Memory of one process: {self.name}, {self.parameters / 1e6:,.1f} million parameters, on {self.device}"
        notes = [*self.remarks, *(f"not counted: {words}" for words in NOT_COUNTED)]
        return shown(
            ViewDocument(
                (
                    Heading(head),
                    Table(["", *numbers(*MOMENTS), ""], rows, indent="  "),
                    BlankLine(),
                    *(
                        Note(line) if self.ok else WarningLine(line, mark="")
                        for line in self.verdicts
                    ),
                    BlankLine(),
                    *map(Note, notes),
                )
            )
        )


def _size(number: int) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
