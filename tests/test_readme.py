"""The README and the pages of docs/ are run, and their file tree is compared with the tracked files.

Conventions for whoever writes README.md, AGENTS.md or a page of docs/:

    ```bash            every line is a command that a reader may type; all such blocks are run here, in order
    workbench ...      (README.md, docs/start/, the others), in one throw-away copy of the tree (so that one block may
    ```                use the run folder that an earlier one made), by `bash -euo pipefail`, with `workbench` and
                       `python` meaning this environment and this code

A block of nothing but plain `workbench` lines is run without the shell, each line in a process that has torch imported
already: importing it would be most of the time.

    <!-- budget: 90 s -->              on the line before a block: how long it may take (30 s unless said; 240 s in all)
    <!-- not run here: needs a GPU --> on the line before a block: do not run it, for the reason given

Lines beginning with `make` or `git clone` (and the `cd` after it) are never run, for the tests run inside `make test`.
But in every bash block, run or not, each make target must be in the Makefile, and each `workbench` subcommand and
option must be known to the command line. What is no command is fenced as ```text, ```python, ...; a fence without a
language, or tagged sh, shell or console, is refused, for nobody could tell whether it is run.

    <!-- file tree -->                 on the line before the ```text block that shows the tree: one line per entry,
    ```text                            two spaces of indent per folder (or drawn with ├── │ └──), the name, at least
    workbench/     the package         two spaces, and what it is. Folders end in a slash. Every top-level entry that
      types.py     frozen values       git tracks (dot files may be left out) and every module and sub-package of
    ```                                workbench/ must be there, and nothing that is not tracked. One page has it.

In ```python blocks every `wb.NAME` must be a public name. (The blocks after a comment `<!-- an environment -->` and its
like are run by tests/test_readme_examples.py.)
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants import warm
from tests.mutants.run import SERVER, copy_tree
from workbench.basics.extensions import provided

ROOT = Path(__file__).resolve().parents[1]
PAGES = (  # in the order in which their commands run
    *(
        ROOT / name
        for name in ("README.md", "AGENTS.md", "docs/start/install.md", "docs/start/first-look.md")
    ),
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent != ROOT / "docs/start" and not {"made", "notebooks"} & set(path.parts)
    ),
)
DEFAULT_BUDGET_SECONDS, ALL_BUDGETS_SECONDS = 30, 240


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it starts in, and what the comment before it says."""

    language: str
    text: str
    line: int
    budget: int = DEFAULT_BUDGET_SECONDS
    not_run: str | None = None
    is_tree: bool = False
    page: str = "README.md"

    @property
    def place(self) -> str:
        return f"{self.page} line {self.line}"

    def commands(self) -> list[str]:
        """Logical lines: continued lines joined, comments and empty lines left out."""
        joined = re.sub(r"\s*\\\n\s*", " ", self.text)
        return [
            line.strip()
            for line in joined.splitlines()
            if line.strip() and not line.strip().startswith("#")
        ]


def read_blocks(markdown: str, page: str = "README.md") -> list[Block]:
    """All fenced blocks of a page. Raises ValueError for a fence that is never closed."""
    blocks, lines, index = [], markdown.splitlines(), 0
    while index < len(lines):
        if not (opening := re.match(r"^(`{3,})(\S*)\s*$", lines[index])):
            index += 1
            continue
        start = index
        while (index := index + 1) < len(lines) and lines[index].strip() != opening[1]:
            pass
        if index == len(lines):
            raise ValueError(f"{page} line {start + 1}: this fence is never closed")
        comment = next((line for line in reversed(lines[:start]) if line.strip()), "")
        budget = re.fullmatch(r"<!-- budget: (\d+) s -->", comment.strip())
        not_run = re.fullmatch(r"<!-- not run here: (.+) -->", comment.strip())
        blocks.append(
            Block(
                opening[2],
                "\n".join(lines[start + 1 : index]),
                start + 1,
                int(budget[1]) if budget else DEFAULT_BUDGET_SECONDS,
                not_run[1] if not_run else None,
                comment.strip() == "<!-- file tree -->",
                page,
            )
        )
        index += 1
    return blocks


def fence_faults(blocks: list[Block]) -> list[str]:
    """Fences of which nobody could say whether they are run, and budgets that add up to too much."""
    faults = [
        f"{block.place}: fence ```{block.language}: say ```bash (run) or ```text (not a command)"
        for block in blocks
        if block.language in ("", "sh", "shell", "console", "zsh")
    ]
    total = sum(block.budget for block in blocks if block.language == "bash" and to_run(block))
    if total > ALL_BUDGETS_SECONDS:
        faults.append(
            f"the blocks may take {total} s together, expected at most {ALL_BUDGETS_SECONDS}: mark the long ones "
            f"<!-- not run here: why --> or lower their budgets"
        )
    return faults


def to_run(block: Block) -> list[str]:
    """The commands of a block that this test executes."""
    if block.not_run:
        return []
    skipped = re.compile(r"(make|git clone)\b")
    commands = block.commands()
    return [
        command
        for position, command in enumerate(commands)
        if not skipped.match(command)
        and not (
            command.startswith("cd ")
            and position
            and commands[position - 1].startswith("git clone")
        )
    ]


# ------------------------------------------------------------------------------------------------ make and workbench


def make_faults(commands: list[str], makefile: str) -> list[str]:
    """Targets and variables that README names and the Makefile does not know."""
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, flags=re.MULTILINE))
    variables = set(re.findall(r"^([A-Z][A-Z_]*)\s*\??:?=", makefile, flags=re.MULTILINE))
    faults = []
    for command in commands:
        for part in re.split(r"&&|\|\||;", command):
            words = shlex.split(part, comments=True)
            if "make" not in words:
                continue
            for word in words[words.index("make") + 1 :]:
                name, is_variable, _ = word.partition("=")
                if not word.startswith("-") and name not in (variables if is_variable else targets):
                    faults.append(
                        f"`{command}`: the Makefile has no {'variable' if is_variable else 'target'} {name!r}"
                    )
    return faults


def workbench_faults(commands: list[str], helps: dict[str, str]) -> list[str]:
    """Subcommands and options that README names; `helps` maps each subcommand to the text of its --help."""
    faults = []
    for command in commands:
        for part in re.split(r"&&|\|\||;|\|", command):
            words = shlex.split(part, comments=True)
            if "workbench" not in words:
                continue
            rest = words[words.index("workbench") + 1 :]
            if not rest or rest[0] not in helps:
                faults.append(
                    f"`{command}`: no subcommand {rest[:1]}; there are {', '.join(sorted(helps))}"
                )
                continue
            options = [word.partition("=")[0] for word in rest[1:] if word.startswith("--")]
            faults += [
                f"`{command}`: workbench {rest[0]} has no option {option}"
                for option in options
                if not re.search(rf"{re.escape(option)}(?![\w-])", helps[rest[0]])
            ]
    return faults


# ------------------------------------------------------------------------------------------------ the file tree


def read_tree(text: str) -> dict[str, str]:
    """{path: description} of a drawn tree; folders end in a slash. Raises ValueError for a line it cannot place."""
    entries: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        if not line.strip(" │"):
            continue
        plain = re.sub(r"[│├└─]", " ", line)
        indent = len(plain) - len(plain.lstrip())
        name, _, description = plain.strip().partition("  ")
        while parents and parents[-1][0] >= indent:
            parents.pop()
        if indent and not parents:
            raise ValueError(f"file tree: {line!r} is indented, but no folder stands above it")
        path = (parents[-1][1] if parents else "") + name
        if path in entries:
            raise ValueError(f"file tree: {path} is there twice")
        entries[path] = description.strip()
        if name.endswith("/"):
            parents.append((indent, path))
    return entries


def tree_faults(entries: dict[str, str], tracked: list[str]) -> list[str]:
    """What the drawn tree lacks, what it has too much, and lines that say nothing."""
    folders = {
        f"{'/'.join(parts[:depth])}/"
        for name in tracked
        for parts in [name.split("/")]
        for depth in range(1, len(parts))
    }
    real = set(tracked) | folders
    top = {
        path
        for path in real
        if "/" not in path.rstrip("/") and (not path.startswith(".") or path == ".ci/")
    }
    rooms = {
        path
        for path in real
        if re.fullmatch(r"workbench/[^/]+(\.py|/)", path) and not path.endswith("__init__.py")
    }
    covered = {
        f"{'/'.join(parts[:depth])}/"
        for path in entries
        for parts in [path.rstrip("/").split("/")]
        for depth in range(1, len(parts))
    }
    return (
        [
            f"{path} is tracked, but has no line"
            for path in sorted((top | rooms) - entries.keys() - covered)
        ]
        + [f"{path} has a line, but is not tracked" for path in entries if path not in real]
        + [
            f"{path}: say in a few words what it is"
            for path, words in entries.items()
            if path in real and not words
        ]
    )


# ------------------------------------------------------------------------------------------------ these pages


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return [
        block
        for path in PAGES
        for block in read_blocks(path.read_text(), str(path.relative_to(ROOT)))
    ]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A copy of the tree, and variables under which `workbench` and `python` mean that copy."""
    folder = tmp_path_factory.mktemp("readme")
    copy, shims = folder / "tree", folder / "bin"
    copy_tree(ROOT, copy)
    shims.mkdir()
    (shims / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (shims / "workbench").write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "
        f'"import sys; from workbench.cli import main; sys.exit(main())" "$@"\n'
    )
    for shim in shims.iterdir():
        shim.chmod(0o755)
    return copy, {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PATH": f"{shims}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_every_fence_says_what_it_is(blocks):
    assert not (faults := fence_faults(blocks)), "\n".join(faults)


def test_make_targets_and_variables_exist(blocks):
    commands = [
        command for block in blocks if block.language == "bash" for command in block.commands()
    ]
    assert not (faults := make_faults(commands, (ROOT / "Makefile").read_text())), "\n".join(faults)


def test_workbench_commands_and_options_exist(blocks, environment):
    copy, variables = environment
    commands = [
        command
        for block in blocks
        if block.language == "bash"
        for command in block.commands()
        if "workbench " in command
    ]
    named = {
        match
        for command in commands
        for match in re.findall(r"\bworkbench ([a-z][a-z-]*)", command)
    }
    helps = {}
    for name in sorted(named):
        done = subprocess.run(
            ["workbench", name, "--help"],
            cwd=copy,
            env={**variables, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode == 0:
            helps[name] = done.stdout
    assert not (faults := workbench_faults(commands, helps)), "\n".join(faults)


def test_every_command_runs(blocks, environment):
    """One test, not one per block: blocks build on each other, and two workers must not run them twice."""
    copy, variables = environment
    for block in blocks:
        if block.language != "bash" or not (commands := to_run(block)):
            continue
        if all(is_plain(command) for command in commands):
            status, output = run_warm(commands, copy, variables, block.budget)
        else:
            status, output = run_shell(commands, copy, variables, block.budget)
        assert status is not None, (
            f"{block.place}: not done within {block.budget} s:\n{block.text}\n{output}"
        )
        assert status == 0, f"{block.place} ended with {status}:\n{block.text}\n{output[-3000:]}"


def is_plain(command: str) -> bool:
    """A line that needs no shell: `workbench` and its words."""
    return command.startswith("workbench ") and not set(command.partition("#")[0]) & set(
        "|&;<>$`*?~(){}!"
    )


def run_warm(
    commands: list[str], copy: Path, variables: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """(exit status, output) of plain commands, the first that fails being the last; status None: not done in time."""
    output, end = "", time.monotonic() + seconds
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        status, said = warm.run_module(
            SERVER, copy, variables, "workbench.cli", words, end - time.monotonic()
        )
        output += said
        if status != 0:
            return status, output
    return 0, output


def run_shell(
    commands: list[str], copy: Path, variables: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """The same for whatever bash understands."""
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            cwd=copy,
            env=variables,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return None, str(error.output)
    return done.returncode, done.stdout


def test_every_public_name_that_is_shown_exists(blocks):
    import workbench

    public = {*workbench.PUBLIC, *provided("public")}
    missing = [
        f"{block.place}: workbench has no {name!r}"
        for block in blocks
        if block.language == "python"
        for name in re.findall(r"\bwb\.([A-Za-z_]+)", block.text)
        if name not in public
    ]
    assert not missing, "\n".join(missing)


def test_the_pages_are_all_there(blocks):
    """A page that is moved to where nobody looks would not be run any more."""
    read = {block.page for block in blocks}
    assert {
        "README.md",
        "AGENTS.md",
        "docs/start/first-look.md",
        "docs/guides/lint.md",
        "docs/design/packages.md",
    } <= read
    assert len([block for block in blocks if block.language == "bash"]) >= 20


def test_the_file_tree_is_that_of_the_repository(blocks):
    trees = [block for block in blocks if block.is_tree]
    assert len(trees) == 1, f"expected one block after <!-- file tree -->, found {len(trees)}"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tracked = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert not (faults := tree_faults(read_tree(trees[0].text), tracked)), "\n".join(faults)


# ------------------------------------------------------------------------------------------------ it notices


PAGE = """# Title
<!-- budget: 7 s -->
```bash
workbench train tiny \\
    --out runs/a   # a comment
# a comment alone
```

<!-- not run here: needs a GPU -->
```bash
git clone somewhere && cd here
make demo
```
```text
not a command
```
"""


def test_blocks_are_read_with_their_comments():
    first, second, third = read_blocks(PAGE)
    assert (first.language, first.budget, first.line) == ("bash", 7, 3)
    assert first.commands() == ["workbench train tiny --out runs/a   # a comment"]
    assert (
        second.not_run == "needs a GPU"
        and to_run(second) == []
        and second.commands()[1] == "make demo"
    )
    assert third.language == "text" and third.not_run is None


def test_negative_control_a_plain_command_that_fails_ends_the_block(environment):
    commands = ["workbench show --help", "workbench show nowhere", "workbench lint --help"]
    assert (
        all(map(is_plain, commands))
        and not is_plain("workbench show x | head")
        and not is_plain("cd x")
    )
    status, output = run_warm(commands, *environment, 60)
    assert status == 2 and "no run folder" in output and "usage: workbench lint" not in output


def test_clone_and_make_are_left_out_of_what_is_run():
    [block] = read_blocks("```bash\ngit clone x\ncd x\nmake test\nworkbench doctor\n```")
    assert to_run(block) == ["workbench doctor"]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```\nmake demo\n```", "say ```bash"),
        ("```console\n$ make demo\n```", "say ```bash"),
        ("<!-- budget: 999 s -->\n```bash\nworkbench doctor\n```", "may take 999 s"),
    ],
)
def test_negative_control_of_fences(page, words):
    assert words in fence_faults(read_blocks(page))[0]


def test_negative_control_an_open_fence():
    with pytest.raises(ValueError, match="never closed"):
        read_blocks("```bash\nmake demo\n")


def test_negative_control_of_make():
    makefile = "SEEDS ?= 0\nVENV := x\ndemo: setup\n"
    assert make_faults(['make demo SEEDS="0 1 2"', "cd x && make demo"], makefile) == []
    assert make_faults(["make demos"], makefile) == [
        "`make demos`: the Makefile has no target 'demos'"
    ]
    assert "no variable 'SEED'" in make_faults(["make demo SEED=1"], makefile)[0]


def test_negative_control_of_workbench():
    helps = {"train": "usage: workbench train [--out OUT] [--seed-all]"}
    assert (
        workbench_faults(["workbench train tiny --out=runs/a", "workbench train x | head"], helps)
        == []
    )
    assert "no subcommand" in workbench_faults(["workbench trian tiny"], helps)[0]
    assert "no option --seed" in workbench_faults(["workbench train tiny --seed 1"], helps)[0]


@pytest.mark.parametrize(
    "tree",
    [
        "README.md  read me\nworkbench/  the package\n  types.py  values\n  envs/  problems\ntests/  tests",
        "README.md      read me\nworkbench/     the package\n├── types.py   values\n│\n"
        "└── envs/      problems\ntests/         tests",
    ],
)
def test_a_true_tree_passes_and_each_fault_is_named(tree):
    tracked = [
        "README.md",
        "workbench/__init__.py",
        "workbench/types.py",
        "workbench/envs/base.py",
        "tests/test_x.py",
        ".gitignore",
    ]
    entries = read_tree(tree)
    assert entries["workbench/types.py"] == "values" and tree_faults(entries, tracked) == []
    assert tree_faults(entries, [*tracked, "workbench/new.py"]) == [
        "workbench/new.py is tracked, but has no line"
    ]
    assert tree_faults(entries, [*tracked, "experiments/a.toml"]) == [
        "experiments/ is tracked, but has no line"
    ]
    assert tree_faults(entries, tracked[:-2]) == ["tests/ has a line, but is not tracked"]
    assert tree_faults({**entries, "workbench/types.py": ""}, tracked) == [
        "workbench/types.py: say in a few words what it is"
    ]
