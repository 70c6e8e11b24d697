"""Blocks that catch everything: which of them ask something that may fail, and which read a text."""

from __future__ import annotations

import ast

import pytest

from workbench.extensions.own_code.guards import AuthoredCode, _guard

# Of another module of the author's: a name that texts have a method of, too.
BESIDE = """
def split(path):
    return requests.get(path).text

def loads(path):
    return open(path).read()
"""


def guarded(line: str, beside: str = BESIDE) -> list:
    code = AuthoredCode()
    tree = ast.parse(
        f"def score(self, text):\n try:\n  return {line}\n except Exception:\n  return 0.0"
    )
    for part in (tree, ast.parse(beside)):
        code.add(part)
    code.settle()
    return [
        guard
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for guard in _guard("mine.py", node, code)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "float(text.split('>')[1].strip() == self.gold)",
        "float(int(text.split('>')[1].split('<')[0]) == self.number)",
        "json.loads(text)['answer'] == self.gold",
    ],
)
def test_a_method_of_a_text_is_no_function_of_ones_own_of_the_same_name(line):
    assert guarded(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "float(split(text) == self.gold)",
        "float(self.split(text) == self.gold)",
        "float(requests.get(text).json() == self.gold)",
        "float(judge(text))",
    ],
)
def test_negative_control_what_asks_something_is_seen(line):
    [guard] = guarded(line)
    assert guard.line == 3 and guard.severe
