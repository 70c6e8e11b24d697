"""A package that is installed and cannot be imported is said in words, with the command that mends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.basics import extras

ROOT = Path(__file__).resolve().parents[1]
CUDA = "libcudart.so.12: cannot open shared object file: No such file or directory"
# How a package is broken, and what is said of it.
BROKEN = {
    "torch": (f"raise OSError({CUDA!r})", CUDA),
    "transformers": ("import no_such_dependency", "No module named 'no_such_dependency'"),
    "numpy": (
        "try:\n    import no_such_core\n"
        "except ImportError as error:\n    raise ImportError(f'PLEASE READ: {error}') from error\n",
        "No module named 'no_such_core'",
    ),
}
COMMANDS = (["train", "frozenlake"], ["rollout", "bandit"])
ASK = (
    "import sys\nfrom workbench.cli import main\n"
    "for words in {commands}:\n    print(main(words), file=sys.stderr)\n"
)


def asked(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process that finds the packages of `folder` before the installed ones."""
    path = [str(folder), str(ROOT)]
    begin = f"import sys\nsys.path[:0] = {path}\n"
    command = [sys.executable, "-P", "-c", begin + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", BROKEN)
def test_every_command_says_what_is_broken_and_what_mends_it(name, tmp_path):
    source, cause = BROKEN[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(source)
    done = asked(ASK.format(commands=COMMANDS), tmp_path)
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2"] * len(COMMANDS), done.stderr
    for line in lines[::2]:
        assert name == "numpy" or f": this needs {name}, which cannot be imported (" in line
        assert cause in line and "pip install --force-reinstall" in line


def test_other_importers_meet_the_error_as_it_was(tmp_path):
    (tmp_path / "torch.py").write_text(f"raise OSError({CUDA!r})")
    code = "import workbench\ntry: import torch\nexcept OSError as error: print(type(error), error)"
    assert asked(code, tmp_path).stdout.strip() == f"<class 'OSError'> {CUDA}"


def test_negative_control_without_the_finder_it_is_unexpected(tmp_path):
    (tmp_path / "torch.py").write_text(f"raise OSError({CUDA!r})")
    code = "import workbench\nfrom workbench.basics.extras import Missing\nsys.meta_path.remove(Missing)\n"
    done = asked(code + ASK.format(commands=COMMANDS[:1]), tmp_path)
    assert "unexpected OSError" in done.stderr


def test_a_loader_is_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "gguf.py").write_text("NAME = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    space = {"__name__": "workbench.somewhere"}
    exec("import gguf", space)
    assert space["gguf"].NAME == 3 and "exec_module" not in vars(space["gguf"].__loader__)
    assert space["gguf"].__spec__.loader is space["gguf"].__loader__
    assert sys.meta_path[0] is extras.Missing
