"""`workbench/plain/` stays readable in an evening: few tokens, few of them on a line, and a sentence
for each block. Layout is the formatter's, so none of these is met by joining lines."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

PLAIN = Path(__file__).resolve().parents[2] / "workbench/plain"
MOST_TOKENS = 12_000
MOST_TOKENS_A_LINE = 10
MOST_STATEMENTS = 8  # in a row without a comment or a docstring
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(PLAIN.glob("*.py"))}


def tokens(source: str) -> list[tokenize.TokenInfo]:
    """All tokens of a source. A string with fields in it is one token, in every version of Python."""
    kept = []
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        opens = tokenize.tok_name[token.type] == "FSTRING_START"
        if depth == 0:
            kept.append(token)
        depth += opens
        depth -= tokenize.tok_name[token.type] == "FSTRING_END"
    return kept


def code_tokens(source: str) -> list[tokenize.TokenInfo]:
    """Tokens of Python, without comments, new lines and indents."""
    return [token for token in tokens(source) if token.type not in LAYOUT]


def docstring_of(node: ast.AST) -> ast.stmt | None:
    if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None:
        return node.body[0]
    return None


def code_lines(source: str) -> set[int]:
    """Numbers of the lines with code: not blank, no comment, no docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if docstring := docstring_of(node):
            docstrings |= set(range(docstring.lineno, docstring.end_lineno + 1))
    lines = set()
    for token in code_tokens(source):
        lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def without_docstring(source: str) -> list[str]:
    """Names of the modules, classes and functions that say nothing about themselves."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DEFINITIONS))
    dunder = "__init__", "__post_init__"
    return [
        getattr(node, "name", "the module")
        for node in nodes
        if docstring_of(node) is None and getattr(node, "name", "") not in dunder
    ]


def statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """All statements in their order, from the first line to the last."""
    listed = []
    for node in body:
        listed.append(node)
        for part in ("body", "handlers", "orelse", "finalbody"):
            listed += statements(getattr(node, part, []))
    return sorted(listed, key=lambda node: node.lineno)


def longest_blocks(source: str) -> dict[int, int]:
    """{line: statements in a row that end there without a sentence}, imports left out."""
    sentences = {token.start[0] for token in tokens(source) if token.type == tokenize.COMMENT} | {
        docstring.lineno
        for node in ast.walk(ast.parse(source))
        if (docstring := docstring_of(node))
    }
    blocks = {}
    count = 0
    before = 0
    for node in statements(ast.parse(source).body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        # A function begins a block of its own; a comment above or behind a statement belongs to it.
        last = node.lineno if hasattr(node, "body") else node.end_lineno
        spoken = any(line in sentences for line in range(before + 1, last + 1))
        count = 1 if spoken or isinstance(node, DEFINITIONS) else count + 1
        blocks[node.lineno] = count
        before = last
    return blocks


def silent_blocks(source: str) -> list[int]:
    """Lines at which a block without a sentence is too long."""
    blocks = longest_blocks(source)
    return [line for line, count in blocks.items() if count == MOST_STATEMENTS + 1]


def test_it_is_read_in_an_evening():
    counts = {name: len(code_tokens(source)) for name, source in sources().items()}
    assert sum(counts.values()) <= MOST_TOKENS, counts


def test_a_line_holds_few_tokens():
    count = sum(len(code_tokens(source)) for source in sources().values())
    lines = sum(len(code_lines(source)) for source in sources().values())
    assert count / lines <= MOST_TOKENS_A_LINE


@pytest.mark.parametrize("name", sources())
def test_every_block_has_a_sentence(name):
    source = sources()[name]
    assert without_docstring(source) == []
    assert silent_blocks(source) == []


# ------------------------------------------------------------------------------------------------ negative controls

SPOKEN = '''"""A module."""

# Where it begins.
START = 0


def longer(start):
    """Add ones."""
    a = start + 1
    b = a + 1
    c = b + 1
    d = c + 1
    # Half of them are here.
    e = d + 1
    f = e + 1
    g = f + 1
    h = g + 1
    return f"{a} and {h:>{b}}"
'''


def test_what_is_said_is_noticed():
    assert without_docstring(SPOKEN) == [] and silent_blocks(SPOKEN) == []


def test_a_comment_that_is_missing_is_noticed():
    assert silent_blocks(SPOKEN.replace("    # Half of them are here.\n", "")) == [16]


@pytest.mark.parametrize("docstring", ['"""A module."""', '    """Add ones."""'])
def test_a_docstring_that_is_missing_is_noticed(docstring):
    assert len(without_docstring(SPOKEN.replace(docstring + "\n", ""))) == 1


def test_only_code_is_counted():
    assert len(code_tokens("# a comment\nx = 1  # another\n\n")) == 3
    assert len(code_tokens('f"{a} and {b}"\n')) == 1
    assert code_lines('"""Doc.\n\nMore."""\n# why\nx = [\n    1,\n]\n') == {5, 6, 7}


def test_joined_lines_are_noticed():
    """More statements on a line raise the second number, and leave the first as it is."""
    spread = "a = 1\nb = 2\nc = 3\n"
    joined = "a, b, c = 1, 2, 3\n"
    ratios = [len(code_tokens(source)) / len(code_lines(source)) for source in (spread, joined)]
    assert ratios[0] == 3 and ratios[1] > MOST_TOKENS_A_LINE
