"""A knob that does nothing is an error (invariant 11); a config survives the way to a file and back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.basics.settings import Inert
from workbench.cli.opening import overrides
from workbench.learn.algorithms import ALGORITHMS, GRPO
from workbench.learn.algorithms.objectives import GSPOObjective
from workbench.training.config import (
    FORMAT,
    PRESETS,
    Config,
    Presets,
    changed_config,
    from_dict,
    load_config,
    load_config_with_warnings,
    to_dict,
)
from workbench.training.kinds import TABLES
from workbench.training.listing import settings_parts, settings_text
from workbench.training.reading import flatten
from workbench.values.errors import ConfigError
from workbench.worlds import PRESETS as ENVS
from workbench.worlds import Bandit, FrozenLake

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_survives_json(name):
    config = PRESETS[name]
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("env", sorted(ENVS))
def test_every_environment_preset_survives_json(env):
    config = Config(env=ENVS[env])
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_overrides_reach_their_field_in_its_type():
    config = load_config(
        "frozenlake",
        {
            "train.steps": "7",
            "algorithm.estimator.normalize_std": "false",
            "env.slip": 0.5,
            "collect.max_context": "none",
            "learner.betas": "0.5,0.75",
        },
    )
    assert (
        config.train.steps == 7
        and config.algorithm.estimator.normalize_std is False
        and config.env.slip == 0.5
    )
    assert config.collect.max_context is None and config.learner.betas == (0.5, 0.75)


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("algoritm.clip_low", "algorithm"),
        ("algorithm.clip_hi", "clip_high"),
        ("train.step", "steps"),
        ("seeds", "seed"),
        ("env.hole_densty", "hole_density"),
    ],
)
def test_an_unknown_setting_names_the_nearest_right_one(key, nearest):
    with pytest.raises(ConfigError, match=f"no setting '{key}'.*{nearest}"):
        load_config("frozenlake", {key: 1})


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("train.steps", "many", "whole number"),
        ("train.steps", 2.5, "whole number"),
        ("train.steps", 0, "at least 1"),
        ("algorithm.estimator.normalize_std", "maybe", "true or false"),
        ("policy.name", 3, "is text"),
        ("env.slip", 2.0, "probability"),
        ("collect.history", "all", "append"),
        ("algorithm.kind", "grop", "grpo"),
        ("train.steps.more", 1, "no further"),
        ("train.steps", float("inf"), "whole number"),
        ("train.steps", None, "whole number"),
        ("policy.name", None, "is text"),
        ("env.kind", ["frozenlake"], "no env"),
        ("collect.env_deadline_s", -1, "above 0"),
        ("env", 3, "kind"),
        ("learner.betas", "0.9", "2 values"),
        ("learner.betas", 0.9, "is a list"),
        ("policy.template_flags", 1, "by name"),
    ],
)
def test_a_wrong_value_says_what_was_expected(key, value, words):
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", {key: value})


def test_overrides_may_be_nested_and_flags_of_the_template_stay_a_tree():
    nested = load_config(
        "frozenlake", {"env": {"slip": 0.5}, "policy": {"template_flags": {"a": {"b": 1}}}}
    )
    assert nested == load_config(
        "frozenlake", {"env.slip": 0.5, "policy.template_flags": {"a": {"b": 1}}}
    )
    assert nested.policy.template_flags == {"a": {"b": 1}} and nested.env.slip == 0.5
    with pytest.raises(
        ConfigError, match="collect.window has no effect"
    ):  # written, however it was written
        load_config("frozenlake", {"collect": {"window": 3}})


def test_options_of_somebody_elses_package_are_a_table_of_their_own():
    """They come by name one at a time, from a file, a command line or a mapping, and the defaults stay beside them."""
    named = {"env.kind": "reasoning_gym", "env.options.min_terms": 2}
    config = load_config("frozenlake", named)
    assert (
        config.env.options
        == {"min_terms": 2}
        == load_config(
            "frozenlake", {"env": {"kind": "reasoning_gym", "options": {"min_terms": 2}}}
        ).env.options
    )
    assert (
        load_config("frozenlake", overrides(["env.kind=reasoning_gym", "env.options.min_terms=2"]))
        == config
    )
    changed, what = changed_config(to_dict(config), {"env.options.max_terms": 3})
    assert changed.env.options == {"min_terms": 2, "max_terms": 3} and what == {
        "env.options.max_terms": (None, 3)
    }
    assert from_dict(to_dict(config)) == config
    with pytest.raises(ConfigError, match="env.dataset holds no further settings"):
        load_config("frozenlake", named | {"env.dataset.name": 1})
    with pytest.raises(
        ConfigError, match="no setting 'env.options.min_terms'"
    ):  # the lake has none
        load_config("frozenlake", {"env.options.min_terms": 2})


# Written by the code that stored runs in format 1, before settings mirrored the composition.
STORED = json.loads((ROOT / "tests/data/format-1.json").read_text())


@pytest.mark.parametrize("name", sorted(STORED["presets"]))
def test_a_run_of_format_1_has_the_settings_that_it_was_made_with(name):
    assert from_dict(STORED["presets"][name]) == PRESETS[name]


@pytest.mark.parametrize("name", sorted(STORED["algorithms"]))
def test_an_algorithm_of_format_1_is_the_same_algorithm(name):
    tree = STORED["presets"]["frozenlake"] | {"algorithm": STORED["algorithms"][name]}
    expected = {"grpo by gspo": GRPO(objective={"kind": "gspo", "clip_low": 0.2, "clip_high": 0.3})}
    config = from_dict(tree)
    assert config.algorithm == (expected | ALGORITHMS)[name]
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_run_of_format_1_with_a_setting_that_is_none_is_refused():
    algorithm = STORED["algorithms"]["grpo"] | {"clip_hihg": 0.3}
    with pytest.raises(ConfigError, match="no setting 'algorithm.clip_hihg'"):
        from_dict(STORED["presets"]["frozenlake"] | {"algorithm": algorithm})
    with pytest.raises(ConfigError, match="is of format 3; this version reads 1 and 2"):
        from_dict(to_dict(PRESETS["frozenlake"]) | {"format": 3})


def test_a_file_of_format_1_says_so_and_is_read(tmp_path):
    text = 'base = "frozenlake"\n[algorithm]\nobjective = "gspo"\nclip_high = 0.3\nepochs = 2\n'
    (tmp_path / "old.toml").write_text("format = 1\n" + text)
    objective = load_config(tmp_path / "old.toml").algorithm.objective
    assert (objective.name, objective.clip_low, objective.clip_high) == ("gspo", 0.2, 0.3)
    (tmp_path / "new.toml").write_text(text)
    with pytest.raises(ConfigError, match="algorithm.objective holds a 'kind'"):
        load_config(tmp_path / "new.toml")


@pytest.mark.parametrize(
    "old, new",
    [
        ("clip_high", "objective.clip_high"),
        ("normalize_std", "estimator.normalize_std"),
        ("lam", "estimator.lam"),  # no setting of grpo, but one of others
        ("kl_coef", "reference.kl_coef"),
        ("value_clip", "critic.value_clip"),
    ],
)
def test_a_key_of_format_1_is_refused_with_its_new_name(tmp_path, old, new):
    words = f"no setting 'algorithm.{old}'; it is called 'algorithm.{new}'"
    for written in ({f"algorithm.{old}": 0.5}, {"algorithm": {old: 0.5}}):
        with pytest.raises(ConfigError, match=words):
            load_config("frozenlake", written)
    (tmp_path / "old.toml").write_text(f'base = "frozenlake"\n[algorithm]\n{old} = 0.5\n')
    with pytest.raises(ConfigError, match=words):
        load_config(tmp_path / "old.toml")
    with pytest.raises(ConfigError, match=words):
        changed_config(STORED["presets"]["frozenlake"], {f"algorithm.{old}": 0.5})


def test_another_objective_starts_from_its_own_defaults():
    config = load_config("frozenlake", {"algorithm.objective.kind": "gspo"})
    assert config.algorithm.objective == GSPOObjective()
    with pytest.raises(ConfigError, match="algorithm.objective.kind 'gspo' has none; clip do"):
        load_config(
            "frozenlake",
            {"algorithm.objective.kind": "gspo", "algorithm.objective.dual_clip": 3.0},
        )


def test_every_preset_says_in_its_first_line_what_it_is():
    folder = ROOT / "workbench/training/presets"
    assert {path.stem for path in folder.glob("*.toml")} == {*PRESETS}
    assert all(path.read_text()[:2] == "# " for path in folder.glob("*.toml"))


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'frozenlake'"):
        load_config("frozenlak")


@pytest.mark.parametrize(
    "settings",
    [
        {"collect.window": 3},
        {"collect.env_deadline_s": 5},
        {"algorithm.objective.clip_high": 0.28},
        {"learner.seed": 3},
        {"engine.device": "cuda"},
        {"env.max_moves_per_action": 12},
    ],
)
def test_a_setting_of_yours_that_cannot_act_is_refused_with_the_reason(settings):
    (key,) = settings
    with pytest.raises(ConfigError, match=f"{key} has no effect"):
        load_config("frozenlake", settings)


@pytest.mark.parametrize(
    "kind, settings, why",
    [
        ("grpo", {"critic.lr": 0.01}, "'grpo' needs no critic"),
        ("grpo", {"critic.trunk": "policy"}, "'grpo' needs no critic"),
        ("ppo", {"critic.value_coef": 1.0}, "its own trunk"),
        ("ppo", {"algorithm.critic.value_clip": 0.1}, "no value has moved"),
        ("ppo", {"algorithm.reference.kl_estimator": "k2"}, "kl_coef is 0"),
        ("grpo", {"algorithm.reference.kl_in": "reward"}, "kl_coef is 0"),
        ("ppo", {"algorithm.objective.clip_low": 0.1}, "one update per step"),
    ],
)
def test_a_setting_of_the_critic_or_the_reference_that_cannot_act_is_refused(kind, settings, why):
    (key,) = settings
    with pytest.raises(ConfigError, match=f"{key} has no effect.*{why}"):
        load_config("frozenlake", {"algorithm.kind": kind, **settings})


def test_a_pull_in_the_loss_over_several_updates_is_off_and_that_is_said():
    pulled = {"algorithm.reference.kl_coef": 0.1}
    (warning,) = load_config_with_warnings("frozenlake", pulled | {"algorithm.epochs": 2})[1]
    assert "2 updates per step" in warning and "the gradient of this term is off" in warning
    # Negative control: one update, and a pull that is paid in the reward.
    assert load_config_with_warnings("frozenlake", pulled)[1] == []
    paid = {"algorithm.reference.kl_in": "reward", "algorithm.estimator.normalize_std": False}
    assert not load_config_with_warnings("frozenlake", pulled | paid | {"algorithm.epochs": 2})[1]


def test_k1_in_the_loss_pulls_nowhere_and_that_is_said():
    (warning,) = load_config_with_warnings(
        "frozenlake", {"algorithm.reference.kl_coef": 0.1, "algorithm.reference.kl_estimator": "k1"}
    )[1]
    assert "zero on average" in warning
    assert load_config(
        "frozenlake", {"algorithm.kind": "ppo", "train.group_size": 1}
    )  # a critic needs no siblings


@pytest.mark.parametrize(
    "settings",
    [
        {"collect.window": 3, "collect.history": "window"},
        {"collect.env_deadline_s": 5, "collect.env_runner": "threads"},
        {"algorithm.objective.clip_high": 0.28, "algorithm.epochs": 2},
        {"learner.seed": 3, "algorithm.minibatches": 2},
        {"env.max_moves_per_action": 12, "env.max_moves": 20},
        {"algorithm.kind": "ppo", "critic.lr": 0.01},
        {"algorithm.kind": "ppo", "critic.trunk": "policy", "critic.value_coef": 1},
        {"algorithm.kind": "ppo", "algorithm.critic.value_clip": 0.1, "algorithm.epochs": 2},
        {
            "algorithm.reference.kl_in": "reward",
            "algorithm.reference.kl_coef": 0.1,
            "algorithm.estimator.normalize_std": False,
        },
        {
            "algorithm.kind": "ppo",
            "algorithm.reference.kl_estimator": "k3",
            "algorithm.reference.kl_coef": 0.1,
        },
        {"algorithm.reference.kl_estimator": "k2", "algorithm.reference.kl_coef": 0.1},
    ],
)
def test_the_same_setting_is_welcome_where_it_acts(settings):
    assert load_config_with_warnings("frozenlake", settings)[1] == []


def test_what_a_preset_sets_without_effect_is_a_warning(monkeypatch, tmp_path):
    (tmp_path / "odd.toml").write_text('[env]\nkind = "frozenlake"\n[collect]\nwindow = 5\n')
    monkeypatch.setattr("workbench.training.config.PRESETS", Presets(tmp_path))
    _, warnings = load_config_with_warnings("odd")
    assert len(warnings) == 1 and "collect.window = 5 has no effect" in warnings[0]


@pytest.mark.parametrize("settings", [{"collect.temperature": 0.7}, {"collect.top_p": 0.9}])
def test_training_on_bent_samples_is_allowed_and_said(settings):
    (warning,) = load_config_with_warnings("frozenlake", settings)[1]
    assert "modified distribution" in warning


def test_group_baselines_need_groups():
    with pytest.raises(ConfigError, match="group_size >= 2"):
        load_config("frozenlake", {"train.group_size": 1})


@pytest.mark.parametrize(
    "settings, words",
    [({"collect.temperature": 0}, "alike"), ({"algorithm.minibatches": 1000}, "more parts")],
)
def test_contradictions_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", settings)


def test_a_toml_file_names_its_base_and_what_differs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "frozenlake"\nseed = 3\n[env]\nslip = 0.2\n[train]\nsteps = 4\n')
    config = load_config(path, {"train.steps": 5})
    assert (config.seed, config.env.slip, config.train.steps) == (3, 0.2, 5)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].glob("experiments/*.toml")), ids=lambda path: path.stem
)
def test_every_experiment_that_ships_loads_without_a_warning(path):
    config, warnings = load_config_with_warnings(path)
    assert warnings == [] and config != PRESETS["frozenlake"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("seed = 1", "neither base .* nor, in .env., kind"),
        ("base = ['frozenlake']", "begins with base"),
        ("base = 'frozenlake' #\udcff", "not valid TOML"),
        ('base = "frozenlake"\n[trian]\nsteps = 1', "did you mean 'train.steps'"),
        ("base = ", "not valid TOML"),
    ],
)
def test_a_wrong_toml_file_says_what_is_wrong(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=words):
        load_config(path)


@pytest.mark.parametrize("tree", [[], [1], "frozenlake", None, {}])
def test_a_stored_config_that_is_none_is_refused(tree):
    with pytest.raises(ConfigError, match="config (holds settings by name|needs env)"):
        from_dict(tree)


def test_another_kind_starts_from_its_own_defaults():
    config = load_config("frozenlake", {"env.kind": "bandit", "env.safe_payout": 0.1})
    assert config.env == Bandit(safe_payout=0.1)


def test_what_concerns_worker_processes_is_alive_only_with_them():
    for key, value in (("env_workers", 2), ("env_retries", 0), ("env_answer_bytes", 5)):
        for kind in ("inline", "threads"):
            with pytest.raises(
                ConfigError, match=f"collect.{key} has no effect: there are no worker processes"
            ):
                load_config("frozenlake", {f"collect.{key}": value, "collect.env_runner": kind})
        assert load_config(
            "frozenlake", {f"collect.{key}": value, "collect.env_runner": "processes"}
        )
    with pytest.raises(ConfigError, match="cannot be cut off; set collect.env_runner='processes'"):
        load_config("frozenlake", {"collect.env_deadline_s": 3})
    config, warnings = load_config_with_warnings(
        "frozenlake", {"collect.env_deadline_s": 3, "collect.env_runner": "processes"}
    )
    assert config.collect.env_deadline_s == 3 and warnings == []


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[1].glob("experiments/*.toml")), ids=lambda path: path.stem
)
def test_every_experiment_loads_without_a_word_and_changes_its_preset(path):
    base = next(
        line for line in path.read_text("utf-8").splitlines() if line.startswith("base")
    ).split('"')[1]
    config, warnings = load_config_with_warnings(path)
    assert warnings == [] and config != PRESETS[base]


def test_a_setting_of_another_kind_is_told_whose_it_is():
    with pytest.raises(
        ConfigError,
        match="no setting 'algorithm.estimator.lam'; algorithm.kind 'grpo' has none; ppo, turn_ppo",
    ):
        load_config("frozenlake", {"algorithm.estimator.lam": 0.9})
    with pytest.raises(ConfigError, match="no algorithm 'PPO'; did you mean 'ppo'"):
        load_config("frozenlake", {"algorithm.kind": "PPO"})


@pytest.mark.parametrize(
    "settings",
    [{"keep": "band"}, {"keep": "min_p", "ratio": 0.0}, {"keep": "top_share", "share": 1.0}],
)
def test_a_filter_that_leaves_nothing_out_is_refused(settings):
    with pytest.raises(ConfigError, match="it leaves nothing out"):
        load_config(
            "frozenlake", {f"algorithm.filter.{name}": value for name, value in settings.items()}
        )


class Quiet(FrozenLake):
    def inert_settings(self):
        return [Inert("coordinates", self.coordinates, "it is never told anything")]


def test_an_environment_of_ones_own_says_itself_what_cannot_act():
    with pytest.raises(
        ConfigError, match="env.coordinates has no effect: it is never told anything"
    ):
        changed_config({"env": {"kind": f"{__name__}:Quiet"}}, {"env.coordinates": True})


def test_all_settings_are_listed_with_what_the_default_config_has():
    listed = {(part.key, part.kind): part for part in settings_parts()}
    flat = flatten(to_dict(PRESETS["frozenlake"]))
    assert flat.pop("format") == FORMAT
    kinds = {part: flat[f"{part}.kind"] for part in TABLES}
    shown = {
        setting.key: setting.default
        for (key, kind), part in listed.items()
        if kind in ("", kinds.get(key))
        for setting in part.settings
    }
    assert shown == {
        key: value for key, value in flat.items() if key.removesuffix(".kind") not in TABLES
    }
    assert {kind for _, kind in listed} - {""} == {
        kind for table in TABLES.values() for kind in table
    }
    dumb = [
        setting.key
        for (key, _), part in listed.items()
        if key != "algorithm"
        for setting in part.settings
        if not setting.meaning
    ]
    assert not dumb, "a setting says in a line what it means"


@pytest.mark.parametrize(
    "key, lines",
    [
        (
            "train.steps",
            [
                "train",
                "  train.steps = 30",
                "      whole number, at least 1 and at most 99,999,999: collects of the run, each with its updates",
            ],
        ),
        ("CACHE_TOKENS", ["engine, engine.kind = transformers", "  engine.cache_tokens = 131072"]),
    ],
)
def test_settings_are_found_by_key_and_by_their_last_word(key, lines):
    assert settings_text(key).splitlines()[: len(lines)] == lines


def test_the_kinds_of_a_part_are_listed():
    assert "one of grpo, " in settings_text("algorithm.kind") and "frozenlake" in settings_text(
        "env.kind"
    )


def test_a_key_that_is_no_setting_names_the_nearest():
    with pytest.raises(ConfigError, match="no setting 'stps'; did you mean 'steps'"):
        settings_text("stps")


HEAVY = ("torch", "transformers", "accelerate", "vllm", "pandas", "matplotlib", "plotly")


@pytest.mark.parametrize(
    "what",
    [
        "from workbench.training.config import PRESETS, load_config\n"
        "for source in [*PRESETS, *glob.glob('experiments/*.toml')]: load_config(source)",
        "from workbench.cli import main\nmain(['settings', 'train'])",
        "from workbench.cli.parser import make_parser\nmake_parser().format_help()",
    ],
    ids=["load_config", "settings", "help"],
)
def test_what_computes_nothing_imports_nothing_heavy(what):
    code = f"import glob, sys\n{what}\nprint('heavy:', [name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.full
def test_negative_control_a_session_imports_torch():
    code = "import sys\nimport workbench.training.session\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


# ------------------------------------------------------------------------------------------------ layers


def test_a_layer_lies_on_top_of_any_preset():
    real = load_config("search-ppo-real")
    assert real.kind_of("algorithm") == "ppo" and real.algorithm.sampler_cap == 2
    assert (real.interface.prompt, real.interface.format) == ("full", "lenient")
    assert real.learner.lr == 1e-5 and real.collect.max_turn_tokens == 256
    adapters = load_config("search-ppo-real-lora")
    assert (adapters.learner.lora_rank, adapters.learner.lr) == (16, 1e-4)
    assert adapters.interface == real.interface
    assert load_config("search-ppo").interface.prompt == "short"  # the control


def test_layers_are_not_listed_and_stand_alone_for_nothing():
    assert not any(name.endswith(("-real", "-lora")) for name in PRESETS)
    for name in ("real", "-real", "nothing-real", "frozenlake-unreal"):
        assert name not in PRESETS
        with pytest.raises(ConfigError, match="no preset"):
            load_config(name)
