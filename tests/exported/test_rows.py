"""Rows to learn from: what is in them, what is left out and counted, and that TRL's and OpenAI's own code takes them."""

from __future__ import annotations

import json

import pytest

import workbench as wb
from tests.exported.trajectories import CONTROL_TEXT, stored_run
from workbench import cli
from workbench.extensions.interop import command
from workbench.extensions.interop.export import FORMATS, TENSORBOARD
from workbench.extensions.interop.exports.conversation import text_without_calls
from workbench.values import ToolCall
from workbench.values.errors import ConfigError, StoreError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return stored_run(tmp_path_factory.mktemp("runs") / "first")


def export(run, to, tmp_path, **options):
    dest = tmp_path / f"out-{to}.jsonl"
    said = wb.export_run(run, dest, to=to, **options).text
    return [json.loads(line) for line in dest.read_text().splitlines()], said


def test_sft_takes_what_succeeded_and_counts_the_rest(run, tmp_path):
    rows, said = export(run, "trl-sft", tmp_path)
    assert [(row["step"], row["task_id"], row["attempt"], row["reward"]) for row in rows] == [
        (1, "q1", 0, 1.0),
        (1, "alike", 1, 1.0),
        (2, "q2", 0, 1.0),
        (2, "alike", 1, 1.0),
    ]
    for words in (
        "4 rows",
        "of 12 trajectories of 2 steps",
        "chosen: trajectories that succeeded",
        "left out: 4 of 12 trajectories: no reward",
        "left out: 2 of 12 trajectories: did not succeed",
        "left out: 2 of 12 trajectories: a turn was cut off",
        "note: 2 of 12 trajectories: text looks like control tokens",
        "note: 2 of 12 trajectories: the policy saw a rewritten history",
    ):
        assert words in said, words
    assert json.loads(rows[0]["tools"])[1]["function"]["name"] == "add"
    first = rows[0]["messages"]
    assert [message["role"] for message in first] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert first[2]["content"] == "<think>two</think>", (
        "calls stand in tool_calls and not in the text as well"
    )
    assert [(call["id"], call["function"]) for call in first[2]["tool_calls"]] == [
        ("t0c0", {"name": "search", "arguments": {"query": "Zeno"}}),
        ("t0c1", {"name": "add", "arguments": {"numbers": [1, 2]}}),
    ]
    assert first[3] == {
        "role": "tool",
        "content": CONTROL_TEXT,
        "name": "search",
        "tool_call_id": "t0c0",
    }, "text stays text"


def test_a_threshold_takes_the_place_of_success(run, tmp_path):
    rows, said = export(run, "trl-sft", tmp_path, min_reward=-0.25, steps=[2])
    assert [(row["step"], row["task_id"], row["attempt"]) for row in rows] == [
        (2, "q2", 0),
        (2, "q2", 1),
        (2, "alike", 1),
    ]
    assert (
        "chosen: trajectories that earned -0.25 or more" in said
        and "of 6 trajectories of 1 steps" in said
    )
    assert (
        "note: 1 of 3 rows: half a character" in said
        and rows[1]["messages"][-1]["content"].count("\ufffd") >= 1
    )
    assert rows[1]["messages"][2] == {
        "role": "assistant",
        "content": '<tool_call>{"name": search}</tool_call>',
    }, "a bad call is text"


def test_tokens_are_those_that_were_sampled(run, tmp_path):
    rows, _ = export(run, "trl-sft-tokens", tmp_path)
    stored = {
        (step, t.task.id, t.attempt): t
        for step in run.steps()
        for group in run.groups(step)
        for t in group
    }
    assert [row["segment"] for row in rows] == [0, 0, 1, 0, 0, 1], (
        "a rewritten history is two sequences"
    )
    for row in rows:
        segment = stored[row["step"], row["task_id"], row["attempt"]].segments[row["segment"]]
        assert (
            row["input_ids"] == segment.token_ids.tolist()
            and row["assistant_masks"] == segment.eligible.astype(int).tolist()
        )


def test_pairs_are_the_best_and_the_worst_of_a_group(run, tmp_path):
    rows, said = export(run, "trl-dpo", tmp_path)
    assert [(row["step"], row["score_chosen"], row["score_rejected"]) for row in rows] == [
        (1, 1.0, -0.25),
        (2, 1.0, -0.25),
    ]
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["chosen"][0]["role"] == rows[0]["rejected"][0]["role"] == "assistant"
    assert "left out: 2 of 4 groups: no two trajectories that earned differently" in said
    assert "left out: 4 of 12 trajectories: no reward" in said


def test_prompts_come_once_with_their_columns(run, tmp_path):
    rows, said = export(run, "trl-grpo", tmp_path)
    assert [row["task_id"] for row in rows] == [
        "q1",
        "alike",
        "q2",
    ] and "1 of 4 groups: the task was met before" in said
    assert rows[0]["answers"] == ["Ann"] and rows[0]["hops"] == 2 and len(rows[0]["prompt"]) == 2


def test_openai_takes_every_message(run, tmp_path):
    pytest.importorskip("openai", reason="needs openai: pip install -e '.[test]'")
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from pydantic import TypeAdapter

    rows, _ = export(run, "openai", tmp_path, min_reward=-1)
    messages, tools = (
        TypeAdapter(list[ChatCompletionMessageParam]),
        TypeAdapter(list[ChatCompletionToolParam]),
    )
    for row in rows:
        tools.validate_python(row["tools"])
        messages.validate_python(row["messages"])
        called: set = set()
        for message in row["messages"]:
            called |= {call["id"] for call in message.get("tool_calls", ())}
            assert message["role"] != "tool" or message["tool_call_id"] in called, (
                "OpenAI refuses a result of no call"
            )
    assert json.loads(rows[0]["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {
        "query": "Zeno"
    }
    assert rows[1]["messages"][3] == {"role": "user", "content": "Error: no JSON."}, (
        "the reply to what was no call"
    )


@pytest.mark.full
def test_trl_reads_and_trains(run, tmp_path):
    """The trainers themselves, an update each, on a policy of this repository."""
    trl = pytest.importorskip("trl", reason="needs trl: pip install -e '.[test]'")
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen2_5_chat_template

    from workbench.engines.policy import SHIPPED

    policy = SHIPPED / "search-tiny"
    shared = {
        "output_dir": str(tmp_path / "trl"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = qwen2_5_chat_template  # one whose assistant's turns TRL can tell

    def rows_of(to):
        export(run, to, tmp_path)
        return datasets.load_dataset(
            "json",
            data_files=str(tmp_path / f"out-{to}.jsonl"),
            split="train",
            cache_dir=str(tmp_path / "cache"),
        )

    def model():
        return AutoModelForCausalLM.from_pretrained(policy)

    for to, only in (("trl-sft-tokens", False), ("trl-sft", True)):
        rows = rows_of(to)
        args = trl.SFTConfig(**shared, max_length=None, assistant_only_loss=only)
        trainer = trl.SFTTrainer(model(), args=args, train_dataset=rows, processing_class=tokenizer)
        trained = sum(label != -100 for row in trainer.train_dataset for label in row["labels"])
        if to == "trl-sft-tokens":
            assert trained == sum(sum(row["assistant_masks"]) for row in rows), (
                "what was sampled, and nothing else"
            )
        assert 0 < trained < sum(len(row["input_ids"]) for row in trainer.train_dataset)
        trainer.train()
    args = trl.DPOConfig(**shared, max_length=None)
    trl.DPOTrainer(
        model(), args=args, train_dataset=rows_of("trl-dpo"), processing_class=tokenizer
    ).train()
    seen = []

    def reward(prompts, completions, answers, **columns):
        seen.extend(answers)
        return [float(len(completion[0]["content"])) for completion in completions]

    args = trl.GRPOConfig(**shared, max_completion_length=4, num_generations=2)
    trl.GRPOTrainer(
        model(),
        reward_funcs=reward,
        args=args,
        train_dataset=rows_of("trl-grpo"),
        processing_class=tokenizer,
    ).train()
    assert seen == [["Ann"], ["Ann"]], "reward functions are handed the answers"


@pytest.mark.parametrize(
    "text, calls, kept",
    [
        ('a <tool_call>{"name": "f", "arguments": {}}</tool_call> b', [("f", {})], "a  b"),
        (
            "<think>no <search>x</search></think><search> y </search>",
            [("search", {"query": "y"})],
            "<think>no <search>x</search></think>",
        ),
        (
            '<tool_call>{"name": oops}</tool_call><tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>',
            [("f", {"n": 1})],
            '<tool_call>{"name": oops}</tool_call>',
        ),
        ("CALL f(1)", [("f", {"n": 1})], None),
        ("<search>y", [("search", {"query": "y"})], None),
    ],
)
def test_a_call_is_cut_out_of_the_text_only_where_it_is_found_there(text, calls, kept):
    assert text_without_calls(text, [ToolCall(*call) for call in calls]) == kept


def test_what_cannot_be_done_is_said_with_what_to_do(run, tmp_path):
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    for options, error, words in (
        ({"to": "alpaca"}, ConfigError, "expected one of tensorboard"),
        ({"to": "trl-sft"}, StoreError, "never written over"),
        ({"to": "inspect"}, ConfigError, r"ends in \.eval"),
        ({"to": "trl-dpo", "min_reward": 1.0}, ConfigError, "no effect"),
        ({"to": "trl-sft", "steps": [9]}, ConfigError, "no committed step 9; it has 1 to 2"),
        ({"to": "tensorboard", "steps": [1]}, ConfigError, "gets the numbers of all steps"),
    ):
        with pytest.raises(error, match=words):
            wb.export_run(
                run, there if "steps" not in options else tmp_path / "new.jsonl", **options
            )
    assert there.read_text() == "mine"
    with pytest.raises(ConfigError, match="say where to write"):
        wb.export_run(run, to="dataset")
    with pytest.raises(StoreError, match="inside the run folder"):
        wb.export_run(run, run.path / "new.jsonl", to="trl-sft")
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_command_takes_its_destination_last(run, tmp_path, capsys):
    dest = tmp_path / "few.jsonl"
    assert cli.main(["export", str(run.path), "--to", "trl-sft", "--steps", "1", str(dest)]) == 0
    assert "2 rows" in capsys.readouterr().out and len(dest.read_text().splitlines()) == 2
    assert (
        cli.main(["export", str(run.path), "--to", "trl-sft", str(dest)]) == 2
        and "never written over" in capsys.readouterr().err
    )
    assert set(command.EXPORTS) == {TENSORBOARD, *FORMATS}
