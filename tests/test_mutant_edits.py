"""The edits of the mutants: read and written, applied in the right place, made of diffs, and moved with the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants import edits, from_diff, reanchor
from tests.mutants.moves import Moves, longest_prefix, read_moves

CODE = """import math


class Box:
    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self._size = value

    def grow(self):
        def by(amount):
            total = self.size + amount

            return total
        return by(1)


def grow(box):
    total = box.size + 1
    return total
"""
GROW = "@ workbench/box.py :: Box.grow.by\n- return total\n+ return total + 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "workbench").mkdir()
    (tmp_path / "workbench/box.py").write_text(CODE)
    (tmp_path / "Makefile").write_text("all:\n\techo $(A)\n\techo b\n")
    return tmp_path


def after(root: Path, text: str) -> dict[str, str | None]:
    return edits.edited(root, edits.parse(text)[1])


# ------------------------------------------------------------------------------------------------ reading, applying


def test_what_is_written_is_read():
    text = "# invariant: 1\n# breaks: it\n\n@ a.py :: f.g\n  x = 1\n-\n- \ty\n+ y - x\n+\n+   # z\n\n@ Makefile\n- \techo\n"
    header, blocks = edits.parse(text)
    assert header == ["# invariant: 1", "# breaks: it"]
    assert [block.anchor for block in blocks] == ["a.py :: f.g", "Makefile"]
    assert blocks[0].before == ["x = 1", "", "\ty"] and blocks[0].after == [
        "x = 1",
        "y - x",
        "",
        "  # z",
    ]
    assert edits.written(header, blocks) == text
    with pytest.raises(edits.EditError, match="begins with"):
        edits.parse("@ a.py :: f\nreturn 1\n")


def test_an_edit_acts_in_its_definition_only_and_at_its_indentation(root):
    assert after(root, GROW) == {
        "workbench/box.py": CODE.replace(
            "            return total\n", "            return total + 1\n"
        )
    }
    both = "@ workbench/box.py :: Box.size\n- self._size = value\n+ self._size = 0\n"
    both += GROW.replace("Box.grow.by", "grow")
    assert after(root, both) == {
        "workbench/box.py": CODE.replace("= value", "= 0")
        .replace("    return total\n", "    return total + 1\n")
        .replace("        return total + 1\n", "        return total\n")
    }
    assert (root / "workbench/box.py").read_text() == CODE


def test_context_may_overlap_and_is_not_changed(root):
    text = (
        "@ workbench/box.py :: grow\n  total = box.size + 1\n+ total += 1\n\n"
        "@ workbench/box.py :: grow\n+ box = box\n  total = box.size + 1\n"
    )
    assert after(root, text)["workbench/box.py"].endswith(
        "    box = box\n    total = box.size + 1\n    total += 1\n    return total\n"
    )


def test_files_that_are_not_python_new_files_and_deleted_ones(root):
    text = (
        "@ Makefile\n- \techo $(A)\n+ \techo $(B)\n\n"
        "@ workbench/new/one.py :: <new>\n+ def f():\n+     return 1\n\n"
        "@ workbench/box.py :: <deleted>\n"
    )
    (root / "x.edit").write_text(text)
    assert edits.files_of(root / "x.edit") == [
        "Makefile",
        "workbench/new/one.py",
        "workbench/box.py",
    ]
    assert edits.apply(root, root / "x.edit") is None
    assert (root / "Makefile").read_text() == "all:\n\techo $(B)\n\techo b\n"
    assert (root / "workbench/new/one.py").read_text() == "def f():\n    return 1\n"
    assert not (root / "workbench/box.py").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GROW.replace("Box.grow.by", "Box.shrink"), "no Box.shrink in workbench/box.py"),
        (GROW.replace("box.py", "bag.py"), "no file workbench/bag.py"),
        (GROW.replace("- return total", "- return nothing"), "found it 0 times: 'return nothing'"),
        (
            GROW.replace("Box.grow.by", "<module>"),
            r"found it 2 times \(lines 17, 23\): 'return total'",
        ),
        (GROW + "\n" + GROW, "two blocks change line 17"),
        (
            GROW.replace("+ return total + 1", "+ return (total"),
            "leaves workbench/box.py that does not compile",
        ),
        ("# invariant: 1\n", "has no block"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(root, text, words):
    with pytest.raises(AssertionError, match=words):
        assert not edits.misfit(root, edits.parse(text)[1])
    assert (root / "workbench/box.py").read_text() == CODE


def test_edits_are_chosen_by_the_beginning_of_their_name_or_by_path(tmp_path):
    for name in ("one.edit", "one.same.edit", "other.patch", "README.md"):
        (tmp_path / name).write_text("")
    everything = edits.edits_in(tmp_path)
    assert [path.name for path in everything] == ["one.edit", "one.same.edit", "other.patch"]
    assert edits.choose([], everything, "bug") == everything
    assert (
        edits.choose(["other.edit"], everything, "bug")
        == edits.choose(["ot"], everything, "bug")
        == [everything[2]]
    )
    assert edits.choose([str(everything[1])], [], "bug") == [everything[1]]
    with pytest.raises(ValueError, match="no bug 'x'; there are: one"):
        edits.choose(["x"], everything, "bug")


# ------------------------------------------------------------------------------------------------ of diffs


@pytest.mark.parametrize(
    ("old", "new", "anchors"),
    [
        ("            return total\n", "            return -total\n", ["Box.grow.by"]),
        ("    total = box.size + 1\n", "    total = box.size + 1\n    total += 1\n", ["grow"]),
        ("        return self._size\n", "", ["Box.size"]),
        ("import math\n", "import math\nimport cmath\n", ["<module>"]),
        ("    @property\n", "    @cached\n", ["Box.size"]),
        ("return", "return 1 +", ["Box.size", "Box.grow", "grow"]),
    ],
)
def test_a_diff_becomes_an_edit_that_does_the_same(root, old, new, anchors):
    changed = CODE.replace(old, new)
    for side, text in {"a": CODE, "b": changed}.items():
        (root / side / "workbench").mkdir(parents=True)
        (root / side / "workbench/box.py").write_text(text)
    diff = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", "a/workbench", "b/workbench"],
        cwd=root,
        capture_output=True,
        text=True,
    ).stdout
    (root / "x.patch").write_text("# invariant: 2\n" + diff)
    header, blocks = edits.parse(from_diff.converted(root / "x.patch", root))
    assert header == ["# invariant: 2"] and [block.name for block in blocks] == anchors
    assert edits.edited(root, blocks) == {"workbench/box.py": changed}
    assert sum(mark == " " for block in blocks for mark, _ in block.lines) <= 3


# ------------------------------------------------------------------------------------------------ code that moves


def moved(root: Path, text: str, moves: Moves = Moves()) -> reanchor.Result:
    return reanchor.reanchored(text, root, reanchor.python_files(root), moves)


@pytest.mark.parametrize(
    ("change", "anchor"),
    [
        (
            {"workbench/box.py": None, "workbench/room/box.py": CODE},
            "workbench/room/box.py :: Box.grow.by",
        ),
        (
            {"workbench/box.py": CODE.replace("class Box", "class Bag")},
            "workbench/box.py :: Bag.grow.by",
        ),
        ({"workbench/box.py": CODE.replace("def by", "def at")}, "workbench/box.py :: Box.grow.at"),
        (
            {
                "workbench/box.py": "",
                "workbench/bag.py": CODE.replace("class Box", "class Bag").replace(
                    "def by", "def at"
                ),
            },
            "workbench/bag.py :: Bag.grow.at",
        ),
    ],
    ids=["a file moved", "a class renamed", "a function renamed", "both, elsewhere"],
)
def test_an_edit_follows_its_code(root, change, anchor):
    text = GROW.replace("- return", "  total = self.size + amount\n\n- return")
    for file, code in change.items():
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).unlink() if code is None else (root / file).write_text(code)
    result = moved(root, text)
    assert result.left == [] and f"@ {anchor}\n" in result.text
    assert edits.misfit(root, edits.parse(result.text)[1]) is None
    again = moved(root, result.text)
    assert again.text == result.text and not again.notes


def test_code_that_went_into_a_class_is_found_at_its_new_indentation(root):
    (root / "workbench/box.py").write_text(
        "class Crane:\n    @staticmethod\n    def grow(box):\n"
        "        total = box.size + 1\n        return total\n"
    )
    result = moved(root, "@ workbench/box.py :: grow\n- total = box.size + 1\n+ total = 0\n")
    assert "@ workbench/box.py :: Crane.grow" in result.text and not result.left


def test_what_cannot_be_placed_is_listed_with_the_nearest_lines_and_stays(root):
    text = "@ workbench/box.py :: grow\n- total = box.size + 12\n+ total = 0\n"
    result = moved(root, text)
    assert result.text == text
    assert "workbench/box.py :: grow is not there: total = box.size + 12" in result.left[0]
    assert (
        result.left[0].splitlines()[1].strip()
        == "workbench/box.py:22 :: grow: total = box.size + 1"
    )
    (root / "workbench/one.py").write_text(CODE)
    (root / "workbench/two.py").write_text(CODE)
    (root / "workbench/box.py").unlink()
    assert "stands in several places" in moved(root, GROW).left[0]
    assert "workbench/two.py :: Box.grow.by" in moved(root, GROW).left[0]


def test_a_short_text_alone_is_no_reason_to_move(root):
    (root / "workbench/box.py").write_text("def other():\n    x = 1\n")
    assert moved(root, "@ workbench/box.py :: grow\n- x = 1\n+ x = 2\n").left


def test_tests_that_moved_are_found_by_their_names(root):
    (root / "tests/room").mkdir(parents=True)
    (root / "tests/room/test_box.py").write_text("def test_it(): pass\n")
    (root / "tests/room/test_bag.py").write_text("def test_that(): pass\n")
    header = "# caught-by: tests/test_box.py::test_it[a-b], tests/test_box.py::TestX::test_that\n\n"
    assert moved(root, header + GROW).text.startswith(
        "# caught-by: tests/room/test_box.py::test_it[a-b], tests/room/test_bag.py::TestX::test_that\n"
    )
    gone = moved(root, "# caught-by: tests/test_box.py::test_gone\n\n" + GROW)
    assert gone.left == ["no test tests/test_box.py::test_gone"]


def test_known_moves_rewrite_files_imports_and_names(tmp_path, root):
    (root / "workbench/room").mkdir()
    (root / "workbench/room/case.py").write_text(
        "def fill(case):\n    from workbench.room.case import Case\n    return Case(workbench.room.case)\n"
    )
    (root / "map.txt").write_text("workbench.box workbench.room.case\n\nBox Case\n")
    text = (
        "@ workbench/box.py :: fill\n  from workbench.box import Box\n+ from workbench import box\n"
        "- return Box(workbench.box)\n+ return Box(workbench.boxes, self.workbench.box)\n"
    )
    (root / "workbench/box.py").unlink()
    result = moved(root, text, read_moves([], root / "map.txt"))
    assert (
        result.text
        == (
            "@ workbench/room/case.py :: fill\n  from workbench.room.case import Case\n"
            "+ from workbench.room import case as box\n- return Case(workbench.room.case)\n"
            "+ return Case(workbench.boxes, self.workbench.box)\n"
        )
        and not result.left
    )
    assert (
        "imports workbench.box, which is not there"
        in moved(
            root,
            result.text.replace(
                "+ from workbench.room import case as box", "+ import workbench.box"
            ),
        ).left[0]
    )


def test_known_moves_are_not_made_twice(tmp_path):
    known = {"a.types": "a.types.core", "a.b": "c", "a.b.d": "e"}
    assert [
        longest_prefix(name, known, ".")
        for name in ("a.types.X", "a.types.core.X", "a.b.x", "a.b.d", "a.bx")
    ] == ["a.types.core.X", None, "c.x", "e", None]
    (tmp_path / "moved.txt").write_text("tests/old/ tests/new/\nx.py=y.py\n")
    moves = read_moves(["p=q", str(tmp_path / "moved.txt")], None)
    assert moves.paths == {"p": "q", "tests/old": "tests/new", "x.py": "y.py"}
    with pytest.raises(ValueError, match="an old and a new name"):
        read_moves(["p="], None)


def test_the_tool_writes_only_when_told_to(root, capsys):
    (root / "tests/mutants").mkdir(parents=True)
    path = root / "tests/mutants/x.edit"
    path.write_text(GROW)
    (root / "workbench/box.py").rename(root / "workbench/crate.py")
    assert reanchor.main([], root) == 0 and path.read_text() == GROW
    assert (
        "workbench/box.py :: Box.grow.by -> workbench/crate.py :: Box.grow.by"
        in capsys.readouterr().out
    )
    assert reanchor.main(["--write"], root) == 0 and path.read_text() == GROW.replace(
        "box.py", "crate.py"
    )
    assert "1 edits: 1 changed, 0 with something left over" in capsys.readouterr().out
    (root / "workbench/crate.py").unlink()
    assert reanchor.main(["x", "--write"], root) == 1
