"""A critic that is told what the policy does not see: where it reads it, that nothing of it reaches the policy, and that a run
with it is replayed, resumed and shown like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from learning_data import make_groups, tiny_model
from test_critic import cut_short, distance, full_state, naive_values, prepared, same

from tests.golden_runs.make_old import stopped_after
from workbench.chat import ChatFormat
from workbench.learn.algorithms import PPO
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.privileged import with_told
from workbench.learn.replay import replay_step
from workbench.linting import Evidence, all_rules, check
from workbench.look import show_tokens, trajectory_view
from workbench.look.cells.stored import learning_curves_view
from workbench.look.cells.train import resume_here, train_here
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.training.config import load_config, to_dict
from workbench.training.session import open_session, rollout
from workbench.values import Group, Message, Observation
from workbench.values.errors import ConfigError, LearnerError
from workbench.worlds import FrozenLake
from workbench.worlds.frozen_lake import task_from_grid
from workbench.worlds.privileged import PrivilegedFamily, tells
from workbench.worlds.runners import InlineRunner
from workbench.worlds.workers.env_wire import decode_answer, encode_answer
from workbench.worlds.world_qa import WorldQA

RULES = all_rules()

STATE = CriticConfig(sees="state")


def read(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def told(groups: list[Group], seed: int = 0) -> list[Group]:
    """The same groups; every turn was told some numbers, a few of them none."""
    rng = np.random.default_rng(seed)

    def turns(trajectory):
        return tuple(
            replace(turn, privileged=" ".join(map(str, rng.integers(0, 60, rng.integers(0, 5)))))
            for turn in trajectory.turns
        )

    return [Group(tuple(replace(t, turns=turns(t)) for t in group)) for group in groups]


def groups_of(fresh: bool = False, seed: int = 0) -> list[Group]:
    return told(cut_short(make_groups(seed, turns=3, fresh=fresh)), seed)


def plainly_told(groups: list[Group]) -> list[tuple[list[int], list[int]]]:
    """Of each segment, by loops over spans: the ids that the critic reads, and where each of the policy's tokens stands."""
    found = []
    for trajectory in (t for group in groups for t in group):
        for segment in trajectory.segments:
            ids, places = [], []
            for span in segment.spans:
                if span.sampled:
                    ids += read(trajectory.turns[span.turn].privileged)
                places += range(len(ids), len(ids) + len(span))
                ids += span.token_ids.tolist()
            found.append((ids, places))
    return found


def learner(sees: str = "state", algorithm=PPO(), **config) -> Learner:
    made = Learner(
        tiny_model(),
        algorithm,
        LearnerConfig(**({"lr": 1e-3} | config)),
        critic=CriticConfig(sees=sees),
        read=read if sees == "state" else None,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # something to say from the start
        made.models.critic.bare.head.weight.copy_(torch.randn(1, 32, generator=generator) / 10)
    return made


# ------------------------------------------------------------------------------------------------ where it is read


@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
@pytest.mark.parametrize("seed", range(4))
def test_it_stands_before_each_action_and_the_policys_sequence_is_untouched(fresh, seed):
    groups = groups_of(fresh, seed)
    batch = Batch.from_groups(groups)
    before = batch.token_ids_T.clone()
    longer, place_T = with_told(batch, read)
    for s, (ids, places) in enumerate(plainly_told(groups)):
        start, end = longer.segment_offsets[s : s + 2].tolist()
        assert longer.token_ids_T[start:end].tolist() == ids
        own = slice(*batch.segment_offsets[s : s + 2].tolist())
        assert (place_T[own] - start).tolist() == places
    assert torch.equal(batch.token_ids_T, before) and torch.equal(
        longer.token_ids_T[place_T], before
    )
    assert torch.equal(longer.eligible_T[place_T], batch.eligible_T), (
        "nothing in between was sampled"
    )
    assert int(longer.eligible_T.sum()) == int(batch.eligible_T.sum())


def test_golden_numbers_of_a_sequence_by_hand():
    """prompt 7 8 | action 1 2 | reply 9 | action 3; told "50 51" of the first state, "52" of the second."""
    group = make_groups(tasks=1, attempts=1, turns=2)[0]
    spans = [
        replace(
            span,
            token_ids=np.array(ids, np.int32),
            logprobs=None if span.logprobs is None else np.zeros(len(ids), np.float32),
        )
        for span, ids in zip(
            group[0].segments[0].spans, ([7], [8], [1, 2], [], [9], [], [3], [], [], [])
        )
    ]
    turns = [replace(turn, privileged=text) for turn, text in zip(group[0].turns, ("50 51", "52"))]
    made = replace(
        group[0], turns=tuple(turns), segments=(replace(group[0].segments[0], spans=tuple(spans)),)
    )
    longer, place_T = with_told(Batch.from_groups([Group((made,))]), read)
    assert longer.token_ids_T.tolist() == [7, 8, 50, 51, 1, 2, 9, 52, 3]
    assert place_T.tolist() == [0, 1, 4, 5, 6, 8] and longer.segment_offsets.tolist() == [0, 9]


@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_values_are_those_of_the_longer_sequence_before_the_same_token(fresh):
    groups, a_learner = groups_of(fresh), learner(micro_batch_tokens=100)
    batch = Batch.from_groups(groups)
    found = a_learner.facts(batch)
    for s, (ids, places) in enumerate(plainly_told(groups)):
        part = slice(*batch.segment_offsets[s : s + 2].tolist())
        values, sampled = naive_values(a_learner, torch.tensor(ids)), batch.eligible_T[part]
        expected = torch.stack([values[place - 1] for place in places])[sampled]
        torch.testing.assert_close(found.value_T[part][sampled], expected, atol=1e-5, rtol=1e-5)
        n = int(batch.trajectory_of_segment_S[s])
        if int(batch.last_token_N[n]) == part.stop - 1 and batch.truncated_N[n]:
            assert float(found.final_value_N[n]) == pytest.approx(float(values[-1]), abs=1e-5)
    plain = learner("policy").facts(batch)
    assert not torch.allclose(
        found.value_T[batch.eligible_T], plain.value_T[batch.eligible_T], atol=1e-3
    ), "else nobody read it"


def test_the_critics_gradient_is_the_one_of_the_definition_and_the_policys_does_not_feel_it():
    groups = groups_of()
    batch, credit = prepared(learner(), Batch.from_groups(groups))
    caught: dict[str, dict] = {}
    for sees in ("state", "policy"):
        a_learner = learner(sees, max_grad_norm=0)
        caught[sees] = {}
        a_learner.models.critic.weights.step = lambda lr, a=a_learner, to=caught[sees]: to.update(
            {n: g.clone() for n, g in a.models.gradients().items()}
        )
        a_learner.models.policy.step = lambda lr: None
        a_learner.update(batch, credit, step=1)
    value_model = learner().models.critic.bare
    value_T = torch.cat(
        [
            torch.stack([torch.zeros(()) if place == 0 else said[place - 1] for place in places])
            for ids, places in plainly_told(groups)
            for said in [value_model(input_ids=torch.tensor(ids)[None]).logits[0, :, 0]]
        ]
    )
    error_T = (value_T - credit.return_T.float())[batch.eligible_T]
    (0.5 * error_T**2).sum().div(batch.eligible_T.sum()).backward()
    definition = {f"critic.{name}": p.grad for name, p in value_model.named_parameters()}
    of_critic = {
        sees: {n: g for n, g in grads.items() if n.startswith("critic.")}
        for sees, grads in caught.items()
    }
    assert (
        distance(definition, of_critic["state"]) < 1e-5 < distance(definition, of_critic["policy"])
    )
    assert all(
        torch.equal(g, caught["policy"][n])
        for n, g in caught["state"].items()
        if not n.startswith("critic.")
    )


def test_the_gradients_do_not_depend_on_how_the_batch_is_cut():
    batch, credit = prepared(learner(), Batch.from_groups(groups_of()))
    states = []
    for budget in (100_000, 150, 1):
        a_learner = learner(micro_batch_tokens=budget, eps=1e-3)
        a_learner.update(batch, credit, step=1)
        states.append(
            {name: t for name, t in full_state(a_learner).items() if t.is_floating_point()}
        )
    assert max(distance(states[0], other) for other in states[1:]) < 1e-6


def hidden_states(seed: int) -> Batch:
    """What pays is told to the critic and stands in no prompt: 7 pays 1 at the end, 8 nothing. All that is said is noise."""
    groups = make_groups(
        seed, tasks=8, attempts=4, turns=1, rewards=[[float(task % 2)] * 4 for task in range(8)]
    )
    return Batch.from_groups(
        [
            Group(
                tuple(
                    replace(
                        t,
                        turns=(replace(t.turns[0], privileged="7" if t.turns[0].reward else "8"),),
                    )
                    for t in group
                )
            )
            for group in groups
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize("sees, least, most", [("state", 0.6, 1.0), ("policy", -1.0, 0.2)])
def test_what_only_the_critic_is_told_it_learns_and_another_cannot(sees, least, most):
    a_learner = Learner(
        tiny_model(),
        PPO(),
        LearnerConfig(lr=1e-5),
        critic=CriticConfig(sees=sees, lr=3e-3),
        read=read if sees == "state" else None,
    )
    explained = [
        a_learner.update(*prepared(a_learner, hidden_states(step)), step=step)[0].metrics[
            "explained_variance"
        ]
        for step in range(40)
    ]
    assert explained[0] == pytest.approx(0, abs=1e-6) and least < np.mean(explained[-5:]) < most


# ------------------------------------------------------------------------------------------------ environments


def test_what_the_lake_tells_by_hand():
    """P . O / . O G / . . . : the goal is five moves away, round by the bottom."""
    env = FrozenLake(size=3).make()
    first = env.reset(task_from_grid(["P_O", "_OG", "___"]), 0)
    assert env.privileged() == "Moves to the goal: 5. Left 5, Down 4, Right 6, Up 5"
    env.step("<think>a</think><answer>Down</answer>")
    assert env.privileged() == "Moves to the goal: 4. Left 4, Down 3, Right hole, Up 5"
    assert "Moves to the goal" not in first.messages[0].text


def test_what_the_search_tells_is_the_way_to_the_answer():
    family = WorldQA()
    env, task = family.make(), family.task(3)
    env.reset(task, 0)
    way = [*(each.split("/")[1] for each in task.payload["support"]), *task.payload["answers"]]
    assert env.privileged() == f"Way: {', '.join(way)}. Found: 0"
    env.step(family.solver_action(env, np.random.default_rng(0)))
    assert env.privileged().endswith("Found: 1")


class Talkative(FrozenLake):
    """Tells something that is no text."""

    def make(self):
        env = super().make()
        env.privileged = lambda: 7
        return env


def test_only_who_is_asked_tells_and_it_crosses_to_a_worker_and_back():
    family, runner = FrozenLake(), InlineRunner()
    for key, asked in (
        ("plain", family),
        ("asked", PrivilegedFamily(family)),
        ("wrong", PrivilegedFamily(Talkative())),
    ):
        runner.reset(key, asked, family.task(0), 0)
    plain, asked, wrong = runner.poll()
    assert plain.privileged is None and asked.privileged.startswith("Moves to the goal")
    assert asked.observation == plain.observation and "give a string" in wrong.error
    assert decode_answer("asked", encode_answer(asked), 0.0).privileged == asked.privileged
    runner.shutdown()


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "preset, settings, words",
    [
        ("frozenlake-ppo", {"critic.trunk": "policy"}, "critic.trunk = 'policy': one forward pass"),
        ("bandit", {"algorithm.kind": "ppo"}, "kind 'bandit' have no privileged"),
        ("frozenlake", {}, "needs no critic"),
        ("frozenlake-ppo", {"critic.sees": "everything"}, "sees"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(preset, settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config(preset, {"critic.sees": "state"} | settings)


def test_what_the_critic_sees_is_stored_with_every_run():
    assert (
        to_dict(load_config("frozenlake-ppo"))["critic"]["sees"] == "policy"
        and tells(FrozenLake())
        and tells(WorldQA())
    )
    assert (
        to_dict(load_config("frozenlake-ppo", {"critic.sees": "state"}))["critic"]["sees"]
        == "state"
    )


def test_a_learner_without_a_reader_a_batch_without_words_and_another_critics_state_are_refused():
    with pytest.raises(LearnerError, match="needs a trunk of the critic's own and a reader"):
        Learner(tiny_model(), PPO(), LearnerConfig(), critic=STATE)
    with pytest.raises(LearnerError, match="no turn of this batch has any"):
        learner().facts(Batch.from_groups(make_groups()))
    with pytest.raises(LearnerError, match="critic has sees 'state', but critic.sees is 'policy'"):
        learner("policy").load_state(*learner().state())
    mine, other = learner(), learner()
    other.update(*prepared(other, Batch.from_groups(groups_of())), step=1)
    mine.load_state(*other.state())
    assert same(full_state(mine), full_state(other))


# ------------------------------------------------------------------------------------------------ whole runs

SMALL = {
    "train.steps": 3,
    "train.tasks_per_step": 2,
    "train.group_size": 3,
    "train.evaluate_every": 0,
    "lint.start": False,
    "train.checkpoint_every": 1,
    "evaluation.num_tasks": 4,
    "algorithm.minibatches": 2,
    "critic.sees": "state",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_here(
        load_config("frozenlake-ppo", SMALL), tmp_path_factory.mktemp("runs") / "whole"
    )


def test_a_run_keeps_what_was_told_replays_and_shows_it(whole):
    for step in whole.steps():
        assert replay_step(whole, step, load_config("frozenlake-ppo", SMALL).algorithm).equal
        assert all(
            turn.privileged.startswith("Moves to the goal")
            for group in whole.groups(step)
            for t in group
            for turn in t.turns
        )
    trajectory = whole.groups(1)[0][0]
    assert trajectory.turns[0].privileged in trajectory_view(trajectory).text
    shown = show_tokens(trajectory, lambda ids: [f"<{i}>" for i in ids]).text
    assert (
        f"privileged information before turn 0 (critic only): {trajectory.turns[0].privileged}"
        in shown
    )
    assert (
        "critic" in learning_curves_view(whole).text
        and whole.config_of(0)["critic"]["sees"] == "state"
    )


def test_no_prompt_and_no_action_is_another_for_it(whole):
    """The same weights, the same seeds: what the policy saw and said is the same, bit for bit."""
    plain = open_session(
        load_config("frozenlake-ppo", {k: v for k, v in SMALL.items() if k != "critic.sees"}),
        quiet=True,
    )
    for ours, theirs in zip(
        rollout(plain, 2, step=1, purpose="train"), whole.groups(1), strict=True
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert all(turn.privileged is None for turn in a.turns)
            assert [turn.text for turn in a.turns] == [turn.text for turn in b.turns]
            for one, other in zip(a.segments, b.segments, strict=True):
                assert np.array_equal(one.token_ids, other.token_ids) and np.array_equal(
                    one.sources, other.sources
                )
                assert np.array_equal(one.logprobs, other.logprobs, equal_nan=True)


def test_a_stopped_run_goes_on_to_the_same_bytes(whole, tmp_path):
    """Its last checkpoint is taken away as well: a step is repeated, values recomputed from the stored words."""
    with pytest.raises(KeyboardInterrupt):
        train_here(load_config("frozenlake-ppo", SMALL), tmp_path / "run", on_step=stopped_after(2))
    checkpoint_folder = next((tmp_path / "run" / "checkpoints").glob("*2*"))
    for file in sorted(checkpoint_folder.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    checkpoint_folder.rmdir()
    assert checkpoint.load_newest(tmp_path / "run")[0] == 1
    resume_here(tmp_path / "run", on_note=None)
    assert compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal


def test_negative_control_a_resume_with_other_words_is_noticed(whole, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        train_here(load_config("frozenlake-ppo", SMALL), tmp_path / "run", on_step=stopped_after(2))
    read_as_it_is = ChatFormat.foreign_ids
    monkeypatch.setattr(
        ChatFormat, "foreign_ids", lambda self, text: read_as_it_is(self, text)[::-1]
    )
    resume_here(tmp_path / "run", on_note=None)
    assert not compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal


def evidence(whole, change=lambda t: t) -> Evidence:
    groups = tuple(tuple(change(t) for t in group) for group in whole.groups(1))
    return Evidence(groups, family=FrozenLake(), chat=None)


def test_the_lint_plays_it_again_and_finds_it_in_a_prompt(whole):
    assert check(evidence(whole), [RULES["R20"]])["R20"].status == "passed"
    assert not check(evidence(whole), [RULES["R27"]])["R27"].findings

    def other(t):
        return replace(
            t, turns=(replace(t.turns[0], privileged="Moves to the goal: 99"), *t.turns[1:])
        )

    def leaked(t):
        words = f"{t.first_observation.messages[0].text} {t.turns[0].privileged}"
        return replace(t, first_observation=Observation((Message("user", words),)))

    assert (
        "a critic was told 'Moves to the goal: 99'"
        in check(evidence(whole, other), [RULES["R20"]])["R20"].findings[0].what
    )
    assert (
        "only the critic is told"
        in check(evidence(whole, leaked), [RULES["R27"]])["R27"].findings[0].what
    )
