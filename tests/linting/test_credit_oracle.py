"""The second implementation of credit: golden numbers of a third one, small cases by hand, and the first one on random
batches under random settings."""
from __future__ import annotations

import ast
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linting.credited import batch_of, draw, groups_of, with_unscored
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, Reinforce
from workbench.learn.algorithms.filtering import READS, Filter
from workbench.learn.algorithms.group_relative import GroupRelative
from workbench.learn.algorithms.masks import Masks
from workbench.learn.algorithms.rewards import Rewards
from workbench.linting import credit_oracle, filter_oracle
from workbench.linting.attempts import Attempts, attempts_of, attempts_of_batch
from workbench.linting.credit import facts_of
from workbench.linting.credit_oracle import ESTIMATORS, Facts, expected_credit, kind_of
from workbench.linting.evidence import Evidence
from workbench.types.errors import ConfigError, DataError
from workbench.types.findings import Missing

DATA = Path(__file__).parents[1] / "data"


# ------------------------------------------------------------------------------------------------ golden numbers


def of_table(inputs: dict) -> tuple[Attempts, Facts, np.ndarray]:
    """A padded table of the file as attempts: every masked token is a turn, paid what stands at it."""
    mask, paid, value = (np.array(inputs[name]) for name in ("mask", "rewards", "values"))
    rows, columns = np.nonzero(np.ones_like(mask))
    on_T = mask[rows, columns] == 1
    turns = np.maximum(np.cumsum(mask, 1)[rows, columns] - 1, 0).astype(np.int32)
    offsets, rewards = np.append(0, np.cumsum(mask.sum(1))).astype(int), paid[mask == 1]
    n = len(mask)
    group = np.unique([str(g) for g in inputs["group"]], return_inverse=True)[1]
    nothing = np.zeros(n, bool)
    attempts = Attempts(
        np.zeros(len(rows), np.int32), on_T.astype(np.int8), turns, on_T, on_T, rows, columns, rows, np.arange(n), group,
        np.zeros(n, np.int64), (paid * mask).sum(1), np.full(n, np.nan), ~nothing, nothing, nothing,
        tuple(map(str, range(n))), offsets, rewards, np.full(len(rewards), -1))
    return attempts, Facts(value_T=value[rows, columns].astype(np.float64)), on_T


@pytest.mark.parametrize("name", ["advantages_and_losses.json", "golden_edges.json"])
def test_golden_numbers_of_another_program(name):
    """Where the file's habits are ours (see tests/golden.py): groups of two or more that are not flat."""
    compared = 0
    for case in json.loads((DATA / name).read_text())["cases"]:
        attempts, facts, on_T = of_table(case["inputs"])
        paid, mask = (np.array(case["inputs"][key]) for key in ("rewards", "mask"))
        if (paid[mask == 0] != 0).any():
            continue  # paid where nothing was sampled: here a reward belongs to a turn
        sizes, gamma, lam = np.bincount(attempts.group_N), case["gamma"], case["lam"]
        spread = [np.ptp(attempts.reward_N[attempts.group_N == g]) for g in range(len(sizes))]
        usual = sizes.min() > 1 and min(spread) > 0
        wanted = {"gae_whitened": PPO(gamma=gamma, lam=lam, bootstrap="never"),
                  "reinforce_pp": ALGORITHMS["reinforce_pp"](gamma=gamma)}
        if usual:
            wanted |= {"grpo": GRPO(), "grpo_no_std": GRPO(normalize_std=False), "rloo": ALGORITHMS["rloo"](),
                       "reinforce_pp_baseline": ALGORITHMS["reinforce_pp_baseline"]()}
        for entry, algorithm in wanted.items():
            if entry not in case["expected"]:
                continue
            theirs = np.array(case["expected"][entry])[attempts.row_T, attempts.position_T]
            mine = expected_credit(attempts, algorithm, facts).advantage_T
            if np.abs(mine[on_T] - theirs[on_T]).max() > 1e-6:
                assert entry == "reinforce_pp" and np.ptp(mine) == 0, (entry, case["seed"])  # all the same: its 1e-8
                continue
            compared += 1
        if "gae_returns" in case["expected"]:
            theirs = np.array(case["expected"]["gae_returns"])[attempts.row_T, attempts.position_T]
            mine = expected_credit(attempts, PPO(gamma=gamma, lam=lam, bootstrap="never"), facts).return_T
            assert np.allclose(mine[on_T], theirs[on_T], rtol=0, atol=1e-6)
            compared += 1
    assert compared >= (15 if name.startswith("adv") else 4)


# ------------------------------------------------------------------------------------------------ by hand


def test_a_few_numbers_by_hand():
    """Two attempts at one task: turns of 2 and 1 tokens paid 1 and 2; one turn of 1, paid 5."""
    groups = groups_of([[((2, 1.0), (1, 2.0)), ((1, 5.0),)]])
    attempts = attempts_of(groups)
    at = attempts.sampled_T

    def found(algorithm, **facts):
        return expected_credit(attempts, algorithm, Facts(**facts)).advantage_T[at].tolist()

    assert found(ALGORITHMS["rloo"]()) == [-2.0, -2.0, -2.0, 2.0]
    assert found(GRPO(normalize_std=False)) == [-1.0, -1.0, -1.0, 1.0]
    assert found(GRPO()) == pytest.approx([-1 / (2 ** 0.5 + 1e-6)] * 3 + [1 / (2 ** 0.5 + 1e-6)])
    # turn 0 is worth 1 + .5 * 2, the other attempt earned 5; turn 1 is worth 2
    assert found(Reinforce(gamma=0.5)) == [-3.0, -3.0, -3.0, 3.0]
    assert found(Reinforce(baseline="none")) == [3.0, 3.0, 2.0, 5.0]
    value_T = np.where(at, 0.5, np.nan)
    assert found(PPO(whiten=False, bootstrap="never"), value_T=value_T) == [2.5, 2.5, 1.5, 4.5]


def test_unscored_is_not_zero():
    groups = with_unscored(groups_of([[((1, 1.0),), ((1, 3.0),), ((1, 0.0),)]]), 0, 2)
    attempts = attempts_of(groups)
    found = expected_credit(attempts, GRPO(normalize_std=False), Facts())
    assert found.advantage_T[attempts.sampled_T].tolist() == [-1.0, 1.0, 0.0]
    assert found.weight_T[attempts.sampled_T].tolist() == [1.0, 1.0, 0.0]


def test_a_spread_at_the_edge_of_rounding_is_nobodys_guess():
    groups = groups_of([[((1, 1.0),), ((1, 1.0 - 1e-9),)]])
    assert isinstance(expected_credit(attempts_of(groups), GRPO(), Facts()), Missing)
    for apart, flat in ((1e-8, False), (1e-10, True)):
        attempts = attempts_of(groups_of([[((1, 1.0),), ((1, 1.0 - apart),)]]))
        assert (not expected_credit(attempts, GRPO(), Facts()).advantage_T.any()) == flat


# ------------------------------------------------------------------------------------------------ whose credit


def test_every_algorithm_of_the_table_is_known():
    assert {type(make()).__name__ for make in ALGORITHMS.values()} >= set(ESTIMATORS)
    assert all(kind_of(make()) == type(make()).__name__ for name, make in ALGORITHMS.items() if name != "ranks")


def test_a_preset_of_yours_is_known_and_an_estimator_of_yours_is_not():
    class Milder(GRPO):
        clip_high: float = 0.1

    class Turned(GRPO):
        def advantages(self, inputs):
            return super().advantages(inputs)

    class Own(GroupRelative):
        def advantages(self, inputs):
            raise AssertionError("never asked")

    attempts = attempts_of(groups_of([[((1, 1.0),), ((1, 2.0),)]]))
    assert kind_of(Milder()) == "GRPO" and kind_of(Turned()) is None and kind_of(Own()) is None
    assert "second implementation" in expected_credit(attempts, Own(), Facts()).what


def reads_settings_only(text: str) -> bool:
    """No module of credit is imported, and nothing of an algorithm, a filter or a mask is called."""
    tree = ast.parse(text)
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    called = {node.func.value.id for node in ast.walk(tree) if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)}
    allowed = ("workbench.types.findings", "workbench.linting.attempts", "workbench.linting.filter_oracle")
    return (all(name in allowed for name in imported if name.startswith(("workbench", "torch")))
            and not called & {"algorithm", "rule", "masks", "rewards", "batch"})


def test_nothing_of_the_first_implementation_is_called():
    """Negative controls: a call of a filter's own choice, an import of the arithmetic that trains."""
    for module in (credit_oracle, filter_oracle):
        assert reads_settings_only(Path(module.__file__).read_text())
    assert not reads_settings_only("def kept(rule): return rule.kept(1)")
    assert not reads_settings_only("from workbench.learn.ops.gae import gae")


# ------------------------------------------------------------------------------------------------ the first one agrees


filters = st.one_of(
    st.just(Filter()), st.builds(Filter, zero_variance=st.just("drop")),
    *(st.builds(Filter, st.just(keep), share=st.sampled_from([0.25, 0.5, 0.75]), p=st.sampled_from([0.3, 0.5, 0.9]),
                mass=st.sampled_from(["linear", "softmax"]), slack=st.sampled_from([0.0, 0.01, 0.3]),
                groups=st.integers(1, 4), ratio=st.sampled_from([0.2, 0.5, 1.0]),
                low=st.sampled_from([0.0, 0.25, 0.5]), high=st.sampled_from([0.75, 1.0]), attempts=st.integers(2, 4),
                zero_variance=st.sampled_from(["keep", "drop"]))
      for keep in READS if keep != "all"))
sets = st.sampled_from([None, None, "actions", "response"])
masks = st.builds(Masks, st.booleans(), st.booleans(), **{f.name: sets for f in fields(Masks) if f.name.endswith("over")})
scales = st.builds(Rewards, st.sampled_from(["none", "mean", "mean_std", "asym_clip"]),
                   st.sampled_from(["group", "batch", "tag"]))


@st.composite
def algorithms(draw_value, names=tuple(name for name in ALGORITHMS if name != "ranks")):
    """Any of them, under any settings that it takes."""
    kind = ALGORITHMS[draw_value(st.sampled_from(names))]
    known = {f.name for f in fields(kind)}
    choices = {
        "gamma": st.sampled_from([1.0, 0.9, 0.0]), "lam": st.sampled_from([1.0, 0.8]), "whiten": st.booleans(),
        "gamma_turn": st.sampled_from([1.0, 0.7]), "bootstrap": st.sampled_from(["never", "truncated", "context_full"]),
        "normalize_std": st.booleans(), "omega": st.sampled_from([0.0, 0.5]), "entropy_coef": st.sampled_from([0.0, 0.1]),
        "kl_coef": st.sampled_from([0.0, 0.0, 0.1]), "kl_in": st.sampled_from(["loss", "reward"]),
        "kl_estimator": st.sampled_from(["k1", "k2", "k3", "abs"]), "baseline": st.sampled_from(["others", "none"]),
        "minibatch_size": st.sampled_from([0, 3]), "masks": masks, "rewards": scales, "filter": filters,
    }
    chosen = {name: draw_value(choice) for name, choice in choices.items() if name in known and draw_value(st.booleans())}
    try:
        return kind(**chosen)
    except ConfigError:
        return kind(**{name: value for name, value in chosen.items() if name not in ("kl_in", "filter")})


def agree(algorithm, evidence: Evidence, attempts: Attempts) -> None:
    batch = evidence.batch
    try:
        credit = algorithm.credit(batch)
    except DataError:
        return
    found = expected_credit(attempts, algorithm, facts_of(evidence))
    assert not isinstance(found, Missing), found
    assert np.array_equal(found.weight_T, credit.weight_T.numpy())
    assert np.abs(found.advantage_T - credit.advantage_T.numpy()).max(initial=0) <= found.near < 1e-6
    assert (found.return_T is None) == (credit.return_T is None) and found.updates == credit.minibatches
    if found.return_T is not None:
        assert np.allclose(found.return_T, credit.return_T.numpy(), rtol=0, atol=found.near, equal_nan=True)
    for term in ("entropy", "kl"):
        mine = getattr(found, f"{term}_weight_T")
        assert mine is None or np.array_equal(mine, credit.weights_of(term).numpy())


@settings(max_examples=150)
@given(algorithms(), st.integers(0, 10_000), st.booleans(), st.sampled_from([None, 0, 5]))
def test_it_agrees_with_the_first_implementation(algorithm, seed, fresh, unscored):
    groups = draw(seed, fresh=fresh, unscored=unscored)
    evidence = Evidence(tuple(tuple(group) for group in groups), batch=batch_of(groups, seed))
    agree(algorithm, evidence, attempts_of(groups))
    agree(algorithm, evidence, attempts_of_batch(evidence.batch))


@pytest.mark.full
@settings(max_examples=3000)
@given(algorithms(), st.integers(0, 10**9), st.booleans(), st.sampled_from([None, 0, 5]))
def test_it_agrees_with_the_first_implementation_often(algorithm, seed, fresh, unscored):
    groups = draw(seed, fresh=fresh, unscored=unscored)
    agree(algorithm, Evidence(tuple(tuple(g) for g in groups), batch=batch_of(groups, seed)), attempts_of(groups))


@settings(max_examples=200)
@given(filters, st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, -1.0, None]), min_size=1, max_size=5), min_size=1,
                         max_size=5))
def test_filters_choose_the_same(rule, rewards):
    reward_N = torch.tensor([float("nan") if r is None else r for group in rewards for r in group], dtype=torch.float64)
    group_N = torch.tensor([g for g, group in enumerate(rewards) for _ in group])
    theirs = rule.kept(reward_N, group_N, ~reward_N.isnan()).numpy()
    mine = filter_oracle.expected_kept(rule, reward_N.numpy(), group_N.numpy(), ~np.isnan(reward_N.numpy()))
    assert mine.tolist() == theirs.tolist()


def test_negative_control_another_setting_gives_another_credit():
    groups = draw(3)
    evidence = Evidence(tuple(tuple(group) for group in groups), batch=batch_of(groups, 3))
    for one, other in ((GRPO(), GRPO(normalize_std=False)), (PPO(), PPO(gamma=0.9)), (PPO(), PPO(bootstrap="truncated")),
                       (Reinforce(), Reinforce(gamma=0.9)), (GRPO(), GRPO(filter=Filter("top_k", groups=1)))):
        credit = one.credit(evidence.batch).advantage_T.numpy()
        found = expected_credit(attempts_of(groups), other, facts_of(evidence))
        assert np.abs(found.advantage_T - credit).max() > 1e-3, other
    assert replace(GRPO(), normalize_std=False) == GRPO(normalize_std=False)
