"""ToolEnv, step by step: what is shown, what is run, what is paid and on which turn, how trajectories end."""

import json
import pickle
from dataclasses import replace

import pytest

from tests.tools.reply_fuzz import reply
from workbench.basics.canonical_json import plain
from workbench.tools.base import ToolResult, tool
from workbench.tools.formats import Hermes
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.tool_env import CallSettings, ToolEnv

TASK = Task(
    "q/0",
    "test",
    0,
    {
        "question": "Which country is Velo in?",
        "answers": ["Orland", "Kingdom of Orland"],
        "support": ["velo", "mira"],
    },
)
FOUND = {"velo": ["velo", "other"], "mira": ["mira", "velo"], "none": []}
WORDS = Hermes()


@tool(trusted=True)
def search(query: str) -> ToolResult:
    """Find documents about a query.

    query: words to look for
    """
    documents = FOUND.get(query, ["other"])
    return ToolResult(f"About {query}: {len(documents)}", {"documents": documents})


@tool(trusted=True)
def paid(points: float) -> ToolResult:
    """Pay for itself."""
    return ToolResult("ok", reward=points)


@tool(trusted=True)
def broken(kind: str) -> str:
    """Go wrong."""
    raise SystemExit(kind) if kind == "exit" else ValueError(kind)


@tool(trusted=True)
class Notes:
    """Keep notes."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def call(self, note: str) -> str:
        self.kept.append(note)
        return " | ".join(self.kept)


TOOLS = (search, paid, broken)


def begin(task=TASK, tools=TOOLS, max_turns=4, **settings) -> ToolEnv:
    env = ToolEnv(tools, max_turns=max_turns, **settings)
    env.reset(task, 0)
    return env


def find(*queries: str) -> str:
    return "\n".join(WORDS.write_call("search", {"query": query}) for query in queries)


def answer(text: str) -> str:
    return WORDS.write_answer(text)


def paid_by(env: ToolEnv, *texts: str) -> list[float]:
    results = [env.step(text) for text in texts]
    for result in results:
        assert result.reward == sum(result.reward_parts.values())
    return [result.reward for result in results]


# ------------------------------------------------------------------------------------------------ what is shown


def test_the_first_prompt_holds_the_question_and_schemas_all_untrusted_but_our_own_words():
    env = ToolEnv([search], max_turns=3)
    observation = env.reset(TASK, 0)
    (message,) = observation.messages
    assert (
        message.role == "user"
        and message.text == env.own_instructions + "Question: Which country is Velo in?"
    )
    assert [part.trusted for part in message.content] == [True, True, False]
    (schema,) = observation.tools
    assert (
        schema["function"]["name"] == "search" and env.reset(TASK, 7) == observation
    )  # chance plays no part (invariant 7)


def test_words_context_and_schemas_are_the_familys_to_choose():
    shown = ToolEnv(
        (), max_turns=1, instructions="", opening=lambda task: f"About {task.id}."
    ).reset(TASK, 0)
    assert (
        shown.messages[0].text == "About q/0.\n\nQuestion: Which country is Velo in?"
        and shown.tools == ()
    )
    assert not shown.messages[0].content[0].trusted
    assert (
        ToolEnv([search], max_turns=1, calls=CallSettings(show_schemas=False)).reset(TASK, 0).tools
        == ()
    )
    tags = ToolEnv([search, paid], max_turns=1, calls=CallSettings(format="tags")).reset(TASK, 0)
    assert (
        tags.tools == ()
        and "<search>query</search> Find documents about a query.\n" in tags.messages[0].text
    )
    assert not any("<search>" in part.text for part in tags.messages[0].content if part.trusted)


def test_calls_are_answered_in_order_with_names_and_ids():
    env = begin()
    result = env.step(
        find("velo")
        + WORDS.write_call("nothing", {})
        + "<tool_call>null</tool_call>"
        + find("none")
        + WORDS.write_call("search", {"query": 3, "k": 1})
    )
    assert [(m.role, m.name, m.tool_call_id) for m in result.observation.messages] == [
        ("tool", "search", "t0c0"),
        ("tool", "nothing", "t0c1"),
        ("tool", None, "t0c2"),
        ("tool", "search", "t0c3"),
        ("tool", "search", "t0c4"),
    ]
    texts = [m.text for m in result.observation.messages]
    assert texts[0] == "About velo: 2" and texts[3] == "About none: 0"
    assert texts[1] == "Error: there is no tool nothing. There are: search, paid, broken."
    assert texts[2] == 'Error: A call is a JSON object with "name" and "arguments". It says: null'
    assert "Not an argument: k" in texts[4] and "Expected text" in texts[4]
    assert [call.call_id for call in result.tool_calls] == ["t0c0", "t0c1", "t0c3", "t0c4"]
    assert [each["error"] for each in result.info["calls"]] == [
        "",
        "unknown_tool",
        "",
        "bad_arguments",
        "bad_call",
    ]
    assert result.info["documents"] == ["velo", "other"] and not result.info["valid_format"]
    again = env.step(find("mira"))
    assert again.observation.messages[0].tool_call_id == "t1c0"


def test_tools_that_raise_are_answered_and_the_trajectory_goes_on():
    result = begin().step(
        WORDS.write_call("broken", {"kind": "value"})
        + WORDS.write_call("broken", {"kind": "exit"})
        + find("a")
    )
    first, second, third = result.observation.messages
    assert (
        "ValueError: value" in first.text
        and "SystemExit" in second.text
        and third.text == "About a: 1"
    )
    assert not result.terminated and not result.truncated and result.info["valid_format"]


def test_no_more_calls_are_run_than_there_may_be():
    result = begin(calls=CallSettings(most_calls=2)).step(find("a", "b", "c"))
    assert [each["error"] for each in result.info["calls"]] == ["", "", "too_many"]
    assert "at most 2" in result.observation.messages[2].text


def test_an_unreadable_turn_is_told_what_was_wrong_and_how_to_write():
    result = begin().step("I think it is Orland <|im_end|>")
    (message,) = result.observation.messages
    assert message.role == "user" and message.text.startswith(
        "There is text outside the tags. It says: I think it is Orland"
    )
    assert "<answer>the answer</answer>" in message.text
    assert not any("Orland" in part.text for part in message.content if part.trusted)
    # What could be read is done all the same, and the rest is named.
    both = begin().step("So: " + find("velo"))
    assert [m.role for m in both.observation.messages] == ["tool", "user"] and both.info["calls"][
        0
    ]["error"] == ""


def test_a_prompt_of_its_own_per_turn_may_recall_what_was_found():
    env = begin(calls=CallSettings(recall=True))
    first = env.step(find("velo"))
    second = env.step(find("mira"))
    third = env.step("hm")
    assert [m.role for m in first.observation.messages] == ["tool"]
    assert [m.role for m in second.observation.messages] == ["user", "tool"]
    assert (
        second.observation.messages[0].text
        == 'Before this you called:\nsearch {"query": "velo"}\nAbout velo: 2'
    )
    assert (
        "mira" in third.observation.messages[0].text
        and third.observation.messages[1].role == "user"
    )
    assert not any(
        part.trusted and "velo" in part.text for part in second.observation.messages[0].content
    )


# ------------------------------------------------------------------------------------------------ how it ends


def test_an_answer_ends_the_trajectory_once():
    env = begin()
    result = env.step(answer("the kingdom of Orland"))
    assert result.terminated and not result.truncated and result.observation.messages == ()
    assert result.reward == 1.0 and result.reward_parts == {"answer": 1.0, "format": 0.0}
    assert result.info == {
        "valid_format": True,
        "complaint": "",
        "calls": [],
        "success": True,
        "f1": 1.0,
        "ended": "answered",
        "answer": "the kingdom of Orland",
        "gold": ["Orland", "Kingdom of Orland"],
    }
    with pytest.raises(EnvError, match="over"):
        env.step(answer("Orland"))


@pytest.mark.parametrize(
    "said", ["Rome Orland Velo Mira", "Orland, or Velo", "orland orland", "unknown"]
)
def test_guess_lists_earn_nothing_by_exact_match(said):
    assert begin().step(answer(said)).reward == 0.0


@pytest.mark.parametrize("measure", ["em", "f1"])
@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("1,775", "1775", True),
        ("17.750", "17.75", True),
        ("$15", "15", True),
        ("17.75", "-17.75", False),
        ("1775", "17.75", False),
        ("1.5", "15", False),
    ],
)
def test_a_number_is_compared_as_a_number_by_every_default(said, gold, right, measure):
    task = replace(TASK, payload={"question": "How much?", "answers": [gold]})
    equation_6 = {"rule": "agent-r1"} if measure == "em" else {}
    for rewards in (AnswerRewards(answer=measure), AnswerRewards(**equation_6)):
        result = begin(task, rewards=rewards).step(answer(said))
        assert result.reward == result.info["f1"] == float(right)
        assert result.info["success"] is right


def test_f1_pays_for_shared_words():
    assert begin(rewards=AnswerRewards(answer="f1")).step(
        answer("Kingdom of Velo")
    ).reward == pytest.approx(2 / 3)


def test_running_out_of_turns_is_told_and_scored_although_a_tool_spoke_last():
    env = begin(max_turns=2, rewards=AnswerRewards(process=0.25, no_answer=-0.5))
    first, last = env.step(find("none")), env.step(find("velo"))
    assert (
        not first.truncated
        and last.truncated
        and not last.terminated
        and last.info["ended"] == "turns"
    )
    assert last.observation.messages[0].role == "tool"  # it was run, and the record shows it
    assert (
        last.reward_parts == {"answer": -0.5, "format": 0.0, "process": 0.25}
        and last.info["success"] is False
    )


def test_a_question_without_a_known_answer_is_unscored():
    asked = replace(TASK, payload={"question": "?", "answers": []})
    env = begin(asked)
    between, last = env.step(find("velo")), env.step(answer("Orland"))
    assert between.reward == 0.0 and last.reward is None and last.reward_parts == {}
    assert (
        "success" not in last.info and "gold" not in last.info and last.info["answer"] == "Orland"
    )
    assert begin(asked, max_turns=1).step(find("velo")).reward is None


# ------------------------------------------------------------------------------------------------ what is paid


def test_a_process_reward_lands_on_the_turn_that_earned_it_and_never_twice():
    env = begin(max_turns=6, rewards=AnswerRewards(process=0.25))
    assert paid_by(
        env,
        find("none"),
        find("velo"),
        find("velo", "velo"),
        find("mira"),
        find("mira", "velo"),
        answer("Orland"),
    ) == [0.0, 0.25, 0.0, 0.25, 0.0, 1.0]


def test_one_turn_may_find_both_documents_and_is_paid_for_both():
    assert paid_by(begin(rewards=AnswerRewards(process=0.25)), find("velo", "mira", "mira")) == [
        0.5
    ]
    assert paid_by(begin(rewards=AnswerRewards(process=0.25)), find("mira")) == [0.5]


def test_a_failed_call_brings_no_document():
    @tool(trusted=True)
    def search(query: str) -> ToolResult:
        return ToolResult("Error: no", {"documents": ["velo"]}, error="raised")

    env = begin(tools=[search], rewards=AnswerRewards(process=0.25))
    assert paid_by(env, find("velo")) == [0.0]


def test_a_tool_may_pay_for_its_own_call():
    result = begin().step(
        WORDS.write_call("paid", {"points": 0.5}) + WORDS.write_call("paid", {"points": -0.125})
    )
    assert (
        result.reward_parts == {"answer": 0.0, "format": 0.0, "tool": 0.375}
        and result.reward == 0.375
    )


def test_a_format_penalty_lands_on_the_turn_that_earned_it():
    assert paid_by(begin(), "hm", find("velo"), "<tool_call>", "So " + answer("Orland")) == [
        -0.1,
        0.0,
        -0.1,
        0.9,
    ]


GOOD, BAD, RIGHT, WRONG = find("velo"), "hm", answer("Orland"), answer("Velo")


@pytest.mark.parametrize(
    ("texts", "total"),
    [
        ([RIGHT], 1.0),
        ([WRONG], 0.0),
        ([GOOD, RIGHT], 1.0),
        ([GOOD, WRONG], 0.0),
        ([BAD, RIGHT], -0.5),
        ([BAD, WRONG], -0.5),
        (["<tool_call>", RIGHT], -0.5),
        (["So " + RIGHT], -0.5),
        ([BAD, "So " + RIGHT], -1.0),
        ([GOOD, GOOD, GOOD], -0.5),
        ([BAD, GOOD, GOOD], -1.0),
        ([GOOD, GOOD, BAD], -1.0),
    ],
)
def test_equation_6_of_the_agent_r1_paper(texts, total):
    rewards = paid_by(begin(max_turns=3, rewards=AnswerRewards(rule="agent-r1")), *texts)
    assert rewards == [0.0] * (len(texts) - 1) + [total]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"answer": "bleu"}, "em or f1"),
        ({"rule": "x"}, "agent-r1"),
        ({"format_penalty": 0.1}, "garbage"),
        ({"format_penalty": float("nan")}, "garbage"),
        ({"process": -1.0}, "at least 0"),
        ({"no_answer": 1.0}, "silence"),
        ({"rule": "agent-r1", "format_penalty": -0.2}, "no effect"),
        ({"rule": "agent-r1", "answer": "f1"}, "no effect"),
    ],
)
def test_rewards_that_make_no_sense(settings, said):
    with pytest.raises(ConfigError, match=said):
        AnswerRewards(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "xml"}, "hermes or tags"),
        ({"most_calls": 0}, "at least 1"),
        ({"deadline_s": 0}, "above 0"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ConfigError, match=said):
        CallSettings(**settings)
    with pytest.raises(ConfigError, match="max_turns"):
        ToolEnv([], max_turns=0)


@pytest.mark.parametrize(
    "payload",
    [{}, {"question": 3}, {"question": "?", "answers": "Paris"}, {"question": "?", "support": [1]}],
)
def test_a_task_that_is_no_question(payload):
    with pytest.raises(EnvError, match="payload"):
        begin(replace(TASK, payload=payload))


# ------------------------------------------------------------------------------------------------ state


def test_state_belongs_to_one_trajectory():
    one, other = (
        begin(tools=[tool(Notes.function, name="notes", trusted=True)]),
        begin(tools=[tool(Notes.function, name="notes", trusted=True)]),
    )
    note = [WORDS.write_call("notes", {"note": letter}) for letter in "ab"]
    said = [
        env.step(text).observation.messages[0].text
        for env, text in [(one, note[0]), (other, note[1]), (one, note[1])]
    ]
    assert said == ["a", "b", "a | b"]
    one.reset(TASK, 0)
    assert one.step(note[1]).observation.messages[0].text == "b"
    assert not hasattr(one, "snapshot")  # nobody could copy what the tool holds
    one.close()
    one.close()


def test_a_snapshot_goes_on_as_the_trajectory_would_have():
    env = begin(rewards=AnswerRewards(process=0.25), calls=CallSettings(recall=True))
    env.step("hm")
    env.step(find("velo"))
    taken = env.snapshot()
    assert plain(taken, "a snapshot") == json.loads(json.dumps(taken))
    before, other = (
        pickle.dumps(taken),
        begin(replace(TASK, id="q/1"), rewards=env.rewards, calls=env.calls),
    )
    other.restore(json.loads(json.dumps(taken)))
    for text in (find("mira"), answer("Orland")):
        assert env.state_key() == other.state_key()
        assert env.step(text) == other.step(text)
    assert pickle.dumps(taken) == before


def test_a_state_is_named_by_what_was_replied():
    one, other = begin(), begin()
    assert one.state_key() == other.state_key()
    one.step("<think>first</think>" + find("velo"))
    other.step("<think>second</think>" + find("velo"))
    assert one.state_key() == other.state_key()  # another thought, the same replies
    other.step(find("mira"))
    one.step(find("none"))
    assert one.state_key() != other.state_key()


# ------------------------------------------------------------------------------------------------ fuzz


def fuzz(count: int) -> set[str]:
    errors = set()
    for number in range(count):
        env = begin(
            max_turns=2,
            calls=CallSettings(format=("hermes", "tags")[number % 2], think=number % 3 == 0),
        )
        for text in (reply(number), reply(number, "second")):
            result = env.step(text)
            plain(result.info, "info")
            assert result.reward == sum(result.reward_parts.values()) and isinstance(
                result.info["success"], bool
            )
            assert sum(len(m.text.encode()) for m in result.observation.messages) < 16 * 3_000
            errors |= {each["error"] for each in result.info["calls"]}
            if result.terminated or result.truncated:
                break
        env.close()
    return errors


def test_fuzzed_replies_are_answered():
    assert fuzz(200) >= {"", "unknown_tool", "bad_arguments", "bad_call"}


@pytest.mark.full
def test_10_000_fuzzed_replies_are_answered():
    assert fuzz(10_000) >= {"", "unknown_tool", "bad_arguments", "bad_call", "too_many"}
