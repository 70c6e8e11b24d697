"""Problems: what is asked, and the hidden tests; read from files in the forms of HumanEval and MBPP.

    humaneval   {"task_id", "prompt": the head of a function, "entry_point", "canonical_solution", "test": def
    check(candidate)}
    mbpp        {"task_id", "text" or "prompt", "code", "test_list": [assert ...], "test_setup_code", "test_imports"}

One JSON object a line. Nothing in a file is run here: its tests run in a sandbox (`judging`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.basics.regular_files import parse_json, read_regular
from workbench.values.errors import ConfigError, DataError

FORMATS = ("mbpp", "humaneval")
MOST_BYTES = 256 << 20  # of a file
_FENCE = "```"


@dataclass(frozen=True)
class CodeTask:
    """A program to write.

    names: the functions that tests call.
    setup: run before the tests.
    head: put before an answer that does not define the first of them.
    reference: a program that passes, "" where none is known.
    """

    id: str
    question: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    setup: str = ""
    head: str = ""
    reference: str = ""

    def program(self, answer: str) -> str:
        """The answer as a program: without the marks of a code block, and behind the head where it is only the rest."""
        text = answer.strip("\n")
        if _FENCE in text:
            text = text.split(_FENCE, 1)[1].partition("\n")[2].split(_FENCE, 1)[0]
        if self.head and f"def {self.names[0]}(" not in text:
            return self.head + text
        return text


@lru_cache(maxsize=4)
def read_problems(path: str, form: str) -> tuple[CodeTask, ...]:
    """Raises ConfigError for a file that is not there, and DataError for a line that holds no problem."""
    try:
        data = read_regular(Path(path), most=MOST_BYTES)
    except OSError as error:
        raise ConfigError(
            f"env.file: cannot read {path!r} (looked for in {Path.cwd()}): "
            f"{error.strerror or error}"
        ) from error
    lines = enumerate(data.decode("utf-8", "replace").splitlines(), 1)
    problems = [
        _problem(line, f"{path}, line {number}", form) for number, line in lines if line.strip()
    ]
    if not problems:
        raise ConfigError(
            f"{path} holds no problems; expected a JSON object a line, in the form {form!r}"
        )
    return tuple(problems)


def _problem(line: str, where: str, form: str) -> CodeTask:
    try:
        row = parse_json(line)
        return _of_humaneval(row, where) if form == "humaneval" else _of_mbpp(row, where)
    except (ValueError, SyntaxError, RecursionError) as error:
        raise DataError(
            f"{where}: no problem in the form {form!r}: {error}. env.format is "
            f"{' or '.join(FORMATS)}"
        ) from error


def _of_humaneval(row: Any, where: str) -> CodeTask:
    prompt = _text(row, "prompt")
    entry = _text(row, "entry_point")
    test = _text(row, "test")
    if not entry.isidentifier():
        raise ValueError(f"entry_point is the name of a function, got {entry[:40]!r}")
    rest = row.get("canonical_solution") or ""
    return CodeTask(
        str(row.get("task_id", where)),
        f"Complete this function.\n\n{prompt}",
        (entry,),
        (f"{test}\ncheck({entry})\n",),
        "",
        prompt,
        prompt + rest if rest else "",
    )


def _of_mbpp(row: Any, where: str) -> CodeTask:
    if isinstance(row, Mapping):
        question = row.get("text") or _text(row, "prompt")
    else:
        question = _text(row, "text")
    tests = row.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError("test_list is a list of texts, each an assert, and not empty")
    code = _text(row, "code")
    called: list[str] = []
    for test in tests:
        called += _called_in(test)
    definitions = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.parse(code).body if isinstance(node, definitions)}
    names = tuple(dict.fromkeys(name for name in called if name in defined))
    if not names:
        raise ValueError("no test calls a function that the code defines")
    setup = "\n".join([*row.get("test_imports", []), row.get("test_setup_code") or ""])
    return CodeTask(
        str(row.get("task_id", where)),
        f"{question}\nThe function is called `{names[0]}`.",
        names,
        tuple(tests),
        setup,
        "",
        code,
    )


def _called_in(source: str) -> list[str]:
    """Names of the functions that a program calls by name."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]


def _text(row: Any, name: str) -> str:
    if not isinstance(row, Mapping) or not isinstance(row.get(name), str) or not row[name].strip():
        raise ValueError(f"expected a JSON object with a text {name!r}, got {str(row)[:60]!r}")
    return row[name]
