"""Who may ask a vLLM server of ours: whoever has its key, and no page of a browser.

vLLM's own key holds for /v1 alone, and its answers may be read by any page. The routes by which weights are handed over, and a
server paused, have no key of their own. So the server is started with this around all of it (`--middleware`), and with a key
in its environment (KEY); a request that does not carry it, or that a page sent, comes to no route.

Runs in the server's process. Standard library only.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

KEY = "WORKBENCH_SERVER_KEY"  # the environment variable that holds it, on both sides
PLACE = "workbench.extensions.vllm_server.guard.ServerGuard"  # as `--middleware` takes it

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class ServerGuard:
    """Around an ASGI application. Raises ValueError where there is no key: it would guard nothing."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.key = os.environ.get(KEY, "")
        if not self.key:
            raise ValueError(f"the environment variable {KEY} holds no key")

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        kind = scope["type"]
        status, why = (0, "")
        if kind in ("http", "websocket"):
            status, why = self.refusal(scope["headers"])
        if not status:
            return await self.app(scope, receive, send)
        if kind == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        body = json.dumps({"error": {"message": why, "code": status}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str]:
        """(status, why) of a request that is not answered; (0, "") of one that is."""
        given = [value for name, value in headers if name.lower() == b"authorization"]
        if any(name.lower() == b"origin" for name, _ in headers):
            return 403, "pages of a browser are not answered (the request has an Origin)"
        if len(given) == 1 and hmac.compare_digest(given[0], b"Bearer " + self.key.encode()):
            return 0, ""
        return (
            401,
            f"expected the key that the server was started with ({KEY}), as Authorization: Bearer KEY",
        )
