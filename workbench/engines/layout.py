"""Where sampling and training take place. Torch-free, like all settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from workbench.basics.settings import Inert, above, at_least, check_settings, one_of
from workbench.values.errors import ConfigError

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


@dataclass(frozen=True)
class LayoutConfig:
    """One process on one device, or a vLLM server beside the processes that train."""

    kind: Annotated[
        str,
        one_of("one_device", "one_node", "many_nodes"),
        "one_device: the engine lives in the learner's process; "
        "one_node: a vLLM server on the same machine, started here or joined by url; many_nodes: one that runs "
        "elsewhere, joined by url",
    ] = "one_device"
    url: Annotated[
        str,
        "of a server that is there already, http://host:port; empty: one is started here, and ended with the "
        "run",
    ] = ""
    port: Annotated[
        int, at_least(0, most=65_535), "of the server that is started here; 0: any that is free"
    ] = 0
    devices: Annotated[
        str, "CUDA_VISIBLE_DEVICES of the server that is started here; empty: all"
    ] = ""
    data_parallel: Annotated[
        int,
        at_least(1, most=10_000),
        "copies of the model in the server that is started here, each on devices of its own",
    ] = 1
    transfer: Annotated[
        str,
        one_of("files", "broadcast"),
        "how weights pass from learner to server. files: through a folder "
        "that both read; broadcast: from memory to memory, by gloo on CPUs and NCCL on GPUs",
    ] = "files"
    folder: Annotated[str, "where weights pass as files; empty: shared memory"] = ""
    adapters: Annotated[
        str,
        one_of("merged", "routes"),
        "how adapters (learner.lora_rank) reach the server. merged: with "
        "the weights below them, as all weights; routes: alone, as files, by vLLM's own routes",
    ] = "merged"
    start_deadline_s: Annotated[float, above(0), "that a server may take to start"] = 300.0
    answer_deadline_s: Annotated[
        float, above(0), "that one turn may take; then it is asked again"
    ] = 300.0
    sync_deadline_s: Annotated[
        float, above(0), "that each part of a sync may take, and a second more per 100 MB"
    ] = 20.0

    def __post_init__(self) -> None:
        check_settings(self, "layout")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"layout.url begins with http:// or https://, got {self.url!r}; for example http://127.0.0.1:8000"
            )
        has_way = bool(self.folder) or not self.has_files
        if self.kind == "many_nodes" and not (self.url and has_way):
            raise ConfigError(
                "layout.kind = 'many_nodes' joins a server that runs elsewhere: layout.url says where, and "
                "layout.folder which folder both machines share, unless layout.transfer = 'broadcast' "
                "(adapters by layout.adapters = 'routes' are files all the same)"
            )

    @property
    def has_server(self) -> bool:
        return self.kind != "one_device"

    @property
    def has_files(self) -> bool:
        """Whether anything passes through `folder`."""
        return self.transfer == "files" or self.adapters == "routes"

    def inert_settings(self) -> list[Inert]:
        inert = [
            Inert(part.name, not self.has_server, "layout.kind = 'one_device' has no server")
            for part in fields(self)
            if part.name != "kind"
        ]
        inert.append(
            Inert("folder", not self.has_files, "layout.transfer = 'broadcast' writes no files")
        )
        is_foreign = bool(self.url)
        for name in ("port", "devices", "data_parallel", "start_deadline_s"):
            why = "the server at layout.url was started by somebody else"
            inert.append(Inert(name, is_foreign, why))
        return inert
