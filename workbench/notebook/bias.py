"""The bias bench as a cell: `wb.bias_bench()` is a value that shows itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.bias import CLAIMS, TASKS, BiasReport, Claim
from workbench.bias import bias_bench as _bias_bench
from workbench.bias.bench import ERROR
from workbench.learn.algorithms import ALGORITHMS
from workbench.types.errors import ConfigError


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

    `algorithms`, `tasks`: names; None: all of them. An algorithm that is in no table yet comes as {"name": Class},
    with what is claimed of it in `claims`; without a claim it is measured as it is, and the report says that none is
    there. `error`: relative standard error of what is sampled (0.02), above zero; a larger one is quicker.
    `traps=False` leaves out the traps, which do not depend on the choice. Raises ConfigError for a name that is not
    there, and for an empty list of them.
    """
    if not error > 0:
        raise ConfigError(
            f"error is a relative standard error above zero, such as {ERROR}; got {error!r}"
        )
    if not isinstance(algorithms, Mapping):
        algorithms = {
            name: ALGORITHMS[name] for name in _chosen(algorithms, ALGORITHMS, "algorithm")
        }
    return _bias_bench(
        algorithms=algorithms,
        claims={name: claims[name] for name in algorithms if name in claims},
        tasks={name: TASKS[name] for name in _chosen(tasks, TASKS, "task")},
        error=error,
        traps=traps,
    )


def _chosen(names: Names, known, what: str) -> list[str]:
    names = [names] if isinstance(names, str) else list(known if names is None else names)
    if not names:
        raise ConfigError(
            f"an empty list of {what}s: leave it out for all of them, or name some of {', '.join(known)}"
        )
    for name in names:
        if name not in known:
            raise ConfigError(f"no {what} {name!r} on the bias bench; it has {', '.join(known)}")
    return names
