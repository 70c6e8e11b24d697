"""The shop: search for a product, look at it, choose its options, buy it. One action an answer, as in WebShop:

    search[coffee mug, easy clean]     results, some a page, at most 50
    click[B012]                        what stands in square brackets on the page: a product, Next >, < Prev, an
                                       option's value, Description, Features, Buy Now, Back to Search, in any case

`Buy Now` ends the trajectory and pays (`purchase`) what WebShop publishes, from 0 to 1 (see `reward.py`); success is the
whole of it. Nothing else pays, but an answer that cannot be read, or that names nothing on the page, `format_penalty`
(`format`; 0 as published). As there, a search works on every page.

The catalogue is made here from `catalogue_seed`, or read from the original's files in the folder `data`. Differences
from the original site: no reviews and no pictures, pages in lines rather than HTML, BM25 of this project for Lucene's.

Seeds (invariant 7): `task_seed` picks the goal; nothing is drawn while playing. A product whose goals are held out is never
asked for in training.

Source: Yao et al. 2022 (arXiv 2207.01206); nine turns: RAGEN (arXiv 2504.20073).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import Inert, at_least, check_settings
from workbench.extensions.shop import files
from workbench.extensions.shop.catalogue import SHELVES, Catalogue, Product, ShopGoal, made
from workbench.extensions.shop.reward import reward_of
from workbench.tools.action_format import format_action, parse_answer, refusal, shown, user_message
from workbench.values import Observation, StepResult, Task, Text, sum_of
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.game_settings import FormatPenalty, MaxTurns, ShowRewards, Think
from workbench.worlds.splits import content_split

BUY = "Buy Now"
NEXT = "Next >"
BACK = "< Prev"
SEARCH_AGAIN = "Back to Search"
DESCRIPTION = "Description"
FEATURES = "Features"
MOST_FOUND = 50  # products that a search brings, as published
LONGEST_QUERY = 200  # characters
_ACTION = re.compile(r"\s*(search|click)\[(.*)\]\s*", re.DOTALL)
_OPENED: dict[tuple[str, int], Catalogue] = {}


@dataclass(frozen=True)
class Shop:
    """A family of shopping tasks. The fields are its only configuration."""

    products: Annotated[int, at_least(10, most=files.MOST_PRODUCTS), "of the catalogue"] = 400
    catalogue_seed: Annotated[int, at_least(0), "of the catalogue that is made here"] = 0
    shelves: Annotated[
        int, at_least(1, most=len(SHELVES)), "parts of the shop that is made here"
    ] = len(SHELVES)
    data: Annotated[str, "a folder with WebShop's own files; none: the catalogue is made here"] = ""
    results: Annotated[int, at_least(1, most=MOST_FOUND), "products on a page of results"] = 10
    max_turns: MaxTurns = 9
    think: Think = True
    format_penalty: FormatPenalty = 0.0
    show_rewards: ShowRewards = False

    name: ClassVar[str] = "shop"
    solver_name: ClassVar[str] = "oracle (is told the product)"

    def __post_init__(self) -> None:
        check_settings(self)

    def inert_settings(self) -> list[Inert]:
        """What cannot act beside the other settings."""
        why = "env.data names a catalogue that is read, not made"
        return [Inert(name, bool(self.data), why) for name in ("catalogue_seed", "shelves")]

    def open(self) -> Catalogue:
        """The catalogue, made or read once a process. Raises DataError."""
        if not self.data:
            return made(self.catalogue_seed, self.products, self.shelves)
        key = (self.data, self.products)
        if key not in _OPENED:
            _OPENED[key] = files.load(*key)
        return _OPENED[key]

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """A goal of the catalogue."""
        goals = self.open().goals
        goal = goals[int(rng_at("shop.task", task_seed).integers(len(goals)))]
        return Task(f"shop/{goal.product}/{task_seed}", self.name, int(task_seed), asdict(goal))

    def split_of(self, task: Task) -> str:
        """By the product."""
        return content_split(f"shop/{task.payload['product']}")

    def make(self) -> ShopEnv:
        return ShopEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: ShopEnv, rng: np.random.Generator) -> str:
        """Any click that the page offers; where it offers none, a search for one to three words of the instruction."""
        clicks = list(env.clicks())
        if clicks:
            return self._act(f"click[{clicks[rng.integers(len(clicks))]}]")
        words = re.findall(r"\w+", env.goal.instruction)
        first = int(rng.integers(len(words)))
        return self._act(f"search[{' '.join(words[first : first + int(rng.integers(1, 4))])}]")

    def solver_action(self, env: ShopEnv, rng: np.random.Generator) -> str:
        """An oracle: it searches for the product that the goal was made from by its name, and chooses what was asked."""
        wanted = self.open().by_id[env.goal.product]
        clicks = env.clicks()
        if env.page == "results" and wanted.id in clicks:
            return self._act(f"click[{wanted.id}]")
        if env.page == "item" and env.item == wanted.id:
            for name, values in wanted.options:
                for value in values:
                    if name not in env.chosen and value in env.goal.options:
                        return self._act(f"click[{value}]")
            return self._act(f"click[{BUY}]")
        if env.page == "results" and NEXT in clicks:
            return self._act(f"click[{NEXT}]")
        return self._act(f"search[{wanted.name[:LONGEST_QUERY]}]")

    def _act(self, action: str) -> str:
        return format_action([action], think=self.think)

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        source = "WebShop's files" if self.data else f"catalogue {self.catalogue_seed}"
        return f"Shop, {self.products} products ({source}), {self.results} results a page, {self.max_turns} turns"

    @property
    def instructions(self) -> str:
        """The trusted part of the first prompt. The limits in it are those that are enforced."""
        return (
            "Buy what is asked for. search[words] finds products; click[name] clicks what stands in [] on the "
            f"page. Choose options, then click[{BUY}]. One action an answer, {self.max_turns} answers.\n"
            f"Answer like this: {self.example}\n\n"
        )

    @property
    def example(self) -> str:
        return format_action(["search[words]"], think=self.think, thought="plan")


class ShopEnv:
    """One trajectory. Its state is a few texts and numbers; the catalogue is shared and never changed."""

    def __init__(self, family: Shop) -> None:
        self.family = family
        self.goal = ShopGoal("", "", (), (), 0.0)
        self.finished = True
        self._to_search()

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.goal = _goal_of(task, self.family.open())
        self.finished = False
        self._to_search()
        return user_message(
            Text(self.family.instructions, trusted=True),
            Text(f"{self.goal.instruction}\n\n{self.draw()}"),
        )

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        parsed = parse_answer(action_text, think=self.family.think)
        complaint = parsed.complaint
        quote = parsed.quote
        if parsed.valid:
            complaint, quote = self._act(parsed.moves[0])
        penalty = float(self.family.format_penalty) if complaint else 0.0
        bought = None
        if self.finished:
            wanted = self._catalogue.by_id[self.goal.product]
            bought = reward_of(self._item, self.chosen, self.goal, wanted)
        parts = {"purchase": bought.reward if bought else 0.0, "format": penalty}
        words = refusal(complaint, quote, self.family.example) if complaint else []
        if self.family.show_rewards:
            words.append(Text(f"Reward: {sum_of(parts.values()):g}\n"))
        info = {
            "success": bool(bought) and bought.reward == 1.0,
            "effective": not complaint,
            "complaint": complaint,
            "moves": [] if complaint else [parsed.moves[0].strip()],
            "valid_format": not complaint,
            "state": self.page,
        }
        if bought:
            info |= {"bought": self.item, "purchase": dict(bought.facts)}
        page = user_message(*words, Text(self.draw()))
        return StepResult(page, sum_of(parts.values()), parts, self.finished, info=info)

    def snapshot(self) -> dict[str, Any]:
        state = dict(vars(self))
        del state["family"], state["goal"]
        return state | {
            "chosen": dict(self.chosen),
            "found": list(self.found),
            "goal": asdict(self.goal),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(self, name, dict(value) if name == "chosen" else value)
        self.goal = _goal(snapshot["goal"])

    def state_key(self) -> str:
        return f"{self.goal.instruction}\n{self.draw()}"

    # -------------------------------------------------------------------------------------------- pages

    def clicks(self) -> dict[str, str]:
        """What can be clicked on this page, as it is shown: {name: what it is}."""
        if self.finished or self.page == "search":
            return {}
        if self.page == "results":
            more = {NEXT: "page"} if self.number * self.family.results < len(self.found) else {}
            less = {BACK: "page"} if self.number > 1 else {}
            return dict.fromkeys(self._shown(), "item") | more | less | {SEARCH_AGAIN: "search"}
        if self.page == "item":
            clicks: dict[str, str] = {}
            for name, values in self._item.options:
                clicks |= dict.fromkeys(values, f"option {name}")
            return clicks | {
                DESCRIPTION: "page",
                FEATURES: "page",
                BUY: "buy",
                BACK: "page",
                SEARCH_AGAIN: "search",
            }
        return {BACK: "page", SEARCH_AGAIN: "search"}

    def draw(self) -> str:
        """The page."""
        if self.finished:
            return f"You bought {self.item}."
        if self.page == "search":
            return "Search bar: search[words]"
        links = [name for name, kind in self.clicks().items() if kind in ("page", "search", "buy")]
        foot = " ".join(f"[{name}]" for name in links)
        if self.page == "results":
            products = [self._catalogue.by_id[name] for name in self._shown()]
            lines = [f"[{item.id}] {item.name} ${item.price:.2f}" for item in products]
            head = f"Page {self.number}, {len(self.found)} found for: {self.query}"
            return "\n".join((head, *lines, foot))
        item = self._item
        if self.page == "item":
            lines = [f"{item.name} ${item.price:.2f}"]
            for name, values in item.options:
                offered = " ".join(f"[{value}]" for value in values)
                chosen = f" chosen: {self.chosen[name]}" if name in self.chosen else ""
                lines.append(f"{name}: {offered}{chosen}")
            return "\n".join((*lines, foot))
        text = item.description if self.page == DESCRIPTION else "\n".join(item.features)
        return f"{text or 'Nothing is said.'}\n{foot}"

    def _act(self, action: str) -> tuple[str, str]:
        """Carry out an action. Returns the complaint about it, "" if there is none, and the words that it is about."""
        match = _ACTION.fullmatch(action)
        quote = shown(action.strip(), 40)
        if match is None:
            return "An action is search[words] or click[name].", quote
        name = match[2].strip()
        if match[1] == "search":
            if not name or len(name) > LONGEST_QUERY:
                return f"A search has 1 to {LONGEST_QUERY} characters.", ""
            self._to_search()
            self.page = "results"
            self.query = " ".join(name.split())
            hits = self._catalogue.searcher.search(self.query, MOST_FOUND)
            self.found = [hit.document.id for hit in hits]
            return "", ""
        for offered, kind in self.clicks().items():
            if offered.lower() == name.lower():
                self._click(offered, kind)
                return "", ""
        return "Nothing on this page has that name.", quote

    def _click(self, name: str, kind: str) -> None:
        if kind == "search":
            self._to_search()
        elif kind == "buy":
            self.finished = True
        elif kind == "item":
            self.page = "item"
            self.item = name
            self.chosen = {}
        elif name == BACK and self.page != "results":
            self.page = "results" if self.page == "item" else "item"
        elif name in (NEXT, BACK):
            self.number += 1 if name == NEXT else -1
        elif kind == "page":
            self.page = name
        else:
            self.chosen[kind.removeprefix("option ")] = name

    def _to_search(self) -> None:
        self.page = "search"
        self.query = ""
        self.found = []
        self.number = 1
        self.item = ""
        self.chosen = {}

    def _shown(self) -> list[str]:
        last = self.number * self.family.results
        return self.found[last - self.family.results : last]

    @property
    def _catalogue(self) -> Catalogue:
        return self.family.open()

    @property
    def _item(self) -> Product:
        return self._catalogue.by_id[self.item]


def _goal_of(task: Task, catalogue: Catalogue) -> ShopGoal:
    names = {field.name for field in fields(ShopGoal)}
    if set(task.payload) != names or task.payload["product"] not in catalogue.by_id:
        raise EnvError(
            f"the payload of a shop task is a goal about a product of this catalogue; task {task.id!r} has "
            f"{dict(task.payload)!r:.300}"
        )
    return _goal(task.payload)


def _goal(payload: Mapping[str, Any]) -> ShopGoal:
    lists = {name: tuple(payload[name]) for name in ("attributes", "options")}
    return ShopGoal(**dict(payload) | lists)


PRESETS: Mapping[str, Shop] = MappingProxyType(
    {
        "shop": Shop(),
        "shop-small": Shop(products=1_000, shelves=2, results=4),
    }
)
