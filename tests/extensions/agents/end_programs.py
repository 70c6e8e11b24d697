"""Programs that end as they should not, or when others do. Named by the tests, imported by runs."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from tests.extensions.agents.programs import ask_once, solve

late: list[int] = []  # statuses of calls after the end
threads: list[threading.Thread] = []
waited: list[bool] = []  # whether the others ended before the one that waits for them
others_ended = threading.Event()
_first = threading.Lock()


def waits_for_the_others(task: Any, model: Any) -> Any:
    """The first trajectory to begin goes on when all others have ended, however long that takes."""
    if _first.acquire(blocking=False):
        waited.append(others_ended.wait(timeout=60))
    return solve(task, model)


def begin_anew() -> None:
    for kept in (late, threads, waited):
        kept.clear()
    others_ended.clear()
    if _first.locked():
        _first.release()


def calls_after_its_end(task: Any, model: Any) -> str:
    """Returns, and leaves a thread behind that goes on asking."""
    ask_once(task, model)
    returned = threading.Event()

    def go_on() -> None:
        returned.wait(10)
        for _ in range(1000):
            status = ask_once(task, model).status_code
            if status != 200:
                break
        late.append(status)

    threads.append(threading.Thread(target=go_on))
    threads[0].start()
    returned.set()
    return "x"


if __name__ == "__main__":  # as a command: asks once, then is killed
    import json
    import urllib.request

    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    body = {"messages": json.loads(os.environ["WORKBENCH_TASK"])["messages"]}
    headers = {
        "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "content-type": "application/json",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).read()
    os.kill(os.getpid(), signal.SIGKILL)
