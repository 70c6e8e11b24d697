"""The catalogue of the original WebShop, from its own files in a folder:

    items_shuffle.json     (or items_shuffle_1000.json)   a list of products, read one at a time
    items_ins_v2.json      (or items_ins_v2_1000.json)    {asin: {"attributes": [...], ...}}
    items_human_ins.json   (may be missing)               {asin: [{"instruction": ..., "instruction_attributes": [...],
                                                           "instruction_options": [...] or {name: value}}, ...]}

Goals are the instructions that people wrote; without that file, those of items_ins_v2.json with every choice of
options. As in the original, a product without a price costs 100 dollars, one with two prices something between them
(drawn by its id, so the same everywhere), and instructions without attributes are no goals.

All of it is foreign text: read within bounds, cut where it is longer than any page needs, never trusted in a prompt.
Source: princeton-nlp/WebShop, web_agent_site/engine/engine.py (load_products) and goal.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from itertools import product as every
from pathlib import Path
from typing import Any

from workbench.extensions.shop.catalogue import (
    Catalogue,
    Product,
    ShopGoal,
    price_limit,
    with_limit,
)
from workbench.values.errors import DataError
from workbench.values.seeds import rng_at
from workbench.worlds.qa.records import Record, records

MOST_BYTES = 600_000_000  # of a file that is read whole: the original's largest has about 150 MB
MOST_PRODUCTS = 50_000
MOST_GOALS_A_PRODUCT = 20  # of every choice of options there may be thousands
MOST_VALUES = 50  # values of an option, features, attributes
LONGEST_NAME = 300
LONGEST_TEXT = 2_000
_NAMES = {
    "items_shuffle": ("items_shuffle.json", "items_shuffle_1000.json"),
    "items_ins_v2": ("items_ins_v2.json", "items_ins_v2_1000.json"),
    "items_human_ins": ("items_human_ins.json",),
}


def load(folder: str | Path, most: int = 1_000) -> Catalogue:
    """The first `most` products and their goals. Raises DataError for a file that is missing or not as published."""
    if not 1 <= most <= MOST_PRODUCTS:
        raise DataError(f"a catalogue has 1 to {MOST_PRODUCTS:,} products, got {most!r}")
    folder = Path(folder)
    attributes = _whole(_found(folder, "items_ins_v2"))
    written = _found(folder, "items_human_ins", optional=True)
    instructions = _whole(written) if written else {}
    products: dict[str, Product] = {}
    for record in records(_found(folder, "items_shuffle"), id_field="asin"):
        name = record.text("asin")
        # The original passes over the others.
        if name != "nan" and len(name) <= 10 and name not in products:
            products[name] = _product(record, attributes.get(name))
        if len(products) == most:
            break
    goals: list[ShopGoal] = []
    for name, product in products.items():
        if written:
            goals += _written(product, instructions.get(name, []))
        else:
            goals += _made(product, attributes.get(name))
    if not goals:
        raise DataError(
            f"{folder}: none of the {len(products)} products has an instruction; take more products, or "
            "the files that belong together (items_shuffle_1000.json with items_ins_v2_1000.json)"
        )
    return Catalogue(tuple(products.values()), tuple(goals))


def _found(folder: Path, kind: str, *, optional: bool = False) -> Path | None:
    for name in _NAMES[kind]:
        if (folder / name).is_file():
            return folder / name
    if optional:
        return None
    raise DataError(
        f"{folder} has no {' or '.join(_NAMES[kind])}; name the folder with WebShop's own files"
    )


def _whole(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(
                f"{path} has {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are read; is it the "
                "file that WebShop publishes?"
            )
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON ({error}); was the file fetched whole?") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{path}: expected an object with an entry for each product id, found {type(value).__name__}"
        )
    return value


# ------------------------------------------------------------------------------------------------ products


def _product(record: Record, known: Any) -> Product:
    name = record.text("asin")
    features = record.fields.get("small_description") or []
    features = [features] if isinstance(features, str) else features
    if not isinstance(features, list):
        raise record.wrong("small_description", "text, or a list of texts")
    attributes = _texts(known.get("attributes")) if isinstance(known, dict) else ()
    return Product(
        name,
        record.text("name")[:LONGEST_NAME],
        record.text("query", "").lower().strip()[:LONGEST_NAME],
        record.text("product_category", "")[:LONGEST_NAME],
        record.text("full_description", "", empty=True)[:LONGEST_TEXT],
        _texts(features),
        attributes,
        _options(record),
        _price(record, name),
    )


def _texts(values: Any) -> tuple[str, ...]:
    """The texts of a list, within bounds; () where it is none."""
    if not isinstance(values, list):
        return ()
    return tuple(text[:LONGEST_NAME] for text in values[:MOST_VALUES] if isinstance(text, str))


def _options(record: Record) -> tuple[tuple[str, tuple[str, ...]], ...]:
    offered = record.fields.get("customization_options") or {}
    if not isinstance(offered, dict):
        raise record.wrong("customization_options", "an object of lists")
    options = []
    for name, contents in islice(offered.items(), MOST_VALUES):
        contents = contents or []
        if not isinstance(contents, list) or not all(map(_has_value, contents)):
            raise record.wrong(
                "customization_options", "an object of lists of objects with a value (text)"
            )
        values = [content["value"] for content in contents[:MOST_VALUES]]
        cleaned = [value.strip().replace("/", " | ").lower()[:LONGEST_NAME] for value in values]
        options.append((name.lower()[:LONGEST_NAME], tuple(dict.fromkeys(cleaned))))
    return tuple(options)


def _has_value(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("value"), str)


def _price(record: Record, name: str) -> float:
    prices = []
    for part in record.text("pricing", "", empty=True).split("$")[1:]:
        digits = re.sub(r"[^\d.]", "", part)[:12]
        if digits.strip(".") and digits.count(".") <= 1:
            prices.append(float(digits))
    if not prices:
        return 100.0
    if len(prices) == 1:
        return prices[0]
    return round(float(rng_at("shop.price", name).uniform(*sorted(prices[:2]))), 2)


# ------------------------------------------------------------------------------------------------ goals


def _written(product: Product, instructions: Any) -> Iterator[ShopGoal]:
    """Goals that people wrote."""
    if not isinstance(instructions, list):
        return
    for number, entry in enumerate(instructions[:MOST_GOALS_A_PRODUCT]):
        if not isinstance(entry, dict) or not isinstance(entry.get("instruction"), str):
            raise DataError(
                f"items_human_ins.json, {product.id}: expected objects with an instruction (text), found "
                f"{entry!r:.100}"
            )
        wanted = _texts(entry.get("instruction_attributes"))
        options = entry.get("instruction_options") or []
        if wanted:
            options = _texts(list(options.values()) if isinstance(options, dict) else options)
            yield _goal(product, number, entry["instruction"].strip("."), wanted, options)


def _made(product: Product, known: Any) -> Iterator[ShopGoal]:
    """The made instruction, with every choice of options."""
    if not isinstance(known, dict) or not isinstance(known.get("instruction"), str):
        return
    wanted = _texts(known.get("instruction_attributes"))
    if not wanted:
        return
    offered = dict(product.options)
    names = sorted(name for name, values in product.options if values)
    choices = every(*(offered[name] for name in names))
    for number, values in enumerate(islice(choices, MOST_GOALS_A_PRODUCT)):
        options = ", and ".join(f"{name}: {value}" for name, value in zip(names, values))
        text = known["instruction"] + (f" with {options}" if options else "")
        yield _goal(product, number, text, wanted, values)


def _goal(
    product: Product, number: int, text: str, wanted: tuple[str, ...], options: tuple[str, ...]
) -> ShopGoal:
    limit = price_limit(product.price, rng_at("shop.limit", product.id, number))
    return ShopGoal(product.id, with_limit(text[:LONGEST_TEXT], limit), wanted, options, limit)
