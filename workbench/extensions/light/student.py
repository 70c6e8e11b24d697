"""Quantiles of Student's t without scipy.

    t_quantile(9, 0.975)      2.262157162798...

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: for a whole number of degrees of
freedom the distribution is a finite sum. Many degrees: the expansion 26.7.5 around the normal quantile.
"""

from __future__ import annotations

import math
from statistics import NormalDist

MANY = 2_000  # degrees of freedom: above it the expansion is right to 1e-12


def t_quantile(freedom: int, probability: float) -> float:
    """The value below which Student's t with so many degrees of freedom lies with this probability (above one half)."""
    if freedom > MANY:
        return _expanded(freedom, NormalDist().inv_cdf(probability))
    low, high = 0.0, 1.0
    while _below(freedom, high) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _below(freedom, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _below(freedom: int, value: float) -> float:
    """The probability of less than `value`."""
    angle = math.atan2(value, math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    terms = []
    term = math.sin(angle) if freedom % 2 == 0 else math.sin(angle) * math.cos(angle)
    first = 1 if freedom % 2 == 0 else 2
    for number in range(first, freedom, 2):
        terms.append(term)
        term *= cosine2 * number / (number + 1)
    within = math.fsum(terms)
    if freedom % 2:
        within = 2 / math.pi * (angle + within)
    return (1 + within) / 2


def _expanded(freedom: int, normal: float) -> float:
    x = normal
    powers = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + math.fsum(power / freedom**n for n, power in enumerate(powers, 1))
