"""The bias bench as a cell: `wb.bias_bench()` is a value that shows itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.extensions.bias.bench import ERROR, BiasReport
from workbench.extensions.bias.bench import bias_bench as _bias_bench
from workbench.extensions.bias.claims import CLAIMS, Claim
from workbench.extensions.bias.tasks import TASKS
from workbench.learn.algorithms import ALGORITHMS
from workbench.values.errors import ConfigError

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

    algorithms: names; None: all of them. One that is in no table yet comes as {"name": Class}.
    tasks: names; None: all of them.
    claims: what is claimed of each algorithm; without a claim it is measured as it is, and the report says that none
        is there.
    error: relative standard error of what is sampled (0.02), above zero; a larger one is quicker.
    traps: False leaves out the traps, which do not depend on the choice.

    Raises ConfigError for a name that is not there, and for an empty list of them.
    """
    if not error > 0:
        raise ConfigError(
            f"error is a relative standard error above zero, such as {ERROR}; got {error!r}"
        )
    if not isinstance(algorithms, Mapping):
        names = _chosen(algorithms, ALGORITHMS, "algorithm")
        algorithms = {name: ALGORITHMS[name] for name in names}
    return _bias_bench(
        algorithms=algorithms,
        claims={name: claims[name] for name in algorithms if name in claims},
        tasks={name: TASKS[name] for name in _chosen(tasks, TASKS, "task")},
        error=error,
        traps=traps,
    )


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
