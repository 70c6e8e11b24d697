"""A package that is not installed, or is and cannot be imported, is named with the command that mends it.

    import torch        MissingPackageError: this needs torch, which is not installed: pip install 'agent-rl-workbench[train]'

`pip install agent-rl-workbench` brings what reads, lints, shows and compares runs; the rest imports its packages where it
uses them. Only imports of this package's own are answered: a library that tries whether another is there still learns
that it is not.
"""

from __future__ import annotations

import sys

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
    EXTRAS |= dict.fromkeys(_modules.split(), _extra)
IMPORTS = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external")


class Missing:
    """The finder that is asked first, where this package imports what an extra brings."""

    @staticmethod
    def find_spec(name: str, *_: object) -> object:
        if name not in EXTRAS:
            return None
        frame = sys._getframe(1)
        while (importer := frame.f_globals.get("__name__", "")) in IMPORTS:
            frame = frame.f_back
        if importer.startswith("workbench."):
            from workbench.basics.extensions import has_service, service

            if has_service("find_package"):
                return service("find_package", name)(name, EXTRAS[name])
        return None


def watch() -> None:
    """From now on what is missing or broken is named. `import workbench` calls it."""
    if Missing not in sys.meta_path:
        sys.meta_path.insert(0, Missing)
