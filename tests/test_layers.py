"""Imports point down: reads every import of the package and says which value to pass in as an argument instead.

A *room* is a sub-package of `workbench/`. Its number is its layer in the architecture (docs/design/packages.md). A room may
import rooms with a smaller number and itself, nothing else. Imports inside functions count too: a lazy import hides a
dependency, it does not remove it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS: dict[str, int] = {
    # 0: what flows. The package itself holds only names as text, so anyone may ask it for its version.
    "": 0,
    "values": 0,
    # 1: files, settings, names of code, extensions: what every package below needs of the machine
    "basics": 1,
    # 2: the whole path once, plainly; text to tokens; tools
    "plain": 2,
    "chat": 2,
    "tools": 2,
    # 3: worlds; what samples; what is kept
    "worlds": 3,
    "engines": 3,
    "run": 3,
    # 4: rollouts; credit and updates
    "rollouts": 4,
    "learn": 4,
    # 5: rules of a step: they look at the core, the core never imports them
    "linting": 5,
    # 6: one config, and the loop over steps
    "training": 6,
    # 7, 8: values to pictures; what a cell of a notebook calls
    "look": 7,
    "look.cells": 8,
    # 9: the terminal
    "cli": 9,
    # 10: the one extension that others stand on
    "extensions.scripted_play": 10,
    # 11: whatever else the core does not import; each of them is a package of its own, and none imports another of them
    "extensions": 11,
}

# What to hand in where somebody reaches up: the value that the lower room really needs.
INSTEAD: dict[str, str] = {
    "basics": "the value that was read, or the function that reads it",
    "plain": "nothing: production asks the plain path only as an algorithm's reference implementation",
    "worlds": "an environment family that is already made, or its Task",
    "tools": "the tools, already made",
    "chat": "the token ids, or a function text -> ids",
    "look": "the View, made by the function that shows it",
    "look.cells": "a function, made by the caller",
    "engines": "an engine that is already open (the protocol in engines/base.py needs no import at run time)",
    "run": "what was read from the run (groups, credit table, metrics), or the function that writes",
    "rollouts": "the groups that were collected, or the finished evaluation",
    "learn": "the weights, the credit, or a function batch -> report",
    "linting": "the finished LintReport (basics/findings.py), or an instrument, as the training loop does",
    "training": "the few settings it needs, as a frozen dataclass of its own that Config composes",
    "cli": "the parsed value",
    "extensions": "a name that the extension's face.toml provides (basics/extensions.py: service, provided)",
}

# Rooms that open on any laptop: neither these nor anything they import may need a tensor library.
TENSOR_FREE = ("", "values", "basics", "tools", "worlds", "look", "run")
LAZY_DOOR = "workbench.*"  # `import workbench`, then `workbench.train`: for users; inside it would hide what is imported
TENSOR_LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "safetensors",
    "trl",
    "vllm",
)


@dataclass(frozen=True)
class Import:
    """One import statement: which module of which package it names, where, and whether only a type checker runs it."""

    importer: str
    target: str
    line: int
    typing_only: bool


def module_name(path: Path, package_folder: Path) -> str:
    parts = path.relative_to(package_folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`workbench.engines.base` -> `engines`; the package itself -> the empty name. What needs a learner stands apart in
    `look.cells`, since a view must open without torch; an extension is a room of its own."""
    parts = module.split(".")
    if parts[1:3] == ["look", "cells"] or (parts[1:2] == ["extensions"] and len(parts) > 2):
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else ""


def layer_of(room: str, layers: Mapping[str, int]) -> int | None:
    """The number of a room; of an extension without one of its own, that of all of them."""
    if room.startswith("extensions.") and room not in layers:
        return layers.get("extensions")
    return layers.get(room)


@cache  # copies of the package hold the same files
def import_statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The imports in a file, and of each whether it is for type checkers alone."""
    nodes = list(ast.walk(ast.parse(source)))
    for_types = {
        node
        for test in nodes
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for statement in test.body
        for node in ast.walk(statement)
    }
    imports = (ast.Import, ast.ImportFrom)
    return [(node, node in for_types) for node in nodes if isinstance(node, imports)]


def read_imports(
    module: str, source: str, modules: frozenset[str], is_package: bool = False
) -> Iterator[Import]:
    """Every import in `source`, relative ones resolved; `from workbench import store` names the submodule."""
    package = module if is_package else module.rpartition(".")[0]
    for node, for_types in import_statements(source):
        if isinstance(node, ast.Import):
            targets = [
                LAZY_DOOR if alias.name == "workbench" else alias.name for alias in node.names
            ]
        else:
            parents = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            base = ".".join([*parents, node.module] if node.module else parents)
            full = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in modules else base for name in full]
            if (
                base == "workbench"
            ):  # only submodules and `__version__` are there without the lazy table
                targets = [
                    LAZY_DOOR if target == base and not alias.name.startswith("__") else target
                    for target, alias in zip(targets, node.names)
                ]
        yield from (
            Import(module, target, node.lineno, for_types) for target in dict.fromkeys(targets)
        )


def read_package(folder: Path) -> tuple[list[Import], frozenset[str]]:
    """All imports of all modules under `folder`, and the modules' names."""
    files = {
        module_name(path, folder): path
        for path in sorted(folder.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    modules = frozenset(files)
    return [
        found
        for name, path in files.items()
        for found in read_imports(name, path.read_text(), modules, path.name == "__init__.py")
    ], modules


def layer_faults(
    imports: list[Import], modules: frozenset[str], layers: Mapping[str, int] = LAYERS
) -> list[str]:
    """One sentence for each import that does not point down, and each module without a layer."""
    faults = [
        f"workbench/{room} has no layer: give it one in LAYERS of tests/test_layers.py, and a line in docs/design/packages.md"
        for room in sorted({room_of(module) for module in modules})
        if layer_of(room, layers) is None
    ]
    for found in imports:
        if found.target.split(".")[0] != "workbench":
            continue
        if found.target == LAZY_DOOR:
            faults.append(
                f"{found.importer} line {found.line}: import the module itself, not the package with its lazy table"
            )
            continue
        lower, upper = room_of(found.target), room_of(found.importer)
        if lower == upper and lower != "":
            continue
        below, above = layer_of(lower, layers), layer_of(upper, layers)
        if below is None or above is None or below < above or lower == "" != upper:
            continue
        instead = INSTEAD.get("extensions" if lower.startswith("extensions.") else lower)
        faults.append(
            f"{found.importer} (layer {above}) imports {found.target} (layer {below}) in line "
            f"{found.line}: imports point down. Take as an argument: "
            f"{instead or 'the value that it needs'}; the caller, who may import both, passes it in"
        )
    return faults


def tensor_faults(imports: list[Import]) -> list[str]:
    """One sentence for each import that makes a tensor-free room need torch or its kin, directly or through a room."""
    faults = []
    for found in imports:
        if room_of(found.importer) not in TENSOR_FREE or found.typing_only:
            continue
        root = found.target.split(".")[0]
        if root in TENSOR_LIBRARIES:
            faults.append(
                f"{found.importer} imports {root} in line {found.line}, but must open without it: take numpy arrays, "
                f"or a function that returns them"
            )
        if (
            root == "workbench"
            and found.target != LAZY_DOOR
            and room_of(found.target) not in TENSOR_FREE
        ):
            faults.append(
                f"{found.importer} imports {found.target} in line {found.line}, which may need torch: take its value "
                f"as an argument"
            )
    return faults


# ------------------------------------------------------------------------------------------------ the package


@pytest.fixture(scope="module")
def package() -> tuple[list[Import], frozenset[str]]:
    return read_package(ROOT / "workbench")


def test_imports_point_down(package):
    assert not (faults := layer_faults(*package)), "\n".join(faults)


def test_tensor_free_rooms_name_no_tensor_library(package):
    assert not (faults := tensor_faults(package[0])), "\n".join(faults)


def test_ops_import_nothing_of_ours(package):
    ops = "workbench.learn.ops"
    assert not [
        found
        for found in package[0]
        if found.importer.startswith(ops)
        and found.target.startswith("workbench")
        and not found.target.startswith(ops)
        and found.target != "workbench.basics.tensors"  # torch, imported on use
    ], "ops are pure tensor functions: pass tensors and numbers in"


def test_engines_know_no_tasks_and_envs_no_tokens(package):
    """The numbers forbid most of it already; here are the words for it."""
    pairs = {
        (room_of(found.importer), room_of(found.target))
        for found in package[0]
        if found.target.startswith("workbench.")
    }
    assert ("engines", "worlds") not in pairs and ("worlds", "engines") not in pairs
    assert not pairs & {
        ("worlds", "chat"),
        ("worlds", "learn"),
        ("engines", "chat"),
        ("look", "learn"),
    }


def test_tensor_free_rooms_import_where_tensor_libraries_are_missing(package):
    """The same claim without trusting the reading above: an interpreter that cannot import those libraries."""
    free = sorted(module for module in package[1] if room_of(module) in TENSOR_FREE)
    done = _python_without_tensors(
        f"import importlib\nfor name in {free}: importlib.import_module(name)\nprint('all', len({free}))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"all {len(free)}"


def test_negative_control_the_blocked_interpreter_does_block():
    done = _python_without_tensors("import torch")
    assert done.returncode == 1 and "torch" in done.stderr


def test_import_workbench_loads_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import workbench\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert _python(code).stdout.strip() == "['workbench']"


# ------------------------------------------------------------------------------------------------ it notices


def _faults_of(module: str, source: str, is_package: bool = False) -> list[str]:
    modules = frozenset(
        {
            module,
            "workbench.learn.learner",
            "workbench.training.config",
            "workbench.run.store",
            "workbench.values",
            "workbench.engines.base",
            "workbench.extensions.scripted_play.playing",
            "workbench.extensions.bias.tasks",
        }
    )
    imports = list(read_imports(module, source, modules, is_package))
    return layer_faults(imports, modules) + tensor_faults(imports)


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        (
            "workbench.values",
            "from workbench.learn.learner import Learner",
            "take as an argument: the weights",
        ),
        (
            "workbench.learn.learner",
            "def f():\n    import workbench.training.config",
            "frozen dataclass of its own",
        ),
        (
            "workbench.values.stats",
            "from workbench.run import store",
            "imports workbench.run.store",
        ),
        (
            "workbench.worlds.base",
            "from ..engines.base import Engine",
            "engine that is already open",
        ),
        ("workbench.worlds", "from ..run import store", "imports workbench.run.store"),
        ("workbench.worlds.base", "import torch", "must open without it"),
        ("workbench.look.tokens", "from workbench.engines.policy import load", "may need torch"),
        ("workbench.training.session", "import workbench as wb", "import the module itself"),
        ("workbench.training.session", "from workbench import train", "import the module itself"),
        (
            "workbench.run.store",
            "from workbench.extensions.scripted_play.playing import play",
            "face.toml provides",
        ),
        (
            "workbench.extensions.collapse.alarms",
            "from workbench.extensions.bias.tasks import Task",
            "face.toml provides",
        ),
        (
            "workbench.extensions.scripted_play.playing",
            "from workbench.extensions.bias.tasks import Task",
            "face.toml provides",
        ),
        ("workbench.brand_new", "", "give it one"),
    ],
    ids=lambda value: value if str(value).startswith("workbench.") else "",
)
def test_negative_control_a_bad_import_is_named(module, source, words):
    faults = _faults_of(module, source, is_package=module == "workbench.worlds")
    assert any(words.lower() in fault.lower() for fault in faults), faults


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.learn.learner", "import torch\nfrom workbench.values import Group"),
        (
            "workbench.engines.base",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        ),
        (
            "workbench.worlds.base",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        ),
        ("workbench.run.store", "from workbench import __version__"),
        ("workbench.training.config", "from workbench.learn.learner import LearnerConfig"),
        (
            "workbench.extensions.collapse.alarms",
            "from workbench.extensions.scripted_play.playing import play",
        ),
    ],
)
def test_good_imports_are_let_through(module, source):
    assert _faults_of(module, source) == []


def _python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def _python_without_tensors(code: str) -> subprocess.CompletedProcess:
    return _python(f"import sys\nfor name in {TENSOR_LIBRARIES}: sys.modules[name] = None\n{code}")
