"""Clients of the gateway in a process of their own, so that their work is not counted as the gateway's.

    python -m experiments.bench.gateway_clients        a line of JSON on standard input for each conversation

A conversation asks one call after the other with a history that grows, as agents do, over one connection that is kept.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

REPLY = (
    "It was found in the third document: Zumi lives in Tevi, as does her sister, who has a boat."
)


class ClientProcess:
    """The process, and who waits for which conversation. One at a time (`CLIENTS`)."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        command = [sys.executable, "-m", "experiments.bench.gateway_clients"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lock = threading.Lock()
        self._done: dict[str, threading.Event] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def converse(self, order: dict[str, Any]) -> dict[str, Any]:
        """Have a conversation held; what came of it."""
        done = threading.Event()
        with self._lock:
            self._done[order["url"]] = done
            self.process.stdin.write(json.dumps(order) + "\n")
        done.wait()
        return self._answers[order["url"]]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)

    def _listen(self) -> None:
        for line in self.process.stdout:
            answer = json.loads(line)
            self._answers[answer["url"]] = answer
            self._done[answer["url"]].set()


CLIENTS: list[ClientProcess] = []  # the one that runs


def hand_over(task: Any, model: Any) -> str:
    """The program: everything is done by the other process."""
    clients = CLIENTS[-1]
    order = {
        "url": model.url,
        "key": model.key,
        "messages": task.messages,
        "tools": list(task.tools),
        "calls": clients.calls,
    }
    answer = clients.converse(order)
    if answer["fault"]:
        raise RuntimeError(answer["fault"])
    return "x"


# ------------------------------------------------------------------------------------------------ in the other process


def conversation(order: dict[str, Any]) -> None:
    fault = ""
    try:
        _talk(order)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps({"url": order["url"], "fault": fault}) + "\n")
    sys.stdout.flush()


def _talk(order: dict[str, Any]) -> None:
    address = urlsplit(order["url"])
    connection = http.client.HTTPConnection(address.hostname, address.port)
    headers = {"authorization": f"Bearer {order['key']}", "content-type": "application/json"}
    messages = list(order["messages"])
    for _ in range(order["calls"]):
        body = {"model": "policy", "messages": messages, "tools": order["tools"]}
        connection.request("POST", f"{address.path}/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {content[:200]!r}")
        message = json.loads(content)["choices"][0]["message"]
        messages.append(message)
        following = [
            {"role": "tool", "tool_call_id": call["id"], "content": REPLY}
            for call in message.get("tool_calls", ())
        ]
        messages += following or [{"role": "user", "content": REPLY}]


def main() -> None:
    for line in sys.stdin:
        threading.Thread(target=conversation, args=(json.loads(line),)).start()


if __name__ == "__main__":
    main()
