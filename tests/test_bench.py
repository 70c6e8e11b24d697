"""The benchmark compares like with like: one lake behind two doors, ratios that say how sure they are, work that is the
same, a best peer that is not chosen by the steps it is judged by."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.bench import machine, match, parts, report
from experiments.bench.flops import Cost
from experiments.bench.lake import DIRECTIONS, MOVE_SCHEMA, ToolLake, TrlLake, call_text, calls_in
from experiments.bench.ours import OurStepper
from experiments.bench.policy import SHAPES, BenchPolicy, make_policy
from experiments.bench.ratios import GOALS, compare, paired_ratio, unequal_work
from experiments.bench.work import OurSide, PeerSide, StepWork, Work
from experiments.bench.worker import BenchError, Worker
from workbench.learn.packing import Part
from workbench.values import Message
from workbench.values.errors import DataError

TINY = BenchPolicy(
    embeddings=600, hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32, steps=0
)
BABBLE = Work(trajectories=8, group=8, turns=2, turn_tokens=4, babble=True)


@pytest.fixture(scope="module")
def tiny() -> Path:
    """Random weights, and more embeddings than the tokenizer has tokens."""
    with tempfile.TemporaryDirectory() as folder:
        yield make_policy(Path(folder), TINY)


def a_step(env_steps=10, generated=100, trajectory=1000, rollout=1.0, train=1.0) -> StepWork:
    return StepWork(
        env_steps=env_steps,
        generations=12,
        generated_tokens=generated,
        trajectory_tokens=trajectory,
        rollout_s=rollout,
        train_s=train,
        step_s=rollout + train,
        wall_s=9.0,
        reward=0.0,
    )


# ------------------------------------------------------------------------------------------------ one lake, two doors


@pytest.mark.parametrize("seed", range(5))
def test_both_doors_open_on_the_same_lake(seed):
    env, other = ToolLake(turns=5).make(), TrlLake()
    task = ToolLake().task(seed)
    assert env.reset(task, 0).messages == (Message("user", other.reset(seed=seed)),)
    rewards = 0.0
    for direction in np.random.default_rng(seed).choice([*DIRECTIONS, "Sideways"], 5):
        result = env.step(call_text(str(direction)))
        assert result.observation.messages == (
            Message("tool", other.move(str(direction)), name="move"),
        )
        assert not result.terminated
        rewards += result.reward
    last = env.step(call_text("Up"))  # one answer more than moves; its call is not executed
    assert last.terminated and rewards + last.reward == pytest.approx(other.get_reward())


def test_an_answer_without_a_call_ends_a_trajectory_unless_the_policy_babbles():
    for babble in (False, True):
        env = ToolLake(turns=5, babble=babble).make()
        env.reset(ToolLake().task(0), 0)
        assert env.step("words").terminated is not babble
    assert len({str(calls_in(text, babble=True)) for text in "abcdefgh"}) > 1  # the text decides
    assert calls_in('<tool_call>\n{"name": "move", "arguments": 3}\n</tool_call>') == []


def test_our_policy_is_told_of_the_same_tool_as_trls():
    from transformers.utils import get_json_schema

    assert get_json_schema(TrlLake().move) == MOVE_SCHEMA


# ------------------------------------------------------------------------------------------------ statistics


def test_ratios_by_hand():
    ratio = paired_ratio(
        [8.0, 2.0], [2.0, 2.0]
    )  # four times, once: twice on average; t with one degree of freedom
    half = 12.706204736174698 * (log(4) / sqrt(2)) / sqrt(2)
    assert (ratio.mean, ratio.n) == (pytest.approx(2.0), 2)
    assert (ratio.low, ratio.high) == (pytest.approx(2 * exp(-half)), pytest.approx(2 * exp(half)))


def test_steps_are_compared_in_pairs():
    """Steps differ in size, their ratio does not: paired, there is no spread."""
    ratio = paired_ratio([10.0, 100.0, 40.0], [2.0, 20.0, 8.0])
    assert (ratio.low, ratio.high) == (pytest.approx(5.0), pytest.approx(5.0))
    shuffled = paired_ratio([100.0, 10.0, 40.0], [2.0, 20.0, 8.0])
    assert shuffled.low < 1 < shuffled.high


@pytest.mark.parametrize("pair", [([1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 1.0])])
def test_no_ratio_of_what_has_none(pair):
    with pytest.raises(DataError):
        paired_ratio(*pair)


def test_one_step_is_no_evidence():
    assert paired_ratio([8.0], [1.0]).low == 0.0


def test_figures_are_rates_of_their_own_phase():
    found = compare([a_step(rollout=1.0, train=1.0)] * 2, [a_step(rollout=5.0, train=2.0)] * 2)
    assert [ratio.mean for ratio in found.values()] == [
        pytest.approx(5.0),
        pytest.approx(2.0),
        pytest.approx(3.5),
    ]


def test_unequal_work_is_said():
    same = [a_step(generated=100), a_step(generated=104)]
    assert unequal_work(same, [a_step(generated=104), a_step(generated=100)]) == []
    found = unequal_work(same, [a_step(generated=115), a_step(generated=112)])
    assert found == ["generated tokens: 204 against 227"]
    assert unequal_work(same, [a_step(env_steps=0)] * 2)  # not even begun


def test_a_goal_is_reached_by_the_lower_limit():
    record = match.Record(pairs=[("a", "b")], say=lambda line: None)
    for theirs in (8.4, 16.0):
        record.note("a", a_step(rollout=1.0))
        record.note("b", a_step(rollout=theirs, train=4.0))
    record.note("a", a_step(rollout=1.0))
    record.note("b", a_step(rollout=8.8, train=4.0))
    found = report.results(record, 3)
    ratio = found["pairs"][0]["ratios"]["generated tokens per rollout second"]
    assert ratio["low"] < GOALS["generated tokens per rollout second"][0] < ratio["mean"]
    words = report.in_words(found, idle=False)
    assert any("rollout second" in line and "asked for 8: NOT REACHED" in line for line in words)
    assert any("training second" in line and "asked for 3.5: reached" in line for line in words)
    assert not any("wall" in line for line in words)
    assert any("wall" in line for line in report.in_words(found, idle=True))


def test_the_line_through_costs():
    tokens_N = np.array([100.0, 200.0, 800.0])
    exact = parts.line_through(tokens_N, 1 + 0.01 * tokens_N)
    assert (exact["fixed_s"], exact["s_per_token"]) == (pytest.approx(1), pytest.approx(0.01))
    assert exact["worst"] == pytest.approx(0, abs=1e-9)
    assert parts.line_through(tokens_N, tokens_N**2)["power"] == pytest.approx(2)
    assert (
        parts.line_through(tokens_N, tokens_N**2)["worst"] > 0.2
    )  # negative control: a square is no line


# ------------------------------------------------------------------------------------------------ machine


def test_who_else_took_the_processor():
    def others(busy: float, stolen: float, own: float) -> float | None:
        return machine.others_took(before, machine.CpuTimes(20.0, busy, stolen, own))

    before = machine.CpuTimes(at=10.0, busy=100.0, stolen=5.0, own=50.0)
    assert others(busy=115.0, stolen=6.0, own=64.0) == pytest.approx(0.2)
    assert others(busy=114.0, stolen=5.0, own=64.1) == 0.0
    assert machine.others_took(None, before) is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads /proc")
def test_own_time_is_told_from_that_of_others():
    before = machine.cpu_times([os.getpid()])
    torch.randn(600, 600) @ torch.randn(600, 600)
    after = machine.cpu_times([os.getpid()])
    assert after.busy >= before.busy > 0 and after.own >= before.own > 0
    assert machine.cpu_times([2**30]) is not None  # a process that has ended in between


def test_operations_by_hand():
    # 3 tokens, then 2 that look at all of those first, then each at itself and what came before: 1+2+3 + (3+1)+(3+2)
    cost = Cost(block=10.0, head=100.0, pair=1.0)
    assert cost.of_parts([Part(0, 3), Part(3, 5, 0, 3)], logits=2) == 5 * 10 + 15 + 2 * 100


# ------------------------------------------------------------------------------------------------ who steps when


class Told:
    """In the place of a worker: steps of a known speed, in the order in which they were asked for."""

    asked: list[str] = []
    speeds: dict[str, list[float]] = {}

    def __init__(self, name: str) -> None:
        self.name, self.done, self.closed = name, 0, False

    @classmethod
    def start(cls, kind, side, work, model, steps):
        return cls(side.name)

    def step(self) -> StepWork:
        assert not self.closed
        speed = Told.speeds[self.name][min(self.done, len(Told.speeds[self.name]) - 1)]
        self.done += 1
        Told.asked.append(self.name)
        return a_step(rollout=0.5 / speed, train=0.5 / speed)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(match, "Worker", Told)
    Told.asked, Told.speeds = [], {"ours": [1.0], "a": [1.0], "b": [2.0, 0.5], "c": [1.5]}
    return match.Record(say=lambda line: None)


def test_the_best_peer_is_chosen_by_steps_that_do_not_count(told):
    sides = [OurSide(name) for name in ("a", "b", "c")]
    match.best_of(told, Path("."), Work(), 3, [OurSide("ours")], sides)
    assert told.pairs == [("ours", "b")] and {name: len(s) for name, s in told.steps.items()} == {
        "a": 1,
        "b": 4,
        "c": 1,
        "ours": 4,
    }
    assert Told.asked[-6:] == [
        "ours",
        "b",
        "b",
        "ours",
        "ours",
        "b",
    ]  # in turns, and who begins alternates
    found = report.results(told, 3)
    assert found["pairs"][0]["ratios"][report.END_TO_END]["mean"] == pytest.approx(
        2.0
    )  # 1 against 0.5, not against 2
    assert found["tried"] == pytest.approx({"a": 10.0, "b": 20.0, "c": 15.0, "ours": 10.0})


def test_the_warm_up_does_not_count(told):
    match.equal_dtype(told, Path("."), Work(), 2, OurSide("ours"), OurSide("b"))
    assert Told.asked == ["ours", "b", "b", "ours", "ours", "b"]
    assert report.results(told, 2)["pairs"][0]["ratios"][report.END_TO_END][
        "mean"
    ] == pytest.approx(2.0)


def test_the_whole_command(told, monkeypatch, tmp_path, capsys):
    from experiments.bench import __main__ as bench

    Told.speeds = {
        name: [1.0 + 6 * name.startswith("ours")]
        for name in (
            f"{bench.OURS.name} (lane 2)",
            *(side.name for side in bench.OUR_SIDES),
            bench.TRL.name,
            *(side.name for side in bench.TRL_OTHERS),
        )
    }
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "make_policy", lambda *args, **kwargs: tmp_path)
    monkeypatch.setattr(bench.machine, "cpu_times", lambda: None)
    assert bench.main(["--steps", "2", "--trajectories", "16", "--no-parts"]) == 0
    said = capsys.readouterr().out
    assert "7.00 times [7.00, 7.00]   asked for 6: reached; aimed at 8: not reached" in said
    assert "No wall figures: nobody here can say" in said and "WARNING" not in said
    kept = json.loads(next(tmp_path.glob("bench-*.json")).read_text())
    assert (
        len(kept["pairs"]) == 5
        and len(kept["steps"]) == 10
        and kept["pairs"][0]["ours"] == "ours, float32"
    )
    with pytest.raises(SystemExit):
        bench.main(["--steps", "1"])  # no interval from one step


def test_an_error_of_a_lane_is_the_callers():
    def broken() -> None:
        raise BenchError("no step")

    with pytest.raises(BenchError):
        match.at_once([lambda: None, broken])


@pytest.mark.full
def test_a_side_that_ends_early_says_why(tmp_path):
    with pytest.raises(BenchError, match="nowhere"):
        Worker.start("ours", OurSide("ours"), Work(), tmp_path / "nowhere", 1)


# ------------------------------------------------------------------------------------------------ both sides, tiny


@pytest.mark.parametrize(
    "side",
    [
        OurSide("float32"),
        OurSide("bf16", engine_dtype="bfloat16", precision="bf16"),
        OurSide("padded", layout="padded"),
    ],
    ids=lambda side: side.name,
)
def test_a_tiny_step_of_ours(tiny, side):
    step = OurStepper(tiny, BABBLE, side).step(0)
    assert (step.env_steps, step.generations) == (8 * 2, 8 * 3)
    assert 0 < step.generated_tokens <= 8 * 3 * 4 and step.trajectory_tokens > step.generated_tokens
    assert (
        step.step_s >= step.rollout_s + step.train_s - 1e-9
        and step.rollout_s >= step.phases["engine"] > 0
    )
    assert step.notes["logp_gap_max"] < (1e-4 if side.name != "bf16" else 0.1)


@pytest.mark.full
@pytest.mark.parametrize("route", ["rollout", "environments"])
def test_a_tiny_step_of_trl_is_the_same_work(tiny, route, tmp_path):
    from experiments.bench.peer import Steps, make_trainer

    work, done = replace(BABBLE, babble=route == "rollout", micro_rows=4), []
    trainer = make_trainer(
        tiny, work, PeerSide("TRL", route=route), 2, tmp_path, Steps(lambda: True, done.append)
    )
    threads = torch.get_num_threads()
    trainer.train()
    torch.set_num_threads(threads)
    ours = OurStepper(tiny, work, OurSide("ours"))
    assert len(done) == 2 and unequal_work([ours.step(n) for n in range(2)], done) == []
    assert all(step.step_s > step.rollout_s > 0 and step.train_s > 0 for step in done)


def test_the_policy_is_made_once(tmp_path):
    first = make_policy(tmp_path, TINY)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert (
        make_policy(tmp_path, TINY) == first
        and (first / "model.safetensors").stat().st_mtime_ns == stamp
    )
    assert make_policy(tmp_path, replace(TINY, seed=1)) != first
    assert [name for name, shape in SHAPES.items() if shape.steps] == ["3m"], "the others babble"


def test_sums_are_judged_by_the_last_number_and_the_solver_is_paid():
    from experiments.bench.sums import Sums, is_right, numbers_of, question

    for seed in range(50):
        right = sum(numbers_of(seed))
        assert all(1 <= number <= 20 for number in numbers_of(seed))
        assert is_right(seed, f"{numbers_of(seed)[0]} and so on make {right}.")
        assert not is_right(seed, f"{right} or {right + 1}") and not is_right(seed, "none")
        family = Sums()
        env = family.make()
        shown = env.reset(family.task(seed), 0)
        assert shown.messages[0].text == question(seed)
        assert env.step(family.solver_action(env, None)).reward == 1.0
        assert env.step(str(right + 1)).reward == 0.0


def test_the_table_of_sums_takes_the_largest_peak_and_leaves_the_first_step_out():
    from docs.make.speeds import sums_tables
    from experiments.bench.sums import summary_of

    def steps(peak: float) -> list[dict[str, float]]:
        return [
            {"cpu_s": cpu, "rollout_cpu_s": 1.0, "wall_s": 2.0, "peak_gb": peak - 0.1 * (cpu > 50)}
            for cpu in (99.0, 10.0, 12.0)
        ]

    runs = [{"seed": 0, "steps": {"ours": steps(4.0), "trl": steps(5.0)}}]
    summary = {name: summary_of(name, runs) for name in ("ours", "trl")}
    assert summary["ours"]["step_cpu_s"] == 11.0 and summary["trl"]["peak_gb"] == 5.0
    rows = sums_tables({"summary": summary})["main"].rows
    assert rows[0] == ["step, CPU seconds", "11.0", "11.0", "1.00"]
    assert rows[2][1:] == ["4.00", "5.00", "1.25"]


def test_several_sides_of_sums_stand_beside_the_fastest_of_trl():
    from docs.make.speeds import sums_tables
    from experiments.bench.sums import SIDES, summary_of, times_as_fast

    def steps(*seconds: float) -> list[dict[str, float]]:
        return [
            {"cpu_s": cpu, "rollout_cpu_s": 1.0, "wall_s": 2.0, "peak_gb": 4.0} for cpu in seconds
        ]

    sides = {
        "bf16": steps(99, 5, 6, 5),
        "trl": steps(9, 20, 24, 20),
        "trl-bf16": steps(9, 40, 48, 40),
    }
    assert set(sides) <= set(SIDES)
    runs = [{"seed": 0, "steps": sides}]
    result = {
        "summary": {name: summary_of(name, runs) for name in sides},
        "times_as_fast": times_as_fast(runs),
    }
    assert result["times_as_fast"]["trl"]["bf16"]["mean"] == pytest.approx(4.0), "without the first"
    table = sums_tables(result)["main"]
    assert table.head[-1] == "times as fast as trl [95 %]"
    assert [row[-1] for row in table.rows] == ["**4.00** [4.00, 4.00]", "", ""]


def test_both_ways_of_decoding_sample_alike_and_are_shown_side_by_side():
    from docs.make.speeds import decode_tables
    from experiments.bench import decode

    facts = decode.decoding("tiny", decode.Load(rows=3, context=5, ticks=2, turns=3))
    assert facts["compared"] == 3 and facts["same"] == 1.0 and facts["gap"] < 1e-5
    assert [len(rates) for rates in facts["rates"].values()] == [3, 3], "without the warm-up"
    (row,) = decode_tables({"decoding": {"tiny": facts}, "rollouts": {}})["main"].rows
    assert row[-2] == "all of 3 turns" and row[0].startswith("decoding alone, tiny, 3 rows")
    other = [(np.array([1, 2]), np.zeros(2, np.float32))]
    own = [(np.array([1, 3]), np.zeros(2, np.float32))]
    assert decode.compared(own, other)["same"] == 0.0
