"""Conversations of a program: their names, which of them are trained, and that nothing else about their tokens changes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.extensions.agents.test_agents import gather
from tests.extensions.agents.wild_clients import WildClient, faults
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.conversations import SAID, ConversationRules
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.gateway import MODEL
from workbench.extensions.agents.messages import AskedCall, WireMessage
from workbench.extensions.agents.tree import CallTree
from workbench.learn.batch import Batch
from workbench.linting.evidence import Evidence
from workbench.linting.table import lint_evidence
from workbench.look import show_counts, show_masks
from workbench.rollouts.config import CollectConfig
from workbench.run.columns import decode_groups, encode_groups
from workbench.run.equality import first_difference
from workbench.tools.formats import Hermes
from workbench.training.config import load_config
from workbench.values import Group, Segment, trajectories_of
from workbench.values.errors import ConfigError

HERE = "tests.extensions.agents.sick_programs"
MODELS = ("policy", "policy", "policy:judge", "policy:helper", "gpt-4o")


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


def notes(chat: ChatFormat):
    """A policy that writes a note, another one each time."""
    encode = chat.encoder.backend.encode
    count = iter(range(10**6))

    def script(request):
        return [*encode(f"Note {next(count)}", add_special_tokens=False).ids, chat.end_of_turn]

    return script


def played(chat: ChatFormat, program: str, count: int = 1, group_size: int = 2, **settings):
    """(groups, family, what the engine was asked)"""
    tried = ProgramTasks(program=f"{HERE}:{program}", tasks="world_qa", **settings)
    engine = Journal(ScriptedEngine(notes(chat), context_length=1024))
    groups = gather(chat, tried, count=count, group_size=group_size, engine=engine)
    return groups, tried, engine.exchanges


def evidence_of(chat: ChatFormat, groups, tried, journal=None) -> Evidence:
    settings = load_config("search", {"train.steps": 1})
    batch = Batch.from_groups(groups)
    return Evidence(
        groups=tuple(map(tuple, groups)),
        batch=batch,
        collect=CollectConfig(max_turn_tokens=48),
        chat=chat,
        journal=journal,
        context_length=1024,
        family=tried,
        algorithm=settings.algorithm,
        credit=settings.algorithm.credit(batch),
        step=1,
    )


def names_of(trajectory) -> dict[str, str]:
    """Conversation -> why it is not trained, as its calls say."""
    calls = [turn.info["call"] for turn in trajectory.turns]
    return {call["conversation"]: call.get("untrained", "") for call in calls}


# ------------------------------------------------------------------------------------------------ names


def asked(model: str = "policy", first: str = "Hello") -> AskedCall:
    return AskedCall((WireMessage("user", first),), model=model)


def test_a_client_says_a_name_behind_the_models():
    rules = ConversationRules()
    assert SAID == f"{MODEL}:"
    assert rules.name_of(asked("policy:judge")) == "judge"
    for model in ("policy", "policy:", "policy: ", "gpt-4o", "ft:gpt-4o:org", ""):
        assert rules.name_of(asked(model)) is None
    assert len(rules.name_of(asked(f"policy:{'x' * 500}"))) == 60


def test_first_words_are_a_name_where_the_client_says_none():
    rules = ConversationRules(names={"judge": "You judge", "writer": "You "})
    assert rules.name_of(asked(first="  You judge drafts.")) == "judge"
    assert rules.name_of(asked(first="You write.")) == "writer"
    assert rules.name_of(asked(first="Dear judge, you judge")) is None
    assert rules.name_of(asked("policy:other", first="You judge")) == "other"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trains": []}, "names no conversation"),
        ({"trains": ["all", "judge"]}, '"all" alone says the same'),
        ({"names": {"judge": "  "}}, "env.names.judge"),
    ],
)
def test_settings_that_could_do_nothing_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ProgramTasks(program="a:b", **settings)


def test_a_file_says_which_are_trained(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(
        'base = "search"\n[env]\nkind = "agent"\nprogram = "a:b"\ntasks = "world_qa"\ntrains = ["first", "judge"]\n'
        '[env.names]\njudge = "You judge"\n'
    )
    rules = load_config(path).env.conversations
    assert rules == ConversationRules(("first", "judge"), {"judge": "You judge"})


# ------------------------------------------------------------------------------------------------ which are trained


@pytest.mark.parametrize(
    ("trains", "left_out"),
    [
        (["all"], set()),
        (["first"], {"judge", "sums"}),
        (["judge"], {"main", "sums"}),
        (["first", "sums"], {"judge"}),
    ],
)
def test_the_setting_says_which(chat, trains, left_out):
    groups, _, _ = played(chat, "has_a_judge", trains=trains, names={"sums": "You sum up"})
    for trajectory in trajectories_of(groups):
        names = names_of(trajectory)
        assert set(names) == {"main", "judge", "sums"}
        assert {name for name, why in names.items() if why} == left_out
        assert all(
            why in ("", f"conversation {name!r} is not trained") for name, why in names.items()
        )
        for segment in trajectory.segments:
            calls = [t.info["call"] for t in trajectory.turns if t.index in segment.turns]
            assert any(segment.untrained == call.get("untrained", "") for call in calls)
            assert segment.eligible.any() == (not segment.untrained)


def test_what_was_sampled_is_the_same_whatever_is_trained(chat):
    """All tokens, authors and logprobs; only what is trained differs."""

    def tokens(groups):
        return [
            (
                segment.token_ids.tolist(),
                segment.sources.tolist(),
                np.nan_to_num(segment.logprobs).tolist(),
            )
            for t in trajectories_of(groups)
            for segment in t.segments
        ]

    every, _, _ = played(chat, "has_a_judge", group_size=1, trains=["all"])
    some, _, _ = played(chat, "has_a_judge", group_size=1, trains=["judge"])
    assert tokens(every) == tokens(some)
    [whole], [part] = every[0], some[0]
    assert whole.num_sampled == part.num_sampled
    eligible = [sum(int(s.eligible.sum()) for s in t.segments) for t in (whole, part)]
    assert 0 < eligible[1] < eligible[0] == whole.num_sampled


def test_a_named_conversation_goes_on_in_no_segment_of_another(chat):
    """The judge reads the writer's own history: its tokens are context there, and the writer's goes on beside it."""
    [group], _, _ = played(chat, "judges_in_its_own_history", group_size=1, trains=["first"])
    [writer, judge] = group[0].segments
    assert (writer.untrained, judge.untrained) == ("", "conversation 'judge' is not trained")
    calls = {t.info["call"]["conversation"]: t.info["call"] for t in group[0].turns}
    assert calls["judge"]["way"] == "fork" and calls["main"]["way"] == "extends"
    sampled = [span for span in writer.spans if span.sampled]
    assert len(sampled) == 2


def wild(chat: ChatFormat, seed: int, rules: ConversationRules) -> WildClient:
    tree = CallTree(
        chat, Hermes(), context=4096, id_of=lambda call, what: f"{call}x{what}", rules=rules
    )
    client = WildClient(tree, random.Random(seed), models=MODELS)
    for _ in range(40):
        client.act()
    client.finish()
    return client


def wrong_of(client: WildClient) -> list[str]:
    """What is wrong with a finished trajectory by what its client knows: which name it said at each call, and what the
    engine answered. A token is trained if and only if its own call's conversation is, and it was sampled there."""
    wrong = faults(client)
    tree = client.tree
    trained = 0
    first = tree.calls[0].facts["conversation"] if tree.calls else ""
    for truth in client.truths:
        call = truth.call
        said = call.asked.model.removeprefix("policy:") if ":" in call.asked.model else None
        name = call.facts["conversation"]
        if said is not None and name != said:
            wrong.append(f"call {call.number} said {said!r} and is of {name!r}")
        segment = tree.segments[call.segment]
        wanted = not tree.rules.left_out(said or name, first)
        trained += len(truth.ids) if wanted else 0
        at = len(truth.call.prompt_ids)
        eligible = segment.eligible[at : at + len(truth.ids)]
        if not (eligible == wanted).all():
            wrong.append(f"call {call.number} of {name!r} is {'not ' if wanted else ''}trained")
    total = sum(int(segment.eligible.sum()) for segment in tree.segments)
    return wrong + (
        [f"{total} tokens are trained, {trained} were to be"] if total != trained else []
    )


def count(chat: ChatFormat, seeds: int) -> list[str]:
    wrong = []
    for seed in range(seeds):
        trains = (("all",), ("first",), ("judge",), ("first", "helper"))[seed % 4]
        wrong += wrong_of(wild(chat, seed, ConversationRules(trains, {"helper": "Be brief"})))
    return wrong


def test_wild_clients_train_exactly_what_is_named(chat):
    assert count(chat, 8) == []


@pytest.mark.full
def test_many_wild_clients_train_exactly_what_is_named(chat):
    assert count(chat, 200) == []


def test_a_segment_that_trains_whatever_was_sampled_is_found_out(chat, monkeypatch):
    """Negative control."""
    whatever = property(lambda self: self._per_token(lambda span: span.sampled, bool))
    monkeypatch.setattr(Segment, "eligible", whatever)
    assert any("were to be" in words for words in count(chat, 4))


def test_going_on_in_another_conversations_segment_is_found_out(chat, monkeypatch):
    monkeypatch.setattr(
        CallTree, "_goes_on", lambda self, base, name: self._rows[base.segment].length == base.end
    )
    assert count(chat, 8) != []


# ------------------------------------------------------------------------------------------------ what is downstream


def test_batch_credit_store_and_lint_agree(chat):
    groups, tried, journal = played(
        chat, "has_a_judge", count=2, trains=["first"], names={"sums": "You sum up"}
    )
    evidence = evidence_of(chat, groups, tried, journal)
    report = lint_evidence(evidence, when=("step",))
    assert report.ok, str(report)
    batch, credit = evidence.batch, evidence.credit
    sampled_T = ~batch.rollout_logp_T.isnan()
    assert bool((sampled_T & ~batch.eligible_T).any()) and bool(batch.eligible_T.any())
    assert not bool(((credit.weight_T != 0) & ~batch.eligible_T).any())
    again = decode_groups(bytes(encode_groups(groups, step=1)), Path("step"))
    assert first_difference(tuple(groups), tuple(again)) is None
    assert [s.untrained for t in trajectories_of(again) for s in t.segments] == [
        s.untrained for t in trajectories_of(groups) for s in t.segments
    ]


def test_a_widened_loss_mask_does_not_reach_what_is_left_out(chat):
    groups, _, _ = played(chat, "has_a_judge", trains=["first"])
    settings = load_config("search", {"algorithm.masks.loss_mask": False})
    batch = Batch.from_groups(groups)
    weight_T = settings.algorithm.credit(batch).weight_T
    first_S = [not s.untrained for t in trajectories_of(groups) for s in t.segments]
    of_T = np.array(first_S)[batch.segment_of_token_T.numpy()]
    assert not weight_T.numpy()[~of_T].any()
    assert ((weight_T.numpy() != 0) & ~batch.eligible_T.numpy())[
        of_T
    ].any()  # it is wider elsewhere


def test_training_what_is_left_out_is_an_error_of_the_lint(chat):
    """R3 and R6 hold the batch against what the segments say."""
    groups, tried, _ = played(chat, "has_a_judge", trains=["first"])
    evidence = evidence_of(chat, groups, tried)
    widened = replace(evidence.batch, eligible_T=~evidence.batch.rollout_logp_T.isnan())
    settings = load_config("search", {"train.steps": 1})
    wrong = replace(evidence, batch=widened, credit=settings.algorithm.credit(widened))
    assert {"R3", "R6"} <= set(lint_evidence(wrong, when=("step",)).named)


def test_files_without_conversations_are_what_they_were(chat):
    groups, _, _ = played(chat, "has_a_judge")
    assert b"segment_untrained" not in bytes(encode_groups(groups, step=1))
    left_out, _, _ = played(chat, "has_a_judge", trains=["first"])
    assert b"segment_untrained" in bytes(encode_groups(left_out, step=1))


def test_masks_say_why(chat):
    [group], _, _ = played(chat, "has_a_judge", trains=["first"])
    words = show_masks([group]).text
    assert "conversation 'judge' is not trained: " in words and "- weight0" in words
    assert "weight0" in show_counts([group]).text
    shown = wb.show_tokens(group[0], chat.token_texts).text
    assert "· conversation 'judge' is not trained" in shown and "[weight0 turn" in shown
    whole, _, _ = played(chat, "has_a_judge")
    assert "weight0" not in show_masks(whole).text  # negative control


def test_a_group_keeps_its_values(chat):
    """What a trajectory is, but for its segments, does not depend on the setting."""
    [group], _, _ = played(chat, "has_a_judge", trains=["judge"])
    assert isinstance(group, Group)
    assert all(trajectory.reward is not None for trajectory in group)
    assert isinstance(group[0].surprise, float)
