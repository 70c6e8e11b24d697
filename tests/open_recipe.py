"""Open a config file as it stands, in this process or in each of several, and say what came of it.

    opened(FILE)
    torchrun --nproc_per_node 8 tests/open_recipe.py FILE.toml        a line of JSON by the first process

Everything that training opens is opened: policy, chat format, engine, environment, learner (which holds the processes against those
that the file names), and one task is drawn and begun. Nothing is overridden.
"""

from __future__ import annotations

import json
import sys

from workbench.training.config import load_config_with_warnings
from workbench.training.session import open_session
from workbench.training.starting import refuse_unstartable
from workbench.values.errors import WorkbenchError


def opened(file: str) -> dict:
    config, warnings = load_config_with_warnings(file)
    refuse_unstartable(config)
    session = open_session(config, quiet=True)
    learner, (rank, world) = session.learner, session.place
    [task] = session.train_tasks(1, 1)
    first = session.family.make().reset(task, 0)
    return {
        "file": file,
        "rank": rank,
        "world": world,
        "engine": type(session.engine).__name__,
        "main": learner.is_main,
        "context": session.engine.context_length,
        "said": len(first.messages),
        "warnings": warnings,
    }


if __name__ == "__main__":
    for path in sys.argv[1:]:
        try:
            found = opened(path)
        except WorkbenchError as error:
            found = {"file": path, "main": True, "error": f"{type(error).__name__}: {error}"}
        if found["main"]:
            print(f"\nRECIPE {json.dumps(found)}\n", end="", flush=True)
