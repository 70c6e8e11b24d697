"""Looking before the end: how small a p-value must be at each look, so that all looks together err as often as promised.

Alpha is spent by Lan and DeMets' function that is like O'Brien and Fleming's boundary: next to nothing early, nearly
all of it at the planned end. Information is taken to grow with the number of seeds; tasks that all seeds share make
looks more alike than that, which only makes the boundaries careful. Sources: Lan and DeMets (1983, Biometrika 70);
the recursion over sub-densities by Armitage, McPherson and Rowe (1969).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

import numpy as np
from scipy import special

from workbench.values.errors import ConfigError

NODES = 160  # of Gauss and Legendre's rule, over the region in which one goes on


def spent(fraction: float, alpha: float) -> float:
    """Alpha that may be used up when this share of the information is there: half of it on either side, each by the
    function that is like O'Brien and Fleming's boundary."""
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / sqrt(fraction)))


def look_levels(looks: Sequence[int], alpha: float = 0.05) -> tuple[float, ...]:
    """For looks after so many seeds, the last at the planned end: the two-sided level at each. One look: alpha itself.
    ConfigError unless they are rising numbers of seeds."""
    if not looks or looks[0] < 1 or any(b <= a for a, b in zip(looks, looks[1:])):
        raise ConfigError(
            f"looks are rising numbers of seeds, the last one the end, got {list(looks)}"
        )
    return _levels(tuple(look / looks[-1] for look in looks), alpha)


@lru_cache(maxsize=512)
def _levels(fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Two-sided levels, by the recursion over the density of where the sum stands while one goes on."""
    from scipy.optimize import brentq

    limit = -float(special.ndtri(spent(fractions[0], alpha) / 2))
    limits = [limit]
    node_U, weight_U = np.polynomial.legendre.leggauss(NODES)
    at_U = node_U * limit * sqrt(fractions[0])  # in units in which the variance is the fraction
    mass_U = weight_U * limit * np.exp(-((node_U * limit) ** 2) / 2) / sqrt(2 * np.pi)
    for before, now in zip(fractions, fractions[1:]):
        step = sqrt(now - before)
        wanted = spent(now, alpha) - spent(before, alpha)

        def alpha_left(limit: float) -> float:
            """What of the wanted alpha is not used up yet where one stops beyond `limit`; falls as it falls."""
            edge = limit * sqrt(now)
            above_U = special.ndtr((at_U - edge) / step)
            below_U = special.ndtr((-at_U - edge) / step)
            return float((mass_U * (above_U + below_U)).sum()) - wanted

        limit = brentq(alpha_left, 0.0, 20.0, xtol=1e-14)
        limits.append(limit)
        next_V = node_U * limit * sqrt(now)
        distance_VU = (next_V[:, None] - at_U) / step
        density_VU = np.exp(-(distance_VU**2) / 2) / (step * sqrt(2 * np.pi))
        at_U = next_V
        mass_U = weight_U * limit * sqrt(now) * (density_VU @ mass_U)
    return tuple(float(2 * special.ndtr(-limit)) for limit in limits)
