"""Calls of a step that is not committed yet: each is on the disk before it is answered, and is not sampled again.

    RUN/calls/train-000003-4711.jsonl      a line for each call of step 3, written by process 4711

A program that dies has lost nothing of what it was answered; a trainer that dies begins the step anew, and whatever it is
asked again, in the very same words, by the same weights and with the same seed, is answered as it was. Once a step is
committed its trajectories hold all of it, and its file goes with the next step but one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.canonical_json import read_lines
from workbench.basics.digits import whole_in
from workbench.engines.base import Completion, Request
from workbench.run.writer import append_line, make_folder, remove_file
from workbench.values import Sampling

FOLDER = "calls"
PURPOSE = "train"  # what is neither trained nor committed is not kept


@dataclass(eq=False)
class StepJournal:
    """The calls of one step. `path` None: nothing is kept. `known`: what was stored before, by `digest_of`."""

    path: Path | None = None
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def recall(self, request: Request, version: int) -> Completion | None:
        """The answer that is stored to this very request, by these weights; None: there is none."""
        record = self.known.get(digest_of(request))
        if record is None or record["policy_version"] != version:
            return None
        plain = record["plain_logprobs"]
        return Completion(
            request.id,
            np.array(record["token_ids"], np.int32),
            np.array(record["logprobs"], np.float32),
            record["finish"],
            record["policy_version"],
            Sampling(**record["sampling"]),
            None if plain is None else np.array(plain, np.float32),
        )

    def store(self, request: Request, completion: Completion) -> None:
        """Durable when it returns. Raises StoreError."""
        if self.path is None:
            return
        plain = completion.plain_logprobs
        record = {
            "session": request.session,
            "digest": digest_of(request),
            "token_ids": np.asarray(completion.token_ids).tolist(),
            "logprobs": _floats(completion.logprobs),
            "plain_logprobs": None if plain is None else _floats(plain),
            "finish": completion.finish,
            "policy_version": completion.policy_version,
            "sampling": asdict(completion.sampling),
        }
        append_line(self.path, record)


@dataclass(eq=False)
class CallJournal:
    """Where a run keeps its calls. `run` None: nowhere, until a training run says where it is."""

    run: Path | None = None

    def begin(self, address: tuple[int | str, ...]) -> StepJournal:
        """The journal of what is sampled at this address: (run seed, purpose, step)."""
        if self.run is None or len(address) != 3 or address[1] != PURPOSE:
            return StepJournal()
        step = int(address[2])
        folder = self.run / FOLDER
        make_folder(folder)
        known: dict[str, Mapping[str, Any]] = {}
        for path in sorted(folder.glob(f"{PURPOSE}-*.jsonl")):
            number = whole_in(path.name.split("-")[1])
            if number is not None and number < step - 1:
                remove_file(path)
            elif number == step:
                records = read_lines(path, skip_damaged=True, below=self.run).records
                known |= {record["digest"]: record for record in records}
        return StepJournal(folder / f"{PURPOSE}-{step:06d}-{os.getpid()}.jsonl", known)


def digest_of(request: Request) -> str:
    """Names a request by all that decides what is sampled, and by whose it is."""
    named = replace(request, id=0, prompt_ids=b"", stop_ids=sorted(request.stop_ids))
    digest = blake2b(repr(named).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(request.prompt_ids, np.int32).tobytes())
    return digest.hexdigest()


def _floats(values: Any) -> list[float]:
    return np.asarray(values, np.float32).astype(float).tolist()
