"""Each algorithm by hand on two trajectories, and all that the golden file knows through whole batches."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from credit_data import TrajectorySpec, batch_of, credit_of, draw, trajectory
from learning_data import FIRST, span, tiny_model

from tests import golden
from workbench.learn.algorithms import (
    ALGORITHMS,
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    BilevelPPO,
    DrGRPO,
    GiGPO,
    LossInputs,
    Reinforce,
    ReinforcePP,
    ReinforcePPBaseline,
    ReMax,
    TurnPPO,
)
from workbench.learn.algorithms.parts import Masks, Rewards
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.training.config import load_config
from workbench.values import Group, Segment, Source, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, DataError

# Two trajectories of one task. The first has turns of 2 and 1 tokens, paid 1 and 2; the second one turn of 1, paid 5.
PAIR = (
    (
        TrajectorySpec(((2, 1.0, "start"), (1, 2.0, "middle"))),
        TrajectorySpec(((1, 5.0, "start"),), seed=7),
    ),
)


def found(algorithm, groups=PAIR) -> list[list[float]]:
    return [advantage.tolist() for advantage, _, _ in credit_of(algorithm, batch_of(groups))]


def with_values(*value_E: float) -> Batch:
    """PAIR, with these values at its four sampled tokens."""
    batch = batch_of(PAIR)
    value_T = torch.full_like(batch.value_T, torch.nan).masked_scatter(
        batch.eligible_T, torch.tensor(value_E)
    )
    return replace(batch, value_T=value_T)


def test_remax_compares_with_the_greedy_trajectory():
    """By hand: 3 and 5 against .25, at the first task; it is no member, and of another task nothing is taken. As verl's
    compute_remax_outcome_advantage gives it where all is paid at the end."""
    assert found(ReMax()) == [[2.75, 2.75, 2.75], [4.75]]
    second = (*PAIR, (TrajectorySpec(((1, 1.0, None),)),))
    assert found(ReMax(), second)[2] == [0.5]
    assert found(ReMax(), (PAIR[0][:1],)) == [
        [2.75, 2.75, 2.75]
    ]  # one trajectory of a task is enough


def test_remax_gives_nothing_where_the_greedy_trajectory_could_not_be_scored():
    batch = batch_of((*PAIR, (TrajectorySpec(((1, 1.0, None),)),)))
    batch = replace(batch, greedy_N=torch.tensor([torch.nan, torch.nan, 0.5], dtype=torch.float64))
    credit = ReMax().credit(batch)
    assert credit.advantage_T[batch.eligible_T].tolist() == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert credit.notes["greedy_unscored"] == 1.0 and credit.notes["greedy_reward"] == 0.5


def test_remax_without_a_greedy_trajectory_says_how_to_get_one():
    with pytest.raises(DataError, match="no group of this batch has one: collect"):
        ReMax().credit(replace(batch_of(PAIR), greedy_N=None))


def test_the_greedy_reward_is_put_on_the_scale_of_the_others():
    """Rewards 3 and 5, greedy .25: mean 4, deviation sqrt(2)."""
    batch = batch_of(PAIR)
    advantage_T = ReMax(rewards=Rewards("mean_std")).credit(batch).advantage_T[batch.eligible_T]
    assert torch.allclose(
        advantage_T, torch.tensor([2.75] * 3 + [4.75], dtype=torch.float64) / 2**0.5, atol=1e-5
    )


def test_rloo_compares_with_the_others():
    assert found(RLOO()) == [[-2.0, -2.0, -2.0], [2.0]]  # 3 against 5
    third = ((*PAIR[0], TrajectorySpec(((1, 7.0, None),))),)
    assert found(RLOO(), third) == [
        [-3.0, -3.0, -3.0],
        [0.0],
        [3.0],
    ]  # 3 against (5 + 7) / 2, and so on


def test_reinforce_gives_a_turn_what_comes_after_it():
    """gamma = 1/2: G = 1 + 2/2 and 2 for the first, 5 for the second; baselines 5 and 2."""
    assert found(Reinforce(estimator={"gamma": 0.5})) == [[2 - 5.0, 2 - 5.0, 2 - 5.0], [5 - 2.0]]
    assert found(Reinforce()) == [[3 - 5.0, 3 - 5.0, 2 - 5.0], [5 - 3.0]]
    assert found(Reinforce(estimator={"gamma": 0.5, "baseline": "none"})) == [
        [2.0, 2.0, 2.0],
        [5.0],
    ]
    assert found(Reinforce(estimator={"gamma": 0.0, "baseline": "none"})) == [
        [1.0, 1.0, 2.0],
        [5.0],
    ]
    assert (
        Reinforce().min_group_size == 2
        and Reinforce(estimator={"baseline": "none"}).min_group_size == 1
    )


def test_reinforce_pp_discounts_by_token_and_whitens_over_tokens():
    """gamma = 1/2: paid 0 1 2 | 5, so G = 1, 2, 2 | 5."""
    returns = torch.tensor([1.0, 2.0, 2.0, 5.0], dtype=torch.float64)
    expected = ((returns - returns.mean()) / (returns.var() + 1e-8).sqrt()).tolist()
    first, second = found(ReinforcePP(estimator={"gamma": 0.5}))
    assert [*first, *second] == pytest.approx(expected, abs=1e-12)


def test_reinforce_pp_baseline_whitens_what_is_above_the_group_and_moves_nothing_else():
    """R - mean = -1, -1, -1 | 1 over tokens: mean -1/2. A zero-variance group beside it stays at zero, but is counted."""
    above = torch.tensor([-1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    first, second = found(ReinforcePPBaseline())
    assert [*first, *second] == pytest.approx(
        ((above + 0.5) / (above.var() + 1e-8).sqrt()).tolist(), abs=1e-12
    )
    with_flat = torch.tensor([*above, 0.0, 0.0], dtype=torch.float64)
    flat = (TrajectorySpec(((1, 4.0, None),)), TrajectorySpec(((1, 4.0, None),)))
    first, second, *zeros = found(ReinforcePPBaseline(), (*PAIR, flat))
    assert second[0] == pytest.approx(
        float((1 - with_flat.mean()) / (with_flat.var() + 1e-8).sqrt()), abs=1e-12
    )
    assert zeros == [[0.0], [0.0]]


def test_gigpo_adds_the_comparison_of_turns_that_stood_in_the_same_state():
    """Trajectories: 3 against 5. From "start" on, with gamma = 1/2: 1 + 2/2 against 5. "middle" was seen once."""
    assert found(GiGPO(estimator={"normalize_std": False, "gamma": 0.5})) == [
        [-1 - 1.5, -1 - 1.5, -1.0],
        [1 + 1.5],
    ]
    assert found(GiGPO(estimator={"normalize_std": False, "gamma": 0.5, "omega": 0.0})) == found(
        GRPO(estimator={"normalize_std": False})
    )
    part, both = 1 / (math.sqrt(2) + 1e-6), 1.5 / (1.5 * math.sqrt(2) + 1e-6)
    first, second = found(GiGPO(estimator={"gamma": 0.5}))
    assert first == pytest.approx([-part - both, -part - both, -part]) and second == pytest.approx(
        [part + both]
    )


def test_gigpo_says_where_no_state_has_a_name():
    nameless = tuple(
        tuple(replace(a, turns=tuple((n, r, None) for n, r, _ in a.turns)) for a in group)
        for group in draw(0)
    )
    with pytest.raises(DataError, match="no turn of this batch names its state.*state_key"):
        GiGPO().credit(batch_of(nameless))


def test_turn_ppo_asks_the_critic_once_per_turn():
    """Values .5 9 .25 | 1: the nine inside the first turn has no part in it. gamma = 1/2, lam = 1."""
    batch = with_values(0.5, 9.0, 0.25, 1.0)
    (first, _, target), (second, _, other) = credit_of(
        TurnPPO(estimator={"gamma": 0.5, "whiten": False}, critic={"bootstrap": "never"}), batch
    )
    assert first.tolist() == [1 + 0.5 * 2 - 0.5] * 2 + [2 - 0.25] and second.tolist() == [5 - 1.0]
    assert target[[0, 2]].tolist() == [2.0, 2.0] and target[1].isnan() and other.tolist() == [5.0]
    credit = TurnPPO(estimator={"whiten": False}).credit(batch)
    fitted_T = credit.weights_of("critic") != 0
    assert (
        int(fitted_T.sum()) == 3 and int((credit.weight_T != 0).sum()) == 4
    )  # the policy is trained on every token


def test_bilevel_ppo_discounts_turns_and_tokens_apart():
    """gamma_turn = .5, gamma = lam = 1: the first turn is worth 1 + 2/2 at each of its tokens, whatever the values."""
    batch = with_values(0.5, 0.75, 0.25, 1.0)
    settings = {
        "estimator": {"gamma_turn": 0.5, "whiten": False},
        "critic": {"bootstrap": "never"},
    }
    (first, _, target), _ = credit_of(BilevelPPO(**settings), batch)
    assert target.tolist() == [2.0, 2.0, 2.0] and first.tolist() == [1.5, 1.25, 1.75]
    (inside, _, _), _ = credit_of(BilevelPPO(**settings)(estimator={"gamma": 0.5}), batch)
    assert inside.tolist() == [0.5 * 2 - 0.5, 1.25, 1.75]


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(estimator={"gamma": 0.5}),
        TurnPPO(estimator={"gamma": 0.5}),
        BilevelPPO(estimator={"gamma_turn": 0.5}),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_a_full_context_goes_on_being_worth_something(algorithm):
    """8 after the end: discounted once for the last turn, or token, by every one of the three."""
    batch = batch_of(((TrajectorySpec(((1, 5.0, None),), stop=StopReason.CONTEXT_FULL),),))
    ((_, _, target),) = credit_of(
        algorithm(estimator={"whiten": False}), replace(batch, final_value_N=torch.tensor([8.0]))
    )
    assert target.tolist() == [5 + 0.5 * 8]


def test_dr_grpo_divides_by_nothing_that_trajectories_decide():
    assert found(DrGRPO()) == [[-1.0, -1.0, -1.0], [1.0]]
    batch = batch_of(PAIR)
    scale_T, denominator = DrGRPO(fixed_length=10).reduction_of(batch.eligible_T, batch)
    assert bool((scale_T == 1).all()) and denominator == 2 * 10  # two trajectories, of any length
    with pytest.raises(ConfigError, match="fixed_length"):
        DrGRPO(reduction="token-mean")


def test_dapo_leaves_flat_groups_out_of_the_denominator():
    batch = batch_of(
        (*PAIR, (TrajectorySpec(((3, 1.0, None),)), TrajectorySpec(((2, 1.0, None),))))
    )
    assert (
        float(DAPO().credit(batch).weight_T.sum()) == 4.0
        and float(GRPO().credit(batch).weight_T.sum()) == 9.0
    )
    assert DAPO.objective.clip_high > DAPO.objective.clip_low == GRPO.objective.clip_low


def test_gspo_holds_a_sequence_as_a_whole_and_cispo_lets_no_token_drop_out():
    """Three tokens of one sequence, log-ratios 1, 0, 0, a good trajectory. The first is beyond every bound of a token, the
    mean of the three beyond GSPO's."""
    old, logp = torch.full((3,), -2.0), torch.tensor([-1.0, -2.0, -2.0], requires_grad=True)
    inputs = LossInputs(
        logp, logp.detach(), old, torch.ones(3), old, torch.zeros(3, dtype=torch.int64)
    )
    for algorithm, state, gradient in (
        (GRPO(), [1, 0, 0], [0.0, -1.0, -1.0]),
        (GSPO(), [1, 1, 1], [0.0] * 3),
        (CISPO(), [1, 0, 0], [-1.28, -1.0, -1.0]),
    ):
        loss = algorithm.loss(inputs)
        assert loss.clip_state_M.tolist() == state
        assert torch.autograd.grad(loss.loss_M.sum(), logp)[0].tolist() == pytest.approx(gradient)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Reinforce(estimator={"gamma": 1.1}), "algorithm.estimator.gamma is a probability"),
        (lambda: Reinforce(estimator={"baseline": "mean"}), "others or none"),
        (
            lambda: ReinforcePP(estimator={"gamma": -0.1}),
            "algorithm.estimator.gamma is a probability",
        ),
        (lambda: GiGPO(estimator={"omega": -1.0}), "omega is at least 0"),
        (lambda: BilevelPPO(estimator={"gamma_turn": 2.0}), "gamma_turn is a probability"),
        (lambda: TurnPPO(estimator={"lam": 2.0}), "lam"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# ------------------------------------------------------------------------------------------------ golden, whole batches


def tokens_of_trajectory(case: golden.Case, row: int, task: int, number: int) -> Trajectory:
    """A row of the golden file as a trajectory: each run of masked tokens is a turn, paid at its last token, as in the
    file; the environment says the rest."""
    mask, paid = case.mask[row].tolist(), case.table("rewards")[row].tolist()
    spans, earned = [span(Source.PROMPT, 0, [1])], []
    for column, sampled in enumerate(mask):
        opens = sampled and not (column and mask[column - 1])
        earned += [0.0] if opens else []
        earned[-1:] = [earned[-1] + paid[column]] if earned else []
        assert not paid[column] or (sampled and not (column + 1 < len(mask) and mask[column + 1]))
        turn = max(len(earned) - 1, 0)
        spans.append(
            span(Source.POLICY, turn, [5], np.random.default_rng(0), sampled=True)
            if sampled
            else span(Source.ENV, turn, [6])
        )
    return Trajectory(
        Task(f"task-{task}", "test", task),
        number,
        number,
        FIRST,
        tuple(Turn(k, "", reward=reward) for k, reward in enumerate(earned)),
        (Segment(tuple(spans)),),
        StopReason.TERMINATED,
    )


def whole_batch(case: golden.Case) -> tuple[Batch, torch.Tensor]:
    """The case as a batch, and the file's row of each trajectory."""
    group_N = case.group_N().tolist()
    rows = [
        [row for row, group in enumerate(group_N) if group == g] for g in range(max(group_N) + 1)
    ]
    batch = Batch.from_groups(
        [
            Group(
                tuple(
                    tokens_of_trajectory(case, row, task, number)
                    for number, row in enumerate(of_group)
                )
            )
            for task, of_group in enumerate(rows)
        ]
    )
    order = torch.tensor([row for of_group in rows for row in of_group])
    value_A = torch.cat([case.table("values")[row][case.mask[row]] for row in order])
    value_T = torch.full((batch.num_tokens,), torch.nan, dtype=torch.float64).masked_scatter(
        batch.eligible_T, value_A
    )
    return replace(batch, value_T=value_T), order


@pytest.mark.parametrize("number", range(3))
def test_golden_numbers_through_batches(number):
    """What the pure functions give, credit gives: rewards of turns, masks, groups in another order."""
    raw = json.loads(golden.FILE.read_text())
    case = golden.read_case(number, raw["cases"][number], raw["settings"])
    batch, order = whole_batch(case)
    gamma, lam = case.number("gamma"), case.number("lam")
    algorithms = {
        "grpo": GRPO(),
        "grpo_no_std": GRPO(estimator={"normalize_std": False}),
        "rloo": RLOO(),
        "reinforce_pp": ReinforcePP(estimator={"gamma": gamma}),
        "reinforce_pp_baseline": ReinforcePPBaseline(),
        "gae_whitened": PPO(estimator={"gamma": gamma, "lam": lam}, critic={"bootstrap": "never"}),
    }
    for entry, algorithm in algorithms.items():
        expected = torch.tensor(raw["cases"][number]["expected"][entry], dtype=torch.float64)
        assert (
            golden.difference(
                algorithm.credit(batch).advantage_T[batch.eligible_T],
                expected[order][case.mask[order]].tolist(),
            )
            < golden.TOLERANCE
        ), entry


# ------------------------------------------------------------------------------------------------ an update


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_table_makes_an_update(name):
    """Facts, credit, update on a tiny model, with a critic where it needs one: weights move, to finite numbers."""
    model, algorithm = tiny_model(), ALGORITHMS[name]()
    learner = Learner(
        model, algorithm, LearnerConfig(lr=1e-3), reference=model, critic=CriticConfig()
    )
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    batch = learner.facts(
        Batch.from_groups(
            [
                Group(
                    tuple(
                        trajectory(a, task, number, fresh=bool(task), observation=2)
                        for number, a in enumerate(group)
                    ),
                    trajectory(group[0], task, len(group), fresh=bool(task), observation=2),
                )
                for task, group in enumerate(draw(2, tasks=2, attempts=3))
            ]
        )
    )
    report = learner.update(batch, algorithm.credit(batch), step=1)
    after = learner.weights()
    assert all(bool(weight.isfinite().all()) for weight in after.values())
    assert any(not torch.equal(after[name], weight) for name, weight in before.items()), report


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_table_can_be_named_in_a_config(name):
    assert load_config("frozenlake", {"algorithm.kind": name}).algorithm == ALGORITHMS[name]


def test_settings_that_cannot_act_are_refused_and_those_that_can_are_not():
    """What is discounted by turn where turns are not compared; and a timeline that both say does not matter to them."""
    with pytest.raises(
        ConfigError, match="algorithm.estimator.gamma has no effect: algorithm.estimator.omega is 0"
    ):
        load_config(
            "frozenlake",
            {
                "algorithm.kind": "gigpo",
                "algorithm.estimator.omega": 0.0,
                "algorithm.estimator.gamma": 0.5,
            },
        )
    wide = {"algorithm.masks.gae_over": "response"}
    for kind, says in (
        ("bilevel_ppo", "do not depend on what stands between"),
        ("turn_ppo", "of a turn, the same"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_config("frozenlake", {"algorithm.kind": kind, **wide})
    load_config(
        "frozenlake", {"algorithm.kind": "bilevel_ppo", "algorithm.estimator.lam": 0.9, **wide}
    )
    batch = batch_of(draw(1), elsewhere=0.5)
    for algorithm, moves in (
        (BilevelPPO(), False),
        (TurnPPO(estimator={"gamma": 0.5, "lam": 0.9}), False),
        (BilevelPPO(estimator={"lam": 0.9}), True),
    ):
        wider = Masks(gae_over="response", critic_over="actions", whiten_over="response")
        plain, other = (
            algorithm(masks=masks, estimator={"whiten": False}).credit(batch).advantage_T
            for masks in (Masks(), wider)
        )
        assert torch.allclose(plain, other, atol=1e-9) is not moves  # both claims, measured
