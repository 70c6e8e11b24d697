"""What a purchase earns, as WebShop publishes it:

    r = r_type * (|U_att & Y_att| + |U_opt & Y_opt| + [price <= limit]) / (|U_att| + |U_opt| + 1)

U: what the goal asks for, Y: what was bought. An attribute counts where it resembles one of the product's (token set
ratio above 85) or stands in its name, features or description; an option where the chosen value resembles one that was
asked for (sizes: is the same) or stands there, colors by their first basic color. r_type is 1 where the kinds match (the
same query, two common categories, or more than a fifth of the goal's name), else 0.5; 0.1 where less than a tenth of the
goal's name is found, 0 where nothing is.

Source: Yao et al. 2022 (arXiv 2207.01206, section 3 and appendix), princeton-nlp/WebShop web_agent_site/engine/goal.py.
Two differences: the published code takes a name's nouns from a tagger (spaCy, en_core_web_lg), here all its words but a
few common ones count, so that r_type needs no language model; and where a product has more options than were asked for,
the published code may count more of them than there are in U_opt, which the formula forbids and this does not do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from workbench.extensions.shop.catalogue import Product, ShopGoal

ALIKE = 85  # a token set ratio above this counts as the same
_LONGEST = 200  # characters of a text that are compared
_WORD = re.compile(r"[^\W\d_]+")
_COMMON = frozenset(
    "a an and as at by for from in into is it its of on or our that the this to with you your".split()
)
# The published list, in its order: the first of them that stands in a value is taken for it.
BASIC_COLORS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
).split()


@dataclass(frozen=True)
class PurchaseReward:
    """The reward and what it is made of: shares of attributes and options, and whether the price is right."""

    reward: float
    kind: float
    attributes: int
    options: int
    price: bool

    @property
    def facts(self) -> Mapping[str, float]:
        return asdict(self)


def reward_of(
    bought: Product, chosen: Mapping[str, str], goal: ShopGoal, wanted: Product
) -> PurchaseReward:
    """What `bought` earns with the options `chosen` ({name: value}), for a goal that was made from `wanted`."""
    text = " ".join((bought.name, *bought.features, bought.description)).lower()
    attributes = sum(
        _resembles_one(asked, bought.attributes) or asked in text for asked in goal.attributes
    )
    asked_options = [basic_color(value) for value in goal.options]
    options = sum(
        _option_counts(name, basic_color(value), asked_options, text)
        for name, value in chosen.items()
    )
    options = min(options, len(asked_options))
    price = bought.price <= goal.price_limit
    kind = type_reward(bought, wanted)
    asked_for = len(goal.attributes) + len(asked_options) + 1
    total = kind * (attributes + options + price) / asked_for
    return PurchaseReward(total, kind, attributes, options, price)


def _resembles_one(text: str, others: Sequence[str]) -> bool:
    return any(token_set_ratio(other, text) > ALIKE for other in others)


def _option_counts(name: str, value: str, asked: Sequence[str], text: str) -> bool:
    is_asked = value in asked if name.lower() == "size" else _resembles_one(value, asked)
    return is_asked or value in text


def type_reward(bought: Product, wanted: Product) -> float:
    """r_type."""
    desired = _words(wanted.name)
    share = len(desired & _words(bought.name)) / len(desired) if desired else 0.2
    if share == 0.0:
        return 0.0
    if share < 0.1:
        return 0.1
    common = _categories(bought) & _categories(wanted)
    alike = bought.query == wanted.query or len(common) >= 2 or share > 0.2
    return 1.0 if alike else 0.5


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.path.split("›")}


def _words(name: str) -> set[str]:
    return set(_WORD.findall(name.lower())) - _COMMON


def basic_color(value: str) -> str:
    """The first basic color that stands in a value; the value itself where there is none."""
    return next((color for color in BASIC_COLORS if color in value), value)


# ------------------------------------------------------------------------------------------------ likeness of texts


def token_set_ratio(one: str, other: str) -> int:
    """0 to 100, as the library thefuzz computes it: common words count once, in any order, and words that only one of
    the texts has weigh little beside them."""
    words = _tokens(one)
    other_words = _tokens(other)
    if not words or not other_words:
        return 0
    common = " ".join(sorted(words & other_words))
    rest = [" ".join(sorted(words - other_words)), " ".join(sorted(other_words - words))]
    if common and not all(rest):
        return 100
    gap = len(common) + bool(common)
    lengths = [gap + len(text) for text in rest]
    ratios = [2 * (gap + _common_length(*rest)) / sum(lengths)]
    if common:
        ratios += [2 * len(common) / (len(common) + length) for length in lengths]
    return round(100 * max(ratios))


def _tokens(text: str) -> set[str]:
    return set(re.sub(r"[\W_]", " ", text[:_LONGEST].lower()).split())


def _common_length(one: str, other: str) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for left in one:
        diagonal = 0  # of the row above, one place before
        for at, right in enumerate(other, start=1):
            above = row[at]
            row[at] = diagonal + 1 if left == right else max(above, row[at - 1])
            diagonal = above
    return row[-1]
