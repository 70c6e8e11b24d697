"""Environments that ask, turned into environments that are asked: with loops of our own, without the package."""

import asyncio
import sys
from dataclasses import dataclass

import pytest

from workbench.extensions.adapters.verifiers import Verifiers
from workbench.extensions.adapters.verifiers_rollouts import (
    HOME,
    ContextLimit,
    Rollouts,
    RubricVerdict,
    messages_of,
    read_answer,
    words_of,
)
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError

TASK = Task("t", "verifiers", 0, {"answer": "7"})
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@dataclass
class Loop:
    """An environment that asks `turns` times. `wrong`: what it does in its second question."""

    turns: int = 2
    wrong: str = ""
    closed: bool = False

    async def play(self, task, ask):
        words, given = [words_of("user", "What is it?")], []
        try:
            for turn in range(self.turns):
                answer = await ask(words, [] if self.wrong == "tools" and turn else TOOLS)
                given.append(answer.content)
                words = [
                    *words,
                    words_of("assistant", answer.content),
                    words_of("user", f"Not {answer.content}."),
                ]
                words = words[1:] if self.wrong == "forgets" else words
                if self.wrong == "raises":
                    raise RuntimeError("broken")
            return RubricVerdict(
                {"right": float(given[-1] == task.payload["answer"])},
                {"right": 1.0, "turns": 2.0},
                "done",
            )
        except ContextLimit:
            return RubricVerdict({"right": -1.0}, {"right": -1.0}, "full", True)
        finally:
            self.closed = True


def run(coroutine):
    return HOME.settle(coroutine)


def begun(loop, success=""):
    rollouts = Rollouts(loop.play, success)
    return rollouts, run(rollouts.reset("a", TASK, 0))


def test_a_question_is_an_observation_and_an_answer_an_action():
    rollouts, seen = begun(Loop(), "right")
    assert [m.text for m in seen.messages] == ["What is it?"] and seen.tools == tuple(TOOLS)
    first = run(rollouts.step("a", "3"))
    assert [m.text for m in first.observation.messages] == ["Not 3."] and first.info[
        "success"
    ] is False
    assert not first.terminated and first.reward == 0.0
    last = run(rollouts.step("a", "7"))
    assert last.terminated and last.reward == 1.0 and last.reward_parts == {"right": 1.0}
    assert last.info["success"] is True and last.info["metrics"]["turns"] == 2.0
    assert last.observation.messages == ()
    with pytest.raises(EnvError, match="over or was never begun"):
        run(rollouts.step("a", "7"))
    with pytest.raises(EnvError, match="over or was never begun"):
        run(rollouts.step("b", "7"))


def test_trajectories_do_not_mix_and_closing_one_ends_its_loop():
    one, other = Loop(), Loop(3)
    rollouts = Rollouts(lambda task, ask: (one if task.id == "t" else other).play(task, ask))
    (
        run(rollouts.reset("a", TASK, 0)),
        run(rollouts.reset("b", Task("u", "verifiers", 1, {"answer": "9"}), 0)),
    )
    assert run(rollouts.step("b", "1")).observation.messages[0].text == "Not 1."
    assert run(rollouts.step("a", "2")).observation.messages[0].text == "Not 2."
    run(rollouts.close("a"))
    assert one.closed and not other.closed
    run(rollouts.shutdown())
    assert other.closed


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("forgets", "rewrites its conversation"), ("tools", "other tools"), ("raises", "broken")],
)
def test_what_cannot_be_played_is_an_error_of_the_trajectory(wrong, words):
    rollouts, _ = begun(Loop(wrong=wrong))
    with pytest.raises((EnvError, RuntimeError), match=words):
        run(rollouts.step("a", "3"))


def test_a_trajectory_whose_context_is_full_is_judged_as_it_stands():
    rollouts, _ = begun(Loop(3))
    run(rollouts.step("a", "3"))
    assert run(rollouts.cut("a")).parts == {"right": -1.0}
    with pytest.raises(EnvError, match="before it asked"):
        begun(_Silent())


class _Silent:
    async def play(self, task, ask):
        await asyncio.sleep(0)
        return RubricVerdict({}, {}, "empty")


def test_a_turn_is_read_as_words_and_calls():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    read = read_answer(f"<think>hm</think> Well.\n{call}\n{call} more", 2)
    assert read.content == "<think>hm</think> Well." and [c.call_id for c in read.calls] == [
        "t2c0",
        "t2c1",
    ]
    assert read.wire_calls[0] == ("t2c0", "add", '{"a": 1}') and not read.complaint
    for bad in (f"{call} <tool_call>{{", "<tool_call>[]</tool_call>"):
        assert (
            read_answer(bad, 0).content == bad
            and not read_answer(bad, 0).calls
            and read_answer(bad, 0).complaint
        )
    assert read_answer("just words", 0) == read_answer("just words", 5)


def test_messages_with_calls_and_parts_and_pictures():
    [example, reply] = messages_of(
        [
            words_of("assistant", None, [("add", '{"a": 1}')]),
            words_of("tool", [{"type": "text", "text": "2"}, "x"], call_id="t0c0"),
        ],
        read_answer('<tool_call>{"name": "add", "arguments": {}}</tool_call>', 0).calls,
    )
    assert example.text == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert (reply.text, reply.name, reply.tool_call_id) == ("2\nx", "add", "t0c0")
    with pytest.raises(EnvError, match="'image_url'; policies here read text alone"):
        words_of("user", [{"type": "image_url", "image_url": {}}])


def test_without_the_package_it_says_what_to_install():
    pytest.importorskip("torch")
    try:
        import verifiers  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ConfigError, match="pip install verifiers"):
            Verifiers("my_tasks:MyTaskset").check_files()


def test_an_older_package_is_refused_with_the_version_that_is_needed(tmp_path, monkeypatch):
    """A package of that name without `v1`, and its metadata, stand in for it."""
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text("")
    (tmp_path / "verifiers-0.1.14.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: verifiers\nVersion: 0.1.14\n"
    (tmp_path / "verifiers-0.1.14.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "verifiers", raising=False)
    with pytest.raises(ConfigError, match=r"needs verifiers 0\.4 or newer.*installed is 0\.1\.14"):
        Verifiers("my_tasks:MyTaskset").check_files()
    monkeypatch.delitem(sys.modules, "verifiers", raising=False)
