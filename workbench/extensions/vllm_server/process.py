"""A vLLM server that we started: its command, its log, whether it lives, its end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.basics.beside import SAFE
from workbench.engines.adapter_route import ALLOW
from workbench.engines.vllm_words import BACKEND, EXTENSION
from workbench.extensions.vllm_server.guard import KEY, PLACE
from workbench.values.errors import EngineError

HOST = "127.0.0.1"  # nobody else's
MODEL = "policy"  # the name that requests know it by
# Of the learner's own environment, and of a vLLM that was opened in its process.
NOT_FOR_THE_SERVER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
)
# Arguments of a server that weights are sent to.
CONTROL = {
    "enable_scale_out": True,
    "enable_prompt_tokens_details": True,
    "weight_transfer_config": json.dumps({"backend": BACKEND}),
    "worker_extension_cls": EXTENSION,
}


class ServerProcess:
    """Started by `start`, also once more after its end. Every request to it carries `key`, which is made here. Not
    thread-safe."""

    def __init__(
        self,
        write: Callable[[str], Any],
        arguments: Mapping[str, Any],
        *,
        devices: str = "",
        port: int = 0,
        weights: str = "",
        name: str = MODEL,
        renewed: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`write` puts the model that is served into a folder; `name` is what requests call it. `arguments`: as in vLLM's
        EngineArgs, and options of its server; `renewed` gives those that are others at every start.
        `devices`: its CUDA_VISIBLE_DEVICES ("": all that this process has). `port`: 0 takes a free one, and keeps it.
        `weights`: a folder that goes with the server, should this process be killed. Raises EngineError for a port that
        is taken."""
        if port and not is_free(port):
            raise EngineError(
                f"layout.port = {port} is taken on this machine: end what holds it, name another one, or 0 for "
                "any that is free"
            )
        self._arguments = dict(arguments)
        self._renewed = renewed
        self._devices = devices
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-server-")
        self._model = os.path.join(self._folder.name, "model")
        self._name = name
        write(self._model)
        self._log = Path(self._folder.name, "server.log")
        self._child: subprocess.Popen | None = None
        self._weights = weights
        self._port = port or _free_port()
        self.url = f"http://{HOST}:{self._port}"
        self.key = secrets.token_urlsafe(24)

    def start(self) -> None:
        """Begin to start it, once more if need be: at the same address."""
        self._end(keep=True)
        command = [
            sys.executable,
            SAFE,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            self._model,
            "--host",
            HOST,
            "--port",
            str(self._port),
            "--served-model-name",
            self._name,
            "--allowed-origins",
            "[]",
            "--middleware",
            PLACE,
            *flags(self._arguments | dict(self._renewed())),
        ]
        keeper = [
            sys.executable,
            SAFE,
            "-m",
            "workbench.extensions.vllm_server.keeper",
            os.pathsep.join([self._folder.name, self._weights]),
        ]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [*keeper, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "PYTHONPATH": _import_path(),
            KEY: self.key,
        }
        if CONTROL.items() <= self._arguments.items():
            environment["VLLM_SERVER_DEV_MODE"] = "1"  # has the control routes
        if "enable_lora" in self._arguments:
            environment[ALLOW] = "1"
        for name in NOT_FOR_THE_SERVER:
            environment.pop(name, None)
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices
        return environment

    def wait(self, answers: Callable[[], bool], seconds: float) -> None:
        """Until `answers` says so. Raises EngineError where it ends before, or takes longer; it is stopped then."""
        ends = time.monotonic() + seconds
        while not answers():
            if not self.lives:
                raise EngineError(
                    f"vLLM's server ended while it was starting. If somebody ended it, start or resume the run once "
                    f"more; else its log says why: {self.last_words}"
                )
            if time.monotonic() > ends:
                words = self.last_words
                self._end(keep=True)
                raise EngineError(
                    f"vLLM's server did not answer within {seconds:g} s of being started "
                    f"(layout.start_deadline_s): {words}"
                )
            time.sleep(0.1)

    @property
    def lives(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def last_words(self) -> str:
        """The end of its log: the last error in it, if there is one."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "it left no log"
        if not lines:
            return "it said nothing"
        errors = [line for line in lines if "Error" in line and "Traceback" not in line]
        last = errors[-1] if errors else lines[-1]
        return " ".join(last.split())[-600:]

    def close(self) -> None:
        """End it and all that it started; its folders go, too."""
        self._end(keep=False)
        self._folder.cleanup()

    def _end(self, *, keep: bool) -> None:
        """Nothing to do where it has ended. `keep`: the folders stay, for it is started again."""
        if self._child is None:
            return
        with contextlib.suppress(BrokenPipeError):
            if keep:
                self._child.stdin.write(b"k")
                self._child.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()  # the keeper ends the group
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):  # of whatever outlived the keeper
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child = None


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as the words of a command line."""
    words = ["--disable-uvicorn-access-log"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def _import_path() -> str:
    """Where vLLM's worker finds this package, wherever it is started."""
    own = str(Path(__file__).parents[3])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        return listening.getsockname()[1]


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True
