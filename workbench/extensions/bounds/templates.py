"""Chat templates that strangers wrote, called under limits every time: so much time, memory and output a call.

    bound_template(tokenizer)       from now on `tokenizer.apply_chat_template` renders in another process

A template is a program. Its sandbox keeps it from files and from Python; it may loop without an end, double a text until the
memory is full, or raise a number to a power that is never done, and it may do so behind a condition that no trial meets. So
it is rendered by a child of this process, which is ended where it is over a limit. The child is forked before any weights
are loaded, is one for all templates of this process, and is told what to render; the tokens are made here. What was over a
limit once is not called again. A call takes some 0.2 ms more. Where processes cannot be forked (Windows) nothing is bounded.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase, tokenization_utils_base

from workbench.extensions.bounds.trial import limit_memory
from workbench.values.errors import PolicyError

SECONDS = 8.0  # of one call; a template of a published model takes some milliseconds
MEMORY = 512 << 20  # bytes of the child beyond what it began with
LONGEST = 16 << 20  # characters that a template may write
_MOST_WORDS = 600  # of what a template says when it refuses
_LENGTH = struct.Struct(">Q")
_ORIGINAL = tokenization_utils_base.render_jinja_template
_CALLER: ContextVar[BoundedTemplate | None] = ContextVar("caller", default=None)


def bound_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Render this tokenizer's templates within limits from now on. Whatever is over one raises PolicyError."""
    if hasattr(os, "fork"):
        _keeper()
        tokenizer.apply_chat_template = BoundedTemplate(tokenizer)


class BoundedTemplate:
    """`apply_chat_template` of one tokenizer, with the rendering done elsewhere."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._refusal = ""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        tokenization_utils_base.render_jinja_template = _render
        token = _CALLER.set(self)
        try:
            own = type(self._tokenizer).apply_chat_template
            return own(self._tokenizer, *arguments, **settings)
        finally:
            _CALLER.reset(token)

    def render(self, request: tuple[tuple, dict]) -> Any:
        """What transformers' own function gives for these arguments."""
        if self._refusal:
            raise PolicyError(self._refusal)
        try:
            return _keeper().render(request)
        except _OverLimitError as error:
            self._refusal = (
                f"the chat template {error}, and is not called again: it may have been written to do harm. Take the model "
                "from where it was first published, or put a template that you know into its folder"
            )
            raise PolicyError(self._refusal) from error


def _render(*arguments: Any, **settings: Any) -> Any:
    """In place of transformers' own: bounded for the tokenizers that are, as ever for any other."""
    caller = _CALLER.get()
    if caller is None:
        return _ORIGINAL(*arguments, **settings)
    return caller.render((arguments, settings))


# ------------------------------------------------------------------------------------------------ the other process


class _OverLimitError(Exception):
    """In words, what it did."""


class _Keeper:
    """A child of this process that renders templates, one at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            _serve(theirs)
        theirs.close()

    def render(self, request: tuple[tuple, dict]) -> Any:
        try:
            data = json.dumps(request).encode()
        except (TypeError, ValueError) as error:
            raise PolicyError(
                f"a chat template is given messages, schemas of tools and settings as JSON values: {error}"
            ) from error
        with self._lock:
            try:
                answer = self._asked(data, time.monotonic() + SECONDS)
            except BaseException:
                self.end()
                raise
        if "error" in answer:
            raise TemplateError(answer["error"])
        if "over" in answer:
            raise _OverLimitError(answer["over"])
        return answer["texts"], answer["spans"]

    def _asked(self, data: bytes, until: float) -> dict[str, Any]:
        try:
            self._connection.settimeout(SECONDS)
            self._connection.sendall(_LENGTH.pack(len(data)) + data)
            (length,) = _LENGTH.unpack(self._received(_LENGTH.size, until))
            return json.loads(self._received(length, until))
        except TimeoutError as error:
            raise _OverLimitError(f"took longer than {SECONDS:g} seconds") from error
        except (OSError, EOFError) as error:
            raise _OverLimitError("brought down the process that it ran in") from error

    def _received(self, count: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._connection.settimeout(max(until - time.monotonic(), 1e-3))
            piece = self._connection.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def lives(self) -> bool:
        """Whether it is this process's, and there: something else may have ended it."""
        try:
            return self.owner == os.getpid() and os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def end(self) -> None:
        self._connection.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


_kept: list[_Keeper] = []


def _keeper() -> _Keeper:
    """The one of this process: a forked child has its own."""
    for keeper in _kept:
        if keeper.lives():
            return keeper
    _kept[:] = [_Keeper()]
    return _kept[0]


def _serve(connection: socket.socket) -> None:
    """In the child: render until the other end is closed. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Locks, pipes and sockets of the other process are not held open here.
        own = connection.fileno()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        os.closerange(3, own)
        os.closerange(own + 1, os.sysconf("SC_OPEN_MAX"))
        gc.freeze()  # else the collector would touch, and so copy, what both processes share
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit_memory(MEMORY)
        stream = connection.makefile("rb")
        while header := stream.read(_LENGTH.size):
            request = stream.read(_LENGTH.unpack(header)[0])
            # Where the other process is killed meanwhile, nobody else would end this one.
            used = int(time.process_time() + SECONDS) + 2
            resource.setrlimit(resource.RLIMIT_CPU, (used, resource.RLIM_INFINITY))
            answer = json.dumps(_answer(request)).encode()
            connection.sendall(_LENGTH.pack(len(answer)) + answer)
    finally:
        os._exit(0)


def _answer(request: bytes) -> dict[str, Any]:
    try:
        arguments, settings = json.loads(request)
        texts, spans = _ORIGINAL(*arguments, **settings)
        if sum(map(len, texts)) > LONGEST:
            return {"over": f"wrote more than {LONGEST:,} characters"}
        return {"texts": texts, "spans": spans}
    except MemoryError:
        return {"over": f"took more than {MEMORY >> 20} MB"}
    except Exception as error:  # a template may raise anything at all
        return {"error": str(error)[:_MOST_WORDS]}
