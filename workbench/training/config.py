"""One frozen tree that names everything a run depends on. Each part owns its fields; `Config` only composes them.

    config = load_config("frozenlake", {"algorithm.normalize_std": False, "train.steps": 10})
    config = load_config("experiments/mine.toml")        # a TOML file: `base = "frozenlake"` plus the keys that differ

A knob that does nothing is an error (law 11): an unknown key names the nearest right one; a setting that *you* wrote
and that cannot have an effect with the others is refused; the same setting coming from a preset is a warning.
"""
from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from workbench.engines import ENGINES, TransformersEngineConfig
from workbench.envs import ENVS, PRESETS as ENV_PRESETS
from workbench.envs.base import EnvFamily
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, ReinforcePP, StarPO_S
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.algorithms.liveness import check_sizes, inert_settings, remarks, updates_of_a_step
from workbench.learn.critic import CriticConfig
from workbench.learn.learner import LearnerConfig
from workbench.linting.config import LintConfig
from workbench.rollouts.collect import CollectConfig
from workbench.rollouts.evaluate import EvaluationConfig
from workbench.types.errors import ConfigError


@dataclass(frozen=True)
class PolicyConfig:
    """Which weights to start from: a policy shipped in data/, or any Hugging Face causal LM by name or path."""

    name: str = "frozenlake-tiny"
    dtype: str = "float32"  # of the learner's weights
    device: str = "auto"    # "auto": CUDA where there is one
    template_flags: Mapping[str, Any] = field(default_factory=dict)  # handed to the chat template (enable_thinking ...)


@dataclass(frozen=True)
class TrainConfig:
    """The loop: each step collects `tasks_per_step` x `group_size` trajectories and makes the algorithm's updates."""

    steps: int = 30
    tasks_per_step: int = 16
    group_size: int = 8
    evaluate_every: int = 10     # steps between evaluations on the held-out tasks; 0: only before and after
    checkpoint_every: int = 10   # steps between checkpoints; the last step always has one
    keep_checkpoints: int = 2
    max_empty_steps: int = 5     # steps in a row that left the policy as it was before the run ends, with a reason

    def __post_init__(self) -> None:
        for name in ("steps", "tasks_per_step", "group_size", "checkpoint_every", "max_empty_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} is at least 1, got {getattr(self, name)}")
        if self.evaluate_every < 0:
            raise ConfigError(f"train.evaluate_every is 0 (only before and after) or more, got {self.evaluate_every}")
        if self.keep_checkpoints < 2:
            raise ConfigError("train.keep_checkpoints is at least 2: if the newest is damaged, the one before it is "
                              "used")


@dataclass(frozen=True)
class Config:
    """Everything a run depends on, apart from the machine. Stored whole in the run folder."""

    env: EnvFamily
    seed: int = 0
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: Any = field(default_factory=TransformersEngineConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    algorithm: Any = field(default_factory=GRPO)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)  # of an algorithm that needs one
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    lint: LintConfig = field(default_factory=LintConfig)


# Parts that come in kinds: key -> (kind -> class). Adding one is a line in its own room's table.
KINDS: dict[str, dict[str, type]] = {"env": ENVS, "engine": ENGINES, "algorithm": ALGORITHMS}

PRESETS: dict[str, Callable[[], Config]] = {
    "frozenlake": lambda: Config(env=ENV_PRESETS["frozenlake-4x4"]),
    "frozenlake-ppo": lambda: Config(  # several updates a step: with one, the critic learns little more than a mean
        env=ENV_PRESETS["frozenlake-4x4"],
        algorithm=PPO(minibatches=4),
        train=TrainConfig(steps=16, evaluate_every=0),
    ),
    "frozenlake-starpo-s": lambda: Config(  # a quarter of 16 x 8 attempts is the one mini-batch of the paper's 8 x 16
        env=ENV_PRESETS["frozenlake-4x4"],
        algorithm=StarPO_S(),
        train=TrainConfig(steps=16, evaluate_every=0),
    ),
    "sokoban": lambda: Config(
        env=ENV_PRESETS["sokoban-6x6-coordinates"],
        policy=PolicyConfig(name="sokoban-tiny"),
        algorithm=GRPO(normalize_std=False),
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=40),
    ),
    "bandit": lambda: Config(
        env=ENV_PRESETS["bandit-code"],
        policy=PolicyConfig(name="bandit-tiny"),
        collect=CollectConfig(max_turn_tokens=32),
        algorithm=GRPO(normalize_std=False),  # with it, GRPO is driven to the safe arm: see RAGEN's echo trap
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=40, tasks_per_step=8, group_size=8),
    ),
    "bandit-starpo-s": lambda: Config(
        env=ENV_PRESETS["bandit-code"],
        policy=PolicyConfig(name="bandit-tiny"),
        collect=CollectConfig(max_turn_tokens=32),
        algorithm=StarPO_S(),
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=20, tasks_per_step=8, group_size=16),
    ),
    # Four updates a step: with one, twenty steps are too few (58 % instead of 93 % in a first trial).
    "search": lambda: _search(GRPO(minibatches=4)),
    "search-ppo": lambda: _search(PPO(lam=0.95, minibatches=4)),
    "search-reinforce-pp": lambda: _search(ReinforcePP(minibatches=4)),
    "search-hard": lambda: _search(GRPO(minibatches=4), env="world-qa-hard"),
}


def _search(algorithm: Any, env: str = "world-qa") -> Config:
    """Questions about invented worlds: a turn is one call or one name, twenty tokens at most."""
    return Config(
        env=ENV_PRESETS[env],
        policy=PolicyConfig(name="search-tiny"),
        collect=CollectConfig(max_turn_tokens=32),
        algorithm=algorithm,
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=20, evaluate_every=0),
    )


# ------------------------------------------------------------------------------------------------ to and from dicts


def to_dict(config: Config) -> dict[str, Any]:
    """A JSON-able tree; parts that come in kinds carry a `kind`. `from_dict(to_dict(c)) == c`."""
    tree = asdict(config)
    for key, table in KINDS.items():
        kind = next(name for name, cls in table.items() if type(getattr(config, key)) is cls)
        tree[key] = {"kind": kind, **tree[key]}
    return tree


def from_dict(tree: Mapping[str, Any]) -> Config:
    """Build and check a whole tree. ConfigError for an unknown key, a wrong type or a value that its part refuses."""
    return _build(Config, tree, "")


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """What to say of a word that is none of those known: the nearest, in whatever letters, else all of them."""
    lower = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    return f"did you mean {lower[close[0]]!r}?" if close else f"known: {', '.join(lower.values())}"


def _build(cls: type, tree: Any, path: str) -> Any:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path or 'config'} holds settings by name, got {tree!r}")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    values = {}
    for key, value in tree.items():
        where = f"{path}.{key}" if path else key
        if key not in known:
            raise ConfigError(f"no setting {where!r}; {nearest(key, known)}")
        values[key] = _value(hints[key], value, where, key)
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise ConfigError(f"{path or 'config'} needs {', '.join(missing)}")
    return cls(**values)


def _value(hint: Any, value: Any, where: str, key: str) -> Any:
    if where in KINDS:
        if not isinstance(value, Mapping) or "kind" not in value:
            raise ConfigError(f"{where} holds a 'kind' (one of {', '.join(sorted(KINDS[where]))}) and its settings, "
                              f"got {value!r}")
        kind, rest = value["kind"], {k: v for k, v in value.items() if k != "kind"}
        if not isinstance(kind, str) or kind not in KINDS[where]:
            raise ConfigError(f"{where}.kind: no {where} {kind!r}; {nearest(str(kind), KINDS[where])}")
        return _build(KINDS[where][kind], rest, where)
    if is_dataclass(hint):
        return _build(hint, value, where)
    return _coerce(hint, value, where)


def _coerce(hint: Any, value: Any, where: str) -> Any:
    """The value in its field's type. Strings (from a command line) are read as that type; nothing else is bent."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        return _coerce(next(a for a in args if a is not type(None)), value, where)
    if hint is Any:
        return value
    if origin is tuple or hint is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ConfigError(f"{where} is a list, got {value!r}")
        if args and args[-1] is not Ellipsis and len(args) != len(items):
            raise ConfigError(f"{where} holds {len(args)} values, got {value!r}")
        hints = [args[0]] * len(items) if len(args) == 2 and args[1] is Ellipsis else list(args) or [Any] * len(items)
        return tuple(_coerce(h, item, f"{where}[{i}]") for i, (h, item) in enumerate(zip(hints, items)))
    if hint is Mapping or origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} holds settings by name, got {value!r}")
        return dict(value)
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ConfigError(f"{where} is true or false, got {value!r}")
    if hint in (int, float):
        if isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            try:
                number = hint(value)
            except (ValueError, OverflowError):  # not a number, or infinity for a whole one
                number = None
            if number is not None and (isinstance(value, str) or number == value):
                return number
        raise ConfigError(f"{where} is {'a whole' if hint is int else 'a'} number, got {value!r}")
    if hint is str and not isinstance(value, str):
        raise ConfigError(f"{where} is text, got {value!r}")
    return value


# ------------------------------------------------------------------------------------------------ loading


def load_config(source: str | Path, overrides: Mapping[str, Any] = {}) -> Config:
    """A preset's name or a TOML file, with dotted overrides on top. What you set yourself must have an effect (law 11).
    """
    config, warnings = load_config_with_warnings(source, overrides)
    return config


def load_config_with_warnings(source: str | Path, overrides: Mapping[str, Any] = {}) -> tuple[Config, list[str]]:
    """Like `load_config`; also what a preset sets that has no effect here."""
    written: dict[str, Any] = {}
    if str(source) in PRESETS:
        base = str(source)
    elif str(source).endswith(".toml"):
        base, written = _read_toml(Path(source))
    else:
        raise ConfigError(f"no preset {str(source)!r} (and no run folder there); {nearest(str(source), PRESETS)}; or name "
                          "a .toml file")
    written |= _flatten(overrides)
    tree = to_dict(PRESETS[base]())
    kinds_first = sorted(written.items(), key=lambda item: not item[0].endswith(".kind"))
    for key, value in kinds_first:
        _set(tree, key, value)
    config = from_dict(tree)
    return config, check_liveness(config, frozenset(written))


def changed_config(tree: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[Config, dict[str, tuple[Any, Any]]]:
    """A stored tree with overrides on top, checked like any other; and what they changed: dotted key -> (old, new)."""
    before = to_dict(from_dict(tree))
    after = to_dict(from_dict(before))
    written = _flatten(overrides)
    for key in sorted(written, key=lambda key: not key.endswith(".kind")):  # a kind first: it brings its own defaults
        _set(after, key, written[key])
    config = from_dict(after)
    check_liveness(config, frozenset(written))
    old, new = _flatten(before), _flatten(to_dict(config))
    return config, {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    base = tree.pop("base", None)
    if not isinstance(base, str) or base not in PRESETS:
        raise ConfigError(f"{path} begins with base = \"<preset>\", got {base!r}; {nearest(str(base), PRESETS)}")
    return base, _flatten(tree)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = prefix + key
        if isinstance(value, Mapping) and path != "policy.template_flags":
            flat |= _flatten(value, path + ".")
        else:
            flat[path] = value
    return flat


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    node = tree
    for depth, parent in enumerate(parents):
        known = _fields_of(tree, parents[:depth])
        if parent in known and parent not in node and is_dataclass(known[parent]):
            node[parent] = asdict(known[parent])  # a kind that was just chosen begins with its own defaults
        if not isinstance(node.get(parent), dict):
            raise ConfigError(f"no setting {dotted!r}; {nearest(parent, known)}" if parent not in known
                              else f"{'.'.join(parents[:depth + 1])} holds no further settings")
        node = node[parent]
    if leaf == "kind" and dotted.split(".")[0] in KINDS and node.get("kind") != value:
        node.clear()  # another kind has other settings: start from its own defaults
    elif leaf not in node and leaf != "kind" and parents[:1] != ["policy"]:
        known = _fields_of(tree, parents)
        if leaf not in known:
            raise ConfigError(f"no setting {dotted!r}; {_elsewhere(tree, parents, leaf) or nearest(leaf, known)}")
    node[leaf] = value


def _elsewhere(tree: Mapping[str, Any], parents: list[str], leaf: str) -> str:
    """Which other kinds of a part have a setting of this name, in words; "": none."""
    if len(parents) != 1 or parents[0] not in KINDS:
        return ""
    kinds = [kind for kind, cls in KINDS[parents[0]].items() if leaf in _defaults_of(cls)]
    return f"{parents[0]}.kind {tree[parents[0]].get('kind')!r} has none; {', '.join(kinds)} do" if kinds else ""


def _fields_of(tree: Mapping[str, Any], parents: list[str]) -> dict[str, Any]:
    """The settings that a part has, whether or not the tree says them: name -> default."""
    known = _defaults_of(Config)
    for depth, parent in enumerate(parents):
        part = known.get(parent)
        if depth == 0 and parent in KINDS:
            part = KINDS[parent].get(tree[parent].get("kind"))
        if not is_dataclass(part):
            return {}
        known = _defaults_of(part)
    return known


def _defaults_of(part: Any) -> dict[str, Any]:
    """By name, of a dataclass or of one of its values; None where there is no default."""
    if not isinstance(part, type):
        return {f.name: getattr(part, f.name) for f in fields(part)}
    return {f.name: f.default_factory() if f.default_factory is not MISSING else None if f.default is MISSING
            else f.default for f in fields(part)}


# ------------------------------------------------------------------------------------------------ liveness


def check_liveness(config: Config, written: frozenset[str]) -> list[str]:
    """Contradictions raise. Settings that cannot act raise if they were written by the user, else come back as
    warnings.
    """
    c, train, alg = config, config.train, config.algorithm
    if train.group_size < getattr(alg, "min_group_size", 1):
        raise ConfigError(f"{type(alg).__name__} compares attempts within a group and needs train.group_size >= "
                          f"{alg.min_group_size}, got {train.group_size}")
    check_sizes(alg, train.group_size)
    if c.collect.temperature == 0:
        raise ConfigError("collect.temperature = 0 makes all attempts at a task alike, so that nothing can be "
                          "compared; training samples at a temperature above 0 (evaluation is greedy by itself)")
    if alg.minibatches > train.tasks_per_step * train.group_size:
        raise ConfigError(f"algorithm.minibatches = {alg.minibatches} cuts a step of {train.tasks_per_step} x "
                          f"{train.group_size} trajectories into more parts than it has")
    inert: list[tuple[str, bool, str]] = [
        ("engine.device", True, "the embedded engine samples where the policy lives; set policy.device"),
        ("learner.seed", updates_of_a_step(alg, train.tasks_per_step, train.group_size) == alg.epochs,
         "nothing is shuffled where a pass is one update"),
        *((f"algorithm.masks.{f.name}", c.collect.history == "fresh", "with collect.history = 'fresh' every reply stands "
           "in the prompt of the next segment, so that the response is the actions and nothing else")
          for f in fields(alg.masks)),
        ("env.max_moves_per_action", getattr(c.env, "max_moves_per_action", 0) > getattr(c.env, "max_moves", 0),
         "env.max_moves ends the attempt before that many moves are made"),
        ("env.symbols", getattr(c.env, "observation", "") == "coordinates",
         "coordinates are told in words; set env.observation='grid' or 'both'"),
        ("env.turns", getattr(c.env, "context", "search") != "search", "without the tool there is one turn"),
        ("env.documents", getattr(c.env, "context", "search") in ("closed", "gold"), "nothing is searched; set "
         "env.context='search' or 'rag'"),
        ("env.most_chars", getattr(c.env, "context", "search") == "closed", "no documents are shown"),
        ("env.searcher", getattr(c.env, "context", "search") in ("closed", "gold"), "nothing is searched"),
        ("collect.window", c.collect.history != "window", f"collect.history is {c.collect.history!r}, not 'window'"),
        ("collect.env_deadline_s", c.collect.env_runner == "inline",
         "an inline environment cannot be cut off; set collect.env_runner='processes' (or 'threads')"),
        *((f"collect.{name}", c.collect.env_runner != "processes", "there are no worker processes; set "
           "collect.env_runner='processes'") for name in ("env_workers", "env_retries", "env_answer_bytes")),
    ]
    inert += _inert_in_learning(c)
    wrong = [f"{key} has no effect: {why}" for key, dead, why in inert if dead and key in written]
    if wrong:
        raise ConfigError("; ".join(wrong) + ". Remove it, or change what makes it inert")
    defaults = to_dict(Config(env=type(c.env)(), engine=type(c.engine)(), algorithm=type(alg)()))
    tree = to_dict(config)

    def at(node: Any, key: str) -> Any:
        for part in key.split("."):
            node = node.get(part)
        return node

    warnings = [f"{key} = {at(tree, key)!r} has no effect here: {why}"
                for key, dead, why in inert if dead and at(tree, key) != at(defaults, key)]
    warnings += remarks(alg, train.tasks_per_step, train.group_size)
    if (c.collect.temperature != 1 or c.collect.top_p != 1) and not alg.sampler_cap:
        warnings.append(
            f"collect.temperature = {c.collect.temperature} and top_p = {c.collect.top_p}: attempts are sampled from a bent "
            "distribution, but the loss scores the policy's own; algorithm.sampler_cap (2, for one) weights for it")
    if getattr(alg, "kl_coef", 0) and alg.kl_in == "loss" and alg.kl_estimator == "k1":
        warnings.append("algorithm.kl_estimator = 'k1' in the loss pulls nowhere: its gradient is zero on average and "
                        "only adds noise; take k2 or k3 there, or algorithm.kl_in = 'reward'")
    return warnings


def _inert_in_learning(config: Config) -> list[tuple[str, bool, str]]:
    """(setting, whether it cannot act, why) of the algorithm and its critic."""
    alg, has_critic = config.algorithm, needs_critic(config.algorithm)
    kind = next(name for name, cls in ALGORITHMS.items() if type(alg) is cls)
    inert = [(f"critic.{f.name}", not has_critic, f"algorithm {kind!r} needs no critic") for f in fields(config.critic)]
    inert.append(("critic.value_coef", config.critic.trunk == "own", "a critic with its own trunk has its own "
                  "optimizer (critic.lr); set critic.trunk='policy'"))
    return inert + [(f"algorithm.{name}", dead, why) for name, dead, why in inert_settings(
        alg, config.train.tasks_per_step, config.train.group_size)]
