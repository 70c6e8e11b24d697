"""Products, and what customers ask for: a catalogue of hundreds of invented products, the same for a seed everywhere.

A goal names a kind of product, attributes that it should have, options to choose and the most it may cost; it is made
from a product, so it can be met. How goals put the price: Yao et al. 2022 (WebShop, arXiv 2207.01206).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from workbench.tools.retrieval.base import Corpus, Document
from workbench.tools.retrieval.bm25 import Bm25
from workbench.values.seeds import rng_at

PRICE_STEP = 10.0  # what a price is compared with: 10, 20 ... 990 dollars
PRICE_STEPS = 99
NO_LIMIT = 1_000_000.0
GOALS_A_PRODUCT = 3


@dataclass(frozen=True)
class Product:
    """What the shop sells.

    query: the kind of thing.
    path: categories from the widest on, with › between.
    options: (name, values) pairs, of which a customer chooses one value each.
    """

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
        return Bm25(Corpus(tuple(map(_document, self.products))))


def _document(product: Product) -> Document:
    values = chain.from_iterable(values for _, values in product.options)
    text = " ".join((product.description, *product.features, *values))
    return Document(product.id, product.name, text)


def price_limit(price: float, rng: np.random.Generator) -> float:
    """The larger of two of the next four steps above a price, as published; NO_LIMIT where fewer than two are left."""
    steps = [PRICE_STEP * step for step in range(1, PRICE_STEPS + 1)]
    above = [step for step in steps if step > price][:4]
    if len(above) < 2:
        return NO_LIMIT
    return float(max(rng.choice(above, size=2, replace=False)))


def with_limit(instruction: str, limit: float) -> str:
    """The instruction, and what the product may cost, in the published words."""
    if limit == NO_LIMIT:
        return instruction
    return f"{instruction}, and price lower than {limit:.2f} dollars"


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
    products = []
    goals = []
    for number in range(count):
        rng = rng_at("shop.product", seed, number)
        products.append(_product(number, rng, shelves))
        goals += [_goal(products[-1], rng) for _ in range(GOALS_A_PRODUCT)]
    return Catalogue(tuple(products), tuple(dict.fromkeys(goals)))


def _product(number: int, rng: np.random.Generator, shelves: int) -> Product:
    path, kinds, attributes, options = SHELVES[int(rng.integers(shelves))]
    kind = kinds[int(rng.integers(len(kinds)))]
    brand = BRANDS[int(rng.integers(len(BRANDS)))]
    has = _some(attributes, 3, rng)
    offered = []
    for name, values in options:
        count = int(rng.integers(2, len(values) + 1))
        offered.append((name, _some(values, count, rng)))
    features = tuple(attribute.capitalize() for attribute in has)
    return Product(
        f"B{number:03d}",
        f"{brand} {kind}, {has[0]}, {has[1]}",
        kind,
        f"{path} › {kind}",
        f"A {kind} by {brand}. {features[2]}.",
        features,
        has,
        tuple(offered),
        round(float(rng.uniform(5, 150)), 2),
    )


def _goal(product: Product, rng: np.random.Generator) -> ShopGoal:
    wanted = _some(product.attributes, int(rng.integers(1, 3)), rng)
    chosen = {name: values[int(rng.integers(len(values)))] for name, values in product.options}
    limit = price_limit(product.price, rng)
    options = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
    instruction = f"Find a {product.query}, {', '.join(wanted)}, with {options}"
    values = tuple(chosen.values())
    return ShopGoal(product.id, with_limit(instruction, limit), wanted, values, limit)


def _some(values: Sequence[str], count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """`count` of them, in their order."""
    places = sorted(rng.choice(len(values), size=count, replace=False))
    return tuple(values[int(place)] for place in places)
