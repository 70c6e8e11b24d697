"""An agent that is killed: three calls, one after the other. What it asks and what it is answered is written down at once.

Standard library alone, so that it starts quickly. The file is named by SOAK_LOG; a line is one write.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

CALLS = 3


def note(event: str, **facts: object) -> None:
    line = json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\n"
    log = os.open(os.environ["SOAK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, line.encode())
    os.close(log)


def main() -> None:
    messages = json.loads(os.environ["WORKBENCH_TASK"])["messages"]
    headers = {
        "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "content-type": "application/json",
    }
    for number in range(CALLS):
        body = json.dumps({"messages": messages}).encode()
        request = urllib.request.Request(
            f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers
        )
        note("asks", number=number)
        with urllib.request.urlopen(request, timeout=60) as reply:
            message = json.loads(reply.read())["choices"][0]["message"]
        note("answered", number=number, mark=message["id"], text=message["content"])
        messages += [message, {"role": "user", "content": f"And then? ({number})"}]
    print(json.dumps({"reward": os.getpid() % 3}))  # so that groups have something to compare


if __name__ == "__main__":
    main()
