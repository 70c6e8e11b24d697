"""`step.cpp`, `attention.cpp`, `layers.cpp` and `scores.cpp`, each compiled by this machine's C++ compiler and loaded; kept for the next process.

Where: below XDG_CACHE_HOME, or ~/.cache, in agent-rl-workbench/native, under a hash of what the result depends on: the
source, the flags, the compiler and the processor (whose own instructions are used).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from workbench.values.errors import EngineError

SOURCE = Path(__file__).with_name("step.cpp")
ATTENTION = SOURCE.with_name("attention.cpp")
LAYERS = SOURCE.with_name("layers.cpp")
SCORES = SOURCE.with_name("scores.cpp")
SHARED = (SOURCE.with_name("vectors.h"), SOURCE.with_name("threads.h"))  # what they include
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
SECONDS = 120  # that a compiler may take; it takes one or two


def addresses(*tensors: Tensor) -> Iterator[int]:
    """Where the numbers of tensors lie, as a kernel is handed them. Whoever calls keeps the tensors until it is done."""
    return (tensor.data_ptr() for tensor in tensors)


def kept_at() -> Path:
    """The folder of compiled kernels."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "agent-rl-workbench" / "native"


@functools.cache
def kernel(source: Path = SOURCE) -> ctypes.CDLL:
    """The kernel of this source: from the folder, or compiled now. Raises EngineError where there is no compiler, or it
    cannot."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise EngineError(
            f"there is no C++ compiler {compiler!r} (apt install g++, or name another one in CXX)"
        )
    folder = kept_at()
    built = folder / f"{source.stem}-{_key(source, compiler)}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_foreign(folder)
        if not built.exists():
            _build(source, compiler, built)
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"the kernel cannot be built or loaded at {folder}: {error}") from error


def _key(source: Path, compiler: str) -> str:
    version = _run(compiler, "-dumpfullversion", "-dumpmachine").stdout
    texts = [path.read_text(encoding="utf-8") for path in (source, *SHARED)]
    parts = (*texts, *FLAGS, compiler, version, _processor())
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    """What tells this processor's instructions from another's: a home may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    telling = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in telling}))


def _refuse_foreign(folder: Path) -> None:
    """A library is run: whoever may write it runs as this user."""
    facts = folder.stat()
    if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o022):
        raise EngineError(
            f"{folder} belongs to another user, or others may write to it; nothing is loaded from there. Remove it, "
            "or set XDG_CACHE_HOME to a folder of your own"
        )


def _build(source: Path, compiler: str, built: Path) -> None:
    """Compile beside it and rename: two processes that build at once leave one whole file."""
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        out = Path(scratch) / "kernel.so"
        done = _run(compiler, *FLAGS, "-o", str(out), str(source))
        if done.returncode:
            raise EngineError(f"{compiler} cannot compile the kernel: {done.stderr.strip()[:600]}")
        out.replace(built)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
