"""Plants silent bugs in throw-away copies of the workbench, one edit at a time, and asks the lint to name each.

    python -m tests.silent_bugs.run                      every bug in bugs/, its counterpart, and the untouched code
    python -m tests.silent_bugs.run hist-skyrl rule-06   some of them, by name, beginning of a name, or path
    python -m tests.silent_bugs.run --patches FOLDER     somebody else's unified diffs or edits
    python -m tests.silent_bugs.run --share 2/3          the second third of them: every third, from the second on
    python -m tests.silent_bugs.run --json FILE --jobs 2

A bug is an edit of real code (`tests/mutants/edits.py` describes the format) under a header, which diffs may leave out:

    # rule: R6                              the rule that must name it; several (R1, R3) where each would be right
    # thread: NovaSky-AI/SkyRL#1492         the report of this bug in another framework, where there is one
    # breaks: only the last segment of a trajectory gets its advantage
    # guard: trajectories of different tasks  instead of `rule`: words of the error with which a guard refuses it
    # counterpart-scene: masks wide                where the counterpart is no edit: words of a scene of the battery
    # where: ranks                          tried where two processes learn together; "server": beside a real vLLM server

`NAME.same.edit` beside it touches the same lines and is legitimate: a refactoring, a declared setting. The lint must
say nothing about it. Each copy goes through `tests/silent_bugs/battery.py`, which knows nothing of the edits.

Verdicts: *named* (an expected rule found an error) · *caught* (other rules did) · *refused* (a guard of the package
raised before anything was trained) · *crashed* · *missed* · *stale* (the edit does not apply). Exit status 1 unless
every bug with a header is named (or refused, where that is what it expects), every counterpart and the untouched code are
clean.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants import edits, warm
from tests.mutants import run as mutants
from tests.silent_bugs import battery

HERE = Path(__file__).resolve().parent
BUGS = HERE / "bugs"
# For one battery, on a busy machine. Beside servers five of them are started, one after the other: ten minutes were not
# enough where others had both cores.
SECONDS = {battery.HERE: 600, "ranks": 600, "server": 1800}
KEYS = ("rule", "thread", "breaks", "guard", "counterpart-scene", "where")


@dataclass(frozen=True)
class Bug:
    """An edit and what its header says; one without a header expects nothing."""

    path: Path
    rules: tuple[str, ...] = ()
    thread: str = ""
    breaks: str = ""
    guard: str = ""
    counterpart_scene: str = ""
    where: str = battery.HERE

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def counterpart(self) -> Path | None:
        path = self.path.with_name(f"{self.name}.same{self.path.suffix}")
        return path if path.is_file() else None


@dataclass(frozen=True)
class Said:
    """What the battery said of one copy: findings by rule, what guards refused, how it broke down, CPU seconds."""

    errors: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    crashes: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()  # scenes
    scenes: dict[str, list[str]] = field(
        default_factory=dict
    )  # scene -> rules that found an error in it
    cpu_seconds: float = 0.0
    stale: str = ""


@dataclass(frozen=True)
class Outcome:
    """One bug: the verdict, and what its counterpart did ("clean", "-" where there is none, else what was wrong)."""

    bug: Bug
    verdict: str
    said: Said
    counterpart: str = "-"
    seconds: float = 0.0

    @property
    def expected(self) -> tuple[str, ...]:
        return tuple(rule for rule in self.said.errors if rule in self.bug.rules)

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(rule for rule in self.said.errors if rule not in self.bug.rules)

    @property
    def good(self) -> bool:
        """As it should be: named where a rule is expected, refused where a guard is, and the counterpart is clean."""
        wanted = "named" if self.bug.rules else "refused" if self.bug.guard else None
        return (
            self.verdict != "stale"
            and self.counterpart in ("-", "clean")
            and wanted in (None, self.verdict)
        )


# ------------------------------------------------------------------------------------------------ edits


def read_bug(path: Path) -> Bug:
    """The header. Raises ValueError for one that names neither rule nor guard, although it has a header."""
    header = edits.read_header(path, KEYS)
    if any(header.values()) and not (header["rule"] or header["guard"]):
        raise ValueError(
            f"{path.name}: the header names neither '# rule: R6' nor '# guard: words of the error'"
        )
    said = {key: " ".join(values) for key, values in header.items()}
    rules = tuple(re.findall(r"R\d+", said["rule"]))
    return Bug(
        path,
        rules,
        said["thread"],
        said["breaks"],
        said["guard"],
        said["counterpart-scene"],
        said["where"] or battery.HERE,
    )


def choose(names: Sequence[str], folder: Path) -> list[Bug]:
    """Bugs by path or by the beginning of their name; all of the folder without names. Raises ValueError for none."""
    everything = [path for path in edits.edits_in(folder) if not path.stem.endswith(".same")]
    if not (names or everything):
        raise ValueError(f"no *.edit and no *.patch in {folder}")
    return [read_bug(path) for path in edits.choose(names, everything, "bug")]


# ------------------------------------------------------------------------------------------------ one copy


def battery_in(copy: Path, options: Sequence[str] = ()) -> Said:
    """What the battery of this copy says of the copy, in a process of its own."""
    seconds = SECONDS[
        options[options.index("--where") + 1] if "--where" in options else battery.HERE
    ]
    with tempfile.NamedTemporaryFile("r", prefix="battery-", suffix=".json") as answer:
        arguments = ["--json", answer.name, *options]
        status, output = warm.run_module(
            mutants.SERVER,
            copy,
            mutants.environment(copy),
            "tests.silent_bugs.battery",
            arguments,
            seconds,
        )
        warm.kill_those_in(copy)
        text = answer.read()
    if status != 0 or not text:
        last = [line for line in output.strip().splitlines() if line.strip()]
        why = (
            f"no answer within {seconds} s"
            if status is None
            else last[-1]
            if last
            else f"ended with {status}"
        )
        return Said(crashes=(why,))
    found = json.loads(text)
    every = found["scenes"].values()
    errors: dict[str, list[dict[str, Any]]] = {}
    for name, scene in found["scenes"].items():
        for rule, findings in scene["errors"].items():
            errors.setdefault(rule, []).extend({"scene": name, **finding} for finding in findings)
    return Said(
        {rule: errors[rule] for rule in sorted(errors, key=lambda rule: int(rule[1:]))},
        tuple(dict.fromkeys(words for scene in every for words in scene["guards"])),
        tuple(dict.fromkeys(scene["crash"] for scene in every if scene["crash"])),
        tuple(
            sorted(
                {rule for scene in every for rule in scene["looked"]},
                key=lambda rule: int(rule[1:]),
            )
        ),
        tuple(found["scenes"]),
        {name: list(scene["errors"]) for name, scene in found["scenes"].items() if scene["errors"]},
        found["cpu_seconds"],
    )


def with_edits(paths: Sequence[Path], pristine: Path, options: Sequence[str] = ()) -> Said:
    """The battery on a copy with these edits."""
    with tempfile.TemporaryDirectory(prefix="bug-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(pristine, copy)
        for path in paths:
            if reason := edits.apply(copy, path):
                return Said(stale=f"{path.stem}: {reason}")
        return battery_in(copy, options)


def judge(bug: Bug, said: Said) -> str:
    """The verdict on a bug; what was refused counts as refused only where no rule saw it."""
    if said.stale:
        return "stale"
    if set(bug.rules) & set(said.errors):
        return "named"
    if bug.guard and any(bug.guard in words for words in said.guards):
        return "refused"
    if said.errors:
        return "caught"
    return "refused" if said.guards else "crashed" if said.crashes else "missed"


def complaint(said: Said) -> str:
    """What a legitimate copy did wrong, in words; "clean"."""
    if said.stale:
        return f"stale: {said.stale}"
    wrong = [
        f"{rule}: {found[0]['what']} ({found[0]['scene']}, {found[0]['place']})"
        for rule, found in said.errors.items()
    ]
    return "; ".join([*wrong, *said.guards, *said.crashes]) or "clean"


def try_bug(bug: Bug, pristine: Path, options: Sequence[str]) -> tuple[Said, float]:
    """What the battery says of it, and the seconds (of the wall) that took."""
    began = time.monotonic()
    return with_edits([bug.path], pristine, options), time.monotonic() - began


# ------------------------------------------------------------------------------------------------ counterparts


def fitting(counterparts: Sequence[Path], pristine: Path) -> list[list[Path]]:
    """The counterparts in as few piles as one pass finds, each of edits that fit onto one copy together. What is legitimate
    alone is so in company, and a battery for each would be most of the time."""
    piles: list[list[Path]] = []
    with tempfile.TemporaryDirectory(prefix="clean-") as folder:
        for counterpart in counterparts:
            for number in range(len(piles) + 1):
                copy = Path(folder) / str(number)
                if number == len(piles):
                    shutil.copytree(pristine, copy)
                    piles.append([])
                if edits.apply(copy, counterpart) is None:
                    piles[number].append(counterpart)
                    break
                if not piles[number]:  # it fits nowhere, not even alone
                    piles[number].append(counterpart)
                    shutil.rmtree(copy)
                    shutil.copytree(pristine, copy)
                    break
    return piles


def try_counterparts(
    pile: Sequence[Path], pristine: Path, options: Sequence[str]
) -> dict[Path, str]:
    """{counterpart: what was wrong with it, or "clean"}: all at once; one by one where that is not clean."""
    together = complaint(with_edits(pile, pristine, options))
    if together == "clean" or len(pile) == 1:
        return dict.fromkeys(pile, together)
    half = len(pile) // 2
    return try_counterparts(pile[:half], pristine, options) | try_counterparts(
        pile[half:], pristine, options
    )


def of_scene(bug: Bug, untouched: Said) -> str:
    """What the untouched code said of the declared setting that is this bug's counterpart."""
    errors = [rules for name, rules in untouched.scenes.items() if bug.counterpart_scene in name]
    return f"the declared setting is called an error: {errors}" if errors else "clean"


# ------------------------------------------------------------------------------------------------ the table


HEAD = f"{'verdict':8} {'named by':10} {'also':16} {'clean':10} {'CPU':>7}  {'bug':52} thread"


def row(outcome: Outcome) -> str:
    bug, said = outcome.bug, outcome.said
    named = ",".join(outcome.expected) or "-"
    others = ",".join(outcome.others) or "-"
    counterpart = (
        "clean"
        if outcome.counterpart == "clean"
        else "-"
        if outcome.counterpart == "-"
        else "NOT CLEAN"
    )
    return (
        f"{outcome.verdict:8} {named:10} {others:16} {counterpart:10} {said.cpu_seconds:5.1f} s  {bug.name:52} "
        f"{bug.thread}"
    )


def explanation(outcome: Outcome) -> list[str]:
    """Lines under a row that is not as it should be, or that a guard refused."""
    said, lines = outcome.said, []
    if not outcome.good and outcome.bug.rules:
        lines.append(f"expected {' or '.join(outcome.bug.rules)}: {outcome.bug.breaks}")
    if said.stale:
        lines.append(said.stale)
    if outcome.verdict != "named":
        lines += [f"guard: {words[:200]}" for words in said.guards[:2]] + list(said.crashes[:1])
        lines += [
            f"{rule}: {found[0]['what'][:200]}" for rule, found in list(said.errors.items())[:3]
        ]
    if outcome.counterpart not in ("-", "clean"):
        lines.append(f"counterpart: {outcome.counterpart[:300]}")
    return [f"         {line}" for line in lines]


def summary(outcomes: Sequence[Outcome], untouched: str) -> dict[str, Any]:
    """Recall, precision and cost. `precision`: of all rules that found an error in a bug with a header, how many were
    among those that would be right."""
    known = [outcome for outcome in outcomes if outcome.bug.rules]
    said = sum(len(outcome.said.errors) for outcome in known)
    caught = [outcome for outcome in outcomes if outcome.verdict in ("named", "caught", "refused")]
    seconds = [outcome.said.cpu_seconds for outcome in outcomes if outcome.said.cpu_seconds]
    return {
        "bugs": len(outcomes),
        "caught": len(caught),
        "with a rule expected": len(known),
        "named": sum(outcome.verdict == "named" for outcome in known),
        "refused by a guard": sum(outcome.verdict == "refused" for outcome in outcomes),
        "missed": [o.bug.name for o in outcomes if o.verdict in ("missed", "crashed", "stale")],
        "precision": sum(len(o.expected) for o in known) / said if said else None,
        "counterparts": sum(outcome.counterpart != "-" for outcome in outcomes),
        "counterparts called an error": [
            o.bug.name for o in outcomes if o.counterpart not in ("-", "clean")
        ],
        "not as the header says": [o.bug.name for o in outcomes if not o.good],
        "untouched code": untouched,
        "cpu seconds a bug": sum(seconds) / len(seconds) if seconds else None,
    }


def try_all(
    bugs: Sequence[Bug], pristine: Path, where: str, options: argparse.Namespace
) -> tuple[Said, list[Outcome] | None]:
    """What is said of the untouched code in one place, and of each bug. None: that code does not get through."""
    scenes = ["--only", options.only, "--where", where]
    # Two processes or a server of several are enough for two cores.
    with ThreadPoolExecutor(options.jobs if where == battery.HERE else 1) as pool:
        first = pool.submit(with_edits, [], pristine, scenes)
        counterparts = [
            bug.counterpart
            for bug in bugs
            if bug.counterpart is not None and not options.no_counterparts
        ]
        piles = [
            pool.submit(try_counterparts, pile, pristine, scenes)
            for pile in fitting(counterparts, pristine)
        ]
        until = [["--until", ",".join(bug.rules) or "any"] if options.quick else [] for bug in bugs]
        jobs = [
            pool.submit(try_bug, bug, pristine, [*scenes, *some])
            for bug, some in zip(bugs, until, strict=True)
        ]
        untouched = first.result()
        if (
            untouched.crashes and not untouched.looked
        ):  # nothing that is said of a bug would mean anything
            pool.shutdown(wait=False, cancel_futures=True)
            print(
                f"the code as it is does not get through the battery: {untouched.crashes[0]}",
                file=sys.stderr,
            )
            return untouched, None
        print(
            f"untouched code{'' if where == battery.HERE else f', {where}'}: {complaint(untouched)} "
            f"({untouched.cpu_seconds:.1f} CPU-seconds; rules that looked: {' '.join(untouched.looked)})\n"
            f"{len(counterparts)} counterparts in {len(piles)} copies\n{HEAD}",
            flush=True,
        )
        answers = {
            counterpart: words for pile in piles for counterpart, words in pile.result().items()
        }
        outcomes = []
        for bug, job in zip(bugs, jobs, strict=True):
            said, seconds = job.result()
            counterpart = (
                answers.get(bug.counterpart, "-")
                if not bug.counterpart_scene
                else of_scene(bug, untouched)
            )
            outcomes.append(outcome := Outcome(bug, judge(bug, said), said, counterpart, seconds))
            print("\n".join([row(outcome), *explanation(outcome)]), flush=True)
    return untouched, outcomes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.silent_bugs.run", description=__doc__.splitlines()[0]
    )
    parser.add_argument("bug", nargs="*", help="a file, or the beginning of a name (default: all)")
    parser.add_argument(
        "--patches", type=Path, default=BUGS, help="folder of edits or diffs (default: bugs/)"
    )
    parser.add_argument("--json", type=Path, help="write everything that was found to this file")
    parser.add_argument(
        "--only", default="", help="only scenes whose name holds this, or 'one|of|these'"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="be done with a bug once an expected rule (any, where none is) has named it",
    )
    parser.add_argument("--no-counterparts", action="store_true", help="leave the counterparts out")
    parser.add_argument(
        "--share",
        type=mutants.read_share,
        metavar="K/N",
        help="only part K of N of them: every N-th",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args(arguments)
    try:
        bugs = choose(options.bug, options.patches)
        if options.share:
            bugs = bugs[options.share[0] - 1 :: options.share[1]]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="silent-bugs-") as folder:
        pristine = Path(folder) / "tree"
        mutants.copy_tree(mutants.ROOT, pristine)
        mutants.check_import(pristine)
        tried = []
        for where in battery.PLACES:
            chosen = [bug for bug in bugs if bug.where == where]
            if where == "server" and chosen and importlib.util.find_spec("vllm") is None:
                print(
                    f"{len(chosen)} bugs are tried beside a real vLLM server, and there is no vLLM here: make test-vllm"
                )
            elif chosen:
                tried.append(try_all(chosen, pristine, where, options))
    if any(outcomes is None for _, outcomes in tried):
        return 1
    outcomes = [outcome for _, some in tried for outcome in some]
    answers = [complaint(untouched) for untouched, _ in tried]
    found = summary(outcomes, next((words for words in answers if words != "clean"), "clean"))
    for key, value in found.items():
        print(f"{key}: {f'{value:.2f}' if isinstance(value, float) else value}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "summary": found,
                    "untouched": [asdict(said) for said, _ in tried],
                    "bugs": [
                        {
                            "name": o.bug.name,
                            "rules": o.bug.rules,
                            "thread": o.bug.thread,
                            "breaks": o.bug.breaks,
                            "verdict": o.verdict,
                            "named_by": o.expected,
                            "also": o.others,
                            "counterpart": o.counterpart,
                            "seconds": o.seconds,
                            "said": asdict(o.said),
                        }
                        for o in outcomes
                    ],
                },
                indent=1,
            )
        )
    return 0 if all(outcome.good for outcome in outcomes) and set(answers) <= {"clean"} else 1


if __name__ == "__main__":
    sys.exit(main())
