"""Modules of the user's own that lie in the folder one stands in: found by names that the user gave, and by no other.

    look_here()                    what `load_named` is given is found here from now on, and what it imports beside it

Once a folder is on `sys.path`, Python looks there for every module, also for packages that a library only asks for (pandas
for numexpr, torch for torch_xla). Whoever stands in a stranger's folder would run what lies there under such a name
(invariant 16). So the folder is never put on the path. Whoever starts a Python process hands it `SAFE`: `python -m` and
`python -c` put the folder first themselves.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType

SAFE = "-P"  # of an interpreter: its working folder is not on its path
PYTHON = shlex.join(
    [sys.executable, SAFE]
)  # this interpreter, for whoever wants it as words of a shell
# Of a kernel: its log would say of every one that it was interrupted, to be shut down; and what its cells import by name
# is found in its working folder.
KERNEL = [
    "--IPKernelApp.log_level=50",
    f"--IPKernelApp.exec_lines=__import__({__name__!r}, fromlist=['']).look_here('__main__')",
]
VARIABLE = "PYTHONSAFEPATH"  # says the same to an interpreter that others start
_OWN = Path(__file__).resolve().parents[2]  # the folder that this package lies in
_given: set[str] = set()  # modules that the user named
_served: set[str] = set()  # modules that were found in the working folder


def give(module: str) -> None:
    """The user named this module, or one in this package."""
    _given.add(module.partition(".")[0])


def look_here(*also: str) -> None:
    """From now on modules that the user named are found in the working folder, unless they are found elsewhere, and so is
    what those import beside themselves. `also`: modules that count as found there, such as a notebook's own."""
    _served.update(also)
    if also:
        os.environ.pop(VARIABLE, None)  # it was for the kernel, not for what its cells start
    if _Beside not in sys.meta_path:
        sys.meta_path.append(_Beside)


def leave_working_folder() -> None:
    """Take what `python -m` or a relative entry of PYTHONPATH put on the path off it. What the user named in full stays."""
    path = os.environ.get("PYTHONPATH")
    entries = path.split(os.pathsep) if path else []
    named = {os.path.realpath(entry) for entry in entries if os.path.isabs(entry)}
    unnamed = {os.path.realpath(entry) for entry in entries if not os.path.isabs(entry)}
    if getattr(sys.modules["__main__"], "__spec__", None) is not None:  # python -m
        unnamed.add(os.getcwd())
    unnamed -= {*named, str(_OWN)}
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in unnamed]


@contextmanager
def safe_children() -> Iterator[None]:
    """Python processes that libraries start in this block do not look for modules in their working folder."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


class _Beside:
    """Asked last, once a module is found nowhere else."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if path is not None or not (name in _given or _importer(sys._getframe(1)) in _served):
            return None
        try:
            spec = PathFinder.find_spec(name, [os.getcwd()])
        except OSError:  # the folder is gone
            return None
        if spec is not None:
            _served.add(name)
        return spec


def _importer(frame: FrameType | None) -> str:
    """The outermost package of the module whose code asks for an import."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "importlib":
            return package
        frame = frame.f_back
    return ""
