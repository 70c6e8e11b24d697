"""Worker processes of one thread each, which end with their parent, however that ends."""
from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ITEMS_PER_PROCESS = 12  # then a new one: what libraries keep from item to item adds up
Item = TypeVar("Item")


def each(items: Sequence[Item], do: Callable[..., Any], arguments: Sequence[Any], workers: int
         ) -> Iterator[tuple[Item, Any]]:
    """(item, do(item, *arguments)) in the order in which they end. Without workers: here, one after the other."""
    if not workers:
        yield from ((item, do(item, *arguments)) for item in items)
        return
    os.environ.update(ONE_THREAD | OFFLINE)  # what the processes begin with
    portion = workers * ITEMS_PER_PROCESS
    for begin in range(0, len(items), portion):
        yield from _portion(items[begin:begin + portion], do, arguments, workers)


def _portion(items: Sequence[Item], do: Callable[..., Any], arguments: Sequence[Any], workers: int
             ) -> Iterator[tuple[Item, Any]]:
    """By fresh processes. A pool can renew them by itself (`max_tasks_per_child`), but that of Python 3.11 then stands
    still now and then, with work left and no process to do it."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=end_with,
                             initargs=(os.getpid(),)) as pool:
        asked = {pool.submit(do, item, *arguments): item for item in items}
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
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
