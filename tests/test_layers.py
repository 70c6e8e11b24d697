"""Imports point down: reads every import of the package and says which value to pass in as an argument instead.

A *room* is a module of `workbench/` or a whole sub-package. Its number is its layer in the architecture (README, "The
rooms"); the digit after the point orders rooms that stand in one layer. A room may import rooms with a smaller number
and itself, nothing else. Imports inside functions count too: a lazy import hides a dependency, it does not remove it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS: dict[str, float] = {
    # 0: the vocabulary
    "errors": 0.0, "sealed": 0.12, "types": 0.1, "seeds": 0.1, "stats": 0.1, "progress": 0.1, "stopping": 0.1, "findings": 0.15, "dumps": 0.15,
    "processes": 0.2,
    # 1: pure tensor functions; one tokenizer; flat storage
    "ops": 1.0, "chat": 1.0, "tiny_tokenizer": 1.0, "batch": 1.1,
    # 2: problems, samplers, how credit is given
    "retrieval": 1.9, "qa": 1.92, "tools": 1.95, "envs": 2.0, "engines": 2.0, "endpoint": 2.0, "algorithms": 2.0, "metrics": 2.0, "rounding": 2.0,
    "demonstrations": 2.1, "search_demonstrator": 2.1,
    # 3: attempts, weights, files, pictures
    "workers": 3.05, "writer": 3.1, "columns": 3.2, "store": 3.3, "run_diff": 3.4, "follow": 3.4, "collect": 3.1, "policy": 3.0, "encoder": 3.0,
    "linting": 3.5, "imported": 3.6, "views": 3.0,
    # 4: learning, and what may be said of it
    "fine_tuning": 4.0, "packing": 3.0, "microbatch": 4.0, "update_report": 4.0, "training_state": 4.0, "ranks": 4.03, "critic": 4.05,
    "learner": 4.1, "checkpoint": 4.0, "replay": 4.1,
    "evaluation": 4.0, "learner_probe": 4.2, "mismatch": 4.3, "bias": 4.2,
    # 5-9: one config; everything it names, opened; cells; doors
    "config": 5.0, "session": 6.0, "cells": 7.0, "shipped": 7.1, "doctor": 7.1,
    "pretrain": 8.0, "ablation": 8.0, "launch": 8.0, "cli": 9.0,
    # the package itself holds only names as text, so anyone may ask it for its version
    "": 0.0,
}

# What to hand in where somebody reaches up: the value that the lower room really needs.
INSTEAD: dict[str, str] = {
    "config": "the few settings it needs, as a frozen dataclass of its own that Config composes",
    "session": "the opened part it needs (engine, policy, learner, environment family)",
    "cells": "a function, made by the cell that calls it",
    "cli": "the parsed value",
    "doctor": "the finding it needs",
    "learner": "the weights, or a function batch -> report",
    "critic": "the values that were computed",
    "ranks": "this process's micro-batches, or the numbers put together",
    "training_state": "the named tensors",
    "checkpoint": "the tensors, or the function that saves them",
    "replay": "the recomputed credit table",
    "evaluation": "the finished evaluation, a plain mapping",
    "bias": "the finished report",
    "collect": "the groups that were collected",
    "policy": "the model and tokenizer it needs",
    "store": "what was read from the run (groups, credit table, metrics)",
    "writer": "the bytes' destination, as a function",
    "columns": "the rows or the table",
    "sealed": "the text or bytes that were read",
    "shipped": "the statement about the policy, a plain mapping",
    "fine_tuning": "the function that tunes a model on transcripts",
    "views": "the View, made by the cell that shows it",
    "engines": "an engine that is already open (the protocol in engines/base.py needs no import at run time)",
    "envs": "an environment family that is already made, or its Task",
    "algorithms": "the credit or the loss function",
    "batch": "the arrays it needs",
    "chat": "the token ids, or a function text -> ids",
    "ops": "the tensor function's result",
    "pretrain": "the policy that was made",
    "demonstrations": "the demonstrations, as text",
    "search_demonstrator": "the demonstrations, as text",
    "metrics": "the metrics, a plain mapping",
    "processes": "a function, named by where it can be imported",
    "workers": "the runner, behind the EnvRunner protocol of envs/runners.py",
    "run_diff": "the finished comparison",
    "follow": "the rows and evaluations that were read",
    "stopping": "nothing: a cell is interrupted by an exception",
    "rounding": "the facts about the machine, a plain mapping",
    "linting": "the finished LintReport (findings.py)",
    "learner_probe": "the gradients",
    "mismatch": "the finished report",
    "imported": "the sequences that were read",
    "dumps": "the arrays",
    "retrieval": "an opened searcher (the protocol in retrieval/base.py)",
    "qa": "the question, as a Task",
    "tools": "the tools that are already made",
    "endpoint": "an Endpoint that is already made",
}

# Rooms that open on any laptop: neither these nor anything they import may need a tensor library.
TENSOR_FREE = (
    "",
    "errors",
    "types",
    "seeds",
    "stats",
    "envs",
    "retrieval",
    "qa",
    "tools",
    "views",
    "sealed",
    "processes",
    "writer",
    "columns",
    "store",
    "run_diff",
    "follow",
    "metrics",
    "demonstrations",
    "search_demonstrator",
    "progress",
    "findings",
    "dumps",
    "imported",
    "endpoint",
)
LAZY_DOOR = (
    "workbench.*"  # `import workbench`, then `workbench.train`: for users; inside it would hide what is imported
)
TENSOR_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "trl", "vllm")


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
    """`workbench.engines.base` -> `engines`; the package itself -> the empty name."""
    return module.split(".")[1] if "." in module else ""


def read_imports(module: str, source: str, modules: frozenset[str], is_package: bool = False) -> Iterator[Import]:
    """Every import in `source`, relative ones resolved; `from workbench import store` names the submodule."""
    tree = ast.parse(source)
    typing_only = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for statement in test.body
        for node in ast.walk(statement)
    }
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [LAZY_DOOR if alias.name == "workbench" else alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, node.module] if node.module else parents)
            full = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in modules else base for name in full]
            if base == "workbench":  # only submodules and `__version__` are there without the lazy table
                targets = [
                    LAZY_DOOR if target == base and not alias.name.startswith("__") else target
                    for target, alias in zip(targets, node.names)
                ]
        else:
            continue
        yield from (Import(module, target, node.lineno, node in typing_only) for target in dict.fromkeys(targets))


def read_package(folder: Path) -> tuple[list[Import], frozenset[str]]:
    """All imports of all modules under `folder`, and the modules' names."""
    files = {
        module_name(path, folder): path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts
    }
    modules = frozenset(files)
    return [
        found
        for name, path in files.items()
        for found in read_imports(name, path.read_text(), modules, path.name == "__init__.py")
    ], modules


def layer_faults(imports: list[Import], modules: frozenset[str], layers: Mapping[str, float] = LAYERS) -> list[str]:
    """One sentence for each import that does not point down, and each module without a layer."""
    faults = [
        f"workbench/{room} has no layer: give it one in LAYERS of tests/test_layers.py (and a line in the README)"
        for room in sorted({room_of(module) for module in modules} - layers.keys())
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
        if upper in layers and lower in layers and layers[lower] >= layers[upper] and not (lower == "" != upper):
            faults.append(
                f"{found.importer} (layer {layers[upper]}) imports {found.target} (layer {layers[lower]}) in line "
                f"{found.line}: imports point down. Take as an argument: "
                f"{INSTEAD.get(lower, 'the value that it needs')}; the caller, who may import both, passes it in"
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
        if root == "workbench" and found.target != LAZY_DOOR and room_of(found.target) not in TENSOR_FREE:
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
    assert not [
        found
        for found in package[0]
        if room_of(found.importer) == "ops"
        and room_of(found.target) not in ("ops", "")
        and found.target.startswith("workbench")
    ], "ops are pure tensor functions: pass tensors and numbers in"


def test_engines_know_no_tasks_and_envs_no_tokens(package):
    """Both stand in layer 2, so the numbers forbid it already; here are the words for it."""
    pairs = {
        (room_of(found.importer), room_of(found.target))
        for found in package[0]
        if found.target.startswith("workbench.")
    }
    assert ("engines", "envs") not in pairs and ("envs", "engines") not in pairs
    assert not pairs & {("envs", "chat"), ("envs", "batch"), ("engines", "chat"), ("views", "learner")}


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
            "workbench.learner",
            "workbench.config",
            "workbench.store",
            "workbench.types",
            "workbench.engines.base",
        }
    )
    imports = list(read_imports(module, source, modules, is_package))
    return layer_faults(imports, modules) + tensor_faults(imports)


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("workbench.types", "from workbench.learner import Learner", "take as an argument: the weights"),
        ("workbench.learner", "def f():\n    import workbench.config", "frozen dataclass of its own"),
        ("workbench.batch", "from workbench import store", "imports workbench.store"),
        ("workbench.envs.base", "from ..engines.base import Engine", "engine that is already open"),
        ("workbench.envs", "from .. import store", "imports workbench.store"),
        ("workbench.envs.base", "import torch", "must open without it"),
        ("workbench.views.tokens", "from workbench.policy import load", "may need torch"),
        ("workbench.session", "import workbench as wb", "import the module itself"),
        ("workbench.session", "from workbench import train", "import the module itself"),
        ("workbench.brand_new", "", "give it one"),
    ],
    ids=lambda value: value if str(value).startswith("workbench.") else "",
)
def test_negative_control_a_bad_import_is_named(module, source, words):
    faults = _faults_of(module, source, is_package=module == "workbench.envs")
    assert any(words.lower() in fault.lower() for fault in faults), faults


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.learner", "import torch\nfrom workbench.types import Group"),
        ("workbench.engines.base", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("workbench.envs.base", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("workbench.store", "from workbench import __version__"),
        ("workbench.config", "from workbench.learner import LearnerConfig"),
    ],
)
def test_good_imports_are_let_through(module, source):
    assert _faults_of(module, source) == []


def _python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def _python_without_tensors(code: str) -> subprocess.CompletedProcess:
    return _python(f"import sys\nfor name in {TENSOR_LIBRARIES}: sys.modules[name] = None\n{code}")
