"""No result without its baselines (invariant 12): the same tasks, paired, faults and unscored trajectories counted as what they are."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.envs.guessing import Guessing, WithRandom
from workbench.extensions.demo.verdict import (
    RIVALS,
    Goal,
    goal_of,
    rival_config,
    rivals_of,
    verdict,
)
from workbench.look import curves_view
from workbench.look.evaluation import report_view
from workbench.rollouts.config import CollectConfig, EvaluationConfig
from workbench.rollouts.evaluate import (
    MODES,
    Score,
    compare,
    evaluate_baselines,
    evaluate_policy,
    report,
    score_trajectories,
)
from workbench.rollouts.metrics import rollout_metrics
from workbench.run.shapes import EVALUATION, shaped
from workbench.training.config import load_config
from workbench.values import Group, Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, DataError, EnvError, StoreError
from workbench.worlds import FrozenLake, baselines
from workbench.worlds import tasks as env_tasks


def a_trajectory(
    number,
    *,
    reward,
    success,
    stop=StopReason.TERMINATED,
    task=Task("t", "fake", 0),
    turns=1,
    **info,
):
    return Trajectory(
        task,
        number,
        number,
        Observation(()),
        tuple(
            Turn(
                i,
                "text",
                reward=reward if i == turns - 1 else 0.0,
                info={"valid_format": True, **info},
            )
            for i in range(turns)
        ),
        (),
        stop,
        success=success,
    )


def scores(name, mode, wins, n=100):
    return score_trajectories(
        name, mode, [a_trajectory(i, reward=float(i < wins), success=i < wins) for i in range(n)]
    )


def test_a_score_counts_faults_as_failures_and_leaves_unscored_rewards_out_of_the_mean():
    trajectories = [
        a_trajectory(0, reward=1.0, success=True),
        a_trajectory(1, reward=0.0, success=False),
        a_trajectory(2, reward=None, success=None, stop=StopReason.ENV_ERROR),
    ]
    score = score_trajectories("p", "sampled", trajectories)
    assert (score.success, score.reward, score.faults, score.n) == (1 / 3, 0.5, 1, 3)
    assert score.by_task == (1.0, 0.0, 0.0)


def test_an_environment_that_does_not_know_success_has_no_rate_of_zero():
    silent = [a_trajectory(i, reward=1.0, success=None) for i in range(3)]
    score = score_trajectories("p", "sampled", silent)
    assert (score.success, score.success_low, score.by_task, score.ks) == (None, None, (), ())
    metrics = rollout_metrics([Group(tuple(silent))])
    assert "success" not in metrics and metrics["reward_mean"] == 1.0


def test_metrics_of_a_step_without_a_single_score_are_absent_not_zero():
    group = Group(
        tuple(
            a_trajectory(i, reward=None, success=None, stop=StopReason.ENV_ERROR) for i in range(2)
        )
    )
    metrics = rollout_metrics([group])
    assert {"reward_mean", "reward_std", "reward_std_within", "flat_groups", "success"} & set(
        metrics
    ) == set()
    assert metrics["unscored"] == 2 and metrics["stop_env_error"] == 1.0


def test_a_paired_difference_is_of_b_over_a():
    pair = compare(scores("untrained", "sampled", 40), scores("trained", "sampled", 70))
    assert (
        pair["difference"] == pytest.approx(0.30) and 0.2 < pair["low"] < 0.3 < pair["high"] < 0.4
    )


def table(untrained=40, trained=60, random=24, greedy=(60, 62), n=400):
    made = [scores("random", "sampled", random * n // 100, n), scores("solver", "greedy", n, n)]
    for name, sampled, best in (
        ("untrained", untrained, greedy[0]),
        ("trained", trained, greedy[1]),
    ):
        made += [
            scores(name, "sampled", sampled * n // 100, n),
            scores(name, "greedy", best * n // 100, n),
        ]
    return report(made)


def test_a_report_pairs_every_policy_with_untrained_and_random_in_its_mode():
    pairs = {(pair["a"], pair["b"]) for pair in table()["paired"]}
    assert ("untrained sampled", "trained sampled") in pairs and (
        "random sampled",
        "trained sampled",
    ) in pairs
    assert ("untrained greedy", "trained greedy") in pairs and (
        "random sampled",
        "untrained sampled",
    ) in pairs


@pytest.mark.parametrize(
    "change, broken",
    [
        ({}, None),
        ({"trained": 46}, "rises by at least 8 points"),
        (
            {"untrained": 40, "trained": 48, "n": 50},
            "excludes 0",
        ),  # eight points, but of fifty tasks
        ({"untrained": 10, "trained": 20, "random": 30}, "above random play"),
        ({"greedy": (70, 62)}, "greedy success does not fall"),
        ({"greedy": (64, 62)}, None),  # within a half-width
    ],
)
def test_the_demo_says_no_when_a_single_condition_fails(change, broken):
    judged = verdict(table(**change))
    failed = [check for check, held in judged["checks"].items() if not held]
    assert judged["learned"] == (broken is None)
    assert (not failed) if broken is None else (len(failed) == 1 and broken in failed[0])


def test_a_goal_is_a_condition_more_and_only_the_plain_search_has_one():
    reached = verdict(table(trained=46), Goal(sampled=0.4, greedy=0.6))
    missed = verdict(table(trained=60), Goal(sampled=0.9, greedy=0.6))
    assert len(reached["checks"]) == len(missed["checks"]) == 6 and not missed["learned"]
    assert [check for check, held in missed["checks"].items() if not held] == [
        "sampled success is at least 90 %"
    ]
    assert goal_of(load_config("search")) == Goal(0.8, 0.9)
    assert goal_of(load_config("search-hard")) is goal_of(load_config("frozenlake")) is None


def test_rivals_get_the_same_questions_put_otherwise_and_as_many_trajectories():
    config = load_config("search", {"seed": 2})
    assert (
        rivals_of(load_config("frozenlake"))
        == rivals_of(load_config("search", {"env.context": "rag"}))
        == ()
    )
    for name in rivals_of(config):
        rival = rival_config(config, name)
        assert rival.env.context == RIVALS[name] != "search" and rival.seed == 2
        assert (
            replace(rival.train, max_empty_steps=5) == config.train
            and rival.learner == config.learner
        )
        held_out = [env_tasks(each.env, "held-out", 5) for each in (config, rival)]
        assert held_out[0] == held_out[1]


def test_baselines_play_the_very_tasks_and_dynamics_that_policies_play():
    lake = FrozenLake(slip=0.5)
    tasks = env_tasks(lake, "held-out", 20)
    seen = []

    def play(tasks, attempts, config, address):
        assert attempts == 1
        seen.append((address, config.temperature, config.top_p))
        return [Group((a_trajectory(0, reward=1.0, success=True, task=task),)) for task in tasks]

    made = evaluate_policy(
        "p", tasks, play, config=CollectConfig(temperature=0.5, top_p=0.5), seed=3
    )
    assert [score.mode for score in made] == list(MODES)
    assert seen == [((3, "evaluation"), 0.5, 0.5), ((3, "evaluation"), 0.0, 1.0)]
    first, again = (evaluate_baselines(tasks, family=lake, seed=3) for _ in range(2))
    assert [score.by_task for score in first] == [score.by_task for score in again]
    assert {score.policy for score in first} == {"random", "solver"} and all(
        score.n == 20 for score in first
    )
    other = evaluate_baselines(tasks, family=lake, seed=4)
    assert [score.by_task for score in first] != [
        score.by_task for score in other
    ]  # negative control: the seed acts


# ------------------------------------------------------------------------------------------------ what a family lacks


def returns(name, mode, values, attempts=1):
    """`values`: the return of each trajectory, task by task; None was not scored."""
    return score_trajectories(
        name,
        mode,
        [
            a_trajectory(
                i % attempts, reward=value, success=None, task=Task(f"t{i // attempts}", "fake", i)
            )
            for i, value in enumerate(values)
        ],
        attempts=attempts,
    )


def test_without_success_policies_are_compared_by_return_with_an_interval_over_tasks():
    before, after = (
        returns("untrained", "sampled", [0.0, 1.0, 2.0, 3.0]),
        returns("trained", "sampled", [1, 2, 3, 4.5]),
    )
    assert after.reward_by_task == (1.0, 2.0, 3.0, 4.5) and after.reward == 2.625
    assert after.reward_low == pytest.approx(
        2.625 - 3.1824 * np.std([1, 2, 3, 4.5], ddof=1) / 2, abs=1e-3
    )
    [pair] = report([before, after])["paired"]
    assert (
        pair["of"] == "return"
        and pair["difference"] == 1.125
        and pair["n"] == 4
        and 0.7 < pair["low"] < 1.125
    )
    row = json.loads(json.dumps(after.row()))
    assert row["success"] is None and Score.of_row(row) == after
    assert str(after).startswith("trained   sampled  return 2.625  [") and "%" not in str(after)


def test_trajectories_of_one_task_are_one_value_of_it_and_unscored_ones_are_left_out():
    before = returns("untrained", "sampled", [0.0, 2.0, None, 4.0, None, None], attempts=2)
    after = returns("trained", "sampled", [3.0, 3.0, 5.0, None, 9.0, 9.0], attempts=2)
    assert before.reward_by_task == (1.0, 4.0, None) and before.n == 3 and before.reward == 2.0
    pair = compare(before, after)
    assert (
        pair["difference"] == 1.5 and pair["n"] == 2
    )  # the third task was scored on one side only
    assert (
        report(
            [
                returns("untrained", "sampled", [None, 1.0]),
                returns("trained", "sampled", [1.0, None]),
            ]
        )["paired"]
        == []
    )


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("known", [True, False])
def test_what_is_written_of_an_evaluation_is_what_a_reader_accepts(known, attempts):
    made = [
        scores(name, "sampled", right, 4)
        if known
        else returns(name, "sampled", [right, None, 1.0, 2.0], attempts)
        for name, right in (("untrained", 1), ("trained", 3))
    ]
    stored = {"step": 1} | json.loads(json.dumps(report(made)))
    assert shaped(stored, EVALUATION, Path("step-1.json"), "an evaluation") is stored
    stored["rows"][1]["policy"] = 3  # negative control
    with pytest.raises(StoreError, match="at rows.1.policy"):
        shaped(stored, EVALUATION, Path("step-1.json"), "an evaluation")


def test_a_row_of_before_reads_as_it_did():
    row = scores("p", "sampled", 3, 10).row()
    assert Score.of_row(row).row() == row and "reward_by_task" not in row


def test_a_family_without_baselines_says_none_known_everywhere():
    held_out = env_tasks(Guessing(), "held-out", 8)
    assert evaluate_baselines(held_out, family=Guessing(), seed=0) == []
    [random] = evaluate_baselines(held_out, family=WithRandom(), seed=0, attempts=3)
    assert random.policy == "random" and random.success is None and 0 < random.reward < 1
    assert baselines.none_known(Guessing()) == {"random": "none known", "solver": "none known"}
    assert baselines.none_known(FrozenLake()) == {} and "absent" not in report([random])
    table = report(
        [random, returns("trained", "sampled", [1.0] * 8)], baselines.none_known(WithRandom())
    )
    text = report_view(table).text
    assert (
        table["absent"] == {"solver": "none known"}
        and "none known" in text
        and "not measured" in text
    )  # untrained
    assert (
        " 0.0 %" not in text
        and "nan" not in text
        and "compared by return" in text
        and "of return" in text
    )
    assert report_view(table).png and "none known" in report_view(table).html


def test_returns_that_are_all_the_same_have_no_interval_of_width_zero():
    flat, other = (
        returns("untrained", "sampled", [1.0] * 4),
        returns("trained", "sampled", [2.0] * 4),
    )
    assert flat.reward_low is None and "[not known]" in str(flat)
    text = report_view(report([flat, other])).text
    assert (
        "paired differences in return" in text
        and "the same at every task" in text
        and "CI " not in text
    )


def test_the_curves_of_a_reward_only_run_say_which_baselines_there_are_none_of():
    table = {
        "step": 0,
        **report([returns("untrained", "sampled", [1.0, 2.0])], baselines.none_known(Guessing())),
    }
    view = curves_view([{"step": 1, "reward_mean": 1.0}], [table])
    assert (
        "random: none known; solver: none known" in view.text
        and "this curve alone" not in view.text
    )
    silent = {name: value for name, value in table.items() if name != "absent"}
    assert (
        "no random, solver baseline"
        in curves_view([{"step": 1, "reward_mean": 1.0}], [silent]).text
    )


# ------------------------------------------------------------------------------------------------ several trajectories


def several(name, wins, attempts, mode="sampled"):
    """`wins` successes of `attempts`, one number for each task; the successes are the last ones."""
    return score_trajectories(
        name,
        mode,
        [
            a_trajectory(j, reward=1.0, success=j >= attempts - w, task=Task(f"t{i}", "fake", i))
            for i, w in enumerate(wins)
            for j in range(attempts)
        ],
        attempts=attempts,
    )


def test_several_trajectories_are_summed_up_task_by_task():
    score = several("p", [0, 1, 2, 4], 4)
    assert (score.n, score.attempts, score.by_task, score.success) == (
        4,
        4,
        (0.0, 0.25, 0.5, 1.0),
        7 / 16,
    )
    assert (
        score.ks == (1, 2, 4)
        and several("p", [0], 6).ks == (1, 2, 4)
        and several("p", [0, 1], 1).ks == ()
    )
    # one success of four: 3 of 6 pairs of trajectories hold it; two: 5 of 6
    assert (
        score.pass_at(2).mean == pytest.approx((0 + 3 / 6 + 5 / 6 + 1) / 4)
        and score.pass_at(4).mean == 0.75
    )
    assert (score.pass_at(1).low, score.pass_at(1).high) == (score.success_low, score.success_high)
    with pytest.raises(
        DataError, match="pass@8 needs .* at least k trajectories of each task, got 4"
    ):
        score.pass_at(8)


def test_a_row_tells_its_score_again_and_one_trajectory_leaves_it_as_it_always_was():
    for score in (several("p", [0, 1, 3, 3], 3), scores("p", "sampled", 3, 10)):
        assert Score.of_row(json.loads(json.dumps(score.row()))) == score
    row = several("p", [0, 1, 3, 3], 3).row()
    assert (
        row["pass_at_2_low"] < row["pass_at_2"] < row["pass_at_2_high"] and "pass_at_3" not in row
    )
    assert set(scores("p", "sampled", 3, 10).row()) == {
        "policy",
        "mode",
        "n",
        "success",
        "success_low",
        "success_high",
        "reward",
        "turns",
        "tokens",
        "valid_format",
        "faults",
        "by_task",
    }


def test_a_report_of_several_trajectories_pairs_the_largest_common_pass_at_k_too():
    made = [
        several("random", [0, 1, 2, 1], 4),
        several("untrained", [1, 1, 2, 2], 4),
        scores("untrained", "greedy", 2, 4),
        several("trained", [4, 4, 4, 0], 4),
        scores("trained", "greedy", 3, 4),
    ]
    pairs = {(pair["a"], pair["b"]): pair for pair in report(made)["paired"]}
    rise = pairs["untrained sampled", "trained sampled"]
    assert rise["difference"] == pytest.approx(12 / 16 - 6 / 16)
    at_4 = pairs["untrained sampled pass@4", "trained sampled pass@4"]
    assert (
        at_4["difference"] == -0.25 and at_4["low"] < -0.25 < at_4["high"]
    )  # what it can do at all has become less
    assert pairs["random sampled", "trained greedy"]["difference"] == pytest.approx(0.75 - 4 / 16)
    assert ("untrained greedy pass@4", "trained greedy pass@4") not in pairs


def test_trajectories_are_played_where_a_policy_samples_and_the_first_is_the_same_without_the_others():
    lake = FrozenLake(slip=0.5)
    tasks = env_tasks(lake, "held-out", 12)
    asked = []

    def play(tasks, attempts, config, address):
        asked.append((attempts, config.temperature))
        return [
            Group(tuple(a_trajectory(j, reward=1.0, success=True, task=t) for j in range(attempts)))
            for t in tasks
        ]

    evaluate_policy("p", tasks, play, config=CollectConfig(), seed=0, attempts=3)
    assert asked == [(3, 1.0), (1, 0.0)]
    first, several_times = (
        evaluate_baselines(tasks, family=lake, seed=3, attempts=n) for n in (1, 6)
    )
    assert [(s.policy, s.attempts) for s in several_times] == [("random", 6), ("solver", 1)]
    assert several_times[1] == first[1]
    dry, _ = evaluate_baselines(tasks, family=FrozenLake(), seed=3, attempts=6)
    assert (
        len({*dry.by_task} - {0, 1}) > 1
    )  # trajectories of a task differ, though no chance of the lake's tells them apart
    won = np.array(several_times[0].by_task) > 0
    assert all(
        won[i] for i, value in enumerate(first[0].by_task) if value
    )  # the first trajectory is among them
    with pytest.raises(ConfigError, match="attempts is at least 1"):
        EvaluationConfig(attempts=0)


class Brittle(FrozenLake):
    """A lake whose environment raises in some tasks, or in all of them."""

    broken_tasks = ()

    def make(self):
        lake, broken = super().make(), self.broken_tasks
        reset = lake.reset

        def sometimes(task, dynamics_seed):
            if task.id in broken:
                raise OSError("no lake today")
            return reset(task, dynamics_seed)

        lake.reset = sometimes
        return lake


def test_an_environment_that_raises_is_a_fault_of_baselines_too(monkeypatch):
    tasks = env_tasks(FrozenLake(), "held-out", 6)
    whole = evaluate_baselines(tasks, family=FrozenLake(), seed=0)
    monkeypatch.setattr(Brittle, "broken_tasks", (tasks[2].id,))
    for before, score in zip(whole, evaluate_baselines(tasks, family=Brittle(), seed=0)):
        assert score.faults == 1 and score.by_task[2] == 0.0 and score.n == 6
        assert [w for i, w in enumerate(score.by_task) if i != 2] == [
            w for i, w in enumerate(before.by_task) if i != 2
        ]
    monkeypatch.setattr(Brittle, "broken_tasks", tuple(task.id for task in tasks))
    with pytest.raises(
        EnvError, match="random play of frozenlake broke in every trajectory.*no lake today"
    ):
        evaluate_baselines(tasks, family=Brittle(), seed=0)


def test_too_few_tasks_are_refused():
    with pytest.raises(ConfigError, match="at least 2"):
        EvaluationConfig(num_tasks=1)


def test_step_metrics_know_flat_groups_spread_and_what_was_not_scored():
    groups = [
        Group(
            (a_trajectory(0, reward=1.0, success=True), a_trajectory(1, reward=0.0, success=False))
        ),
        Group(
            (
                a_trajectory(0, reward=0.0, success=False, task=Task("u", "fake", 1)),
                a_trajectory(
                    1,
                    reward=None,
                    success=None,
                    stop=StopReason.ENV_TIMEOUT,
                    task=Task("u", "fake", 1),
                ),
            )
        ),
    ]
    metrics = rollout_metrics(groups)
    assert metrics["reward_mean"] == pytest.approx(1 / 3) and metrics["unscored"] == 1
    assert metrics["reward_std_within"] == pytest.approx(0.25) and metrics["flat_groups"] == 0.5
    assert metrics["reward_std_in_group"] == pytest.approx(0.5**0.5), (
        "n - 1, of the group that has one"
    )
    assert metrics["stop_env_timeout"] == 0.25 and metrics["success"] == 0.25
    assert np.isclose(sum(value for key, value in metrics.items() if key.startswith("stop_")), 1.0)


# ------------------------------------------------------------------------------------------------ sampled as the run samples


def test_a_policy_is_sampled_as_the_run_samples_and_its_row_says_so():
    seen = []

    def play(tasks, count, config, address):
        seen.append((config.temperature, config.top_p))
        return [Group((a_trajectory(0, reward=1.0, success=True),)) for _ in tasks]

    bent = CollectConfig(temperature=0.8, top_p=0.9)
    made = evaluate_policy("trained", [Task("t", "fake", 0)], play, config=bent, seed=0)
    assert seen == [(0.8, 0.9), (0.0, 1.0)]
    rows = json.loads(json.dumps([score.row() for score in made]))
    assert (rows[0]["temperature"], rows[0]["top_p"]) == (0.8, 0.9)
    assert "temperature" not in rows[1] and "top_p" not in rows[1]
    assert "sampled (temperature 0.8, top-p 0.9)" in str(made[0])
    assert "greedy (" not in str(made[1])
    assert "sampled (temperature 0.8, top-p 0.9)" in report_view(report(made)).text
    again = Score.of_row(json.loads(json.dumps(rows[0])))
    assert (again.temperature, again.top_p, again.mode) == (0.8, 0.9, "sampled")
    assert shaped({"rows": rows}, EVALUATION, Path("step-1.json"), "an evaluation")


def test_at_temperature_one_rows_are_those_of_before():
    def play(tasks, count, config, address):
        return [Group((a_trajectory(0, reward=1.0, success=True),)) for _ in tasks]

    (score,) = evaluate_policy(
        "trained", [Task("t", "fake", 0)], play, config=CollectConfig(), seed=0, modes=("sampled",)
    )
    assert "temperature" not in score.row() and str(score).startswith("trained   sampled  ")
    foreign = {**json.loads(json.dumps(score.row())), "temperature": "hot"}
    with pytest.raises(StoreError, match="temperature"):
        shaped({"rows": [foreign]}, EVALUATION, Path("step-1.json"), "an evaluation")
