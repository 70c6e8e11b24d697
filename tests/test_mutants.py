"""The mutant runner itself: it tells caught from survived and stale, and never touches the tree it was asked about.

What its edits are and how they follow code that moves: tests/test_mutant_edits.py.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants import edits, warm
from tests.mutants import run as runner

CODE = "def double(x):\n    return 2 * x\n"
TESTS = """import pytest
from workbench.double import double
def test_number(): assert double(3) == 6
def test_blind(): double(3)
@pytest.mark.skip
def test_skipped(): assert double(3) == 6
"""


def edit(
    new_line: str, caught_by: str, old_line: str = "return 2 * x", invariant: str = "1"
) -> str:
    return (
        f"# invariant: {invariant}\n# breaks: doubling\n# caught-by: {caught_by}\n\n"
        f"@ workbench/double.py :: double\n- {old_line}\n+ {new_line}\n"
    )


@pytest.fixture
def small_repository(tmp_path: Path, monkeypatch) -> Path:
    """A repository of one function, with the runner pointed at it."""
    root = tmp_path / "repository"
    for name, text in {
        "workbench/__init__.py": "",
        "workbench/double.py": CODE,
        "tests/test_double.py": TESTS,
        ".gitignore": "ignored.py\n__pycache__/\n",
        "ignored.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tests/mutants").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(
        ["git", "add", "workbench/double.py"], cwd=root, check=True
    )  # the rest is new: it counts as well
    monkeypatch.setattr(runner, "ROOT", root)
    monkeypatch.setattr(runner, "HERE", root / "tests/mutants")
    monkeypatch.setattr(runner, "INVARIANTS", ("1",))
    return root


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (edit("return 3 * x", "tests/test_double.py::test_number"), "caught", "doubling"),
        (
            edit("return 3 * x", "tests/test_double.py::test_blind"),
            "survived",
            "test_blind still passes",
        ),
        (
            edit(
                "return 3 * x",
                "tests/test_double.py::test_number, tests/test_double.py::test_blind",
            ),
            "survived",
            "still passes",
        ),
        (
            edit("return 3 * x", "tests/test_double.py::test_number", old_line="return x + x"),
            "stale",
            "does not apply",
        ),
        (edit("return (3 * x", "tests/test_double.py::test_number"), "stale", "does not compile"),
        (edit("return 3 * x", "tests/test_double.py::test_gone"), "stale", "pytest ended with 4"),
        (edit("return 3 * x", "tests/test_double.py::test_skipped"), "stale", "did not run"),
    ],
    ids=[
        "caught",
        "blind test",
        "one of two blind",
        "old code gone",
        "does not compile",
        "no such test",
        "skipped test",
    ],
)
def test_each_verdict(small_repository, text, verdict, words):
    path = small_repository / "tests/mutants/one.edit"
    path.write_text(text)
    outcome = runner.try_mutant(runner.read_mutant(path), small_repository)
    assert outcome.verdict == verdict and words in outcome.detail
    assert (small_repository / "workbench/double.py").read_text() == CODE


def test_exit_status_and_a_law_without_a_mutant(small_repository, monkeypatch, capsys):
    (small_repository / "tests/mutants/one.edit").write_text(
        edit("return 3 * x", "tests/test_double.py::test_number")
    )
    assert runner.main([]) == 0
    assert "1 of 1 mutants caught" in capsys.readouterr().out
    monkeypatch.setattr(runner, "INVARIANTS", ("1", "2"))
    assert runner.missing_invariants(
        [runner.read_mutant(small_repository / "tests/mutants/one.edit")]
    ) == ["2"]
    (small_repository / "tests/test_double.py").write_text(TESTS.replace("== 6", "== 7"))
    assert runner.main([]) == 1
    said = capsys.readouterr().out
    assert (
        "do not pass untouched: tests/test_double.py::test_number" in said
        and "no mutant breaks invariant 2" in said
    )


def test_a_share_has_its_part_of_every_numbered_law_and_shares_are_everything():
    mutants = [runner.read_mutant(path) for path in runner.choose([])]
    count = runner.NUMBERED + 1
    shares = [runner.share_of(mutants, part, count) for part in range(1, count + 1)]
    for invariant in runner.INVARIANTS:
        of_law = [mutant for mutant in mutants if mutant.invariant == invariant]
        parts = [[mutant for mutant in share if mutant.invariant == invariant] for share in shares]
        assert {m.path for part in parts for m in part} == {m.path for m in of_law}
        wanted = max(1, len(of_law) / runner.NUMBERED)
        assert all(part and abs(len(part) - wanted) < 1 for part in parts)
        assert len(of_law) < runner.NUMBERED or parts[0] == parts[runner.NUMBERED]
    others = [
        mutant.name
        for share in shares
        for mutant in share
        if mutant.invariant not in runner.INVARIANTS
    ]
    assert sorted(others) == [m.name for m in mutants if m.invariant not in runner.INVARIANTS]
    assert runner.read_share("2/3") == (2, 3)
    for text in ("0/3", "4/3", "x"):
        with pytest.raises(runner.argparse.ArgumentTypeError, match="expected K/N"):
            runner.read_share(text)


def test_the_copy_holds_new_files_and_no_ignored_ones_and_is_what_python_imports(
    small_repository, tmp_path
):
    runner.copy_tree(small_repository, tmp_path / "copy")
    assert {
        str(path.relative_to(tmp_path / "copy"))
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file()
    } == {
        ".gitignore",
        "workbench/__init__.py",
        "workbench/double.py",
        "tests/test_double.py",
    }
    runner.check_import(tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        RuntimeError, match="import workbench"
    ):  # whatever is installed is not the copy
        runner.check_import(tmp_path / "empty")


def test_a_header_that_lacks_a_line_is_refused(tmp_path):
    for name, body in {"x.edit": "@ x.py :: f", "x.patch": "--- a/x"}.items():
        (tmp_path / name).write_text(
            f"# invariant: 1\n# breaks: something\n{body}\n# caught-by: too late\n"
        )
        with pytest.raises(ValueError, match="caught-by"):
            runner.read_mutant(tmp_path / name)


def test_every_shipped_mutant_fits_onto_the_code_as_it_is(repository):
    bad = {
        path.name: why
        for path in runner.choose([])
        if (why := edits.misfit(repository, edits.blocks_in(path)))
    }
    assert not bad  # python -m tests.mutants.reanchor finds code that has moved


def test_every_shipped_mutant_has_a_header_and_names_tests_that_exist(repository):
    """Quick form of `make mutants`: that each is caught takes minutes and is counted by .ci/run."""
    for path in runner.choose([]):
        for node in runner.read_mutant(path).caught_by:
            file, _, test = node.partition("::")
            assert (repository / file).is_file(), f"{path.name}: {file} is not there"
            name = test.rpartition("::")[2].partition("[")[0]
            assert not name or f"def {name}(" in (repository / file).read_text(), (
                f"{path.name}: {node} is not there"
            )


@pytest.mark.full
def test_children_of_several_threads_each_end_with_their_own_status(tmp_path):
    """A status can be read only once; where two threads read it, one of a hundred children ended with 255."""
    (tmp_path / "workbench").mkdir()
    (tmp_path / "workbench/__init__.py").touch()
    (tmp_path / "ends.py").write_text("def main(arguments): return int(arguments[0])\n")

    def status(number: int) -> int | None:
        return warm.run_module(
            runner.SERVER, tmp_path, runner.environment(tmp_path), "ends", [str(number)], 60
        )[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(status, [number % 7 for number in range(400)])) == [
            number % 7 for number in range(400)
        ]
