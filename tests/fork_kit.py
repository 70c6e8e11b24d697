"""Forks of this process in which several threads begin to compute at once."""

from __future__ import annotations

import os
import threading

import torch


class LoadsInThreads:
    """A reader that begins to compute in several threads at once, as transformers does."""

    @staticmethod
    def from_pretrained(folder, trust_remote_code):
        gate, faults = threading.Barrier(8), []

        def compute():
            gate.wait()
            try:
                torch.zeros(100_000).add_(1)
            except RuntimeError as error:
                faults.append(str(error))

        threads = [threading.Thread(target=compute) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults


def faults_in_forks(read, most: int = 20, *, first: bool = False) -> list[str]:
    """What `read` raised or returned in forked children, one after the other; the first fault of
    each. `first`: until there is one."""
    torch.set_num_threads(torch.get_num_threads())  # each new thread then asks for torch's pool
    said = []
    for _ in range(most):
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                faults = read()
            except BaseException as error:
                faults = [repr(error)]
            os.write(writing, "".join(faults[:1]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as words:
            said.append(words.read())
        os.waitpid(child, 0)
        if first and said[-1]:
            break
    return [words for words in said if words]
