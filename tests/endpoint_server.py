"""An OpenAI-compatible chat endpoint as a process of its own, standard library only: what it does is named by the model.

    python -m tests.endpoint_server          prints its port, then serves until it is ended

GET /v1/requests gives the bodies of all requests so far. It also plays servers that are broken, in every way that a
test wants to see told.
"""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REQUESTS: list[dict] = []
CALL = '<tool_call>\n{"name": "capital", "arguments": {"country": "Austria"}}\n</tool_call>'


def chunk(finish=None, **delta) -> dict:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def call(index: int, name=None, arguments="", identity=None) -> dict:
    return {
        "tool_calls": [
            {
                "index": index,
                "id": identity,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        ]
    }


def pieces(text: str) -> list[dict]:
    return [chunk(content=text[start : start + 5]) for start in range(0, len(text), 5)]


def replies(model: str, messages: list[dict]) -> list[dict]:
    """The chunks of one reply."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    answer = [*pieces(f"<answer>{results[-1] if results else 'none'}</answer>"), chunk("stop")]
    if model == "text":
        return answer if results else [*pieces(CALL), chunk("stop")]
    if model == "native":
        return (
            answer
            if results
            else [
                *pieces("Let me look."),
                chunk(**call(0, "capital", "", "id-1")),
                chunk(**call(0, arguments='{"country": ')),
                chunk(**call(0, arguments='"Austria"}')),
                chunk("tool_calls"),
                {
                    "id": "c",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "m",
                    "choices": [],
                    "usage": None,
                },
            ]
        )
    if (
        model == "clumsy"
    ):  # one call that is fine, one whose arguments are no JSON, one of a tool that is none
        return (
            answer
            if results
            else [
                chunk(**call(0, "capital", '{"country": "Austria"}', "a")),
                chunk(**call(1, "capital", "{oops", "b")),
                chunk(**call(2, "weather", "{}", "c")),
                chunk("tool_calls"),
            ]
        )
    if model == "talkative":
        return [*pieces("I do not know, let me think about it."), chunk("length")]
    if model == "hostile":
        return [*pieces("<answer>\x1b[31mred\x07\u202e</answer>"), chunk("stop")]
    return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_words) -> None:
        pass

    def _json(self, value, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._json(REQUESTS)

    def _refused(self, model: str) -> bool:
        refusals = {
            "broken": (500, "out of order"),
            "gone": (404, "no such model"),
            "picky": (400, '"auto" tool choice requires --enable-auto-tool-choice'),
        }
        if model == "locked" and self.headers.get("Authorization") != "Bearer sesame":
            self._json({"error": {"message": "wrong key"}}, 401)
            return True
        if model in refusals:
            status, words = refusals[model]
            self._json({"error": {"message": words}}, status)
            return True
        return False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        REQUESTS.append(body)
        model = body["model"]
        if self._refused(model):
            return
        if model == "silent":
            time.sleep(30)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if model == "garbage":
            self.wfile.write(b"data: {this is no JSON\n\n")
        elif model == "shapeless":
            self.wfile.write(b'data: {"choices": "none"}\n\n')
        elif model == "cut":
            self._event(chunk(content="<answer>Vie"))
        elif model == "endless":
            while True:
                self._event(chunk(content="on and "))
                time.sleep(0.02)
        else:
            for each in replies(model, body["messages"]):
                self._event(each)
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # whoever asked has gone
    print(server.server_address[1], flush=True)
    server.serve_forever()
