"""A session with an OpenEnv server: what is asked of it over its WebSocket, and every failure in words.

    session.open(); session.ask("reset", {"seed": 3}); session.ask("step", {"message": "hi"}); session.close()

The server makes an environment for each session. Everything about it is bounded: how long it is waited for, and the
bytes that are read.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from workbench.extensions.adapters.packages import package
from workbench.tools.action_format import shown
from workbench.values.errors import EnvError

_MOST_BYTES = 4_000_000  # of one message of the server
SAID = 300  # characters of the server's own words in an error
_FREED_S = 5.0  # within which a server gives back the session of a trajectory that is over
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class ActionRefused(EnvError):
    """The server's model of an action does not take one. `errors`: as pydantic lists them."""

    def __init__(self, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(f"the action is not valid: {shown(errors, SAID)}")
        self.errors = errors


def address_of(url: str) -> SplitResult | None:
    """Of the server's WebSocket; None where `url` names no server."""
    try:
        parts = urlsplit(url)
        good = (
            parts.scheme in _SCHEMES
            and parts.hostname
            and parts.port != 0
            and parts.username is None
        )
    except ValueError:  # a port that is no number
        return None
    if not good or parts.query or parts.fragment:
        return None
    return parts._replace(scheme=_SCHEMES[parts.scheme], path=f"{parts.path.rstrip('/')}/ws")


class OpenEnvSession:
    """With the server at `url`. `deadline_s`: of connecting and of each answer, by the wall clock."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url = url
        self.deadline_s = deadline_s
        self._held = ExitStack()
        self._socket = None

    def open(self) -> None:
        """Begin anew. Raises EnvError where nothing answers, or not as a WebSocket does."""
        self.close()
        client = package("websockets.sync.client", "'agent-rl-workbench[worlds]'")
        address = address_of(self.url)
        port = address.port or (443 if address.scheme == "wss" else 80)
        try:  # with a socket of our own no redirect is followed, and no proxy is asked
            plain = socket.create_connection((address.hostname, port), timeout=self.deadline_s)
            self._held.enter_context(plain)
            plain.settimeout(None)
            self._socket = self._held.enter_context(
                client.connect(
                    address.geturl(),
                    sock=plain,
                    open_timeout=self.deadline_s,
                    close_timeout=_FREED_S,
                    max_size=_MOST_BYTES,
                )
            )
        except TimeoutError as error:
            raise EnvError(
                f"{self.url} did not answer within {self.deadline_s:g} s (env.deadline_s)"
            ) from error
        except OSError as error:
            raise EnvError(
                f"{self.url} cannot be reached ({error}); is the server running, and is the address right?"
            ) from error
        except package("websockets.exceptions", "websockets").WebSocketException as error:
            raise EnvError(
                f"{self.url} is no OpenEnv server: {address.path} is no WebSocket ({shown(str(error), SAID)})"
            ) from error

    def ask(
        self, kind: str, data: Mapping[str, Any] | None, expected: str = "observation"
    ) -> Mapping[str, Any]:
        """The data of the server's answer; of an observation: `observation`, `reward` (a number or None) and `done`.
        Raises ActionRefused, and EnvError for whatever else is no answer."""
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        until = time.monotonic() + _FREED_S
        while True:
            answer = self._exchanged(message)
            content = answer.get("data") if isinstance(answer.get("data"), dict) else {}
            if answer.get("type") != "error":
                break
            is_full = content.get("code") == "CAPACITY_REACHED"
            if not is_full or kind == "step" or time.monotonic() > until:
                raise self._error(kind, content)
            time.sleep(0.05)  # a trajectory that is over gives back its session a moment later
            self.open()
        if answer.get("type") != expected:
            raise EnvError(
                f"{self.url} answered {kind} with {shown(answer, SAID)}, expected the type {expected!r}; is it an "
                "OpenEnv server?"
            )
        return self._observed(content) if expected == "observation" else content

    def _exchanged(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        closed = package("websockets.exceptions", "websockets").ConnectionClosed
        try:
            with suppress(closed):  # what it said before it ended the session is read all the same
                self._socket.send(json.dumps(message))
            text = self._socket.recv(timeout=self.deadline_s)
        except TimeoutError as error:
            raise EnvError(
                f"{self.url} did not answer {message['type']} within {self.deadline_s:g} s (env.deadline_s)"
            ) from error
        except closed as error:
            raise EnvError(
                f"{self.url} ended the session at {message['type']} ({shown(str(error), SAID)}); did the server "
                "stop?"
            ) from error
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise EnvError(
                f"{self.url} answered {message['type']} with {shown(str(text), SAID)}, expected a JSON object; is "
                "it an OpenEnv server?"
            )
        return answer

    def _error(self, kind: str, content: Mapping[str, Any]) -> EnvError:
        code = content.get("code")
        errors = content.get("errors")
        are_listed = isinstance(errors, list) and all(isinstance(error, dict) for error in errors)
        if code == "VALIDATION_ERROR" and kind == "step" and are_listed:
            return ActionRefused(errors)
        words = shown(content.get("message", content), SAID)
        if code == "CAPACITY_REACHED":
            return EnvError(
                f"{self.url} has no session left ({words}). Each trajectory under way holds one: start the server "
                "with max_concurrent_envs of at least that many (and SUPPORTS_CONCURRENT_SESSIONS = True)"
            )
        return EnvError(f"{self.url} says of {kind}: {shown(code, SAID)}: {words}")

    def _observed(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        seen = data.get("observation")
        reward = data.get("reward")
        done = data.get("done", False)
        good = isinstance(reward, (int, float)) and math.isfinite(reward) or reward is None
        if not isinstance(seen, dict) or not good or not isinstance(done, bool):
            raise EnvError(
                f"{self.url} answered with {shown(data, SAID)}, expected an observation (an object), a reward (a "
                "finite number or null) and done (true or false)"
            )
        reward = None if reward is None else float(reward)
        return {"observation": seen, "reward": reward, "done": done}

    def close(self) -> None:
        """The server's environment is given back. May be called from another thread while one waits for an answer."""
        held = self._held
        self._held = ExitStack()
        held.close()
