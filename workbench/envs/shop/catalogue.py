"""Products, and what customers ask for: a catalogue of hundreds of invented products, the same for a seed everywhere.

A goal names a kind of product, attributes that it should have, options to choose and the most it may cost; it is made
from a product, so it can be met. How goals put the price: Yao et al. 2022 (WebShop, arXiv 2207.01206).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from workbench.envs.search.base import Corpus, Document
from workbench.envs.search.bm25 import Bm25
from workbench.types.seeds import rng_at

PRICE_STEP, PRICE_STEPS = 10.0, 99  # what a price is compared with: 10, 20 ... 990 dollars
NO_LIMIT = 1_000_000.0
GOALS_A_PRODUCT = 3


@dataclass(frozen=True)
class Product:
    """What the shop sells. `query`: the kind of thing; `path`: categories from the widest on, with › between;
    `options`: (name, values) pairs, of which a customer chooses one value each."""

    id: str
    name: str
    query: str
    path: str
    description: str
    features: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    price: float


@dataclass(frozen=True)
class ShopGoal:
    """What a customer asks for, and the product that the question was made from (nobody is told)."""

    product: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Products and goals."""

    products: tuple[Product, ...]
    goals: tuple[ShopGoal, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Product]:
        return {product.id: product for product in self.products}

    @cached_property
    def searcher(self) -> Bm25:
        """Over all that the pages say of a product."""
        return Bm25(
            Corpus(
                tuple(
                    Document(
                        each.id,
                        each.name,
                        " ".join(
                            (
                                each.description,
                                *each.features,
                                *(value for _, values in each.options for value in values),
                            )
                        ),
                    )
                    for each in self.products
                )
            )
        )


def price_limit(price: float, rng: np.random.Generator) -> float:
    """The larger of two of the next four steps above a price, as published; NO_LIMIT where fewer than two are left."""
    above = [PRICE_STEP * step for step in range(1, PRICE_STEPS + 1) if PRICE_STEP * step > price][
        :4
    ]
    return float(max(rng.choice(above, size=2, replace=False))) if len(above) >= 2 else NO_LIMIT


def with_limit(instruction: str, limit: float) -> str:
    """The instruction, and what the product may cost, in the published words."""
    return (
        instruction
        if limit == NO_LIMIT
        else f"{instruction}, and price lower than {limit:.2f} dollars"
    )


# ------------------------------------------------------------------------------------------------ made here


BRANDS = (
    "Norvik",
    "Tamsin",
    "Orlo",
    "Bexley",
    "Kaduna",
    "Velden",
    "Marrow",
    "Quill",
    "Sorrel",
    "Tindra",
    "Umber",
    "Wexel",
    "Ardo",
    "Corvin",
    "Delfi",
    "Fenwick",
    "Garnet",
    "Hollis",
    "Ibsen",
    "Jarrow",
)
COLORS = ("red", "blue", "green", "black", "white", "yellow", "pink", "grey")
# path, kinds, attributes, options
SHELVES: tuple[
    tuple[str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]], ...
] = (
    (
        "Home & Kitchen › Dining",
        ("coffee mug", "soup bowl", "dinner plate", "water bottle", "tea pot"),
        (
            "dishwasher safe",
            "non slip",
            "lead free",
            "hand painted",
            "double wall",
            "leak proof",
            "heat resistant",
            "easy clean",
        ),
        (("color", COLORS), ("size", ("small", "medium", "large"))),
    ),
    (
        "Clothing › Unisex",
        ("rain jacket", "wool sweater", "running shorts", "winter hat", "hiking socks"),
        (
            "machine wash",
            "quick dry",
            "long sleeve",
            "water proof",
            "tumble dry",
            "soft lining",
            "slim fit",
            "high waist",
        ),
        (("color", COLORS), ("size", ("x-small", "small", "medium", "large", "x-large"))),
    ),
    (
        "Electronics › Audio",
        ("head phones", "desk speaker", "travel charger", "alarm clock", "voice recorder"),
        (
            "noise cancelling",
            "long lasting",
            "fast charging",
            "hands free",
            "plug play",
            "carrying case",
            "high power",
            "usb port",
        ),
        (("color", COLORS), ("style", ("basic", "sport", "studio"))),
    ),
    (
        "Beauty › Care",
        ("hand cream", "face mask", "hair brush", "bath soap", "lip balm"),
        (
            "cruelty free",
            "fragrance free",
            "anti aging",
            "dry skin",
            "natural oil",
            "paraben free",
            "travel size",
            "sulfate free",
        ),
        (
            ("scent", ("rose", "lemon", "mint", "vanilla")),
            ("pack", ("pack of 1", "pack of 2", "pack of 4")),
        ),
    ),
    (
        "Home & Garden › Furniture",
        ("dining chair", "book shelf", "floor lamp", "storage bench", "coffee table"),
        (
            "easy assemble",
            "solid wood",
            "space saving",
            "steel frame",
            "eco friendly",
            "heavy duty",
            "assembly required",
            "wall mounted",
        ),
        (("color", COLORS), ("size", ("narrow", "wide", "extra wide"))),
    ),
)


@lru_cache(maxsize=4)
def made(seed: int, count: int, shelves: int = len(SHELVES)) -> Catalogue:
    """A catalogue of `count` products of the first `shelves` shelves, with three goals each."""
    products, goals = [], []
    for number in range(count):
        rng = rng_at("shop.product", seed, number)
        products.append(_product(number, rng, shelves))
        goals += [_goal(products[-1], rng) for _ in range(GOALS_A_PRODUCT)]
    return Catalogue(tuple(products), tuple(dict.fromkeys(goals)))


def _product(number: int, rng: np.random.Generator, shelves: int) -> Product:
    path, kinds, attributes, options = SHELVES[int(rng.integers(shelves))]
    kind, brand = kinds[int(rng.integers(len(kinds)))], BRANDS[int(rng.integers(len(BRANDS)))]
    has = _some(attributes, 3, rng)
    offered = tuple(
        (name, _some(values, int(rng.integers(2, len(values) + 1)), rng))
        for name, values in options
    )
    features = tuple(each.capitalize() for each in has)
    return Product(
        f"B{number:03d}",
        f"{brand} {kind}, {has[0]}, {has[1]}",
        kind,
        f"{path} › {kind}",
        f"A {kind} by {brand}. {features[2]}.",
        features,
        has,
        offered,
        round(float(rng.uniform(5, 150)), 2),
    )


def _goal(product: Product, rng: np.random.Generator) -> ShopGoal:
    wanted = _some(product.attributes, int(rng.integers(1, 3)), rng)
    chosen = tuple(
        (name, values[int(rng.integers(len(values)))]) for name, values in product.options
    )
    limit = price_limit(product.price, rng)
    said = f"Find a {product.query}, {', '.join(wanted)}, with {', and '.join(f'{n}: {v}' for n, v in chosen)}"
    return ShopGoal(
        product.id, with_limit(said, limit), wanted, tuple(value for _, value in chosen), limit
    )


def _some(values: Sequence[str], count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """`count` of them, in their order."""
    return tuple(
        values[int(place)] for place in sorted(rng.choice(len(values), size=count, replace=False))
    )
