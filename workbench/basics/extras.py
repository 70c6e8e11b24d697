"""A package that is not installed is named with the extra that brings it.

    import torch        MissingPackageError: this needs torch: pip install 'agent-rl-workbench[train]'

`pip install agent-rl-workbench` brings what reads, lints, shows and compares runs; the rest imports its packages where it
uses them. One that none of Python's finders has comes here, at last. Only imports of this package's own are answered:
a library that tries whether another is there still learns that it is not.
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
    """The finder that is asked last."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name not in EXTRAS:
            return
        frame = sys._getframe(1)
        while (importer := frame.f_globals.get("__name__", "")) in IMPORTS:
            frame = frame.f_back
        if importer.startswith("workbench."):
            from workbench.values.errors import MissingPackageError

            error = MissingPackageError(
                f"this needs {name}, which is not installed: pip install 'agent-rl-workbench[{EXTRAS[name]}]'"
            )
            error.name = name
            raise error


def watch() -> None:
    """From now on what is missing is named. `import workbench` calls it."""
    if Missing not in sys.meta_path:
        sys.meta_path.append(Missing)
