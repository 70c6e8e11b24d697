"""Drafts change how many passes a turn takes, and nothing else: ids and logprobs are those of plain decoding to the last bit,
whatever is proposed, wherever a turn stops, whoever else is decoded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import workbench as wb
from tests.counts import reduced
from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy
from workbench.engines.transformers_engine import TransformersEngine
from workbench.extensions.drafts import ngrams
from workbench.extensions.drafts.engine import DraftingEngine
from workbench.training.step import train_step
from workbench.values.errors import ConfigError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
from engine_models import STOP, VOCAB, ask, drain, play, prompts, tiny  # noqa: E402

pytestmark = needs_compiler
CUTS = {
    "as it comes": {},
    "few rows": dict(max_rows=2, prefill_tokens=4),
    "evictions": dict(cache_tokens=150),
    "one token of a draft at most": dict(prefill_tokens=1),
}


def engine_for(model, drafts=0, **settings):
    return open_engine(TransformersEngineConfig(decode="fused", drafts=drafts, **settings), model)


class Recorder:
    """An engine that keeps every completion by the id of its request."""

    def __init__(self, engine):
        self.engine = engine
        self.turns = {}

    def submit(self, request):
        self.engine.submit(request)

    def poll(self):
        done = self.engine.poll()
        self.turns |= {completion.request_id: completion for completion in done}
        return done


def ragged():
    """Prompts of 1 to 45 tokens; two are equal, as in a group."""
    made = prompts(6, low=1, high=46)
    return [*made, made[2].copy()]


def play_all(engine, **others):
    """{request id: completion} of sessions of three turns, of which each may be long."""
    recorder = Recorder(engine)
    play(recorder, ragged(), turns=3, **{"max_new_tokens": 12} | others)
    return recorder.turns


def propose_from(engine, turns, right, seed=0):
    """Propose what the turns of another engine had, up to eight tokens and beyond their ends; each of them right with this
    probability, as many as the dice say."""
    rng = np.random.default_rng(seed)

    def propose(row, decoded):
        known = turns[row.request.id].token_ids.tolist() if row.request.id in turns else []
        known += [9] * 80
        most = min(rng.integers(0, 9), row.limit - len(row.tokens) - 1)
        ahead = known[len(row.tokens) : len(row.tokens) + most]
        proposed = [token if rng.random() < right else int(rng.integers(VOCAB)) for token in ahead]
        engine._proposed[row.request.id] = proposed
        return proposed

    engine._runner.propose = propose


def expect_equal(own, plain):
    """The same turns to the last bit."""
    assert own.keys() == plain.keys() and len(plain) > 10
    for number, completion in plain.items():
        other = own[number]
        assert other.token_ids.tolist() == completion.token_ids.tolist()
        assert other.logprobs.tobytes() == completion.logprobs.tobytes()
        assert (other.finish, other.error) == (completion.finish, completion.error)
        if completion.plain_logprobs is not None:
            assert other.plain_logprobs.tobytes() == completion.plain_logprobs.tobytes()


# ------------------------------------------------------------------------------------------------ the same, to the bit


@pytest.mark.parametrize("family", reduced(["qwen2", "qwen3", "llama"], ["qwen3"]))
@pytest.mark.parametrize("cut", reduced(CUTS, ["few rows", "evictions"]))
@pytest.mark.parametrize("right", reduced([0.0, 0.7, 1.0], [0.7, 1.0]))
def test_whatever_is_proposed_the_turns_are_the_same(family, cut, right):
    model = tiny(family)
    plain = play_all(engine_for(model, **CUTS[cut]))
    engine = engine_for(model, 8, **CUTS[cut])
    propose_from(engine, plain, right)
    expect_equal(play_all(engine), plain)
    counts = engine.stats()
    assert counts["drafted_tokens"] > 50
    assert counts["row_tokens"] == sum(len(turn.token_ids) for turn in plain.values())
    assert counts["row_passes"] == counts["row_tokens"] - counts["drafts_accepted"]
    if right == 1.0 and cut == "as it comes":
        assert counts["row_tokens"] > 2 * counts["row_passes"]
    if right == 0.0:
        assert counts["drafts_accepted"] < 0.15 * counts["drafted_tokens"]


@pytest.mark.parametrize(
    "sampling",
    [dict(temperature=0.0), dict(temperature=0.6, top_p=0.8), dict(max_new_tokens=1)],
    ids=["greedy", "bent", "one token"],
)
def test_however_it_is_sampled(sampling):
    model = tiny("qwen2")
    plain = play_all(engine_for(model), **sampling)
    engine = engine_for(model, 8)
    propose_from(engine, plain, 0.8)
    expect_equal(play_all(engine, **sampling), plain)


def test_of_a_large_vocabulary():
    """Where a token is searched in blocks."""
    torch.manual_seed(0)
    model = tiny("qwen3")
    model.resize_token_embeddings(9000)
    plain = play_all(engine_for(model))
    engine = engine_for(model, 8)
    propose_from(engine, plain, 0.8)
    expect_equal(play_all(engine), plain)


def group(count=8):
    """Prompts of a group, and of another one."""
    one, other = prompts(2, low=20, high=30, seed=3)
    return [one] * count + [other] * count


def play_group(engine, order=1):
    for number in list(range(16))[::order]:
        engine.submit(
            ask(number, f"g{number}", group()[number], max_new_tokens=60, temperature=0.5)
        )
    turns = {completion.request_id: completion for completion in drain(engine)}
    for number in range(16):
        engine.release(f"g{number}")
    return turns


def test_its_own_proposals_are_of_use_and_change_nothing():
    """A shipped policy, on text that it does not know."""
    model = load_policy("frozenlake-tiny").model
    plain = play_group(engine_for(model))
    engine = engine_for(model, 8)
    expect_equal(play_group(engine), plain)
    cold = engine.work()
    # Nor does it matter who came before: this engine has seen all of it.
    expect_equal(play_group(engine), plain)
    warm = engine.work()
    expect_equal(play_group(engine, order=-1), plain)
    assert 1.0 < cold["tokens_per_pass"] < warm["tokens_per_pass"]
    assert warm["drafts_accepted"] > 100


def test_what_a_listener_hears_is_what_was_drawn_from():
    model = tiny("qwen3")
    plain = play_all(engine_for(model))
    heard = {0: {}, 8: {}}
    for drafts, rows in heard.items():
        engine = engine_for(model, drafts)
        if drafts:
            propose_from(engine, plain, 0.7)

        def listen(ids, places, logits_RV, bent, rows=rows):
            for number, place, logits in zip(ids, places, logits_RV):
                assert (number, place) not in rows, "each token is drawn once"
                rows[number, place] = logits.numpy().tobytes()

        engine.listener = listen
        play_all(engine)
    assert heard[0] == heard[8] and len(heard[0]) > 100


# ------------------------------------------------------------------------------------------------ ends


def test_a_stop_inside_a_draft_ends_the_turn_there():
    """What was proposed beyond it is neither handed over nor kept: the next turn goes on from the stop."""
    model = tiny("qwen2")
    stops = frozenset(range(0, VOCAB, 4))
    plain = play_all(engine_for(model), stop_ids=stops, max_new_tokens=20)
    assert sum(turn.finish == "stop" for turn in plain.values()) > 15
    engine = engine_for(model, 8)
    propose_from(engine, plain, 1.0)
    expect_equal(play_all(engine, stop_ids=stops, max_new_tokens=20), plain)
    assert engine.stats()["reused_tokens"] > 0


def test_the_last_token_that_a_turn_may_get():
    """A limit inside a draft, and a context that is full behind it."""
    model = tiny("llama", positions=40)
    asked = [
        ask(number, f"s{number}", np.arange(6, 36), max_new_tokens=4 * number + 1)
        for number in range(4)
    ]
    turns = {}
    for drafts in (0, 8):
        engine = engine_for(model, drafts)
        if drafts:
            propose_from(engine, turns[0], 1.0)
        for request in asked:
            engine.submit(request)
        turns[drafts] = {turn.request_id: turn for turn in drain(engine)}
    for number, turn in turns[0].items():
        assert turns[8][number].token_ids.tolist() == turn.token_ids.tolist()
        assert turns[8][number].finish == turn.finish


def test_a_session_that_is_let_go_in_the_middle_leaves_the_others_alone():
    """And its name serves another turn afterwards, in a slot in which its drafts lay."""
    model = tiny("qwen3")
    asked = ragged()
    turns = {}
    for drafts in (0, 8):
        engine = engine_for(model, drafts)
        if drafts:
            propose_from(engine, turns[0], 0.5)
        for number, prompt in enumerate(asked):
            engine.submit(
                ask(number, f"s{number}", prompt, max_new_tokens=20, stop_ids=frozenset())
            )
        engine.poll()
        engine.poll()
        engine.release("s1")
        engine.release("s4")
        engine.submit(ask(20, "s4", asked[3], max_new_tokens=20, stop_ids=frozenset()))
        turns[drafts] = {turn.request_id: turn for turn in drain(engine)}
        assert 1 not in turns[drafts] and 4 not in turns[drafts]
    assert turns[8].keys() == turns[0].keys()
    for number, turn in turns[0].items():
        assert turns[8][number].logprobs.tobytes() == turn.logprobs.tobytes()


def test_a_proposed_token_whose_numbers_are_not_finite_leaves_nothing_behind():
    """It is never drawn, but it passes through the model and lies in the slot for a while."""
    model = tiny("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    well = engine_for(tiny("llama"))
    well.sync(model.state_dict(), 1)
    stops = frozenset({STOP})
    asked = [np.array([token for token in prompt if token != 7]) for prompt in ragged()]
    asked = [prompt for prompt in asked if len(prompt)]

    def run(engine):
        for number, prompt in enumerate(asked):
            engine.submit(ask(number, f"s{number}", prompt, max_new_tokens=12, stop_ids=stops))
        return {turn.request_id: turn for turn in drain(engine)}

    plain = run(well)
    engine = engine_for(tiny("llama"), 8)
    engine.sync(model.state_dict(), 1)

    def propose(row, decoded):
        most = min(3, row.limit - len(row.tokens) - 1)
        engine._proposed[row.request.id] = [7] * most
        return [7] * most

    engine._runner.propose = propose
    own = run(engine)
    assert engine.stats()["drafted_tokens"] > 50
    for number, turn in plain.items():
        assert own[number].logprobs.tobytes() == turn.logprobs.tobytes()
        assert (own[number].error is None) == (turn.error is None)
    assert sum(turn.error is None for turn in plain.values()) > 3


# ------------------------------------------------------------------------------------------------ controls


def takes_all(self, row, sampled, positions):
    """Wrong: as if every token that was proposed were the one that is drawn."""
    for number, index in enumerate(positions):
        row.cached = len(row.prompt) + len(row.tokens)
        completion = self._take(row, sampled, index)
        if completion is not None:
            break
    return number + 1, completion


def takes_proposed(self, row, sampled, positions):
    """Wrong: a token is handed over because it was proposed, though likely enough."""
    proposed = self._proposed[row.request.id] if row.tokens else []
    for number, token in enumerate(proposed[: len(positions) - 1]):
        if sampled.logp[positions[number]] > -3:
            sampled.token[positions[number]] = token
    return RIGHT(self, row, sampled, positions)


def takes_one_more(self, row, sampled, positions):
    """Wrong: the logits after the first wrong token are used once."""
    proposed = self._proposed.get(row.request.id, [])
    accepted, completion = RIGHT(self, row, sampled, positions)
    if completion is None and accepted < len(positions) and len(proposed) > accepted:
        completion = self._take(row, sampled, positions[accepted])
        accepted += 1
    return accepted, completion


RIGHT = DraftingEngine._accept


@pytest.mark.parametrize("wrong", [takes_all, takes_proposed, takes_one_more])
def test_control_wrong_acceptance_is_noticed(wrong, monkeypatch):
    model = tiny("qwen3")
    plain = play_all(engine_for(model))
    for accept in (RIGHT, wrong):
        monkeypatch.setattr(DraftingEngine, "_accept", accept)
        engine = engine_for(model, 8)
        propose_from(engine, plain, 0.6)
        if accept is RIGHT:
            expect_equal(play_all(engine), plain)
    with pytest.raises((AssertionError, KeyError)):
        expect_equal(play_all(engine), plain)


@pytest.mark.parametrize("decode, equal", [("plain", False), ("fused", True)])
def test_why_drafts_are_refused_in_the_plain_way(decode, equal):
    """A pass over several tokens of a sequence, and one over each: torch sums up otherwise, the kernel does not."""
    model = load_policy("frozenlake-tiny").model
    engine = open_engine(TransformersEngineConfig(decode=decode), model)
    heard = {}

    def listen(ids, places, logits_RV, bent):
        for number, place, logits in zip(ids, places, logits_RV):
            heard[number, place] = logits.clone()

    engine.listener = listen
    greedy = dict(temperature=0.0, stop_ids=frozenset())
    asked = ragged()
    for number, prompt in enumerate(asked):
        engine.submit(ask(number, f"s{number}", prompt, max_new_tokens=8, **greedy))
    singly = {turn.request_id: turn for turn in drain(engine)}
    for number, prompt in enumerate(asked):
        known = np.concatenate([prompt, singly[number].token_ids[:6]])
        engine.submit(ask(100 + number, f"t{number}", known, max_new_tokens=1, **greedy))
    drain(engine)
    same = [torch.equal(heard[number, 6], heard[100 + number, 0]) for number in singly]
    assert all(same) == equal
    gaps = [float((heard[n, 6] - heard[100 + n, 0]).abs().max()) for n in singly]
    assert max(gaps) < 1e-3


# ------------------------------------------------------------------------------------------------ what is proposed


def test_the_likeliest_follower_is_proposed_as_long_as_it_is_likely_enough():
    seen = ngrams.Ngrams()
    for _ in range(20):
        for place in range(4, 9):
            seen.learn(list(range(place - 4, place)), place)
    assert seen.propose([9, 0, 1, 2, 3], 8, 0.3) == [4, 5, 6, 7, 8]
    assert seen.propose([0, 1, 2, 3], 2, 0.3) == [4, 5]
    assert seen.propose([0, 1, 2, 3], 8, (20 / 22) ** 2) == [4, 5]
    assert seen.propose([40, 41, 2, 3], 1, 0.3) == [4], "by the last two, where four are not known"
    assert seen.propose([0, 1, 2, 3], 0, 0.3) == seen.propose([50, 51], 8, 0.0) == []


def test_what_came_once_is_no_certainty_and_what_changes_is_followed():
    seen = ngrams.Ngrams()
    seen.learn([1, 2, 3, 4], 5)
    assert seen.propose([1, 2, 3, 4], 1, 0.4) == []
    assert seen.propose([1, 2, 3, 4], 1, 0.3) == [5]
    for _ in range(200):
        seen.learn([1, 2, 3, 4], 5)
    learned = 0
    while seen.propose([1, 2, 3, 4], 1, 0.3) == [5]:
        seen.learn([1, 2, 3, 4], 6)
        learned += 1
    assert learned < ngrams.MOST_COUNTED


def test_it_forgets_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(ngrams, "MOST_CONTEXTS", 100)
    seen = ngrams.Ngrams()
    for token in range(1000):
        seen.learn([token, token + 1, token + 2, token + 3], token + 4)
        assert len(seen) <= 102


def test_text_without_a_pattern_is_left_alone():
    """It falls back by itself: random tokens are seldom proposed, and then seldom again."""
    model = tiny("qwen3")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e-3)
    engine = engine_for(model, 8)
    drafted = []
    for turn in range(4):
        for number in range(16):
            prompt = np.arange(6, 26)
            engine.submit(ask(100 * turn + number, f"{turn}/{number}", prompt, max_new_tokens=60))
        drain(engine)
        drafted.append(engine.work()["drafted_tokens"])
    assert engine.stats()["row_tokens"] > 1500
    assert drafted[-1] < 0.05 * engine.stats()["row_tokens"] / 4
    # And as soon as there is a pattern, it proposes again.
    play_group(engine)
    engine.work()
    play_group(engine)
    assert engine.work()["drafts_accepted"] > 100


# ------------------------------------------------------------------------------------------------ settings, counts


def test_the_default_is_todays_engine():
    assert TransformersEngineConfig().drafts == 0
    assert type(engine_for(tiny("llama"))) is TransformersEngine


def test_elsewhere_than_in_the_fused_way_it_is_refused():
    with pytest.raises(ConfigError, match="engine.drafts needs engine.decode = 'fused'"):
        TransformersEngineConfig(drafts=4)
    with pytest.raises(ConfigError):
        TransformersEngineConfig(decode="fused", drafts=-1)


def test_where_the_fused_way_is_not_to_be_had_nothing_is_proposed():
    model = tiny("gemma")
    engine = engine_for(model, 8)
    assert any("engine.drafts does nothing here" in note for note in engine.notes)
    expect_equal(play_all(engine), play_all(engine_for(model)))
    assert engine.stats()["drafted_tokens"] == 0


def test_a_step_counts_what_was_proposed_and_accepted():
    settings = {
        "engine.decode": "fused",
        "engine.drafts": 8,
        "train.tasks_per_step": 2,
        "train.group_size": 2,
    }
    session = wb.open_session(wb.load_config("bandit", settings), quiet=True)
    outcome = train_step(session, 1)
    clock = outcome.clock
    assert clock["tokens_per_pass"] >= 1.0
    assert 0 <= clock["drafts_accepted"] <= clock["drafted_tokens"]
    assert not any("draft" in name for name in outcome.metrics), (
        "a resumed run has the same metrics"
    )
    work = session.engine.work()
    assert work == {"drafted_tokens": 0, "drafts_accepted": 0}, "counted since it was asked last"
