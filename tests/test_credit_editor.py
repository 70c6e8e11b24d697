"""Edited credit: its numbers are those of training, an edit acts as the same groups with other rewards, nothing is lost."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from learning_data import make_groups, unscore

from workbench.extensions.what_if.mask_switches import show_mask_switches
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO
from workbench.learn.algorithms.parts import Masks
from workbench.learn.batch import Batch
from workbench.look.cells.credit import (
    credited,
    edit_step,
    edited_groups,
    show_estimators,
    step_facts,
    with_rewards,
)
from workbench.look.cells.credit import facts as wb_facts
from workbench.look.cells.credit_settings import LOSS_ONLY, knobs_of
from workbench.look.cells.edits import Edit
from workbench.look.strips import row_labels
from workbench.training.config import load_config
from workbench.training.reopening import reopen
from workbench.training.session import open_session, rollout
from workbench.values import Group, StopReason
from workbench.values.errors import ConfigError, DataError


def texts(ids) -> list[str]:
    return [f"w{int(i)} " for i in ids]


def with_states(groups: list[Group]) -> list[Group]:
    """Some turns of a group stood in the same state, as GiGPO wants them to; and a greedy trajectory aside, for ReMax."""
    return [
        Group(
            tuple(
                replace(
                    t,
                    turns=tuple(
                        replace(turn, state_key=f"{turn.index} {t.attempt % 2}") for turn in t.turns
                    ),
                )
                for t in group
            ),
            replace(group[0], attempt=len(group)),
        )
        for group in groups
    ]


GROUPS = with_states(unscore(make_groups(3, tasks=3, attempts=4, turns=3), 2, 1))


def known(groups=GROUPS, seed: int = 0) -> Batch:
    """A batch with made-up facts at every token that has something before it."""
    batch, generator = Batch.from_groups(groups), torch.Generator().manual_seed(seed)

    def drawn() -> torch.Tensor:
        return torch.where(
            batch.position_T > 0, torch.randn(batch.num_tokens, generator=generator), torch.nan
        )

    return replace(
        batch,
        value_T=drawn(),
        old_logp_T=drawn(),
        ref_logp_T=drawn(),
        final_value_N=torch.randn(batch.num_trajectories, generator=generator),
    )


def editor(algorithm="grpo", groups=GROUPS, facts=True):
    return edited_groups(
        groups, algorithm, token_texts=texts, facts=known(groups) if facts else None
    )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float64 and a.tobytes() == b.tobytes()


# ------------------------------------------------------------------------------------------------ the numbers


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_shown_is_what_training_would_use_bit_for_bit(name):
    credit, shown = ALGORITHMS[name]().credit(known()), editor().outcome(Edit(name)).credited
    assert same_bits(shown.advantage_T, credit.advantage_T.numpy()) and same_bits(
        shown.weight_T, credit.weight_T.numpy()
    )
    if credit.return_T is not None:
        assert same_bits(shown.return_T, credit.return_T.numpy())
    weighing_N = np.zeros(len(shown.kept_N), bool)
    weighing_N[known().trajectory_of_token_T.numpy()[shown.weight_T != 0]] = True
    assert (weighing_N == shown.kept_N).all(), "who is said to be kept is who weighs something"


def test_an_edit_is_the_same_groups_with_another_reward():
    """Not a correction of numbers afterwards: the groups are made anew, and everything follows from them."""
    rewards = {(1, 0): 0.75, (1, 2): -1.0, (6, 1): None}
    trajectories = [t for group in GROUPS for t in group]
    for (n, turn), reward in rewards.items():
        turns = list(trajectories[n].turns)
        turns[turn] = replace(turns[turn], reward=reward)
        trajectories[n] = replace(trajectories[n], turns=tuple(turns))
    expected = [
        replace(GROUPS[g], trajectories=tuple(trajectories[4 * g : 4 * g + 4])) for g in range(3)
    ]
    facts = {
        name: getattr(known(), name)
        for name in ("value_T", "final_value_N", "old_logp_T", "ref_logp_T")
    }
    batch = replace(Batch.from_groups(expected), **facts)
    for algorithm in (GRPO(), PPO(estimator={"gamma": 0.9, "lam": 0.7})):
        settings = (
            {} if algorithm.name == "grpo" else {"estimator.gamma": 0.9, "estimator.lam": 0.7}
        )
        shown = editor().outcome(Edit(algorithm.name, settings, rewards)).credited
        credit = algorithm.credit(batch)
        assert same_bits(shown.advantage_T, credit.advantage_T.numpy())
        assert same_bits(shown.weight_T, credit.weight_T.numpy())
        assert shown.reward_N[1] == pytest.approx(batch.reward_N[1]) and np.isnan(shown.reward_N[6])
    assert GROUPS[0][1].turns[0].reward == 0.0, "what was handed in stays as it was"


def test_settings_reach_the_algorithm_nested_ones_too():
    settings = {
        "estimator.normalize_std": False,
        "rewards.normalize": "mean",
        "rewards.over": "batch",
        "filter.keep": "top_k",
        "filter.groups": 1,
        "masks.loss_mask": False,
    }
    shown = editor().outcome(Edit("grpo", settings)).credited
    algorithm = GRPO(masks=Masks(loss_mask=False), estimator={"normalize_std": False})
    algorithm = replace(
        algorithm,
        rewards=replace(algorithm.rewards, normalize="mean", over="batch"),
        filter=replace(algorithm.filter, keep="top_k", groups=1),
    )
    assert same_bits(shown.advantage_T, algorithm.credit(known()).advantage_T.numpy())
    assert shown.kept_N.sum() == 4


def test_an_algorithm_with_settings_of_its_own_is_where_the_editor_begins():
    own = PPO(estimator={"whiten": False, "lam": 0.3}, objective={"clip_low": 0.1})
    shown = editor(own).outcome()
    assert same_bits(shown.credited.advantage_T, own.credit(known()).advantage_T.numpy())
    assert {knob.name: knob.default for knob in knobs_of(own)}["estimator.lam"] == 0.3
    assert (
        editor(own)
        .view()
        .text.startswith("credit: ppo (estimator.lam = 0.3, estimator.whiten = False)\n")
    ), "and it is said which"


def test_an_outcome_can_be_edited_and_a_turn_that_is_not_there_cannot():
    paid = [Group(tuple(replace(t, outcome=0.5) for t in group)) for group in GROUPS]
    assert with_rewards(paid, {(0, 3): 2.0})[0][0].outcome == 2.0
    assert with_rewards(paid, {(0, 3): None})[0][0].reward is None
    with pytest.raises(DataError, match="attempt 0 has 3 turns.*no outcome.*no turn 3"):
        with_rewards(GROUPS, {(0, 3): 2.0})
    with pytest.raises(DataError, match="no attempt 12: there are 12"):
        with_rewards(GROUPS, {(12, 0): 2.0})
    assert with_rewards(GROUPS, {(5, 0): 1.0})[0] is GROUPS[0], (
        "groups without an edit are the very same"
    )


def test_a_stored_step_is_opened_with_the_credit_that_was_used(tmp_path):
    """With the critic's values and the reference's logprobs from the table: no weights are needed, and no bit differs."""
    from workbench.look.cells.train import train_here

    config = load_config(
        "frozenlake-ppo",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 3,
            "evaluation.num_tasks": 2,
            "algorithm.reference.kl_coef": 0.05,
            "train.evaluate_every": 0,
            "lint.start": False,
        },
    )
    run = train_here(config, tmp_path / "run")
    shown, stored = edit_step(run, 1).outcome().credited, run.credit(1, 0)
    for column, values in (
        ("advantage", shown.advantage_T),
        ("weight", shown.weight_T),
        ("return", shown.return_T),
    ):
        assert same_bits(np.nan_to_num(values), np.nan_to_num(stored[column])), column

    facts = step_facts(run, 1, session=reopen(run))
    table, batch = run.credit(1, 0), Batch.from_groups(run.groups(1))
    there_T = np.isfinite(table["value"])
    for column, now in (
        ("value", facts.value_T),
        ("old_logp", facts.old_logp_T),
        ("ref_logp", facts.ref_logp_T),
    ):
        assert same_bits(
            now.double().numpy()[there_T], table[column].astype(np.float64)[there_T]
        ), column
    assert (
        facts.value_T[batch.response_T].isfinite().all()
        and not there_T[batch.response_T.numpy()].all()
    )
    second = step_facts(run, 1, session=reopen(run), task=1)
    assert second.num_trajectories == 3
    assert torch.equal(
        second.value_T.nan_to_num(), facts.value_T[-second.num_tokens :].nan_to_num()
    )
    wide, narrow = (Edit("ppo", {"masks.advantage_mask": False}), Edit("ppo"))
    assert "no finite advantage" in edit_step(run, 1).view(wide).text
    filled = edit_step(run, 1, session=reopen(run))
    assert "no finite advantage" not in filled.view(wide).text
    assert same_bits(filled.outcome(narrow).credited.advantage_T, shown.advantage_T), (
        "and no bit of what was there"
    )
    with pytest.raises(DataError, match="step 1 has no task 2; they are counted from 0 to 1"):
        step_facts(run, 1, task=2)


def test_facts_for_looking_have_what_a_price_in_the_reward_would_be_made_of():
    """With the pull in the loss training asks for the reference alone; every mask switch can be looked at all the same."""
    algorithm = {"algorithm.reference.kl_coef": 0.05, "algorithm.reference.kl_in": "loss"}
    session = open_session(load_config("frozenlake-ppo", algorithm), quiet=True)
    groups = rollout(session, 1, group_size=2)
    facts = wb_facts(session, groups)
    for values_T in (facts.value_T, facts.ref_logp_T, facts.old_logp_T):
        assert values_T[facts.response_T].isfinite().all()
    text = show_mask_switches(groups, session.config.algorithm, facts=facts).text
    assert "not possible" not in text and "advantage_mask = false, KL in the reward" in text


# ------------------------------------------------------------------------------------------------ what is said


def test_what_an_edit_changed_is_marked_in_table_and_tokens():
    view = editor().after(rewards={(1, 2): GROUPS[0][1].turns[2].reward + 1}, attempt=1)
    lines = view.text.splitlines()
    edited, sibling, stranger = (
        next(line for line in lines if line.lstrip("→ ").startswith(f"{n} (group"))
        for n in (1, 0, 4)
    )
    assert "*" in edited and edited.startswith("→") and "*" not in sibling
    count = GROUPS[0][0].num_sampled
    assert sibling.split()[-5] == str(count), (
        "siblings move: so many tokens, by so much, then three rewards"
    )
    assert stranger.split()[-4] == str(GROUPS[1][0].num_sampled), (
        "another group does not: its tokens, then its rewards"
    )
    assert ", was " in view.text and "border-bottom:2px" in view.html
    assert (
        "0 tokens with a changed advantage"
        in editor().after(settings={"filter.zero_variance": "drop"}).text
    )


def test_tokens_that_are_trained_though_nobody_sampled_them_are_marked():
    view = editor().after(settings={"masks.loss_mask": False}, attempt=1)
    trajectory = GROUPS[0][1]
    length = sum(len(segment) - segment.prompt_length for segment in trajectory.segments)
    assert (
        f"{length - trajectory.num_sampled} widened" in view.text
        and "widened" not in editor().view().text
    )


def test_strips_are_numbered_row_by_row():
    """One number per trajectory, as high as its strip; of many trajectories one number for every few."""
    labels = re.findall(r"<div>(→?\d+)</div>", editor().after(attempt=2).html)
    assert labels == ["0", "1", "→2", *map(str, range(3, 12))]
    assert "font:10px/15px" in editor().after(attempt=2).html
    many, pitch = row_labels(64, 5)
    assert many[:3] == ["0", "→3", "6"] and len(many) == 22 and pitch == 12


def test_without_an_edit_nothing_is_compared():
    text = editor().view().text
    assert "was " not in text and "changed" not in text


def test_a_trajectory_that_failed_before_it_had_a_token_is_a_row_like_others():
    """A bad rollout is data: not scored, not kept, nothing to draw, and no exception."""
    failed = replace(
        GROUPS[0][3], turns=(), segments=(), stop_reason=StopReason.ENV_ERROR, error="did not start"
    )
    groups = [Group((*GROUPS[0][:3], failed)), *GROUPS[1:]]
    opened = edited_groups(groups, "grpo", token_texts=texts, attempt=3)
    row = next(line for line in opened.view().text.splitlines() if line.startswith("→"))
    assert "not scored" in row and "0 tokens" in opened.view().text
    assert opened.after(settings={"filter.zero_variance": "drop"}).text.count("ConfigError") == 0
    assert (
        opened.after(settings={"filter.keep": "min_p", "filter.ratio": 1.0}, attempt=0).text.count(
            "filtered"
        )
        >= 4
    )


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            Edit("grpo", {"reference.kl_coef": 0.1, "reference.kl_in": "reward"}),
            "ConfigError: algorithm.reference.kl_in = 'reward' with",
        ),
        (
            Edit("ppo", {"estimator.gamma": 1.5}),
            "ConfigError: algorithm.estimator.gamma is a probability, from 0 to 1; got 1.5",
        ),
        (Edit("grpo", {"estimator.lam": 0.5}), "ConfigError: grpo has no setting 'estimator.lam'"),
        (
            Edit("ppo", {"lam": 0.5}),
            "ConfigError: ppo has no setting 'lam'; did you mean 'estimator.lam'?",
        ),
        (
            Edit("ppo", {"estimator.lm": 0.5}),
            "ConfigError: ppo has no setting 'estimator.lm'; did you mean 'estimator.lam'?",
        ),
        (Edit("ppo", {"estimator.lam": "x"}), "ConfigError: estimator.lam is a number; got 'x'"),
        (
            Edit("ppo", {"estimator.whiten": 1}),
            "ConfigError: estimator.whiten is true or false; got 1",
        ),
        (
            Edit("ppo", {"masks": "x"}),
            "ConfigError: masks is no setting but a part of them; set one of masks.advantage",
        ),
        (Edit("pop"), "ConfigError: no algorithm 'pop'; did you mean 'ppo'?"),
        (Edit("grpo", {}, {(99, 0): 1.0}), "DataError: no attempt 99"),
    ],
)
def test_an_edit_without_credit_shows_its_reason(edit, words):
    view = editor().view(edit)
    assert f"! {words}" in view.text and "⚠ " in view.html
    assert "tokens of task" not in view.text, "and no numbers that could be taken for its credit"


def test_a_missing_fact_is_named_and_whatever_else_is_raised_is_shown():
    text = editor("ppo", facts=False).view().text
    assert "ppo needs value_T" in text and "facts=wb.facts(session, groups)" in text
    broken = editor()
    broken._credit = lambda edit: 1 / 0
    assert "ZeroDivisionError: division by zero" in broken.view().text


def test_values_that_training_never_had_are_asked_for_and_not_made_up():
    """A stored step knows values where it sampled; a widened timeline asks at the replies, too."""
    batch = known()
    sampled = replace(batch, value_T=torch.where(batch.eligible_T, batch.value_T, torch.nan))
    opened = edited_groups(GROUPS, "ppo", token_texts=texts, facts=sampled)
    assert "no finite advantage" in opened.after(settings={"masks.gae_over": "response"}).text
    assert "no finite advantage" not in opened.view().text


def test_facts_of_another_batch_are_refused():
    with pytest.raises(DataError, match="facts of another batch"):
        edited_groups(GROUPS[:1], "ppo", token_texts=texts, facts=known())


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_of_an_algorithm_is_a_knob_or_decides_only_the_loss(name):
    algorithm = ALGORITHMS[name]()
    there = {name for name in algorithm.settings if not name.startswith("objective.")}
    assert {knob.name for knob in knobs_of(algorithm)} == there - LOSS_ONLY


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_setting_that_is_called_inert_changes_nothing(name):
    opened = editor()
    base = opened.outcome(Edit(name)).credited
    knobs = {knob.name: knob for knob in knobs_of(ALGORITHMS[name]())}
    assert set(base.inert) <= set(knobs) and base.inert
    for knob in (knobs[inert] for inert in base.inert):
        for value in knob.choices or (
            knob.default + 1 if isinstance(knob.default, int) else knob.default / 2 + 0.1,
        ):
            try:
                found = opened.outcome(Edit(name, {knob.name: value})).credited
            except ConfigError:
                continue  # a combination that is refused cannot act either
            close = np.isclose(found.advantage_T, base.advantage_T, rtol=0, atol=1e-12)
            assert close.all() and (found.weight_T == base.weight_T).all(), (knob.name, value)


def test_what_only_the_loss_knows_changes_no_credit():
    changed = PPO(
        reduction="seq-mean-token-sum",
        epochs=3,
        minibatches=2,
        sampler_cap=2.0,
        objective={"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3.0},
        critic={"value_clip": 0.0},
    )
    assert same_bits(credited(known(), changed).advantage_T, credited(known(), PPO()).advantage_T)


# ------------------------------------------------------------------------------------------------ estimators, switches


def test_estimators_stand_side_by_side_and_one_that_cannot_be_computed_says_why():
    text = show_estimators(GROUPS[:1], ["grpo", "ppo"]).text
    assert "ppo: ppo needs value_T" in text
    row = next(line for line in text.splitlines() if line.split()[:2] == ["0", "0"])
    worth = GRPO().credit(Batch.from_groups(GROUPS[:1])).advantage_T
    first = worth[Batch.from_groups(GROUPS[:1]).eligible_T][0]
    assert row.split()[3] == f"{float(first):+.2f}" and row.split()[4] == "—"


def test_the_mask_switches_change_what_their_names_say():
    view = show_mask_switches(GROUPS, PPO(reference={"kl_coef": 0.1}), facts=known())
    rows = {
        line.split()[0]: line.split()
        for line in view.text.splitlines()
        if "_over" in line.split()[0]
    }
    actions = int((known().eligible_T & known().scored_N[known().trajectory_of_token_T]).sum())
    # name, advantage, return, weight, gamma = lambda = 1 unwhitened and whitened, lambda = .5 the same, counted
    assert rows["gae_over"][4:6] == ["·", "·"] and float(rows["gae_over"][6]) > 0.01
    assert (
        rows["whiten_over"][1] == str(actions)
        and rows["whiten_over"][4] == "·"
        and float(rows["whiten_over"][5]) > 0
    )
    assert float(rows["kl_reward_over"][4]) > 0.01
    assert (
        rows["critic_over"][1] == "·"
        and int(rows["critic_over"][2]) > 0
        and "critic" in rows["critic_over"]
    )
    for switch, term in (
        ("loss_over", "policy"),
        ("entropy_over", "entropy"),
        ("kl_loss_over", "kl"),
    ):
        assert rows[switch][4:8] == ["·"] * 4 and term in rows[switch]


def mask_rows(view) -> dict[str, list[str]]:
    """Label of a group's row -> its cells."""
    lines = [
        line
        for line in view.text.splitlines()
        if "_mask = false" in line and not line.startswith("→")
    ]
    return {line.split("  ")[0]: line[len(line.split("  ")[0]) :].split() for line in lines}


@pytest.mark.parametrize(
    ("place", "law", "other"),
    [
        ("loss", "advantage_mask = false", "advantage_mask = false, KL in the reward"),
        ("reward", "advantage_mask = false, no KL in the reward", "advantage_mask = false"),
    ],
)
def test_the_central_law_stands_in_the_row_of_the_advantage_mask(place, law, other):
    """Without the KL in the reward no action token's advantage depends on it at gamma = lambda = 1, before whitening; a
    price per token does. Which of the two the algorithm is set to, the row without words says."""
    view = show_mask_switches(
        GROUPS, PPO(reference={"kl_coef": 0.1, "kl_in": place}), facts=known()
    )
    rows = mask_rows(view)
    # advantage, return, weight, gamma = lambda = 1 unwhitened and whitened, lambda = .5 the same
    assert rows[law][3] == "·" and float(rows[law][4]) > 0.01 and float(rows[law][5]) > 0.01
    assert float(rows[other][3]) > 0.01
    assert f"no action token's advantage depends on the advantage mask (row `{law}`)" in view.text
    assert "it does: by up to" in view.text and "comes from kl_reward_over" in view.text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_its_mask_switches_shown(name):
    text = show_mask_switches(GROUPS, name, facts=known()).text
    always = ALGORITHMS[name]().whitens and not hasattr(ALGORITHMS[name].estimator, "whiten")
    assert (
        "always whitens: it has no unwhitened advantages" in text
    ) == always and "loss_mask = false" in text


def test_the_sentence_about_the_timeline_is_said_only_where_it_is_true():
    """GRPO has no timeline: nothing is claimed about one."""
    text = show_mask_switches(GROUPS, GRPO(), facts=known()).text
    assert (
        "advantage depends on" not in text
        and "gae_over: has no effect here: grpo gives all tokens" in text
    )
    assert "kl_in = 'reward' with algorithm.estimator.normalize_std" in text, (
        "and what cannot be combined is said"
    )


# ------------------------------------------------------------------------------------------------ showing itself


def test_it_is_a_picture_and_no_widget():
    bundle = editor()._repr_mimebundle_()
    assert {"text/html", "text/plain", "image/png"} == set(bundle)


def test_the_widgets_of_before_are_gone_and_what_does_it_now_is_said():
    import workbench as wb

    with pytest.raises(AttributeError, match=r"wb\.edit_step\(run, step\).*wb\.explore\(run\)"):
        wb.credit_editor
