"""Tensors straight from the memory of one process into that of others, which form a group of their own.

    store, port = gate(host, 20)                                                     the sender's: where the others find it
    Line(store, 0, world, backend="gloo", host=host, seconds=20).send(tensors)
    Line(found(host, port, 20), rank, world, ...).receive(shape, dtype)             each receiver's, in the same order

Torch's default group is left alone: a learner of several processes has one, and so has each vLLM worker. On CPUs tensors pass
by gloo, on GPUs by NCCL through the same calls, which was not run here. Nobody is waited for longer than `seconds`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# Bytes that lie beside the model where they are received; more if one tensor is larger.
LOADED_AT_ONCE = 1 << 28


class Line:
    """From the process of rank 0 to all others of `world`. Made by all of them at once; raises RuntimeError where one does not
    come, as `send` and `receive` do where a tensor does not pass in time or the other end is gone."""

    def __init__(
        self, store: dist.Store, rank: int, world: int, *, backend: str, host: str, seconds: float
    ) -> None:
        """`host`: the address of this machine under which the others reach it. `backend`: gloo or nccl."""
        self.device = "cuda" if backend == "nccl" else "cpu"
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            kind = dist.ProcessGroupNCCL
        else:
            options = dist.ProcessGroupGloo._Options()
            kind = dist.ProcessGroupGloo
            # By itself it would look up this machine's name.
            options._devices = [kind.create_device(hostname=host)]
        options._timeout = timedelta(seconds=seconds)
        self._store = store
        self._group = kind(store, rank, world, options)
        self._closed = False

    def send(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._pass(tensor.detach().to(self.device).contiguous())

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next tensor: the sender says elsewhere what it is."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        self._pass(tensor)
        return tensor

    def close(self) -> None:
        """Nothing passes any more. By NCCL, which would wait on the GPU for ever, what is under way is given up; by gloo it ends
        by itself within `seconds`, and until then whoever waits for it keeps the group: taking it away would wait as well."""
        self._closed = True
        if self.device == "cuda":
            self._group.abort()

    def _pass(self, tensor: Tensor) -> None:
        if self._closed:
            raise RuntimeError("the line was closed")
        if tensor.numel():
            options = dist.BroadcastOptions()  # by default from rank 0
            self._group.broadcast([tensor.view(-1)], options).wait()


def announced(weights: Mapping[str, Tensor]) -> list[tuple[str, str, list[int]]]:
    """Name, dtype and shape of each tensor, which receivers get before the tensors come in this order."""
    return [
        (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in weights.items()
    ]


def in_pieces(
    line: Line, announcement: Iterable[tuple[str, str, Sequence[int]]]
) -> Iterator[dict[str, Tensor]]:
    """The weights that were `announced`, as they come: so many of them at a time as take LOADED_AT_ONCE bytes."""
    piece = {}
    size = 0
    for name, dtype, shape in announcement:
        piece[name] = line.receive(shape, getattr(torch, dtype))
        size += piece[name].nbytes
        if size >= LOADED_AT_ONCE:
            yield piece
            piece = {}
            size = 0
    yield piece


def gate(host: str, seconds: float) -> tuple[dist.Store, int]:
    """Where the others find the sender: its store, and the port on which it listens, at this address and no other."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.bind((host, 0))
    listening.listen()
    port = listening.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        None,
        True,
        timedelta(seconds=seconds),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    return store, port


def found(host: str, port: int, seconds: float) -> dist.Store:
    """The sender's store, as the others see it. Raises RuntimeError where nobody is there."""
    return dist.TCPStore(
        host, port, None, False, timedelta(seconds=seconds), wait_for_workers=False
    )


def own_address(host: str, port: int) -> str:
    """The address of this machine under which another one reaches it. Nothing is sent. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect(address)
        return asked.getsockname()[0]
