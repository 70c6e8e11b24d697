"""Adapters on their way into a vLLM server by its own routes: the learner's end.

keep (peft's two files) ─▶ /v1/load_lora_adapter, under a new name each time ─▶ the older name is unloaded
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from workbench.engines.adapter_route import ALLOW, Adapter
from workbench.engines.layout import ADAPTER_RANKS
from workbench.values.errors import EngineError


def adapter_arguments(rank: int) -> dict[str, Any]:
    """Arguments of a server that takes adapters of this rank, one at a time."""
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank_of_places(rank)}


def rank_of_places(rank: int) -> int:
    """The rank of the places that vLLM's layers have for an adapter of this rank."""
    return next(places for places in ADAPTER_RANKS if places >= rank)


class AdapterTransfer:
    """The learner's end. Of rank 0 nothing goes this way."""

    def __init__(self, rank: int, dtype: str, folder: str) -> None:
        """`folder` is read by the server too; `dtype` is the server's."""
        self._rank = rank
        self._dtype = dtype
        self._folder = folder
        self.sent: Mapping[str, str] = {}  # digests of the newest
        # The first weights of the server: adapters are beside those.
        self.base: Mapping[str, Tensor] | None = None
        self._numbers = itertools.count()
        self._path: Path | None = None  # of the newest; its name is the adapter's
        # Of the one before, while it is not known whether the newest arrived.
        self._older: Path | None = None
        self._listed = ""  # the name that the server has

    def refuse_without(self, holds: Mapping[str, Any], url: str) -> None:
        """Raise EngineError for a server that cannot take adapters. `holds`: its worker's workbench_adapter_room."""
        if not self._rank or holds["rank"] >= self._rank and holds["routes"]:
            return
        if not holds["rank"]:
            missing = "was started without --enable-lora"
        elif holds["rank"] < self._rank:
            missing = f"holds adapters of rank {holds['rank']} at most"
        else:
            missing = f"was started without {ALLOW}=1"
        options = []
        for name, value in adapter_arguments(self._rank).items():
            option = f"--{name.replace('_', '-')}"
            options.append(option if value is True else f"{option} {value}")
        words = " ".join(options)
        raise EngineError(
            f"{url} {missing}, and layout.adapters = 'routes' sends it adapters of rank {self._rank}: start it "
            f"with {ALLOW}=1 and {words}, or set layout.adapters = 'merged'"
        )

    def keep(self, adapter: Adapter | None, weights: Mapping[str, Tensor], label: str) -> None:
        """Write the adapter down, to be handed over; None: `weights` come, and need none. Raises EngineError where it finds
        no room."""
        path = None if adapter is None else self._written(adapter, label)
        self._forget_older()
        self._older = self._path
        self._path = path
        if adapter is not None:
            self.sent = adapter.digests(self._dtype)
        elif self._rank and self.base is None:
            self.base = weights

    def _written(self, adapter: Adapter, label: str) -> Path:
        path = Path(self._folder, f"{label.replace(':', '-')}-{next(self._numbers)}")
        tensors = {
            name: tensor.detach().contiguous().cpu() for name, tensor in adapter.tensors.items()
        }
        try:
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(dict(adapter.stated)))
            save_file(tensors, path / "adapter_model.safetensors")
        except (OSError, RuntimeError) as error:  # safetensors' own error is a RuntimeError
            shutil.rmtree(path, ignore_errors=True)
            raise EngineError(
                f"the adapter {label} does not fit into {self._folder} ({error}); name a folder with room that "
                "the server reads too: layout.folder"
            ) from error
        return path

    @property
    def name(self) -> str:
        """The newest adapter's name in requests; empty: there is none, and requests are for the weights as they are."""
        return "" if self._path is None else self._path.name

    def hand_over(self, post: Callable[..., Any]) -> None:
        """Under a name that the server has never heard: of one that it knows it may keep what it has."""
        adapter = {"lora_name": self.name, "lora_path": str(self._path)}
        post("/v1/load_lora_adapter", adapter, plain=True)
        self.unload(post)
        self._listed = self.name

    def unload(self, post: Callable[..., Any]) -> None:
        """Take the older one off the server's list, for whoever asks for it by name would have it loaded again."""
        if self._listed:
            post("/v1/unload_lora_adapter", {"lora_name": self._listed}, plain=True)
            self._listed = ""

    def arrived(self) -> None:
        """It did, or weights that need none did: nothing older is needed."""
        self._forget_older()

    def leave(self) -> None:
        """The server is another process now, and knows no name."""
        self._listed = ""

    def _forget_older(self) -> None:
        if self._older is not None:
            shutil.rmtree(self._older, ignore_errors=True)
            self._older = None
