"""A package that is not installed, or is and cannot be imported, is named with the command that mends it.

    import torch        MissingPackageError: this needs torch, which is not installed: pip install 'agent-rl-workbench[train]'

`pip install agent-rl-workbench` brings what reads, lints, shows and compares runs; the rest imports its packages where it
uses them. Only imports of this package's own are answered: a library that tries whether another is there still learns
that it is not.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

# Extra of pyproject.toml -> the modules that it brings.
BRINGS = {
    "train": "torch transformers tokenizers huggingface_hub accelerate safetensors peft jinja2 pydantic httpx",
    "frames": "pandas scipy matplotlib PIL pyarrow",
    "lab": "jupyterlab IPython ipywidgets anywidget plotly papermill submitit nbformat "
    "nbclient traitlets tensorboard",
    "quant": "bitsandbytes",
    "smollm2": "gguf",
    "dense": "faiss",
    "mcp": "mcp",
    "agents": "starlette uvicorn",
    "endpoint": "openai",
    "worlds": "gymnasium minigrid reasoning_gym textarena websockets",
    "ray": "ray",
    "vllm": "vllm",
}
EXTRAS: dict[str, str] = {}
for _extra, _modules in BRINGS.items():
    EXTRAS |= dict.fromkeys(_modules.split(), f"[{_extra}]")
EXTRAS |= dict.fromkeys(
    "numpy bm25s cramjam jsonschema psutil tqdm".split(), ""
)  # without an extra
IMPORTS = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external")


class Missing:
    """The finder that is asked first, where this package imports what an extra brings."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in EXTRAS:
            return None
        frame = sys._getframe(1)
        while (importer := frame.f_globals.get("__name__", "")) in IMPORTS:
            frame = frame.f_back
        if not importer.startswith("workbench."):
            return None
        finders = [finder for finder in sys.meta_path if finder is not Missing]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is None:
            raise _mended(name)
        if spec.loader is not None:
            _guard(spec.loader, name)
        return spec


def _guard(loader: Any, name: str) -> None:
    """What breaks while the package itself is imported is named, too."""

    def execute(module: object) -> None:
        del loader.exec_module  # the loader is as it was
        try:
            loader.exec_module(module)
        except Exception as error:
            raise _mended(name, error.__cause__ or error) from error

    loader.exec_module = execute


def _mended(name: str, broken: BaseException | None = None) -> Exception:
    """An error that says which command mends it."""
    from workbench.values.errors import MissingPackageError, shortened

    why, how = "is not installed", ""
    if broken is not None:
        why = f"cannot be imported ({shortened(broken, 300)})"
        how = "--force-reinstall "
    wanted = f"agent-rl-workbench{EXTRAS[name]}"
    error = MissingPackageError(f"this needs {name}, which {why}: pip install {how}'{wanted}'")
    error.name = name
    return error


def watch() -> None:
    """From now on what is missing or broken is named. `import workbench` calls it."""
    if Missing not in sys.meta_path:
        sys.meta_path.insert(0, Missing)
