"""A warm start shows training tasks only, trains what the player wrote and nothing else, and writes a policy."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import workbench as wb
from workbench.cli import main
from workbench.engines.policy import load_policy
from workbench.extensions.warm_start import demonstrations, train
from workbench.extensions.warm_start.demonstrations import demonstrate
from workbench.extensions.warm_start.train import rate_at, warm_start
from workbench.learn.batch import Batch
from workbench.training.config import load_config
from workbench.training.session import open_session
from workbench.values import Task
from workbench.values.errors import ConfigError, LearnerError, StoreError


@pytest.fixture(scope="module")
def session():
    return open_session(load_config("frozenlake"), quiet=True)


def test_demonstrations_are_the_solvers_turns_in_training_tasks(session):
    shown = demonstrate(session, 12)
    assert len(shown.groups) == 12 and (shown.failed, shown.long) == (0, 0)
    family = session.family
    own = {task.id for step in range(1, 4) for task in session.train_tasks(step)}
    for (trajectory,) in shown.groups:
        assert family.split_of(trajectory.task) == "train"
        assert trajectory.task.id not in own
        assert trajectory.success
        (segment,) = trajectory.segments
        trained = session.policy.tokenizer.decode(segment.token_ids[segment.eligible])
        end = session.policy.tokenizer.decode([session.chat.end_of_turn])
        assert trained == "".join(turn.text + end for turn in trajectory.turns)


@pytest.fixture(scope="module")
def guesses(tmp_path_factory):
    file = tmp_path_factory.mktemp("guesses") / "guesses.toml"
    file.write_text('[env]\nkind = "higher_lower"\n[policy]\nname = "frozenlake-tiny"\n')
    return open_session(load_config(file), quiet=True)


def test_a_named_player_is_shown_with_what_it_fails(guesses):
    shown = demonstrate(guesses, 40, player="careful")
    assert len(shown.groups) == 40 and (shown.failed, shown.long) == (0, 0)
    assert 0.3 < np.mean([group[0].success for group in shown.groups]) < 0.9
    guessed = [[turn.moves for turn in group[0].turns] for group in shown.groups]
    again = demonstrate(guesses, 2, first=3, player="careful").groups
    assert [[turn.moves for turn in group[0].turns] for group in again] == guessed[3:5]
    assert len({group[0].task.id for group in shown.groups}) == 40
    other = replace(guesses, config=replace(guesses.config, seed=1))
    assert demonstrate(other, 1, player="careful").groups[0][0].task != shown.groups[0][0].task
    # The control: the solver, who halves, finds every number.
    solved = demonstrate(guesses, 40)
    assert len(solved.groups) == 40 and all(group[0].success for group in solved.groups)


class InOrder:
    """A family that says itself which task comes after which: the numbers from 0 on."""

    name = "in_order"

    def task_seeds(self, split, first, count, seed):
        return list(range(first, first + count))

    def task(self, task_seed):
        return Task(f"in_order/{task_seed}", self.name, task_seed, {})

    def split_of(self, task):
        return "train"


def test_a_family_that_orders_its_tasks_shows_each_once(session):
    ordered = SimpleNamespace(family=InOrder(), config=session.config)
    drawn = [demonstrations._task(ordered, number).task_seed for number in range(4)]
    assert drawn == [0, 1, 2, 3]


def plain_gradient(session, groups):
    """Of the mean negative log-likelihood of what the player wrote, one whole sequence after the other, without padding."""
    model = session.policy.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = 0.0
    count = 0
    for (trajectory,) in groups:
        (segment,) = trajectory.segments
        ids = torch.from_numpy(segment.token_ids.astype(np.int64))
        written = torch.from_numpy(segment.eligible)[1:]
        logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        loss = loss - logp[written, ids[1:][written]].sum()
        count += int(written.sum())
    return (loss / count).item(), torch.autograd.grad(loss / count, parameters)


@pytest.mark.parametrize("budget", [4096, 1])
def test_the_gradient_is_that_of_the_likelihood_of_what_was_written(session, monkeypatch, budget):
    """Whether all rows pass through the model at once or one by one."""
    groups = demonstrate(session, 3).groups
    loss, wanted = plain_gradient(session, groups)
    learner = train._learner(session, 1e-3)
    learner.config = replace(learner.config, micro_batch_tokens=budget, max_grad_norm=0.0)
    seen = []
    policy = learner.models.policy
    monkeypatch.setattr(policy, "step", lambda lr: seen.extend(p.grad for p in policy.parameters))
    assert train._update(learner, Batch.from_groups(groups), 1e-3) == pytest.approx(loss, rel=1e-5)
    assert len(seen) == len(wanted)
    for gradient, other in zip(seen, wanted):
        assert torch.allclose(gradient, other, rtol=1e-3, atol=1e-6)
    # The control: of one trajectory alone it is another.
    assert not torch.allclose(seen[0], plain_gradient(session, groups[:1])[1][0], atol=1e-6)


def test_logits_that_are_too_many_are_made_in_pieces(session, monkeypatch):
    groups = demonstrate(session, 2).groups
    batch = Batch.from_groups(groups)
    whole = train._update(train._learner(session, 0.0), batch, 0.0)
    monkeypatch.setattr(train, "fits_at_once", lambda head, micro: False)
    assert train._update(train._learner(session, 0.0), batch, 0.0) == pytest.approx(whole, rel=1e-5)


def test_a_gradient_that_is_not_finite_moves_nothing(session):
    learner = train._learner(session, 1e-3)
    weight = learner.models.policy.parameters[-1]
    with torch.no_grad():
        weight.fill_(float("nan"))
    before = [p.clone() for p in learner.models.policy.parameters[:-1]]
    with pytest.raises(LearnerError, match="not finite"):
        train._update(learner, Batch.from_groups(demonstrate(session, 1).groups), 1e-3)
    assert all(map(torch.equal, before, learner.models.policy.parameters[:-1]))


def test_the_learning_rate_rises_and_falls():
    rates = [rate_at(1.0, update, 20) for update in range(20)]
    assert rates[0] == 0.25 and max(rates) == 1.0 and rates[-1] == pytest.approx(0.1)
    assert rates[10] == 1.0 > rates[11]


def test_turns_beyond_the_limit_are_left_out(session):
    short = open_session(load_config("frozenlake", {"collect.max_turn_tokens": 8}), quiet=True)
    shown = demonstrate(short, 12)
    assert shown.long > 0 and len(shown.groups) + shown.long == 12


def test_the_likelihood_rises_and_the_folder_is_a_policy(tmp_path, session):
    made = warm_start(session, "frozenlake", tmp_path / "warm", tasks=24, batch=4, epochs=2)
    assert made.updates == 12 and made.tasks == 24
    assert np.mean(made.nll[-3:]) < np.mean(made.nll[:3]) - 0.1
    assert "trained tokens" in made.text and "CPU-s" in made.text
    policy = load_policy(tmp_path / "warm")
    assert policy.fingerprint != session.policy.fingerprint
    provenance = json.loads((tmp_path / "warm" / "provenance.json").read_text())
    assert provenance["tokens"] == made.tokens and provenance["env"] == "frozenlake"
    again = open_session(
        load_config("frozenlake", {"policy.name": str(tmp_path / "warm")}), quiet=True
    )
    assert again.chat.end_of_turn == session.chat.end_of_turn
    with pytest.raises(StoreError, match="there already"):
        warm_start(session, "frozenlake", tmp_path / "warm")


def test_adapters_are_merged_into_the_folder(tmp_path):
    settings = {"learner.lora_rank": 4, "learner.lr": 5e-3}
    made = wb.warm_start(
        "frozenlake-tiny", "frozenlake", tmp_path / "warm", settings, tasks=8, batch=4
    )
    assert made.lora_rank == 4 and made.lr == 5e-3
    names = load_policy(tmp_path / "warm").model.state_dict()
    assert set(names) == set(load_policy("frozenlake-tiny").model.state_dict())


def test_an_environment_without_a_solver_is_refused(tmp_path, capsys):
    textless = load_config("tests.envs.guessing:Guessing", {"policy.name": "frozenlake-tiny"})
    with pytest.raises(ConfigError, match="solver_action"):
        demonstrate(open_session(textless, quiet=True), 2)
    for wrong in ({"tasks": 0}, {"first": -1}):
        with pytest.raises(ConfigError, match="from 1 to 1,000,000, first from 0"):
            wb.warm_start("frozenlake-tiny", "frozenlake", tmp_path / "warm", **wrong)
    with pytest.raises(ConfigError, match="no careful_action"):
        wb.warm_start("frozenlake-tiny", "frozenlake", tmp_path / "warm", player="careful")


def test_the_command(tmp_path, capsys):
    arguments = [
        "warm-start",
        "bandit-tiny",
        "bandit",
        "--out",
        str(tmp_path / "warm"),
        "--tasks",
        "8",
        "--player",
        "random",
    ]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "use it: --set policy.name=" in said and "demonstrated by the random player" in said
