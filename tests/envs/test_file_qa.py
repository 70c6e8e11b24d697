"""Questions from files: tasks, splits, the four contexts, baselines, and what it says of files that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workbench.extensions.servers.dense import Dense
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.tools.retrieval import Bm25
from workbench.tools.retrieval.base import Hit
from workbench.values.errors import ConfigError, DataError
from workbench.worlds import ENVS, split_of, tasks
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.file_qa import FileQA
from workbench.worlds.tool_env import CallSettings

FILES = Path(__file__).parents[1] / "qa/files"
TRAIN, HELDOUT = (
    str(FILES / "hotpot_train_v1.1.json"),
    str(FILES / "hotpot_dev_distractor_v1.json.gz"),
)
BEIR = str(FILES / "beir/corpus.jsonl")
FAMILY = FileQA(questions=TRAIN, heldout=HELDOUT)


def letters(texts, query):
    return np.array(
        [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts],
        float,
    )


def first_observation(family: FileQA, seed: int = 0) -> str:
    env = family.make()
    text = env.reset(tasks(family, "train", 1, seed=seed)[0], 0).messages[0].text
    env.close()
    return text


def test_it_is_a_kind_of_environment_that_names_itself():
    assert ENVS["file_qa"] is FileQA and FileQA().label == (
        "File QA, hotpotqa: no file yet, search (bm25, 3 documents each, 5 turns)"
    )


def test_tasks_are_the_questions_of_their_own_file():
    train = {task.payload["question"]: task for task in tasks(FAMILY, "train", 40)}
    held_out = {task.payload["question"]: task for task in tasks(FAMILY, "held-out", 6)}
    assert len(train) == len(held_out) == 3 and not train.keys() & held_out.keys()
    assert train.keys() == {row["question"] for row in json.loads(Path(TRAIN).read_text())}
    task = train["On which river lies the town where Ysolde Marr comes from?"]
    assert task.payload["answers"] == ["river Osk"] and task.payload["support"] == [
        "Ysolde Marr",
        "Tarn",
    ]
    assert task == FAMILY.task(task.task_seed) and split_of(FAMILY, task) == "train"
    json.dumps(dict(task.payload))


def test_without_a_file_of_its_own_one_question_in_five_is_held_out_by_its_text(tmp_path):
    rows = [
        {"question": f"Which one is number {number}?", "answers": [str(number)]}
        for number in range(200)
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    family = FileQA(
        questions=str(tmp_path / "q.jsonl"), format="jsonl", corpus=BEIR, context="closed"
    )
    drawn = [family.task(seed) for seed in range(2000)]
    by_split = {
        name: {t.payload["question"] for t in drawn if family.split_of(t) == name}
        for name in ("train", "held-out")
    }
    assert not by_split["train"] & by_split["held-out"] and 20 < len(by_split["held-out"]) < 60


def test_a_trajectory_searches_answers_and_is_paid():
    family = replace(FAMILY, documents=1, rewards=AnswerRewards(process=0.25))
    task = next(t for t in tasks(family, "train", 20) if t.payload["answers"] == ["Lund Quay"])
    env = family.make()
    assert env.reset(task, 0).tools[0]["function"]["name"] == "search"
    step = env.step(env.search("Which boat did Ysolde Marr restore?"))
    assert step.observation.messages[0].text == (
        "Ysolde Marr: Ysolde Marr is a boat builder from Tarn. She restored the Petrel in 1971."
    )
    assert step.reward_parts == {"answer": 0.0, "format": 0.0, "process": 0.25}
    assert step.info["documents"] == ["Ysolde Marr"]
    step = env.step(env.format.write_answer("lund quay."))
    assert step.terminated and step.info["success"] and step.reward == 1.0
    env.close()


def test_the_four_contexts():
    question = "Question: "
    for context, shown, tools in (
        ("search", "", 1),
        ("closed", "", 0),
        ("rag", "She restored the Petrel", 0),
        ("gold", "Ysolde Marr: Ysolde Marr is a boat builder", 0),
    ):
        family = replace(FAMILY, context=context)
        text = first_observation(family)
        assert question in text and shown in text and len(family.make().tools) == tools
        assert family.max_turns == (5 if context == "search" else 1)
        assert ("boat builder" in text.split(question)[0]) == bool(shown)


def test_another_corpus_is_searched_and_support_is_found_in_it_by_title():
    family = replace(FAMILY, corpus=BEIR, heldout="")
    payload = next(
        family.task(seed).payload
        for seed in range(9)
        if family.task(seed).payload["answers"] == ["river Osk"]
    )
    assert payload["support"] == ["12", "290"]
    with pytest.raises(ConfigError, match="only 4 of 6 questions have all of theirs"):
        replace(FAMILY, corpus=BEIR, context="gold").task(0)


def test_files_are_read_and_indexed_once_whatever_the_settings_of_a_trajectory():
    opened = FAMILY.open()
    assert replace(FAMILY, turns=3, context="rag").open() is opened
    assert FAMILY.open_searcher() is replace(FAMILY, documents=1).open_searcher()
    assert isinstance(FAMILY.open_searcher(), Bm25)


def test_dense_search_by_an_encoder_that_is_named():
    family = replace(FAMILY, searcher="dense", encoder=f"{__name__}:letters")
    pytest.importorskip("faiss", reason="FAISS is the extra `dense`")
    assert isinstance(family.open_searcher(), Dense)
    assert "Petrel" in family.search_tool().call({"query": "petrel boat"}).text
    for name, said in (
        ("nowhere:encode", "cannot be imported"),
        (f"{__name__}:nothing", "cannot be imported"),
        ("encode", "package.module:Name"),
    ):
        with pytest.raises(ConfigError, match=said):
            replace(family, encoder=name).open_searcher()


def size_of(corpus):
    return len(corpus)


class FirstOnes:
    """Finds the first documents, whatever is asked."""

    def __init__(self, corpus):
        self.corpus = corpus

    def search(self, query, k):
        return [Hit(document, 1.0) for document in self.corpus.documents[:k]]


def test_a_searcher_of_ones_own_is_named():
    family = replace(FAMILY, searcher=f"{__name__}:FirstOnes", documents=1)
    assert (
        isinstance(family.open_searcher(), FirstOnes)
        and family.open_searcher() is family.open_searcher()
    )
    assert (
        family.open().corpus.documents[0].title
        in family.search_tool().call({"query": "anything"}).text
    )
    for name, said in (
        ("nowhere:Finds", "there is no module 'nowhere'"),
        (f"{__name__}:size_of", "has no search"),
    ):
        with pytest.raises(ConfigError, match=said):
            replace(FAMILY, searcher=name).open_searcher()
    with pytest.raises(ConfigError, match="module:name of your own"):
        replace(FAMILY, searcher="bm52")


def test_a_server_is_searched_from_a_worker_process():
    from tests.retrieval.test_remote import here

    with here() as server:
        family = replace(
            FAMILY, searcher=server.url, corpus="", calls=CallSettings(deadline_s=20.0)
        )
        assert family.remote and not replace(family, context="closed").remote
        env = family.make()
        env.reset(tasks(family, "train", 1)[0], 0)
        step = env.step(env.search("who built the mill?"))
        assert (
            step.observation.messages[0].text.startswith("Halcyon mill: ")
            and step.info["documents"][0] == "309"
        )
        server.shutdown()
        server.server_close()
        step = env.step(
            env.search("who built the mill?")
        )  # it is gone: words for the agent, no crash
        assert step.info["calls"] == [{"name": "search", "error": "raised"}]
        assert "is it running" in step.observation.messages[0].text
        env.close()


def test_a_question_of_a_person_has_no_gold():
    task = FAMILY.question_task("Who built the mill?")
    env = FAMILY.make()
    env.reset(task, 0)
    step = env.step(env.format.write_answer("Bram"))
    assert step.terminated and step.reward is None and "success" not in step.info
    assert split_of(FAMILY, task) not in ("train", "held-out")
    env.close()


def test_baselines_play_in_good_form_and_the_oracle_knows():
    held_out = tasks(FAMILY, "held-out", 3)
    random, oracle = evaluate_baselines(held_out, family=FAMILY, seed=0, attempts=20)
    assert (oracle.success, oracle.turns) == (
        1.0,
        3.0,
    ) and FAMILY.solver_name == "oracle (is told the answer)"
    _, few = evaluate_baselines(held_out, family=replace(FAMILY, turns=2), seed=0)
    assert (few.success, few.turns) == (1.0, 2.0)
    assert random.success < 0.5
    env = FAMILY.make()
    env.reset(held_out[0], 0)
    assert all(
        env.step(FAMILY.random_action(env, np.random.default_rng(s))).info["valid_format"]
        for s in range(1)
    )
    env.close()


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "squad"}, "env.format is one of"),
        ({"context": "open"}, "env.context is one of"),
        ({"searcher": "google"}, "'bm25', 'dense', an URL"),
        ({"searcher": "http://"}, "http://HOST:PORT"),
        ({"searcher": "dense"}, "env.encoder"),
        ({"encoder": "a:b"}, "go with env.searcher = 'dense'"),
        ({"index": "a"}, "go with env.searcher = 'dense'"),
        ({"beside": "a"}, "hotpotqa has none"),
        ({"corpus": ""}, "env.corpus is empty"),
        ({"documents": 0}, "env.documents is at least 1"),
        ({"tools": ()}, "env.tools is empty"),
        (
            {"searcher": "http://a", "corpus": "", "context": "gold"},
            "which documents support an answer",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        FileQA(**settings)


def test_files_that_are_missing_or_of_no_use_are_named_when_they_are_opened(tmp_path):
    with pytest.raises(ConfigError, match="env.questions names no file"):
        FileQA().check_files()
    for name, path in (("questions", "a.json"), ("heldout", "b.json"), ("corpus", "c.jsonl")):
        with pytest.raises(ConfigError, match=f"env.{name}: there is no file '{path}'"):
            replace(FAMILY, **{name: path}).check_files()
    FAMILY.check_files()
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "asked.jsonl").write_text('{"question": "Who?", "answers": []}')
    with pytest.raises(ConfigError, match="empty.json holds no questions"):
        FileQA(questions=str(tmp_path / "empty.json")).task(0)
    with pytest.raises(ConfigError, match="no question of .*asked.jsonl has a known answer"):
        FileQA(questions=str(tmp_path / "asked.jsonl"), format="jsonl", corpus=BEIR).task(0)
    with pytest.raises(ConfigError, match="come without paragraphs"):
        FileQA(questions=str(FILES / "questions.jsonl"), format="jsonl").task(0)
    with pytest.raises(
        DataError, match="record 1.*'context'.*it is missing .there are: id, paragraphs"
    ):
        FileQA(questions=str(FILES / "musique_full_v1.0_dev.jsonl")).open()


def test_what_has_no_effect_in_a_context_is_refused():
    from workbench.training.config import load_config

    for key, value, context in (
        ("searcher", "http://a", "closed"),
        ("searcher", "http://a", "gold"),
        ("most_chars", 9, "closed"),
    ):
        settings = {"env.kind": "file_qa", "env.context": context, f"env.{key}": value}
        with pytest.raises(ConfigError, match=f"env.{key} has no effect"):
            load_config("frozenlake", settings)
        assert load_config("frozenlake", settings | {"env.context": "search"})
