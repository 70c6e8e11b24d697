"""What is read from each writer's file, and that nothing is lost silently when a file is damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.imported.planted import (
    FILES,
    RESULTS,
    TABLE,
    TRACES,
    rows_of,
    turn_is_tokenized_again,
    write,
)
from workbench.extensions.interop.importers import looks_like_rollouts, read_rollouts, reading
from workbench.values import Source
from workbench.values.errors import DataError

WITH_IDS = (RESULTS, TRACES, TABLE, "verl_generations_v0_with_ids.jsonl")


def whole(sequence) -> tuple[list[int], list[int]]:
    """All ids, and those that are trained."""
    ids = np.concatenate([sequence.prompt_ids, sequence.completion_ids])
    return ids.tolist(), sequence.completion_ids[sequence.trained].tolist()


def trajectories_in(file: str) -> list[tuple[list[int], list[int], list[float]]]:
    """Per trajectory: the last sequence's ids, all trained ids, their logprobs as verifiers' traces round them."""
    found = read_rollouts(FILES / file)
    trajectories = []
    for name in found.trajectories:
        turns = [s for s in found.sequences if s.attempt == name]
        trajectories.append(
            (
                whole(turns[-1])[0],
                [token for turn in turns for token in whole(turn)[1]],
                [round(float(v), 4) for turn in turns for v in turn.logprobs[turn.trained]],
            )
        )
    return trajectories


@pytest.mark.parametrize("file", WITH_IDS[1:])
def test_all_writers_were_given_the_same_trajectories_and_all_readers_get_them_back(file):
    for (ids, trained, logprobs), (same_ids, same_trained, same_logprobs) in zip(
        trajectories_in(file), trajectories_in(WITH_IDS[0]), strict=True
    ):
        assert (ids, trained) == (same_ids, same_trained) and logprobs == pytest.approx(
            same_logprobs, abs=1.1e-4
        )


@pytest.mark.parametrize(
    ("file", "framework", "version", "sequences"),
    [
        (RESULTS, "verifiers (results)", "0.1.14", 14),
        ("verifiers_results", "verifiers (results)", "0.1.14", 14),
        (TRACES, "verifiers (traces)", "0.4.0", 6),
        (TABLE, "TRL (completion tables)", None, 6),
        ("verl_generations.jsonl", "verl (generations)", None, 6),
    ],
)
def test_whose_file_it_is_and_of_which_version(file, framework, version, sequences):
    assert looks_like_rollouts(FILES / file)
    found = read_rollouts(FILES / file)
    assert (found.framework, found.version, len(found.sequences)) == (framework, version, sequences)
    assert found.skipped == found.left_out == 0


@pytest.mark.parametrize("file", WITH_IDS)
def test_whole_trajectories_are_our_own_types_and_train_exactly_what_was_sampled(file):
    found = read_rollouts(FILES / file)
    assert [len(group) for group in found.groups] == [3, 3]
    trained = [token for _, tokens, _ in trajectories_in(file) for token in tokens]
    spans = [span for group in found.groups for t in group for span in t.segments[0].spans]
    assert [i for span in spans if span.sampled for i in span.token_ids.tolist()] == trained
    assert {span.source for span in spans} == {Source.PROMPT, Source.POLICY, Source.ENV}
    assert [t.reward for group in found.groups for t in group] == pytest.approx(
        [1.0, 1.0, 0.0, -0.2, 1.0, 0.8]
    )


def test_a_trajectory_that_is_not_whole_is_no_trajectory_but_stays_a_sequence(tmp_path):
    rows = rows_of(RESULTS)
    rows[0]["trajectory"][0]["tokens"]["completion_mask"].append(1)
    rows[1]["trajectory"][1]["tokens"]["prompt_ids"][5] += 1
    found = read_rollouts(write(rows, tmp_path / "results.jsonl"))
    assert [len(group) for group in found.groups] == [1, 3] and len(found.trajectories) == 6


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("verifiers_results_text", "state_columns=['trajectory']"),
        ("verifiers_traces_text.jsonl", "train client"),
        ("trl_completions.parquet", "log_extra('completion_ids', completion_ids)"),
        ("verl_generations.jsonl", "decoded without special tokens"),
    ],
)
def test_texts_alone_are_read_and_what_is_missing_is_said(file, words):
    found = read_rollouts(FILES / file)
    assert found.groups == () and all(
        s.completion_ids is None and s.completion_text for s in found.sequences
    )
    said = next(line for line in found.missing if line.startswith("token ids"))
    assert (
        words in said
        and "R1, R3, R4, R5, R12 and R22 cannot be checked" in said
        and said in found.about
    )


def test_a_row_of_a_token_export_of_prime_rl(tmp_path):
    """Made from the field names of its exporter: prime-rl is in no registry, so its own writer could not run."""
    row = {
        "schema_version": 1,
        "step": 3,
        "export_step": 3,
        "rank": 0,
        "run_id": None,
        "env_name": "lake",
        "token_ids": [5, 6, 7, 8, 9],
        "position_ids": [0, 1, 2, 3, 4],
        "loss_mask": [False, False, True, False, True],
        "advantages": [0.0, 0.0, 0.5, 0.0, 0.5],
        "rewards": [1.0] * 5,
        "inference_logprobs": [0.0, 0.0, -0.25, 0.0, -1.5],
        "trainer_logprobs": [None] * 5,
    }
    found = read_rollouts(write([row], tmp_path / "rank_0.jsonl"))
    (sequence,) = found.sequences
    assert found.framework == "prime-rl (token exports)" and "R7" in found.missing[0]
    assert sequence.prompt_ids.tolist() == [5, 6] and sequence.completion_ids.tolist() == [7, 8, 9]
    assert sequence.trained.tolist() == [True, False, True] and sequence.logprobs.tolist() == [
        -0.25,
        0.0,
        -1.5,
    ]
    assert sequence.reward == 1.0 and sequence.advantages.tolist() == [0.5, 0.0, 0.5]


def test_a_trace_that_forks_is_one_sequence_a_path(tmp_path):
    rows = rows_of(TRACES)[1:2]
    nodes = rows[0]["traces"][0]["nodes"]
    nodes.append({**nodes[-1], "token_ids": [*nodes[-1]["token_ids"]]})
    found = read_rollouts(write(rows, tmp_path / "traces.jsonl"))
    assert [(s.number, s.fork) for s in found.sequences] == [
        (0, None),
        (1, True),
    ] and found.groups == ()
    assert found.sequences[0].completion_ids.tolist() == found.sequences[1].completion_ids.tolist()


def test_messages_that_were_rewritten_are_a_fork_other_tokens_for_the_same_are_not(tmp_path):
    rows = rows_of(RESULTS)[1:2]
    turn_is_tokenized_again(rows)
    assert [s.fork for s in read_rollouts(write(rows, tmp_path / "a.jsonl")).sequences] == [
        None,
        None,
        None,
    ]
    rows[0]["trajectory"][2]["prompt"][1]["content"] = "a summary"
    assert [s.fork for s in read_rollouts(write(rows, tmp_path / "b.jsonl")).sequences] == [
        None,
        None,
        True,
    ]


# ------------------------------------------------------------------------------------------------ damage


BROKEN = {
    b'{"example_id": 1, "completion": ': "not JSON",
    b"[1, 2]": "expected an object",
    b"\xff\xfe{}": "not UTF-8",
    b"[" * 100_000: "not JSON|nested too deep",
    b'{"step": 1}': "not a row of",
    b'{"example_id": 1, "completion": 0, "reward": "high"}': "reward is 'high'",
    b'{"example_id": 1, "completion": 0, "reward": 1, "trajectory": [{"tokens": {"prompt_ids": [1.5]}}]}': "which is no token id",
    b'{"example_id": 1, "completion": 0, "reward": 1, "trajectory": [{"tokens": {"prompt_ids": [9999999999]}}]}': "which is no token id",
    b'{"example_id": 1, "completion": 0, "reward": 1, "trajectory": 7}': "expected a list",
}


@pytest.mark.parametrize("line", BROKEN, ids=[words.split("|")[0] for words in BROKEN.values()])
def test_a_damaged_line_is_named_by_its_number_and_skipped(line, tmp_path):
    good = (FILES / RESULTS).read_bytes().splitlines(keepends=True)
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(good[:2]) + line + b"\n\n" + b"".join(good[2:]))
    found = read_rollouts(path)
    assert (
        found.skipped == 1
        and len(found.trajectories) == 6
        and found.damaged[0].startswith("line 3: ")
    )
    assert any(words in found.damaged[0] for words in BROKEN[line].split("|"))
    assert found.damaged[0] in found.about


def test_a_file_that_was_cut_off_loses_its_last_line_and_says_so(tmp_path):
    whole_file = (FILES / RESULTS).read_bytes()
    (tmp_path / "results.jsonl").write_bytes(whole_file[:-40])
    found = read_rollouts(tmp_path / "results.jsonl")
    assert len(found.trajectories) == 5 and found.skipped == 1
    assert "cut off" in found.damaged[0] and "line 6" in found.damaged[0]


def test_a_table_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "t.parquet").write_bytes((FILES / TABLE).read_bytes()[:-100])
    with pytest.raises(DataError, match="holds no rollouts that can be read"):
        read_rollouts(tmp_path / "t.parquet")


def test_many_damaged_lines_are_all_counted(tmp_path):
    (tmp_path / "results.jsonl").write_bytes((FILES / RESULTS).read_bytes() + b"nonsense\n" * 100)
    found = read_rollouts(tmp_path / "results.jsonl")
    assert found.skipped == 100 and len(found.damaged) == 12 and "and 88 more" in found.about


def test_no_more_than_the_limit_is_kept_and_the_rest_is_counted():
    found = read_rollouts(FILES / RESULTS, max_tokens=300)
    assert (
        0 < len(found.trajectories) < 6
        and len(found.trajectories) + found.left_out == 6
        and "NOT READ" in found.about
    )


def test_a_line_is_never_longer_in_memory_than_the_limit(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * 5000 + b'"}\n{"c": 3}\n')
    found = list(reading.lines_of(path, longest=1000))
    assert [(line.number, line.row) for line in found] == [(1, {"a": 1}), (2, None), (3, {"c": 3})]
    assert "longer than" in found[1].damage


def test_what_is_none_of_them_is_refused_in_words(tmp_path):
    with pytest.raises(DataError, match="there is no"):
        read_rollouts(tmp_path / "missing.jsonl")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    assert not looks_like_rollouts(tmp_path) and not looks_like_rollouts(tmp_path / "missing")
    with pytest.raises(DataError, match="verifiers .traces.*told by their content"):
        read_rollouts(tmp_path)
    with pytest.raises(DataError, match="several kinds"):
        read_rollouts(FILES)


def test_files_of_a_folder_are_read_in_the_order_of_their_numbers(tmp_path):
    rows = rows_of("verl_generations.jsonl")
    for step in (10, 9):
        write([{**row, "step": step} for row in rows], tmp_path / f"{step}.jsonl")
    found = read_rollouts(tmp_path)
    assert len(found.sequences) == 12 and found.trajectories[0] == "step 9, 9.jsonl line 1"


def test_a_file_beside_them_of_which_nothing_can_be_read_is_named(tmp_path):
    write(rows_of("verl_generations.jsonl"), tmp_path / "1.jsonl")
    (tmp_path / "2.jsonl").write_bytes(b"\x00" * 50)
    (tmp_path / "3.parquet").write_bytes((FILES / TABLE).read_bytes()[:-100])
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    found = read_rollouts(tmp_path)
    assert len(found.sequences) == 6 and found.skipped == 2
    assert [words.split(":")[0] for words in found.damaged] == ["2.jsonl", "3.parquet"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def places(value):
    """(container, key) of everything in a JSON value; of long lists of numbers the first alone."""
    objects = isinstance(value, list) and value and isinstance(value[0], dict)
    keys = list(value) if isinstance(value, dict) else range(len(value) if objects else 1)
    for key in keys if value else ():
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


@given(
    file=st.sampled_from((RESULTS, TRACES, "verl_generations_v0_with_ids.jsonl")), data=st.data()
)
def test_whatever_stands_in_a_row_it_is_read_or_named(file, data, tmp_path_factory):
    """Any value in the place of any other: either the row is read or its line is named; never another exception."""
    rows = rows_of(file)
    holder, key = data.draw(st.sampled_from(list(places(rows[0]))))
    holder[key] = data.draw(JSON)
    path = write(rows, tmp_path_factory.mktemp("any") / "rows.jsonl")
    found = read_rollouts(path)
    assert len(found.trajectories) + found.skipped == len(rows)


def test_reading_needs_neither_torch_nor_transformers():
    code = (
        "import sys\nfor name in ('torch', 'transformers', 'pandas'): sys.modules[name] = None\n"
        "from workbench.extensions.interop.importers import read_rollouts\nfrom workbench.extensions.interop.view import imported_view\n"
        f"print(len([imported_view(read_rollouts(path)).text for path in {[str(FILES / f) for f in WITH_IDS]}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "4", done.stderr


def test_a_json_list_as_text_is_a_list_of_ids():
    row = rows_of("verl_generations_v0_with_ids.jsonl")[0]
    assert isinstance(row["response_ids"], str) and isinstance(
        json.loads(row["response_ids"]), list
    )


def test_a_table_without_a_mask_gets_none():
    """What a tool wrote may stand in these ids, so nobody can say that all of them are trained."""
    from workbench.extensions.interop.importers import trl_tables

    row = {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.5, "completion_ids": [7, 8]}
    sequences = trl_tables.sequences_of(row, "row 0")
    assert sequences[0].mask is None and trl_tables.NO_MASK in trl_tables.missing(sequences, [row])
    told = trl_tables.sequences_of(row | {"completion_mask": [1, 0]}, "row 0")
    assert told[0].mask.tolist() == [1, 0] and trl_tables.NO_MASK not in trl_tables.missing(
        told, [row]
    )
