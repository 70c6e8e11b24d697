"""A vLLM server and the engine over it: started here, or joined where it runs."""

from __future__ import annotations

import copy
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import IO

import torch

from workbench.engines.config import VllmEngineConfig
from workbench.engines.layout import LayoutConfig
from workbench.engines.vllm_core import check_vllm, renewed_arguments, server_arguments
from workbench.engines.vllm_engine import VllmEngine, check_model, context_for
from workbench.extensions.vllm_server.adapters import AdapterTransfer, adapter_arguments
from workbench.extensions.vllm_server.core import ServerCore
from workbench.extensions.vllm_server.guard import KEY
from workbench.extensions.vllm_server.process import CONTROL, ServerProcess
from workbench.extensions.vllm_server.ranks import ServerRanks
from workbench.values.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "workbench-weights-"
OWNER = "owner"  # a file in such a folder, locked by the learner process while that lives
JUST_MADE_S = 60.0  # a folder as young as this may not be locked yet


def open_server_engine(
    model: torch.nn.Module, config: VllmEngineConfig, layout: LayoutConfig, adapter_rank: int = 0
) -> VllmEngine:
    """An engine whose vLLM is a server. Every learner process calls it; the first one starts the server, unless
    `layout.url` names one. `adapter_rank`: of adapters that are sent to it alone; 0: none are. Raises EngineError."""
    check_model(model)
    ranks = ServerRanks(cpu=config.device == "cpu")
    context = context_for(model, config)
    process = None
    folder = ""
    held = None
    url = layout.url
    # Of a server that somebody else started: the user's variable, for the server that the user named.
    key = os.environ.get(KEY, "")
    why = ""
    try:
        if ranks.speaks:
            try:
                if layout.has_files:
                    folder, held = _transfer_folder(layout)
                if not url:
                    process = _process(model, config, layout, context, folder, adapter_rank)
                    url = process.url
                    key = process.key
            except EngineError as error:
                url = ""
                why = str(error)
        url, why, key = ranks.hear((url, why, key))
        if not url:
            raise EngineError(why)
        core = ServerCore(
            url,
            layout,
            rows=config.max_rows,
            cache_tokens=config.cache_tokens,
            ranks=ranks,
            folder=folder,
            process=process,
            adapters=AdapterTransfer(adapter_rank, config.dtype, folder),
            key=key,
        )
    except BaseException:
        if process is not None:
            process.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if held is not None:
        weakref.finalize(core, held.close)
    try:
        core.wait()
        return VllmEngine(core, model, config)
    except BaseException:
        core.close()
        raise


def _process(
    model: torch.nn.Module,
    config: VllmEngineConfig,
    layout: LayoutConfig,
    context: int,
    folder: str,
    adapter_rank: int,
) -> ServerProcess:
    check_vllm()
    hf_config = copy.deepcopy(model.config)
    hf_config.architectures = [type(model).__name__]
    text = model.config.get_text_config(decoder=True)
    arguments = CONTROL | server_arguments(text, config, context + 1)
    if layout.data_parallel > 1:
        arguments["data_parallel_size"] = layout.data_parallel
    if adapter_rank:
        arguments |= adapter_arguments(adapter_rank)
    process = ServerProcess(
        hf_config.save_pretrained,
        arguments,
        devices=layout.devices,
        port=layout.port,
        weights=folder,
        renewed=lambda: renewed_arguments(config),
    )
    process.start()
    return process


def _transfer_folder(layout: LayoutConfig) -> tuple[str, IO[bytes]]:
    """A new folder where weights pass: in the one that the layout names, else in shared memory where there is some. And its
    lock, held while the second is open."""
    within = layout.folder
    if not within:
        shared = os.access(SHARED_MEMORY, os.W_OK)
        within = str(SHARED_MEMORY) if shared else tempfile.gettempdir()
    try:
        clear_left_over(Path(within))
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=within)
        held = Path(folder, OWNER).open("wb")
        fcntl.flock(held, fcntl.LOCK_EX)
        return folder, held
    except OSError as error:
        raise EngineError(
            f"weights cannot pass through {within} ({error.strerror}); layout.folder names a folder that is there, "
            "and that this process writes"
        ) from error


def clear_left_over(within: Path) -> None:
    """Take away what was left where a learner and its server's keeper were killed together: folders that nobody has locked."""
    for folder in within.glob(f"{PREFIX}*"):
        try:
            # Whichever way the clock was set meanwhile: what is in use is locked.
            if abs(time.time() - folder.stat().st_mtime) < JUST_MADE_S:
                continue
            with (folder / OWNER).open("rb+") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # somebody holds it, or it is somebody else's
            continue
