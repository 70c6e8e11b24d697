"""Models, tokenizers, tensors and arrays of others are read in few places, each of which looks first (invariant 16)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "workbench"
# What reads -> (file, function) that may, and why that is no way in.
ALLOWED = {
    ("from_pretrained", "engines/policy.py", "read_pretrained"): "the door",
    (
        "from_pretrained",
        "extensions/bounds/trial.py",
        "_build",
    ): "in a process of its own, within limits",
    ("from_pretrained", "extensions/bounds/trial.py", "_tokenize"): "likewise",
    (
        "from_config",
        "extensions/bounds/trial.py",
        "_build",
    ): "likewise, and trust_remote_code=False",
    (
        "snapshot_download",
        "engines/policy.py",
        "_download",
    ): "a name that the user gave; safetensors, no code",
    ("load_file", "training/checkpoint.py", "_tensors"): "a checkpoint, whose seal was checked",
    (
        "load_file",
        "engines/vllm_transfer.py",
        "_pieces",
    ): "weights that the learner beside it wrote",
    ("dumps", "extensions/scripted_play/sharing.py", ""): "written to be compared, never read",
    ("dumps", "extensions/scripted_play/reachable.py", ""): "likewise",
}
CALLS = (
    "from_pretrained",
    "snapshot_download",
    "hf_hub_download",
    "load_file",
    "safe_open",
    "load_dataset",
    "from_config",
)
MODULES = {
    "pickle": ("load", "loads", "dump", "dumps", "Unpickler"),
    "torch": ("load",),
    "np": ("load",),
    "numpy": ("load",),
    "joblib": ("load",),
    "marshal": ("load", "loads"),
    "dill": ("load", "loads"),
    "cloudpickle": ("load", "loads"),
}


def readers_in(source: str) -> list[tuple[str, str, ast.Call]]:
    """(what reads, the function it stands in, the call) of everything in a file that reads what others made."""
    found = []

    def walk(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Call):
            name = _reader(node.func)
            if name:
                found.append((name, function, node))
        for child in ast.iter_child_nodes(node):
            walk(child, function)

    walk(ast.parse(source), "")
    return found


def _reader(called: ast.expr) -> str:
    if isinstance(called, ast.Name):
        return called.id if called.id in CALLS else ""
    if not isinstance(called, ast.Attribute):
        return ""
    if called.attr in CALLS:
        return called.attr
    owner = called.value.id if isinstance(called.value, ast.Name) else ""
    return called.attr if called.attr in MODULES.get(owner, ()) else ""


def is_allowed(name: str, file: str, function: str) -> bool:
    return any(
        (name, file) == (reader, place) and inside in ("", function)
        for reader, place, inside in ALLOWED
    )


def test_nothing_is_read_by_another_way():
    seen = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for name, function, call in readers_in(path.read_text()):
            assert is_allowed(name, file, function), (
                f"{file}, {function}: {name}; read it by engines/policy.py"
            )
            seen |= {key for key in ALLOWED if key[:2] == (name, file) and key[2] in ("", function)}
            if name in ("from_pretrained", "from_config"):
                words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                assert words.get("trust_remote_code") == "False", f"{file}, {function}"
    assert seen == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "AutoModel.from_pretrained(name)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "safe_open(path, 'pt')",
        "pickle.loads(data)",
        "def f():\n    return snapshot_download(name)",
    ],
)
def test_each_way_would_be_seen(source):
    """Negative control."""
    [(name, function, _)] = readers_in(source)
    assert not is_allowed(name, "look/somewhere.py", function)


def test_what_only_looks_like_one_is_none():
    assert readers_in("json.loads(x); run.load(1); encoder.load(path)") == []
