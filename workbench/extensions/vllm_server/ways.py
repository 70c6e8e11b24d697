"""The ways of weights from learner to server: as files that both read, or by broadcast from memory to memory.

Each keeps the newest weights, because a server that is started anew is given them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import Tensor

from workbench.basics.bounded_http import in_short
from workbench.engines.broadcast import Line, announced, gate, own_address
from workbench.extensions.vllm_server.client import ServerClient
from workbench.values.errors import EngineError

Post = Callable[..., Any]  # a path of the server, and a body: its answer


class Transfer(Protocol):
    size: int  # bytes of the weights that are kept

    def keep(self, weights: Mapping[str, Tensor], version: int) -> None: ...
    def hand_over(
        self, post: Post, seconds: float
    ) -> None: ...  # within an update that was started
    def arrived(self) -> None: ...  # they did: nothing older is needed
    def leave(self) -> None: ...  # the server is gone


def transfer_by(way: str, client: ServerClient, folder: str) -> Transfer:
    """`way`: as in layout.transfer."""
    return LineTransfer(client) if way == "broadcast" else FileTransfer(folder)


class FileTransfer:
    """Safetensors files in `folder`, in the usual case of shared memory."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.size = 0
        self._path: Path | None = None  # of the newest
        # Of those before, while it is not known whether the newest arrived.
        self._older: Path | None = None

    def keep(self, weights: Mapping[str, Tensor], version: int) -> None:
        path = Path(self._folder, f"{version}.safetensors")
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
        try:
            save_file(tensors, path)
        except (OSError, RuntimeError) as error:  # safetensors' own error is a RuntimeError
            path.unlink(missing_ok=True)
            raise EngineError(
                f"the weights of version {version} do not fit into {path.parent} ({error}); name a folder with "
                "room that the server reads too: layout.folder"
            ) from error
        self._remove_older()
        self._older = self._path
        self._path = path
        self.size = path.stat().st_size

    def hand_over(self, post: Post, seconds: float) -> None:
        post("/update_weights", {"update_info": {"path": str(self._path)}})

    def arrived(self) -> None:
        self._remove_older()

    def leave(self) -> None:
        """A file is there for whoever comes."""

    def _remove_older(self) -> None:
        if self._older is not None:
            self._older.unlink(missing_ok=True)
            self._older = None


class LineTransfer:
    """From the learner's memory into that of every worker of a server. The copy that is kept for a server that is started anew
    lies on the CPU; otherwise weights are sent from where they are."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self.size = 0
        self._line: Line | None = None  # to this server; None: not met yet
        self._new: Mapping[str, Tensor] = {}  # not sent yet
        self._kept: Mapping[str, Tensor] = {}

    def keep(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._new = dict(weights)
        self._kept = {
            name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()
        }
        self._backend = "nccl" if any(tensor.is_cuda for tensor in weights.values()) else "gloo"
        self.size = sum(tensor.nbytes for tensor in self._kept.values())

    def hand_over(self, post: Post, seconds: float) -> None:
        weights = self._new or self._kept
        self._new = {}
        update = {"update_info": {"told": announced(weights)}}
        try:
            line = self._line = self._line or self._meet(post, seconds)
            _both(
                lambda: line.send(weights.values()),
                lambda: post("/update_weights", update),
                seconds,
            )
        except BaseException:  # an interrupt as well: what was under way may still pass
            self.leave()
            raise

    def arrived(self) -> None:
        """The copy stays."""

    def leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _meet(self, post: Post, seconds: float) -> Line:
        workers = self._client.call("GET", "/get_world_size")["world_size"]
        try:
            host = own_address(*self._client.address)
            store, port = gate(host, seconds)
        except (OSError, RuntimeError) as error:
            raise EngineError(
                f"no line to {self._client.url} could be opened ({error}); layout.transfer = 'files' needs "
                "none"
            ) from error
        place = {
            "host": host,
            "port": port,
            "world": 1 + workers,
            "backend": self._backend,
            "seconds": seconds,
        }
        return _both(
            lambda: Line(store, 0, 1 + workers, backend=self._backend, host=host, seconds=seconds),
            lambda: post("/init_weight_transfer_engine", {"init_info": place}),
            seconds,
        )


def _both(own: Callable[[], Any], ask: Callable[[], Any], seconds: float) -> Any:
    """Do the own part while the server is asked to do its. What the own part gave. Raises EngineError where either fails, or
    the own one is not over within `seconds` after the answer."""
    done: list[Any] = []

    def work() -> None:
        try:
            done.append(own())
        except Exception as error:  # whatever torch raises of a process that is gone
            done.append(EngineError(f"the broadcast broke off ({in_short(error)})"))

    thread = threading.Thread(target=work, name="workbench-broadcast", daemon=True)
    thread.start()
    try:
        ask()
    except EngineError as error:
        own_side = "the learner's side was still waiting"
        if done and isinstance(done[0], EngineError):
            own_side = str(done[0])
        raise EngineError(f"{error}; {own_side}") from error
    thread.join(seconds)
    if not done:
        raise EngineError(
            f"the server says that all came, and {seconds:g} s later the broadcast is not over"
        )
    if isinstance(done[0], EngineError):
        raise done[0]
    return done[0]
