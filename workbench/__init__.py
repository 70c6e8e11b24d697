"""Agent RL Workbench: a cell is a function from values to a value that can show itself; training is a loop over cells.

    import workbench as wb
    run = wb.train("tiny")          # every name in PUBLIC below; nothing is imported before it is asked for

`import workbench` itself costs milliseconds and needs only the standard library, so that a finished run opens on a
laptop without torch and an environment's author needs only Python.
"""
from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The whole public surface: name -> "module" or "module:attribute". A name must not be that of a submodule unless it
# *is* that submodule: Python binds a submodule to its package on first import and would silently replace the function.
PUBLIC: dict[str, str] = {
    "types": "workbench.types",
    "errors": "workbench.errors",
}


def __getattr__(name: str) -> Any:
    """Import what stands behind a public name on first use; later uses find it without coming here."""
    if name not in PUBLIC:
        from difflib import get_close_matches
        near = get_close_matches(name, PUBLIC, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(PUBLIC))}"
        raise AttributeError(f"module 'workbench' has no attribute {name!r}{hint}", name=name)
    module_name, _, attribute = PUBLIC[name].partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
