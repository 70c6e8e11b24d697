"""Who shows how to shop, imperfectly on purpose: what the shipped policy imitates before rewards teach it.

It knows to search for all that is asked for, to hold a price against the limit, and to choose the options. But mostly it
searches for less, takes what stands first, or buys before it has chosen. Rewards tell these habits apart; the
demonstrator does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.make.demonstrations import format_slip
from workbench.extensions.shop.catalogue import Catalogue
from workbench.extensions.shop.shop import BUY, ShopEnv
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class ShopDemonstrator:
    """Searches, takes a product of the page, chooses options, buys: a turn each, its habit drawn anew each turn.

    narrow, half   probabilities of searching for the kind of product alone, and for the kind and its attributes; the rest
                   is all that is asked for
    first          probability of taking what stands first, whatever it costs
    early          probability of buying although an option is still to choose
    stray          probability of clicking an option that the product does not come in; it is told, and acts anew
    slip           probability of a format slip
    """

    narrow: float = 0.40
    half: float = 0.30
    first: float = 0.50
    early: float = 0.15
    stray: float = 0.25
    slip: float = 0.03

    def __post_init__(self) -> None:
        shares = (self.narrow + self.half, self.first, self.early, self.stray, self.slip)
        if not all(0 <= share <= 1 for share in shares):
            raise ConfigError(f"habits are probabilities, and narrow + half at most 1; got {self}")

    def action(self, env: ShopEnv, rng: np.random.Generator) -> str:
        """The text of one turn on the page that `env` shows."""
        turn = {"search": self._search, "results": self._take, "item": self._choose}[env.page]
        thought, action = turn(env, rng)
        if rng.random() < self.slip:
            return format_slip(action, rng)
        return format_action([action], think=True, thought=thought)

    def _search(self, env: ShopEnv, rng: np.random.Generator) -> tuple[str, str]:
        """`kind`, `kind attributes` or `kind attributes options`, and a search for just that."""
        catalogue, drawn = env.family.open(), rng.random()
        said = 1 if drawn < self.narrow else 2 if drawn < self.narrow + self.half else 3
        words = ((catalogue.by_id[env.goal.product].query,), env.goal.attributes, env.goal.options)[
            :said
        ]
        thought = " ".join(("kind", "attributes", "options")[:said])
        return thought, f"search[{' '.join(word for part in words for word in part)}]"

    def _take(self, env: ShopEnv, rng: np.random.Generator) -> tuple[str, str]:
        """`first : B012`, or `limit 40 : B012 $57 no B345 $31 yes`, and that product; the first of the page where all cost too
        much."""
        found, limit = shown_prices(env, env.family.open()), int(env.goal.price_limit)
        if rng.random() < self.first:
            return f"first : {found[0][0]}", f"click[{found[0][0]}]"
        said = [f"limit {limit} :"]
        for name, price in found:
            said.append(f"{name} ${int(price)} {'yes' if price <= limit else 'no'}")
            if price <= limit:
                return " ".join(said), f"click[{name}]"
        return " ".join(said), f"click[{found[0][0]}]"

    def _choose(self, env: ShopEnv, rng: np.random.Generator) -> tuple[str, str]:
        """`color grey no size small yes`, and a click on the first that is on offer and not chosen yet; `buy` after that where
        there is none."""
        catalogue = env.family.open()
        offered, said, wanted = dict(catalogue.by_id[env.item].options), [], ""
        for (name, _), value in zip(catalogue.by_id[env.goal.product].options, env.goal.options):
            offers = value in offered.get(name, ()) or rng.random() < self.stray
            open_ = offers and name not in env.chosen
            said.append(
                f"{name} {value} {'chosen' if name in env.chosen else 'yes' if open_ else 'no'}"
            )
            if open_ and rng.random() >= self.early:
                wanted = value
                break
        return " ".join([*said, *([] if wanted else ["buy"])]), f"click[{wanted or BUY}]"


def shown_prices(env: ShopEnv, catalogue: Catalogue) -> list[tuple[str, float]]:
    """The products of a page of results and what they cost, from the top."""
    return [
        (name, catalogue.by_id[name].price) for name, kind in env.clicks().items() if kind == "item"
    ]
