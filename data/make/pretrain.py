"""Make the tiny policies that ship with the project, and check that the shipped ones are what they say.

    python -m data.make.pretrain frozenlake-tiny --out my-policy     # the whole recipe: tokenizer, weights, provenance
    python -m data.make.pretrain frozenlake-tiny --check             # shipped: checksums, success, and the recipe again
    python -m data.make.pretrain frozenlake-tiny --check --quick     # the same without running the recipe

A recipe is supervised fine-tuning of a randomly initialised Qwen3-architecture model on the transcripts of an imperfect
demonstrator (`demonstrations.py`) in fresh tasks of the *training* split: no held-out problem is ever set. (In passing one may be
met: a move in a training level can lead to a board that a held-out task begins with. data/README.md says how often.) The
token ids are those that `chat` builds for reinforcement learning too, so nothing is new to the policy when that begins.

What is trained is what the demonstrator wrote, its end-of-turn included; never a prompt, a reply or a template's
literal.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data.make.code_demonstrator import CodeDemonstrator, OwnPrograms
from data.make.countdown_demonstrator import CountdownDemonstrator
from data.make.demonstrations import (
    BOLD_NAMES,
    SAFE_NAMES,
    BanditDemonstrator,
    LakeDemonstrator,
    SokobanDemonstrator,
    any_arms,
)
from data.make.fine_tuning import FineTuning, fine_tune
from data.make.grid_games import NEVER_SHOWN, SHOWN, GridDemonstrator
from data.make.search_demonstrator import SearchDemonstrator
from data.make.shipped import CHECKSUMS, PROVENANCE, CheckReport, check_shipped, checksums, measure
from data.make.shop_demonstrator import ShopDemonstrator
from data.make.sum_demonstrator import SumDemonstrator
from data.make.tiny_tokenizer import build_tokenizer
from workbench.chat import ChatFormat, Conversation
from workbench.engines.policy import load_policy, load_tokenizer
from workbench.extensions.sandbox.code.tasks import Code
from workbench.extensions.shop.catalogue import SHELVES
from workbench.extensions.shop.shop import Shop
from workbench.run.writer import make_folder, write_file
from workbench.training.config import load_config
from workbench.values import Observation, Sampling, Task
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds import PRESETS, tasks
from workbench.worlds.bandit import Bandit
from workbench.worlds.base import EnvFamily
from workbench.worlds.qa.worlds import SYLLABLES
from workbench.worlds.world_qa import WorldQA

QUESTIONS_A_WORLD = 16  # a world costs a few hundredths of a second to make
GOALS_A_CATALOGUE = 128  # a catalogue costs a third of a second
FRESH_WORLDS = 1_000  # demonstrations are about worlds from this seed on: neither held out nor trained on later
SHOP_WORDS = tuple(word for _, kinds, *_ in SHELVES[:2] for kind in kinds for word in kind.split())
SHOP_VALUES = tuple(
    dict.fromkeys(value for *_, options in SHELVES[:2] for _, values in options for value in values)
)
# What has to be copied is made of the same tokens wherever it stands: a space before it is a token of its own. The number
# of a product is two, `B3` and `53`.
SHOP_COPIED = rf"\b(?:{'|'.join(sorted(SHOP_VALUES, key=len, reverse=True))})\b|B[0-9]"
SHOP_PIECES = rf" (?={SHOP_COPIED})|{SHOP_COPIED}|(?<=B[0-9])[0-9]{{2}}"
NUMBERS = tuple(
    f"B{number:03d}" for number in (*range(100), *range(100, 1_000, 100))
)  # every such token
# Of programs: what is said again and again, and the numbers of a list, each with what stands before it.
CODE_NUMBERS = tuple(f"{before}{number}" for before in ("", "[", ", ") for number in range(-9, 16))
CODE_PIECES = (
    r'\{"name": "python", "arguments": \{"code": "|"\}\}|def solve\(x\): x = \[n| for n in x|\]; return (?:sum|len)\(x\)|'
    r"\]; return (?:max|min)\(x, default=None\)| (?=solve\()|solve\(| gives | == |\\n|(?:\[|, )?-?[0-9]+"
)
ROOT = Path(__file__).resolve().parents[2]


class Demonstrator(Protocol):
    """Writes the text of one turn in the current state of an environment; a frozen dataclass."""

    def action(self, env: Any, rng: np.random.Generator) -> str: ...


@dataclass(frozen=True)
class Lesson:
    """So many optimizer steps on the transcripts of one demonstrator.

    `all_tokens` trains on prompts and replies too, not only on what the demonstrator wrote: whoever must copy names that
    it has never seen learns that sooner from every place where a name comes again. `turns`: transcripts end after so
    many, where it is not 0: what is hard and comes early is learned from half the tokens.
    """

    steps: int
    demonstrator: Demonstrator
    all_tokens: bool = False
    turns: int = 0


@dataclass(frozen=True)
class Recipe:
    """Everything that a tiny policy is made from.

    `env`: a preset of `workbench.worlds`, to demonstrate in, or `""`: that of `config`. `config`: a preset of
    `workbench.training.config`, or a file of settings of this checkout, to evaluate in. `families`: where there are some,
    each problem is played in one of them, drawn, instead of in `env`.
    `lessons` follow each other in one run: first the skill, shown well, then the habits that rewards are to sort out.
    `tokenizer`: the shipped policy whose tokenizer it shares; else one is made.
    `words` become single tokens even where demonstrations hardly use them; `syllables`, `json`, `pieces`: see
    `build_tokenizer`.
    `contexts` are the shares of the transcripts in which a question is put otherwise than with tools on offer. `copying`
    steps come before all lessons, on random strings that are repeated: see `copying_exercise`. `seed`: of the shipped
    policy.
    """

    name: str
    env: str
    config: str
    lessons: tuple[Lesson, ...]
    tuning: FineTuning = FineTuning()
    words: tuple[str, ...] = ()
    syllables: tuple[str, ...] = ()
    json: bool = False
    pieces: str = ""
    contexts: tuple[tuple[str, float], ...] = ()
    copying: int = 0
    families: tuple[EnvFamily, ...] = ()
    tokenizer: str = ""
    tokenizer_transcripts: int = 400
    vocab_limit: int = 640
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    seed: int = 0

    @property
    def steps(self) -> int:
        return sum(lesson.steps for lesson in self.lessons)

    def lesson_at(self, index: int) -> Lesson:
        """The lesson that the step of problem number `index` belongs to; the last one from there on."""
        step = index // self.tuning.batch
        for lesson in self.lessons:
            if step < lesson.steps:
                return lesson
            step -= lesson.steps
        return self.lessons[-1]

    def demonstrator_at(self, index: int) -> Demonstrator:
        """Who plays problem number `index`."""
        return self.lesson_at(index).demonstrator


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "frozenlake-tiny",
            "frozenlake-4x4",
            "frozenlake",
            words=("guess",),
            lessons=(
                Lesson(700, LakeDemonstrator(guess=0.0, look=1.0, slip=0.0)),
                Lesson(250, LakeDemonstrator()),
            ),
        ),
        Recipe(
            "sokoban-tiny",
            "sokoban-6x6-coordinates",
            "sokoban",
            words=("guess", "stuck"),
            lessons=(
                Lesson(900, SokobanDemonstrator(guess=0.1, slip=0.0)),
                Lesson(250, SokobanDemonstrator()),
            ),
        ),
        Recipe(
            "bandit-tiny",
            "bandit",
            "bandit",
            words=SAFE_NAMES + BOLD_NAMES,
            lessons=(Lesson(1000, BanditDemonstrator()),),
        ),
        Recipe(
            "search-tiny",
            "world-qa",
            "search",
            syllables=SYLLABLES,
            json=True,
            copying=100,
            tokenizer_transcripts=60,
            contexts=(("closed", 0.03), ("rag", 0.04), ("gold", 0.05)),
            tuning=FineTuning(batch=16, fall=0.65),
            lessons=(
                Lesson(520, SearchDemonstrator(early=0.02, stray=0.04, misread=0.0, slip=0.0)),
                Lesson(180, SearchDemonstrator()),
            ),
        ),
        # Questions of two documents only: nothing about work, no firm. What training finds beyond, nobody showed. The skill is
        # shown with next to no detours: whoever sees more third searches goes on of itself after two, and has nothing to find.
        Recipe(
            "search-two-hops",
            "world-qa-two-hops",
            "search-discovery",
            tokenizer="search-tiny",
            syllables=SYLLABLES,
            json=True,
            copying=100,
            contexts=(("closed", 0.03), ("rag", 0.04), ("gold", 0.05)),
            tuning=FineTuning(batch=16, fall=0.65),
            lessons=(
                Lesson(320, SearchDemonstrator(early=0.02, stray=0.005, misread=0.0, slip=0.0)),
                Lesson(100, SearchDemonstrator()),
            ),
            seed=1,
        ),
        Recipe(
            "countdown-tiny",
            "countdown-small",
            "countdown",
            words=("yes", "no"),
            tuning=FineTuning(batch=16),
            lessons=(
                Lesson(1000, CountdownDemonstrator(hasty=0.0, aim=0.4, slip=0.0)),
                Lesson(200, CountdownDemonstrator()),
            ),
        ),
        Recipe(
            "chain-sum-tiny",
            "",
            "experiments/chain-sum.toml",
            words=("guess",),
            tuning=FineTuning(batch=16),
            lessons=(
                Lesson(1000, SumDemonstrator(guess=0.0, mistake=0.0, slip=0.0)),
                Lesson(150, SumDemonstrator()),
            ),
        ),
        Recipe(
            "shop-tiny",
            "shop-small",
            "shop",
            words=SHOP_WORDS + SHOP_VALUES + NUMBERS,
            pieces=SHOP_PIECES,
            vocab_limit=900,
            copying=60,
            lessons=(
                Lesson(
                    300,
                    ShopDemonstrator(narrow=0.0, half=0.0, first=0.3, early=0.0, slip=0.0),
                    turns=2,
                ),
                Lesson(520, ShopDemonstrator(narrow=0.0, half=0.0, first=0.1, early=0.0, slip=0.0)),
                Lesson(40, ShopDemonstrator()),
            ),
        ),
        Recipe(
            "code-tiny",
            "code-vague",
            "code-vague",
            words=CODE_NUMBERS,
            pieces=CODE_PIECES,
            intermediate=256,
            tuning=FineTuning(batch=16),
            lessons=(Lesson(600, CodeDemonstrator(hasty=0.2)), Lesson(90, CodeDemonstrator())),
        ),
    )
}
# Not shipped: whoever asks what carries over to other symbols and games makes it. Sokoban is drawn as often as both lakes.
GRID_GAMES = Recipe(
    "grid-games",
    "",
    "frozenlake",
    families=(*SHOWN.values(), SHOWN["Sokoban"]),
    words=("guess", "stuck", *NEVER_SHOWN, *(f" {symbol}" for symbol in NEVER_SHOWN)),
    lessons=(
        Lesson(
            1100,
            GridDemonstrator(
                LakeDemonstrator(guess=0.0, look=1.0, slip=0.0),
                SokobanDemonstrator(guess=0.1, slip=0.0),
            ),
        ),
        Lesson(250, GridDemonstrator()),
    ),
)


def source_of(recipe: Recipe) -> str:
    """What `load_config` opens: a preset's name, or the path of the recipe's file of settings."""
    return str(ROOT / recipe.config) if recipe.config.endswith(".toml") else recipe.config


@cache
def family_of(recipe: Recipe) -> EnvFamily:
    """The environment that the recipe demonstrates in."""
    return PRESETS[recipe.env] if recipe.env else load_config(source_of(recipe)).env


def recipe_named(name: str) -> Recipe:
    """The recipe of a policy, shipped or not. ConfigError with the known names otherwise."""
    known = {**RECIPES, GRID_GAMES.name: GRID_GAMES}
    if name not in known:
        raise ConfigError(f"no recipe for a policy {name!r}; known: {', '.join(known)}")
    return known[name]


# ------------------------------------------------------------------------------------------------ demonstrations


@dataclass(frozen=True)
class Transcript:
    """One demonstrated trajectory: what the environment showed, and what the demonstrator wrote, in turn."""

    observations: tuple[Observation, ...]
    actions: tuple[str, ...]
    success: bool


def training_task(recipe: Recipe, seed: int, index: int) -> tuple[EnvFamily, Task]:
    """Problem number `index`, of the training split, with the family that it is played in.

    The bandit's names change from problem to problem, so that the policy learns to read them, not to recite a few; and so
    do the worlds that questions are about and the catalogues of the shop, from one handful of problems to the next.
    """
    family = family_of(recipe)
    if recipe.families:
        family = recipe.families[
            rng_at(seed, "pretrain.family", index).integers(len(recipe.families))
        ]
    if isinstance(family, WorldQA):
        drawn = rng_at(seed, "pretrain.context", index).random()
        for context, share in recipe.contexts:
            if 0 <= drawn < share:
                family = replace(family, context=context)
            drawn -= share
        world = FRESH_WORLDS + seed_of(seed, "pretrain.world", index // QUESTIONS_A_WORLD) % 10**9
        return family, family.task_in(world, seed_of(seed, "pretrain.task", index))
    if isinstance(family, Bandit):
        names = any_arms(rng_at(seed, "pretrain.names", index))
        family = replace(family, names=names, heldout_names=names)
        return family, family.task(seed_of(seed, "pretrain.task", index))
    if isinstance(family, Shop):
        made = (
            FRESH_WORLDS + seed_of(seed, "pretrain.catalogue", index // GOALS_A_CATALOGUE) % 10**9
        )
        family = replace(family, catalogue_seed=made)
    return family, tasks(family, "train", 1, seed=seed_of(seed, "pretrain.task"), step=index)[0]


def demonstrate(recipe: Recipe, seed: int, index: int) -> Transcript:
    """Let the lesson's demonstrator play problem number `index`. A pure function of its arguments."""
    family, task = training_task(recipe, seed, index)
    env = OwnPrograms(family) if isinstance(family, Code) else family.make()
    rng = rng_at(seed, "pretrain.demonstrator", recipe.env, index)
    observations, actions, success = (
        [env.reset(task, seed_of(seed, "pretrain.dynamics", index))],
        [],
        False,
    )
    for _ in range(recipe.lesson_at(index).turns or family.max_turns):
        actions.append(recipe.demonstrator_at(index).action(env, rng))
        result = env.step(actions[-1])
        success = bool(result.info["success"])
        if result.terminated or result.truncated:
            break
        observations.append(result.observation)
    return Transcript(tuple(observations[: len(actions)]), tuple(actions), success)


def encode(
    transcript: Transcript, chat: ChatFormat, tokenizer: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(token ids [T], True where the demonstrator wrote them [T]), built exactly as a rollout builds them."""
    conversation = Conversation(chat, transcript.observations[0])
    for turn, action in enumerate(transcript.actions):
        if turn:
            conversation.add_observation(transcript.observations[turn])
        ids = np.array(
            tokenizer.encode(action, add_special_tokens=False) + [tokenizer.eos_token_id], np.int32
        )
        # Zeros stand where a sampler's logprobs would: they mark the span as written here, and nobody reads them.
        conversation.add_action(
            ids,
            np.zeros(len(ids), np.float32),
            finish="stop",
            policy_version=0,
            sampling=Sampling(),
        )
    (segment,) = conversation.segments
    return segment.token_ids, segment.eligible


def example(
    recipe: Recipe, seed: int, index: int, chat: ChatFormat, tokenizer: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What number `index` of the whole run teaches: (token ids [T], True where they are trained [T])."""
    number = index - recipe.copying * recipe.tuning.batch
    if number < 0:
        return copying_exercise(recipe, seed, index, tokenizer)
    ids, written = encode(demonstrate(recipe, seed, number), chat, tokenizer)
    return ids, np.ones_like(written) if recipe.lesson_at(number).all_tokens else written


def copying_exercise(
    recipe: Recipe, seed: int, index: int, tokenizer: Any
) -> tuple[np.ndarray, np.ndarray]:
    """A string of random syllables, or of `NUMBERS` where there are none, said again and again; trained from the second
    time on.

    The only way to foretell it is to look up what followed the same syllable before, which is what copying a name that
    was never seen takes. From transcripts alone a tiny model learns that late: names are a few tokens among many.
    """
    rng = rng_at(seed, "pretrain.copying", index)
    capitals = [syllable.capitalize() for syllable in recipe.syllables]
    known = tokenizer.convert_tokens_to_ids([*recipe.syllables, *capitals]) or sorted(
        set(tokenizer.encode("".join(NUMBERS), add_special_tokens=False))
    )
    once = rng.choice(known, size=int(rng.integers(12, 40))).astype(np.int32)
    ids = np.concatenate([once, once, once])[:90]
    return ids, np.arange(len(ids)) > len(once)


def tokenizer_of(recipe: Recipe) -> Any:
    """The recipe's tokenizer, trained on what its environment and demonstrator say: the same one for every seed."""
    if recipe.tokenizer:
        return load_tokenizer(recipe.tokenizer)
    texts = []
    for index in range(recipe.tokenizer_transcripts):
        # One in so many, so that all lessons are heard.
        transcript = demonstrate(
            recipe, 0, index * recipe.steps * recipe.tuning.batch // recipe.tokenizer_transcripts
        )
        texts += [message.text for shown in transcript.observations for message in shown.messages]
        texts += [json.dumps(schema) for shown in transcript.observations for schema in shown.tools]
        texts += transcript.actions
    return build_tokenizer(
        texts,
        vocab_size=recipe.vocab_limit,
        words=recipe.words,
        syllables=recipe.syllables,
        json=recipe.json,
        pieces=recipe.pieces,
    )


# ------------------------------------------------------------------------------------------------ making


def new_model(recipe: Recipe, tokenizer: Any, seed: int) -> Any:
    """A randomly initialised Qwen3-architecture causal LM in float32. The same seed gives the same weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "pretrain.weights", recipe.name))
        return Qwen3ForCausalLM(config).float()


def pretrain(
    name: str,
    out: str | Path,
    *,
    seed: int | None = None,
    num_tasks: int = 512,
    steps: int | None = None,
    lessons: int | None = None,
    more: int = 0,
    begun: str | None = None,
    env: str = "",
    say: Callable[[str], None] | None = None,
) -> Path:
    """Run a recipe from nothing and write the policy into the folder `out`, which must not exist or be empty.

    `seed` None: the one of the shipped policy. `num_tasks`: held-out tasks that the provenance reports success on;
    0 leaves that out. `steps` shortens the recipe, for tests. `lessons`: the first of its lessons alone; `more` steps of
    the last one: controls of what training by reward adds. `begun`: these `more` steps alone, from the weights of that
    policy; another `seed` than its own shows other tasks. `env`: shown in this preset of environments instead of the
    recipe's. Returns `out`. One thread, so that the result does not depend
    on how sums are split; minutes of one core.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    recipe, out = recipe_named(name), Path(out)
    seed = recipe.seed if seed is None else seed
    if steps is not None:
        recipe = replace(recipe, lessons=(replace(recipe.lessons[-1], steps=steps),))
    kept = recipe.lessons[:lessons]
    recipe = replace(recipe, lessons=(*kept[:-1], replace(kept[-1], steps=kept[-1].steps + more)))
    if begun is not None:
        if not more:
            raise ConfigError("to go on from a policy that is there, say for how many steps more")
        recipe = replace(recipe, lessons=(replace(kept[-1], steps=more),), copying=0)
    recipe = replace(recipe, env=env or recipe.env)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out} is not empty; choose another folder, a policy is never written over another"
        )
    began = time.process_time()
    with _one_thread():
        tokenizer = tokenizer_of(recipe)
        chat = ChatFormat.from_tokenizer(tokenizer)
        model = new_model(recipe, tokenizer, seed) if begun is None else load_policy(begun).model
        say(
            f"{name}: {sum(p.numel() for p in model.parameters()):,} weights, {len(tokenizer)} tokens, seed {seed}"
        )
        losses = fine_tune(
            model,
            lambda index: example(recipe, seed, index, chat, tokenizer),
            recipe.copying + recipe.steps,
            recipe.tuning,
            say=say,
        )
    cpu_seconds = time.process_time() - began
    _save(model, tokenizer, out)
    habits = range(recipe.steps * recipe.tuning.batch, recipe.steps * recipe.tuning.batch + 512)
    provenance = {
        "name": name,
        "seed": seed,
        "recipe": stated_recipe(recipe),
        "demonstrations": recipe.steps * recipe.tuning.batch,
        "demonstrator_success": float(
            np.mean([demonstrate(recipe, seed, index).success for index in habits])
        ),
        "last_loss": float(np.mean(losses[-20:])),
        "cpu_seconds": round(cpu_seconds, 1),
        "versions": _versions(),
        "success": measure(out, source_of(recipe), num_tasks) if num_tasks else None,
        **({} if begun is None else {"begun": begun}),
    }
    write_file(out / PROVENANCE, (json.dumps(provenance, indent=1) + "\n").encode(), replace=True)
    write_file(out / CHECKSUMS, checksums(out).encode(), replace=True)
    return out


def stated_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON values, with the kind of each lesson's demonstrator. What came with the policies that call tools
    is left out where a recipe does not use it: the others are stated as they were when they were made."""
    unused = {
        "seed": recipe.seed,
        "syllables": (),
        "json": False,
        "pieces": "",
        "contexts": (),
        "copying": 0,
        "families": (),
        "tokenizer": "",
        "tokenizer_transcripts": 400,
    }
    tree = {
        key: value
        for key, value in asdict(recipe).items()
        if key not in unused or value != unused[key]
    }
    if recipe.families:
        tree["families"] = [family.label for family in recipe.families]
    for lesson, stated in zip(recipe.lessons, tree["lessons"]):
        stated["demonstrator"] = {
            "kind": type(lesson.demonstrator).__name__,
            **stated["demonstrator"],
        }
        for key in ("all_tokens", "turns"):
            if not stated[key]:
                del stated[key]
    return tree


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    """Weights in bfloat16 safetensors, configuration and tokenizer, through the project's one writer."""
    import torch

    make_folder(out)
    with tempfile.TemporaryDirectory() as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        for path in sorted(Path(scratch).iterdir()):
            write_file(out / path.name, path.read_bytes(), replace=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within it torch computes on one thread: the order of sums, hence the result, does not depend on the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _versions() -> dict[str, str]:
    import safetensors
    import tokenizers
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
        "numpy": np.__version__,
    }


# ------------------------------------------------------------------------------------------------ checking


def check(
    name: str,
    *,
    quick: bool = False,
    num_tasks: int = 512,
    say: Callable[[str], None] | None = None,
) -> CheckReport:
    """Does the shipped policy do what its provenance says, and does the recipe make such a policy again?

    Compares checksums, then success on the held-out tasks, sampled and greedy, with what `provenance.json` states;
    unless `quick`, runs the recipe anew with the shipped seed and compares its success too (minutes). See
    `check_shipped` for what counts as reproduced.
    """
    recipe = recipe_named(name)

    def remake(folder: Path) -> Path:
        return pretrain(name, folder / name, num_tasks=0, say=say)

    return check_shipped(
        name, source_of(recipe), num_tasks=num_tasks, remake=None if quick else remake
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data.make.pretrain", description=__doc__.split("\n")[0]
    )
    parser.add_argument("name", choices=sorted([*RECIPES, GRID_GAMES.name]))
    parser.add_argument("--out", type=Path, help="folder to write (default: runs/policies/NAME)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--lessons", type=int, metavar="N", choices=(1, 2), help="the first N lessons alone"
    )
    parser.add_argument(
        "--more", type=int, default=0, metavar="STEPS", help="so many more steps of the last lesson"
    )
    parser.add_argument(
        "--begun",
        metavar="POLICY",
        help="with --more: those steps alone, from this policy's weights",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the shipped policy instead; exit 1 if it is not reproduced",
    )
    parser.add_argument(
        "--quick", action="store_true", help="with --check: do not run the recipe anew"
    )
    chosen = parser.parse_args(arguments)
    if chosen.check:
        report = check(chosen.name, quick=chosen.quick)
        print(report.text)
        return 0 if report.passed else 1
    print(
        pretrain(
            chosen.name,
            chosen.out or Path("runs/policies") / chosen.name,
            seed=chosen.seed,
            lessons=chosen.lessons,
            more=chosen.more,
            begun=chosen.begun,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
