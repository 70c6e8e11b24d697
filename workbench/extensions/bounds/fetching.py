"""What a run names is not fetched from the hub: whoever made it would choose what this machine downloads.

why_not_fetched("owner/model")      "" where it is here: a folder, a shipped policy, or in the local cache of the hub
"""

from __future__ import annotations

from pathlib import Path

from workbench.basics.shipped import shipped_folder
from workbench.values.errors import MissingPackageError


def why_not_fetched(name: str) -> str:
    """In words; "" for what is here, and for what can be no name on the hub: loading it says what is wrong."""
    try:
        if Path(name).expanduser().is_dir() or (shipped_folder() / name).is_dir():
            return ""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json")
    except MissingPackageError as error:
        return str(error)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # the hub's own for a name that can be none is a ValueError
        return ""
    if isinstance(cached, str):
        return ""
    return (
        f"{name!r} is no folder here, no shipped policy and not in the local cache, and what a run names is not fetched "
        f"unasked. Fetch it once (hf download {name}), or open the run with --trust"
    )
