"""Worker processes of one thread each, which end with their parent, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from typing import Any, TypeVar

from workbench.types.errors import WorkbenchError

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ITEMS_PER_PROCESS = 12  # then a new one: what libraries keep from item to item adds up
# What a killed process had started ends by itself within so many seconds: workers look for their parent twice a second,
# the kernels of Jupyter once.
AFTERLIFE_S = 3.0
MOST_BROKEN = 10
NOTHING = object()
Item = TypeVar("Item")


def each(
    items: Iterable[Item], do: Callable[..., Any], arguments: Sequence[Any], workers: int
) -> Iterator[tuple[Item, Any]]:
    """(item, do(item, *arguments)) in the order in which they end. An item is taken when a process is free for it.
    Where a worker process is killed, what was under way is done again by fresh ones; WorkbenchError where that happens
    MOST_BROKEN times and nothing comes to its end between. Without workers: here, one after the other."""
    if not workers:
        yield from ((item, do(item, *arguments)) for item in items)
        return
    os.environ.update(ONE_THREAD | OFFLINE)  # what the processes begin with
    queue, broken = iter(items), 0
    while (first := next(queue, NOTHING)) is not NOTHING:
        killed: list[Item] = []
        for ended in _portion(chain([first], queue), do, arguments, workers, killed):
            broken = 0
            yield ended
        if killed:
            broken += 1
            if broken == MOST_BROKEN:
                raise WorkbenchError(
                    f"worker processes ended {broken} times before anything was done, last with {killed[0]}: what they write on "
                    'the terminal says why. Too little memory? A script that starts them needs `if __name__ == "__main__":`'
                )
            time.sleep(AFTERLIFE_S)
        queue = chain(killed, queue)


def _portion(
    queue: Iterator[Item],
    do: Callable[..., Any],
    arguments: Sequence[Any],
    workers: int,
    killed: list[Item],
) -> Iterator[tuple[Item, Any]]:
    """By fresh processes; into `killed`: what was under way when one of them was. A pool can renew its processes by
    itself (`max_tasks_per_child`), but that of Python 3.11 then stands still now and then, with work left and no
    process."""
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=end_with,
        initargs=(os.getpid(),),
    ) as pool:
        asked: dict[Future, Item] = {}
        left = workers * ITEMS_PER_PROCESS

        def results(futures: Iterable[Future]) -> Iterator[tuple[Any, Any]]:
            for future in futures:
                item = asked.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    killed.append(item)
                    continue
                yield item, result

        try:
            while not killed:
                while (
                    left and len(asked) < workers and (item := next(queue, NOTHING)) is not NOTHING
                ):
                    left -= 1
                    try:
                        asked[pool.submit(do, item, *arguments)] = item
                    except BrokenProcessPool:
                        killed.append(item)
                        break
                if not asked:
                    return
                yield from results(wait(asked, return_when=FIRST_COMPLETED).done)
            yield from results(
                [*asked]
            )  # of a broken pool: each is done, or will say that it is not
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def end_with(parent: int) -> None:
    """End this process within a second once its parent is gone. A killed parent cannot say so, and a pool's processes
    would wait for more to do forever. What is under way is abandoned; what was committed stays."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
