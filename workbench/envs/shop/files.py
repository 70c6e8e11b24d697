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
from itertools import islice, product as every
from pathlib import Path
from typing import Any

from workbench.envs.qa.records import Record, records
from workbench.envs.shop.catalogue import Catalogue, ShopGoal, Product, price_limit, with_limit
from workbench.types.errors import DataError
from workbench.types.seeds import rng_at

MOST_BYTES = 600_000_000  # of a file that is read whole: the original's largest has about 150 MB
MOST_PRODUCTS = 50_000
MOST_GOALS_A_PRODUCT = 20  # of every choice of options there may be thousands
MOST_VALUES = 50  # values of an option, features, attributes
LONGEST_NAME, LONGEST_TEXT = 300, 2_000
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
        if (
            name != "nan" and len(name) <= 10 and name not in products
        ):  # as the original passes them over
            products[name] = _product(record, attributes.get(name))
        if len(products) == most:
            break
    goals = [
        goal
        for each in products.values()
        for goal in (
            _written(each, instructions.get(each.id, []))
            if written
            else _made(each, attributes.get(each.id))
        )
    ]
    if not goals:
        raise DataError(
            f"{folder}: none of the {len(products)} products has an instruction; take more products, or "
            "the files that belong together (items_shuffle_1000.json with items_ins_v2_1000.json)"
        )
    return Catalogue(tuple(products.values()), tuple(goals))


def check_folder(folder: str | Path) -> None:
    """Raise DataError where a file is missing. Quick: nothing is read."""
    for kind in ("items_shuffle", "items_ins_v2"):
        _found(Path(folder), kind)


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
    values = values if isinstance(values, list) else []
    return tuple(each[:LONGEST_NAME] for each in values[:MOST_VALUES] if isinstance(each, str))


def _options(record: Record) -> tuple[tuple[str, tuple[str, ...]], ...]:
    offered = record.fields.get("customization_options") or {}
    if not isinstance(offered, dict):
        raise record.wrong("customization_options", "an object of lists")
    found = []
    for name, contents in islice(offered.items(), MOST_VALUES):
        contents = contents or []
        if not isinstance(contents, list) or not all(
            isinstance(each, dict) and isinstance(each.get("value"), str) for each in contents
        ):
            raise record.wrong(
                "customization_options", "an object of lists of objects with a value (text)"
            )
        values = (
            each["value"].strip().replace("/", " | ").lower()[:LONGEST_NAME]
            for each in contents[:MOST_VALUES]
        )
        found.append((name.lower()[:LONGEST_NAME], tuple(dict.fromkeys(values))))
    return tuple(found)


def _price(record: Record, name: str) -> float:
    text = record.text("pricing", "", empty=True)
    prices = [
        float(each)
        for part in text.split("$")[1:]
        if (each := re.sub(r"[^\d.]", "", part)[:12]).strip(".") and each.count(".") <= 1
    ]
    if not prices:
        return 100.0
    return (
        prices[0]
        if len(prices) == 1
        else round(float(rng_at("shop.price", name).uniform(*sorted(prices[:2]))), 2)
    )


# ------------------------------------------------------------------------------------------------ goals


def _written(product: Product, instructions: Any) -> Iterator[ShopGoal]:
    """Goals that people wrote."""
    for number, each in enumerate(
        instructions[:MOST_GOALS_A_PRODUCT] if isinstance(instructions, list) else []
    ):
        if not isinstance(each, dict) or not isinstance(each.get("instruction"), str):
            raise DataError(
                f"items_human_ins.json, {product.id}: expected objects with an instruction (text), found "
                f"{each!r:.100}"
            )
        wanted, options = (
            _texts(each.get("instruction_attributes")),
            each.get("instruction_options") or [],
        )
        if wanted:
            options = _texts(list(options.values()) if isinstance(options, dict) else options)
            yield _goal(product, number, each["instruction"].strip("."), wanted, options)


def _made(product: Product, known: Any) -> Iterator[ShopGoal]:
    """The made instruction, with every choice of options."""
    if not isinstance(known, dict) or not isinstance(known.get("instruction"), str):
        return
    wanted = _texts(known.get("instruction_attributes"))
    if wanted:
        names = sorted(name for name, values in product.options if values)
        offered = dict(product.options)
        for number, values in enumerate(
            islice(every(*(offered[name] for name in names)), MOST_GOALS_A_PRODUCT)
        ):
            said = ", and ".join(f"{name}: {value}" for name, value in zip(names, values))
            yield _goal(
                product,
                number,
                known["instruction"] + (f" with {said}" if said else ""),
                wanted,
                values,
            )


def _goal(
    product: Product, number: int, text: str, wanted: tuple[str, ...], options: tuple[str, ...]
) -> ShopGoal:
    limit = price_limit(product.price, rng_at("shop.limit", product.id, number))
    return ShopGoal(product.id, with_limit(text[:LONGEST_TEXT], limit), wanted, options, limit)
