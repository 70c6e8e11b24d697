"""One frozen tree that names everything a run depends on. Each part owns its fields; `Config` only composes them.

    config = load_config("frozenlake", {"algorithm.normalize_std": False, "train.steps": 10})
    config = load_config("experiments/mine.toml")        # a TOML file: `base = "frozenlake"` plus the keys that differ
    config = load_config("my_env:Guess")                 # an environment of your own; so does `env.kind = "my_env:Guess"`

A knob that does nothing is an error (law 11): an unknown key names the nearest right one; a setting that *you* wrote
and that cannot have an effect with the others is refused; the same setting coming from a preset is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from workbench.engines import LayoutConfig, TransformersEngineConfig
from workbench.envs import PRESETS as ENV_PRESETS
from workbench.envs.base import EnvFamily
from workbench.envs.frozen_lake import STANDARD as LAKE_SYMBOLS
from workbench.learn.algorithms import GRPO, PPO, ReinforcePP, StarPO_S
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.rollouts.config import CollectConfig, EvaluationConfig
from workbench.training.kinds import KINDS, kind_of
from workbench.training.liveness import inert_settings_of, refuse_contradictions, remarks_on
from workbench.training.reading import build, class_of, flatten, nest, with_overrides
from workbench.training.sections import LintConfig, PolicyConfig, SamplingConfig, TrainConfig
from workbench.types.errors import ConfigError, nearest
from workbench.types.plugins import is_named
from workbench.types.regular_files import read_toml
from workbench.types.settings import settings_of
from workbench.types.view import Shown


@dataclass(frozen=True, repr=False)
class Config(Shown):
    """Everything a run depends on, apart from the machine. Stored whole in the run folder."""

    env: EnvFamily
    seed: Annotated[int, "of the whole run; every draw is addressed by it"] = 0
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: Any = field(default_factory=TransformersEngineConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    algorithm: Any = GRPO
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)  # of an algorithm that needs one
    train: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    lint: LintConfig = field(default_factory=LintConfig)

    def kind_of(self, part: str) -> str:
        """The name that a part of several kinds has in a file: a short one, or "module:Qualname" of a class of one's own.
        Raises ConfigError for what no file can name."""
        return kind_of(part, getattr(self, part))


PRESETS: dict[str, Callable[[], Config]] = {
    "frozenlake": lambda: Config(env=ENV_PRESETS["frozenlake-4x4"]),
    "frozenlake-ppo": lambda: (
        Config(  # several updates a step: with one, the critic learns little more than a mean
            env=ENV_PRESETS["frozenlake-4x4"],
            algorithm=PPO(minibatches=4),
            train=TrainConfig(steps=16, evaluate_every=0),
        )
    ),
    "frozenlake-starpo-s": lambda: (
        Config(  # a quarter of 16 x 8 attempts is the one mini-batch of the paper's 8 x 16
            env=ENV_PRESETS["frozenlake-4x4"],
            algorithm=StarPO_S(),
            train=TrainConfig(steps=16, evaluate_every=0),
        )
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
        algorithm=GRPO(
            normalize_std=False
        ),  # with it, GRPO is driven to the safe arm: see RAGEN's echo trap
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
    "countdown": lambda: Config(
        env=ENV_PRESETS["countdown-small"],
        policy=PolicyConfig(name="countdown-tiny"),
        collect=CollectConfig(max_turn_tokens=128),
        algorithm=GRPO(normalize_std=False),
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=60, evaluate_every=0),
    ),
    "shop": lambda: Config(
        env=ENV_PRESETS["shop-small"],
        policy=PolicyConfig(name="shop-tiny"),
        collect=CollectConfig(max_turn_tokens=64),
        algorithm=GRPO(normalize_std=False, minibatches=2),
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=20, tasks_per_step=8, evaluate_every=0),
        evaluation=EvaluationConfig(num_tasks=128),
    ),
    "code-vague": lambda: Config(
        env=ENV_PRESETS["code-vague"],
        policy=PolicyConfig(name="code-tiny"),
        collect=CollectConfig(max_turn_tokens=64),
        algorithm=GRPO(normalize_std=False, minibatches=4),
        learner=LearnerConfig(lr=3e-4),
        train=TrainConfig(steps=24, tasks_per_step=8, evaluate_every=0),
        evaluation=EvaluationConfig(num_tasks=64),
    ),
    "code": lambda: (
        Config(  # no policy for it ships: this one knows calls and answers, and no Python
            env=ENV_PRESETS["code-small"],
            policy=PolicyConfig(name="search-tiny"),
            collect=CollectConfig(max_turn_tokens=128),
            algorithm=GRPO(normalize_std=False),
            learner=LearnerConfig(lr=3e-4),
            train=TrainConfig(steps=20, tasks_per_step=8, evaluate_every=0),
        )
    ),
    # Four updates a step: with one, twenty steps are too few (58 % instead of 93 % in a first trial).
    "search": lambda: _search(GRPO(minibatches=4)),
    "search-ppo": lambda: _search(PPO(lam=0.95, minibatches=4)),
    "search-reinforce-pp": lambda: _search(ReinforcePP(minibatches=4)),
    "search-hard": lambda: _search(GRPO(minibatches=4), env="world-qa-hard"),
    # The policy was shown questions of two documents only; half of these take three.
    "search-discovery": lambda: replace(
        _search(GRPO(minibatches=4), env="world-qa-half-long"),
        policy=PolicyConfig(name="search-two-hops"),
        train=TrainConfig(steps=20, tasks_per_step=8, group_size=8, evaluate_every=0),
    ),
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


BARE = (
    ""  # no preset to begin with: every setting has its own default, and the environment is named
)


# ------------------------------------------------------------------------------------------------ to and from dicts


# Settings, and whole parts, that came after runs had been stored: at this value they are left out, so that what was stored before is what
# would be stored now.
LATER: Mapping[str, Any] = {
    "policy.loader": None,
    "critic.sees": "policy",
    "train.on_alarm": "off",
    "train.information_every": 0,
    "layout": asdict(LayoutConfig()),
    "layout.adapters": "merged",
    "sampling": asdict(SamplingConfig()),
    "learner.lora_rank": 0,
    "learner.activation_checkpointing": False,
    "learner.lora_alpha": LearnerConfig.lora_alpha,
    "learner.lora_targets": (),
    "evaluation.first_task": 0,
    "env.symbols": LAKE_SYMBOLS,
}


def to_dict(config: Config) -> dict[str, Any]:
    """A JSON-able tree; parts that come in kinds carry a `kind`. `from_dict(to_dict(c)) == c`."""
    tree = _whole(config)
    for key, usual in LATER.items():
        part, _, name = key.partition(".")
        if not name and tree[part] == usual:
            del tree[part]
        elif name in tree.get(part, {}) and tree[part][name] == usual:
            del tree[part][name]
    return tree


def _whole(config: Config) -> dict[str, Any]:
    """The same with every setting."""
    tree = {}
    for name in (part.name for part in fields(config)):
        # An algorithm's settings have one name each, whichever of its parts holds them.
        part = config.algorithm.settings if name == "algorithm" else getattr(config, name)
        tree[name] = (
            {"kind": config.kind_of(name), **_plain(part)} if name in KINDS else _plain(part)
        )
    return tree


def _plain(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _plain(value) for name, value in part.items()}
    return asdict(part) if is_dataclass(part) else part


def from_dict(tree: Mapping[str, Any], *, without: Collection[str] = ()) -> Config:
    """Build and check a whole tree. ConfigError for an unknown key, a wrong type or a value that its part refuses.
    `without`: parts that come in kinds and are None instead, so that no code that they name is imported."""
    kinds = {part: table for part, table in KINDS.items() if part not in without}
    return build(
        Config, {**tree, **dict.fromkeys(without)} if isinstance(tree, Mapping) else tree, kinds
    )


# ------------------------------------------------------------------------------------------------ loading


def load_config(source: str | Path, overrides: Mapping[str, Any] = {}) -> Config:
    """A preset's name, a TOML file, or an environment of your own as "package.module:Name", with dotted overrides on top.
    A file without a `base` names its environment. What you set yourself must have an effect (law 11)."""
    return load_config_with_warnings(source, overrides)[0]


def load_config_with_warnings(
    source: str | Path, overrides: Mapping[str, Any] = {}
) -> tuple[Config, list[str]]:
    """Like `load_config`; also what a preset sets that has no effect here."""
    if str(source) in PRESETS:
        base, written = str(source), {}
    elif str(source).endswith(".toml"):
        base, written = _read_toml(Path(source))
    elif is_named(str(source)):
        base, written = BARE, {"env.kind": str(source)}
    else:
        raise ConfigError(
            f"no preset {str(source)!r} (and no run folder there); {nearest(str(source), PRESETS)}; or name "
            "a .toml file, or an environment of your own as package.module:Name"
        )
    written |= flatten(overrides)
    if base == BARE and "env.kind" not in written:
        raise ConfigError(
            f'{source} names neither base = "<preset>" nor, in [env], kind: which environment is it about? '
            f"Presets: {', '.join(PRESETS)}"
        )
    return _overridden(_whole(PRESETS[base or "frozenlake"]()), written)


def changed_config(
    tree: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[Config, dict[str, tuple[Any, Any]]]:
    """A stored tree with overrides on top, checked like any other; and what they changed: dotted key -> (old, new)."""
    before = _whole(from_dict(tree))
    config, _ = _overridden(before, flatten(overrides))
    old, new = flatten(before), flatten(_whole(config))
    return config, {
        key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)
    }


def _overridden(tree: Mapping[str, Any], written: Mapping[str, Any]) -> tuple[Config, list[str]]:
    config = from_dict(nest(with_overrides(flatten(tree), written, KINDS)))
    return config, check_liveness(config, frozenset(written))


def _read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        tree = read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    base = tree.pop("base", BARE)
    if base != BARE and (not isinstance(base, str) or base not in PRESETS):
        raise ConfigError(
            f'{path} begins with base = "<preset>", got {base!r}; {nearest(str(base), PRESETS)}'
        )
    return base, flatten(tree)


def check_liveness(config: Config, written: frozenset[str]) -> list[str]:
    """Contradictions raise. Settings that cannot act raise if they were written by the user, else come back as
    warnings.
    """
    refuse_contradictions(config)
    dead = [setting for setting in inert_settings_of(config) if setting.dead]
    wrong = [f"{name} has no effect: {why}" for name, _, why in dead if name in written]
    if wrong:
        raise ConfigError("; ".join(wrong) + ". Remove it, or change what makes it inert")
    values = flatten(_whole(config))
    declared = {part.name: type(getattr(config, part.name)) for part in fields(config)}
    declared["algorithm"] = class_of(
        config.kind_of("algorithm"), KINDS["algorithm"], "algorithm", config.algorithm.settings
    )
    defaults = {
        each.key: each.default
        for part, kind in declared.items()
        if is_dataclass(kind)
        for each in settings_of(kind, part)
    }
    warnings = [
        f"{name} = {values[name]!r} has no effect here: {why}"
        for name, _, why in dead
        if name in values and values[name] != defaults[name]
    ]
    return warnings + remarks_on(config)
