"""Breaks the code on purpose, one edit at a time, and insists that the tests named for it notice.

    python -m tests.mutants.run                    all edits beside this file (`make mutants`)
    python -m tests.mutants.run invariant-03 other.edit  some of them, by name or path
    python -m tests.mutants.run --share 2/3        a twelfth of those of the numbered invariants, and the second third of the others

A mutant is an edit of real code (`tests/mutants/edits.py` describes the format) under a header of its own:

    # invariant: 3                                       number of the invariant it breaks, or a word for what else it breaks
    # breaks: the autoregressive shift is off by one, so every logprob describes its neighbour
    # caught-by: tests/ops/test_shift.py::test_index_t_describes_token_t     (one line per test, or several in one)

Outcomes: *caught* (each named test fails), *survived* (a named test still passes), *stale* (the edit does not apply,
leaves a file that does not compile, names a test that is not there or was skipped, or hangs). All named tests must
pass on the untouched code, else their failing proves nothing. Exit status: 0 all caught, 1 otherwise.

Everything happens in throw-away copies of the working tree, tracked and new files alike: the tree itself is never
touched, and the copy is proven to be what Python imports, whatever is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import edits, warm

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SECONDS_PER_MUTANT = 180
SERVER = warm.server()  # started with the first run of tests
# Invariants of docs/design/invariants.md that the code so far can break; each needs a mutant when all are run.
INVARIANTS = tuple(str(number) for number in range(1, 15))
NUMBERED = 20  # a share has every twentieth of those of a numbered invariant


@dataclass(frozen=True)
class Mutant:
    """One edit and what its header claims."""

    path: Path
    invariant: str
    breaks: str
    caught_by: tuple[str, ...]  # pytest node ids

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    name: str
    invariant: str
    verdict: str  # "caught" | "survived" | "stale"
    seconds: float
    detail: str  # what the mutant breaks, or why it was not caught


def read_mutant(path: Path) -> Mutant:
    """Parse the header. Raises ValueError naming what is missing."""
    header = edits.read_header(path, ("invariant", "breaks", "caught-by"))
    if missing := [key for key, values in header.items() if not values]:
        raise ValueError(
            f"{path.name}: before the edit, expected '# invariant:', '# breaks:', '# caught-by:'; missing {missing}"
        )
    return Mutant(
        path,
        header["invariant"][0],
        " ".join(header["breaks"]),
        tuple(" ".join(header["caught-by"]).replace(",", " ").split()),
    )


def copy_tree(source: Path, destination: Path) -> None:
    """Copy tracked and new (not ignored) files: what a commit of everything would hold."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():  # a file may be deleted in the tree and still be listed
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, destination / name)


def environment(copy: Path) -> dict[str, str]:
    """Import from `copy` before anything installed; write no bytecode (its dates are too coarse to see a quick edit);
    load no pytest plugins beyond those that the conftest names (each costs a start)."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutants",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GIT_CEILING_DIRECTORIES": str(copy.parent),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def check_import(copy: Path) -> None:
    """Raise RuntimeError unless `import workbench` means the copy: an installed package could shadow it."""
    found = subprocess.run(
        [sys.executable, "-c", "import workbench; print(workbench.__file__)"],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if found.returncode or not Path(found.stdout.strip()).resolve().is_relative_to(copy.resolve()):
        raise RuntimeError(
            f"expected `import workbench` to mean {copy}, got {found.stdout.strip() or found.stderr.strip()!r}"
        )


def run_tests(copy: Path, nodes: tuple[str, ...]) -> tuple[int, str]:
    """pytest on `nodes` in `copy`; (exit status, output). Status 1: tests ran and some failed; -1: too slow."""
    arguments = ["-q", "-rA", "--tb=line", "-m", "", "-p", "no:cacheprovider", *nodes]
    status, output = warm.run_pytest(SERVER, copy, environment(copy), arguments, SECONDS_PER_MUTANT)
    return (-1, f"no answer within {SECONDS_PER_MUTANT} s") if status is None else (status, output)


def statuses(output: str, node: str) -> set[str]:
    """What pytest's summary says of a node: PASSED, FAILED, ERROR; of all its parameters, of all tests of a file."""
    return {
        match[1]
        for line in output.splitlines()
        if (match := re.match(r"(PASSED|FAILED|ERROR) (\S+)", line))
        and (match[2] == node or match[2].startswith((node + "[", node + "::")))
    }


def try_mutant(mutant: Mutant, pristine: Path) -> Outcome:
    """Apply one mutant to a fresh copy and run the tests named for it."""
    began = time.monotonic()

    def outcome(verdict: str, detail: str) -> Outcome:
        return Outcome(mutant.name, mutant.invariant, verdict, time.monotonic() - began, detail)

    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(pristine, copy)
        if reason := edits.apply(copy, mutant.path):
            return outcome("stale", reason)
        status, output = run_tests(copy, mutant.caught_by)
        warm.kill_those_in(copy)
    if status not in (0, 1):
        last = [line for line in output.strip().splitlines() if line.strip()]
        return outcome(
            "stale", f"pytest ended with {status}: {last[-1] if last else 'nothing printed'}"
        )
    for node in mutant.caught_by:
        found = statuses(output, node)
        if not found & {"FAILED", "ERROR"}:
            return outcome(
                "survived" if "PASSED" in found else "stale",
                f"{node} {'still passes' if 'PASSED' in found else 'did not run'}; it breaks: {mutant.breaks}",
            )
    return outcome("caught", mutant.breaks)


def by_file(mutants: list[Mutant]) -> dict[str, tuple[str, ...]]:
    """{test file: the nodes in it that mutants name}: one run of the untouched code each, so that none takes long."""
    nodes = sorted({node for mutant in mutants for node in mutant.caught_by})
    files = sorted({node.partition("::")[0] for node in nodes})
    return {
        file: tuple(node for node in nodes if node.partition("::")[0] == file) for file in files
    }


def try_untouched(file: str, nodes: tuple[str, ...], pristine: Path) -> Outcome:
    """The named tests of a file on the code as it is: all must pass, none may be skipped."""
    began = time.monotonic()
    status, output = run_tests(pristine, nodes)
    bad = [node for node in nodes if statuses(output, node) != {"PASSED"}]
    good = status == 0 and not bad
    detail = (
        "the named tests pass"
        if good
        else (
            f"pytest ended with {status}; do not pass untouched: {', '.join(bad)}\n{output.strip()[-2000:]}"
        )
    )
    return Outcome(
        f"untouched {file}", "-", "passed" if good else "broken", time.monotonic() - began, detail
    )


def choose(names: list[str]) -> list[Path]:
    """Mutants by path or by (the beginning of) their name; all of them without names."""
    return edits.choose(names, edits.edits_in(HERE), "mutant")


def read_share(text: str) -> tuple[int, int]:
    """ "2/3" -> (2, 3), for argparse: part 2 of 3."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"expected K/N with K from 1 to N, such as 2/3, got {text!r}"
        )
    return int(match[1]), int(match[2])


def share_of(mutants: list[Mutant], part: int, parts: int) -> list[Mutant]:
    """Every `NUMBERED`-th of those that break a numbered invariant, of each invariant, and every `parts`-th of the others, beginning
    with the `part`-th. So many parts in a row have all of the numbered ones."""
    chosen = [mutant for mutant in mutants if mutant.invariant not in INVARIANTS][part - 1 :: parts]
    for invariant in INVARIANTS:
        of_it = [mutant for mutant in mutants if mutant.invariant == invariant]
        parts_of_it = min(NUMBERED, len(of_it))
        chosen += of_it[part % parts_of_it :: parts_of_it]
    return sorted(chosen, key=lambda mutant: mutant.path)


def missing_invariants(mutants: list[Mutant]) -> list[str]:
    return [
        invariant
        for invariant in INVARIANTS
        if invariant not in {mutant.invariant for mutant in mutants}
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.run", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "mutant", nargs="*", help="a file, or the beginning of its name (default: all)"
    )
    parser.add_argument(
        "--share",
        type=read_share,
        metavar="K/N",
        help=f"only part K of N, and one in {NUMBERED} of those of the numbered invariants",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args(arguments)
    try:
        mutants = [read_mutant(path) for path in choose(options.mutant)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.share:
        mutants = share_of(mutants, *options.share)
    if not mutants:
        print(f"no *.edit in {HERE}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pristine = Path(folder) / "tree"
        copy_tree(ROOT, pristine)
        check_import(pristine)
        with ThreadPoolExecutor(options.jobs) as pool:
            jobs = [
                pool.submit(try_untouched, file, nodes, pristine)
                for file, nodes in by_file(mutants).items()
            ]
            jobs += [pool.submit(try_mutant, mutant, pristine) for mutant in mutants]
            outcomes = []
            for job in jobs:
                outcomes.append(result := job.result())
                print(
                    f"{result.verdict:9}{result.seconds:6.1f} s  invariant {result.invariant:10} {result.name:44} {result.detail}",
                    flush=True,
                )
    bad = [result for result in outcomes if result.verdict not in ("caught", "passed")]
    invariants = [] if options.mutant else missing_invariants(mutants)
    if invariants:
        print(f"no mutant breaks invariant {', '.join(invariants)}")
    for result in bad:  # once more, where the end of a log shows them
        print(f"{result.verdict}: {result.name}: {result.detail}")
    print(
        f"{sum(result.verdict == 'caught' for result in outcomes)} of {len(mutants)} mutants caught"
        + (f"; look at: {', '.join(result.name for result in bad)}" if bad else "")
    )
    return 1 if bad or invariants else 0


if __name__ == "__main__":
    sys.exit(main())
