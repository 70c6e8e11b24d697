"""`wb.agents`: a program of one's own as an environment, in a line.

tried = wb.agents("my_agent:solve", tasks="world_qa")            any kind of environment, by name or as a value
tried = wb.agents(my_agent.solve, tasks="questions.jsonl")       rows; also a folder that `datasets` saved
config = wb.load_config("search", {"env": tried})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.basics.plugins import reference_to
from workbench.basics.settings import declarations
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.scoring import judge_of
from workbench.training.kinds import KINDS, TABLES, handed_part
from workbench.training.reading import plain_tree
from workbench.values.errors import ConfigError, nearest


def agents(
    program: str | Callable,
    tasks: Any = "tools",
    *,
    score: str | Callable | None = None,
    settings: Mapping[str, Any] | None = None,
    **others: Any,
) -> ProgramTasks:
    """A program that asks a model over HTTP, as an environment: for `load_config`, `check_env`, and whatever takes one.

    `program`: "module:solve", the function itself (of a module's or a cell's top level), or "command:line COMMAND". `tasks`: a kind of
    environment by its name or as a value, a file of rows, or a folder that `datasets` saved. `score`: a function of the
    finished attempt; without one, that which stands beside the program, else the reward of the tasks. `settings`: of the
    environment of the tasks. `others`: settings of the program's own: most_calls, idle_s, decides ... Raises ConfigError
    for what cannot be started or found.
    """
    known = {setting.name for setting in declarations(ProgramTasks)}
    for name in others:
        if name not in known:
            raise ConfigError(f"wb.agents has no setting {name!r}; {nearest(name, known)}")
    named = _named(program, "program")
    kind, begun = _tasks(tasks)
    scored_by = "" if score is None else _named(score, "score")
    judge = judge_of(named, scored_by)
    if judge is not None and not scored_by:  # written down, so that a reader of the run sees it
        scored_by = reference_to(judge)
    tried = ProgramTasks(
        program=named,
        tasks=kind,
        settings={**begun, **(settings or {})},
        scored_by=scored_by,
        **others,
    )
    tried.check_files()
    return tried


def _named(code: str | Callable, what: str) -> str:
    """The name by which a run finds code again."""
    if isinstance(code, str):
        return code
    if callable(code) and (reference := reference_to(code)):
        return reference
    raise ConfigError(
        f"wb.agents: {what} is {code!r:.80}; hand over 'module:name', or a function that stands at the top level of a "
        "module or of a cell"
    )


def _tasks(tasks: Any) -> tuple[str, dict[str, Any]]:
    """(kind or path, settings) of tasks that are named, or handed over as an environment."""
    if isinstance(tasks, (str, Path)):
        return str(tasks), {}
    if isinstance(tasks, (list, tuple)):
        raise ConfigError(
            "wb.agents: tasks is the name of an environment, an environment, or a file of rows; write rows of your own as "
            "JSON, one a line, into a file that ends in .jsonl, and name it"
        )
    made = handed_part("env", tasks)
    tree = plain_tree(made, TABLES, "env")
    kind = tree.pop("kind", None) or KINDS["env"].kind_of(made)
    return kind, tree
