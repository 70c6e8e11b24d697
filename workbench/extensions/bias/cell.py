"""The bias bench as a cell: `wb.bias_bench()` is a value that shows itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.basics.findings import NOTE, Finding, RuleResult
from workbench.basics.plugins import is_named
from workbench.extensions.bias.bench import ERROR, BiasReport, BiasRow
from workbench.extensions.bias.bench import bias_bench as _bias_bench
from workbench.extensions.bias.claims import CLAIMS, Claim
from workbench.extensions.bias.properties import properties_of
from workbench.extensions.bias.pulls import objective_properties
from workbench.extensions.bias.tasks import TASKS
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.own import algorithm_named
from workbench.values.errors import ConfigError

PLAIN = ("stop_continue", "three_turns", "lengths")  # where no rare reward decides
ASTRAY = 0.6  # cosine
LEAST_ERROR, MOST_ERROR = 0.001, 1.0  # below: billions of units; above: nothing is told apart

Names = Sequence[str] | str | None


def bias_bench(
    algorithms: Names | Mapping[str, type] = None,
    *,
    tasks: Names = None,
    claims: Mapping[str, Sequence[Claim]] = CLAIMS,
    error: float = ERROR,
    traps: bool = True,
) -> BiasReport:
    """What the credit of each algorithm is worth as a gradient, on tasks where the true gradient is a formula.

    algorithms: names; None: all of them. One of your own by "my_module:MINE", or {"name": MINE}; of it what holds of any
        estimator is asked as well, and that it does not point the wrong way on half of the tasks.
    tasks: names; None: all of them.
    claims: what is claimed of each algorithm; without a claim it is measured as it is, and the report says that none
        is there.
    error: relative standard error of what is sampled (0.02), from 0.001 to 1; a larger one is quicker.
    traps: False leaves out the traps, which do not depend on the choice; nor do off-policy corrections by lag and KL terms, which
        are measured where all algorithms and tasks are asked for.

    Raises ConfigError for a name that is not there, an empty list of them, and another error.
    """
    if not LEAST_ERROR <= error <= MOST_ERROR:
        raise ConfigError(
            f"error is a relative standard error above zero, such as {ERROR}; got {error!r} "
            f"(from {LEAST_ERROR} to {MOST_ERROR})"
        )
    everything = algorithms is None and tasks is None
    if not isinstance(algorithms, Mapping):
        names = [algorithms] if isinstance(algorithms, str) else algorithms
        own = {name: algorithm_named(name) for name in names or () if is_named(name)}
        listed = None if names is None else [name for name in names if name not in own]
        if listed or not own:
            own |= {name: ALGORITHMS[name] for name in _chosen(listed, ALGORITHMS, "algorithm")}
        algorithms = own
    report = _bias_bench(
        algorithms=algorithms,
        claims={name: claims[name] for name in algorithms if name in claims},
        tasks={name: TASKS[name] for name in _chosen(tasks, TASKS, "task")},
        error=error,
        traps=traps,
        lags=traps and everything,
    )
    own = {
        name: made for name, made in algorithms.items() if is_named(name) or name not in ALGORITHMS
    }
    return _with_own(report, own, _kept(report, own, claims))


def _kept(
    report: BiasReport, own: Mapping[str, Any], claims: Mapping[str, Sequence[Claim]]
) -> list[str]:
    """The faults, but for those that one's own algorithm, by its name on the command line, has no claim."""
    silent = [f"{name} does not say" for name in own if is_named(name) and name not in claims]
    return [fault for fault in report.faults if not fault.startswith(tuple(silent))]


def _with_own(report: BiasReport, own: Mapping[str, Any], kept: Sequence[str]) -> BiasReport:
    """The report with what was found of one's own algorithms beside the faults that are kept."""
    findings = _findings_of(own)
    faults = [what for what, severity in findings if severity != NOTE]
    return replace(
        report,
        faults=(*kept, *faults, *_faults_of_rows(report, own)),
        notes=tuple(what for what, severity in findings if severity == NOTE),
    )


def _findings_of(own: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What does not hold of one's own algorithms, in words, and how severe that is."""
    findings: list[tuple[str, str]] = []
    for name, algorithm in own.items():
        made = algorithm() if isinstance(algorithm, type) else algorithm
        results = _properties(made) if isinstance(made, Algorithm) else []
        for result in results:
            if isinstance(result, Finding):
                findings.append((f"{name}: {result.what}", result.severity))
    return findings


def _faults_of_rows(report: BiasReport, own: Mapping[str, Any]) -> list[str]:
    faults: list[str] = []
    for name in own:
        rows = [row for row in report.rows if row.algorithm == name and row.says == "nothing"]
        faults += _of_rows(name, rows)
        wrong = [row.task for row in rows if row.cosine is None or row.scale <= 0]
        if rows and 2 * len(wrong) >= len(rows):
            faults.append(
                f"{name} points the wrong way, or nowhere, on {len(wrong)} of {len(rows)} tasks (so {wrong[0]}): expected "
                "a gradient along the true one; look at the sign and at which rewards a token is worth"
            )
    return faults


def _of_rows(name: str, rows: Sequence[BiasRow]) -> list[str]:
    """No gradient at all on a task, or one that points elsewhere where dividing by a spread does not account for it."""
    faults = []
    nowhere = [row.task for row in rows if row.cosine is None]
    if nowhere:
        faults.append(
            f"{name} has no gradient at all on {', '.join(nowhere)}, where the true one is not zero: expected some credit for what led there; a turn that "
            "earns nothing by itself may be left without what came after it, or what is subtracted is the very same"
        )
    elsewhere = [
        row for row in rows if row.cosine is not None and row.task in PLAIN and row.cosine < ASTRAY
    ]
    if elsewhere:
        row = elsewhere[0]
        faults.append(
            f"{name} points elsewhere on {row.task}: the cosine between its mean gradient and the true one is {row.cosine:.2f}; expected {ASTRAY} or more, as of "
            "every algorithm here with any baseline or deviation. Look at which turn or token a reward is credited to"
        )
    return faults


def _properties(algorithm: Algorithm) -> list[RuleResult]:
    """What holds of any estimator and of any objective."""
    return [*properties_of(algorithm), *objective_properties(algorithm)]


def _chosen(names: Names, known: Mapping[str, Any], what: str) -> list[str]:
    if names is None:
        names = known
    elif isinstance(names, str):
        names = [names]
    if not names:
        raise ConfigError(
            f"an empty list of {what}s: leave it out for all of them, or name some of {', '.join(known)}"
        )
    for name in names:
        if name not in known:
            raise ConfigError(f"no {what} {name!r} on the bias bench; it has {', '.join(known)}")
    return list(names)
