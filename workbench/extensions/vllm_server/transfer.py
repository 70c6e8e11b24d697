"""Bringing weights into a server, and holding what arrived against what was sent. The server stays paused: `core` resumes it.

By which way they go (`ways`) makes no difference here; adapters that go alone have their own (`adapters`)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.engines.adapter_route import Adapter
from workbench.engines.digests import digests, unequal
from workbench.engines.layout import LayoutConfig
from workbench.extensions.vllm_server.adapters import AdapterTransfer
from workbench.extensions.vllm_server.client import ServerClient
from workbench.extensions.vllm_server.ways import transfer_by
from workbench.values.errors import EngineError

LOAD_RATE = 100e6  # bytes a second that a transfer makes at least: larger weights have longer
HEAD_BYTES = 256 << 20  # that a server may answer about its head: some rows of the whole vocabulary


class WeightTransfer:
    """Sends one run's weights to one server: the newest weights are kept (in `folder`, if as files), so that they can be sent again."""

    def __init__(
        self,
        client: ServerClient,
        run: str,
        folder: str,
        layout: LayoutConfig,
        adapters: AdapterTransfer,
    ) -> None:
        """`run` is of this run alone: weights of two that use one server by mistake must not be taken for each other's."""
        self._client = client
        self._run = run
        self._deadline_s = layout.sync_deadline_s
        self._way = transfer_by(layout.transfer, client, folder)
        self._adapters = adapters
        self.label = ""  # of the newest weights that arrived, as the server calls them
        self.model = ""  # as it calls their adapter, if that came alone
        self._sent: Mapping[str, str] = {}  # digests of those that are kept, by name
        self._is_base = False  # whether what is kept is what adapters are beside
        self._is_new = False  # whether it was not sent yet

    @property
    def whom(self) -> dict[str, str]:
        """The fields of a request that name the weights it is for."""
        return {"model": self.model} if self.model else {}

    def prepare(
        self, weights: Mapping[str, Tensor], version: int, adapter: Adapter | None = None
    ) -> None:
        """Keep the weights, or an adapter of the first ones, for `send`. Raises EngineError where they find no room; the
        server was not asked then."""
        label = f"{self._run}:{version}"
        if adapter is None or not self._is_base:
            self._keep(weights if adapter is None else self._adapters.base, version)
        self._adapters.keep(adapter, weights, label)
        self._next = label

    def _keep(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._way.keep(weights, version)
        self._sent = digests(weights)
        self._is_new = True
        self._is_base = self._adapters.base is None or weights is self._adapters.base

    def send(self, *, anew: bool = False) -> dict[str, str]:
        """Pause, hand over what is new (`anew`: all that is kept), forget prefixes; the digests of what arrived. Raises
        EngineError, also where those are not what was sent: then the server must not be resumed."""
        seconds = self._deadline_s + self._way.size / LOAD_RATE
        adapters = self._adapters

        def post(path, body=None, *, plain=False, **query):
            return self._client.call("POST", path, body, seconds=seconds, query=query, plain=plain)

        post("/pause", mode="keep")
        if anew or self._is_new:
            adapters.unload(post)  # new weights drop it
            post("/start_weight_update")
            self._way.hand_over(post, seconds)
            post("/finish_weight_update", {"weight_version": self._next})
            arrived = self._arrived(post, "workbench_arrived", self._sent)
        if adapters.name:
            adapters.hand_over(post)
            post("/update_weight_version", {"new_version": self._next})
            arrived = self._arrived(post, "workbench_adapter", adapters.sent)
        post("/reset_prefix_cache")
        self.label = self._next
        self.model = adapters.name
        self._is_new = False
        self._way.arrived()
        adapters.arrived()
        return arrived

    def _arrived(self, post: Any, method: str, sent: Mapping[str, str]) -> dict[str, str]:
        """The digests that every worker reports. Raises EngineError where it is not what was sent."""
        arrived, *others = post("/collective_rpc", {"method": method})["results"]
        for other in others:  # of a server with several workers
            if why := unequal(arrived, other):
                raise EngineError(
                    f"the workers of {self._client.url} do not agree: {why} (rule R33)"
                )
        if why := unequal(sent, arrived):
            raise EngineError(
                f"{self._client.url} did not get the weights {self._next}: {why} (rule R33)"
            )
        return arrived

    def begin_anew(self) -> None:
        """The server is another process now."""
        self._way.leave()
        self._adapters.leave()

    def refuse_a_stranger(self) -> None:
        """Raise EngineError where somebody else has put weights into this server since."""
        held = self._client.call("GET", "/weight_info")["weight_version"]
        if self.label and held.partition(":")[0] != self._run:
            raise EngineError(
                f"{self._client.url} holds the weights {held!r}, and this run gave it {self.label!r}: another run "
                "uses the same server. Give each run a server of its own"
            )

    def comes_back(self, seconds: float) -> bool:
        """Wait for another process to start the server anew, with the weights that it had."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with contextlib.suppress(EngineError):
                held = self._client.call("GET", "/weight_info")["weight_version"]
                if held == self.label and not self._client.call("GET", "/is_paused")["is_paused"]:
                    return True
            time.sleep(0.2)
        return False

    def head_logits(self, hidden_ND: Tensor) -> Tensor:
        """The logits of the server's output head for hidden states, float32 [N, V]."""
        hidden = json.dumps(hidden_ND.float().tolist())
        answer = self._client.call(
            "POST",
            "/collective_rpc",
            {"method": "workbench_head_logits", "args": [hidden]},
            seconds=self._deadline_s,
            most_bytes=HEAD_BYTES,
        )
        return torch.tensor(answer["results"][0])
