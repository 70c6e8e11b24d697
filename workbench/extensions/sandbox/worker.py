"""Inside a sandbox: runs what it is sent, in one world of names that is kept from call to call. Standard library only.

    -> ["run", code]             <- ["done", {"text", "cut", "error", "said"}]
    -> ["fork"] and a socket     <- ["forked", its process, "" or why not]; the child, which goes on with the socket in
    the
                                    same state, answers there, too
    -> ["ask"...] in between: the code asked for something outside (`QuestionError`), and waits for ["told", value]

Whatever the code does to this process, it can spoil no more than its own answers: who reads them believes nothing but
their length.
"""

from __future__ import annotations

import ast
import io
import json
import linecache
import os
import socket
import struct
import sys
import traceback
from contextlib import suppress
from typing import Any

from workbench.extensions.sandbox.calls import keep_signals_in
from workbench.extensions.sandbox.values import decoded, encoded

LENGTH = struct.Struct(">I")
SAID = 300  # characters of what an exception says


def framed(message: Any) -> bytes:
    """As it goes over a sandbox's socket: its length, and JSON."""
    content = json.dumps(message).encode()
    return LENGTH.pack(len(content)) + content


class QuestionError(Exception):
    """What was asked for outside went wrong; the message says how."""


class _Output(io.TextIOBase):
    """The first bytes of what is printed; the rest is counted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept = []
        self.size = 0
        self.cut = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        fits = data[: max(0, self.most - self.size)]
        if fits:
            self.kept.append(fits)
        self.size += len(fits)
        self.cut += len(data) - len(fits)
        return len(text)


class Pipes:
    """Standard input and output, which may be pipes, as a socket that the other end speaks to."""

    def __init__(self) -> None:
        self._in = os.dup(0)
        self._out = os.dup(1)

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def recvmsg(
        self, most: int, ancillary: int = 0, flags: int = 0
    ) -> tuple[bytes, list, int, None]:
        return os.read(self._in, most), [], 0, None

    def fds(self) -> tuple[int, int]:
        return self._in, self._out


class SandboxProcess:
    """The process of one state."""

    def __init__(self, connection: socket.socket, most_output: int) -> None:
        self.connection = connection
        self.most_output = most_output
        self.cells = 0
        self.where = os.getcwd()
        self.offered: socket.socket | None = None
        self.world: dict[str, Any] = {
            "__name__": "__main__",
            "ask": self.ask,
            "QuestionError": QuestionError,
        }

    def serve(self) -> None:
        """Until the other end is closed."""
        while True:
            verb, *rest = self._receive()
            if verb == "run":
                self._send(["done", self._run(*rest)])
            elif verb == "fork":
                self._fork()

    # -------------------------------------------------------------------------------------------- code

    def _run(self, code: str) -> dict[str, Any]:
        output = _Output(self.most_output)
        error = ""
        words = ""
        sys.stdout = output
        sys.stderr = output
        sys.stdin = io.StringIO()
        self.cells += 1
        try:
            os.chdir(self.where)  # forks find other files at the same place
            self._execute(code, f"<cell {self.cells}>")
        except SystemExit as left:
            error = "exit"
            words = f"exit({left.code!r})"[:SAID]
        except BaseException as raised:
            error = "raised"
            words = _words(raised)
            output.write(_trace(raised))
        with suppress(OSError):
            self.where = os.getcwd()
        text = b"".join(output.kept).decode("utf-8", "replace")
        return {"text": text, "cut": output.cut, "error": error, "said": words}

    def _execute(self, code: str, name: str) -> None:
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self.world)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), self.world)
            if value is not None:
                print(repr(value))

    def ask(self, *question: Any) -> Any:
        """Put plain values to whoever runs this sandbox, and wait for plain values. Raises QuestionError."""
        self._send(["ask", encoded(list(question))])
        verb, well, answer = self._receive()
        if not well:
            raise QuestionError(decoded(answer))
        return decoded(answer)

    # -------------------------------------------------------------------------------------------- forks

    def _fork(self) -> None:
        pid = -1
        why = ""
        try:
            pid = os.fork()
            # Each for itself, or one could still end the other.
            keep_signals_in()
        except OSError as error:
            why = str(error)
        if pid:
            self.offered.close()
        else:
            self.connection.close()
            self.connection = self.offered
        return self._send(["forked", max(0, pid), why])

    # -------------------------------------------------------------------------------------------- messages

    def _send(self, message: Any) -> None:
        self.connection.sendall(framed(message))

    def _receive(self) -> Any:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return json.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece, fds, _, _ = socket.recv_fds(self.connection, min(count - len(data), 1 << 20), 1)
            if fds:
                self.offered = socket.socket(fileno=fds[0])
            if not piece:
                os._exit(0)
            data += piece
        return bytes(data)


def _words(raised: BaseException) -> str:
    try:
        return f"{type(raised).__name__}: {raised}"[:SAID]
    except BaseException:
        return "an exception that cannot be shown"


def _trace(raised: BaseException) -> str:
    """The traceback, by the lines of the program alone: the same wherever the library and this file lie."""
    try:
        trace = traceback.TracebackException.from_exception(raised, limit=-20)
        own = [frame for frame in trace.stack if frame.filename.startswith("<")]
        trace.stack = traceback.StackSummary.from_list(own)
        return "".join(trace.format(chain=False))
    except BaseException:
        return f"{_words(raised)}\n"
