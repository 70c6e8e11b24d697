"""Dumps of NeMo Gym, agentcore-rl-toolkit and Inspect: faults are named, clean files are clean, hostile ones do no harm."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from tests.imported.planted import FILES
from tests.imported.planted_dumps import (
    FAULTS,
    FORKS,
    GYM,
    GYM_TEXT,
    LOG,
    LOG_JSON,
    TREES,
    content_of,
    holders,
    put,
)
from tests.imported.test_reading import JSON, places
from workbench.extensions.interop.importers import json_pieces, looks_like_rollouts, read_rollouts
from workbench.extensions.interop.raw import RAW_CHECKS
from workbench.linting import Evidence, check
from workbench.linting.table import all_rules
from workbench.values.errors import DataError

SPEAKS = {
    GYM: "R1 R3 R4 R5 R7 R8 R12 R16 R22 R28 R37",
    GYM_TEXT: "R7 R8 R16 R28 R37",
    TREES: "R3 R4 R5 R7 R8 R12 R16 R22 R37",
    FORKS: "R1 R3 R4 R5 R7 R8 R12 R16 R22 R37",
    LOG: "R1 R7 R8 R16 R28 R37",
    LOG_JSON: "R1 R7 R8 R16 R28 R37",
}


def report_of(path):
    return check(
        Evidence(raw=read_rollouts(path).sequences), list(all_rules().values()), RAW_CHECKS
    )


@pytest.mark.parametrize("file", SPEAKS)
def test_clean_dumps_give_no_error_and_pass_only_what_they_tell(file):
    report = wb.lint(FILES / file).report
    assert report.named == ()
    assert " ".join(answer.rule for answer in report if answer.looked) == SPEAKS[file]
    assert all(answer.missing for answer in report if not answer.looked)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.name}")
def test_a_planted_fault_is_named_by_its_rule(fault, tmp_path):
    content = content_of(fault.file)
    fault.plant(content)
    report = report_of(put(content, fault.file, tmp_path))
    findings = [f for f in report[fault.rule].findings if f.severity == fault.severity]
    assert any(fault.words in finding.what for finding in findings), report.text
    must = {fault.rule} if fault.severity == "error" else set()
    assert must <= set(report.named) <= must | set(fault.also)


@pytest.mark.parametrize("file", (GYM, TREES, LOG))
def test_writing_again_plants_nothing(file, tmp_path):
    assert report_of(put(content_of(file), file, tmp_path)).named == ()


@pytest.mark.parametrize(
    ("file", "framework", "sequences", "groups"),
    [
        (GYM, "NeMo Gym (rollouts)", 14, [3, 3]),
        (GYM_TEXT, "NeMo Gym (rollouts)", 6, []),
        (TREES, "agentcore-rl-toolkit (rollouts)", 6, [3, 3]),
        (FORKS, "agentcore-rl-toolkit (rollouts)", 11, [1]),
        (LOG, "Inspect (logs)", 6, []),
        (LOG_JSON, "Inspect (logs)", 2, []),
    ],
)
def test_whose_dump_it_is_and_what_is_whole(file, framework, sequences, groups):
    assert looks_like_rollouts(FILES / file)
    dump = read_rollouts(FILES / file)
    assert (dump.framework, len(dump.sequences)) == (framework, sequences)
    assert [len(group) for group in dump.groups] == groups and dump.skipped == 0


def test_the_same_was_recorded_in_all_of_them():
    ends = []
    for file in (GYM, TREES):
        last = {s.attempt: s for s in read_rollouts(FILES / file).sequences}
        ends.append([[*s.prompt_ids.tolist(), *s.completion_ids.tolist()] for s in last.values()])
    assert ends[0] == ends[1]
    rewards = [1.0, 1.0, 0.0, -0.2, 1.0, 0.8]
    for file in (GYM, TREES):
        dump = read_rollouts(FILES / file)
        assert list({s.attempt: s.reward for s in dump.sequences}.values()) == rewards
    log = {s.identity: s.reward for s in read_rollouts(FILES / LOG).sequences}
    assert log["sample lake 1, epoch 3"] == 0.8 and sorted(log.values()) == sorted(rewards)


# ------------------------------------------------------------------------------------------------ newer rows of NeMo Gym


def with_calls(row, sizes):
    """A row as versions from 0.6 on have it, made from their field names: they need a newer Python than this project's."""
    calls = [
        {"model_call_id": f"c{k}", "token_stats": {"completion_tokens": size}}
        for k, size in enumerate(sizes)
    ]
    row["ng_trajectory"] = {"schema_version": "1.0", "model_calls": calls}
    return row


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [(0, None, None), (1, "R3", "error"), (None, "R37", "note")],
)
def test_turns_are_compared_with_captured_calls(change, rule, severity, tmp_path):
    rows = content_of(GYM)
    sizes = [len(item["generation_token_ids"]) for item in holders(rows[1])]
    with_calls(rows[1], [size + (change or 0) for size in sizes] + ([7] if change is None else []))
    report = report_of(put(rows, GYM, tmp_path))
    noted = {(a.rule, f.severity) for a in report for f in a.findings}
    assert noted == ({(rule, severity)} if rule else set())


def test_a_row_that_is_masked_is_no_fault(tmp_path):
    rows = content_of(GYM)
    rows[0] |= {"mask_sample": True, "_ng_token_capture": {"error": "nothing recorded"}}
    dump = read_rollouts(put(rows, GYM, tmp_path))
    assert dump.sequences[0].failed == "mask_sample: nothing recorded"
    assert not dump.sequences[0].mask.any() and wb.lint(dump).named == ()


# ------------------------------------------------------------------------------------------------ damage, hostility


@pytest.mark.parametrize("file", (TREES, LOG, LOG_JSON))
def test_a_dump_that_was_cut_off_says_so(file, tmp_path):
    path = tmp_path / file
    path.write_bytes((FILES / file).read_bytes()[:-3000])
    dump = read_rollouts(path)
    assert dump.skipped >= 1 and "cut off" in dump.damaged[-1]


def test_a_damaged_sample_is_named_and_the_others_are_read(tmp_path):
    path = put(content_of(LOG), LOG, tmp_path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("samples/bad.json", '{"id": 1, "mess')
        file.writestr("samples/none.json", "[1, 2]")
    dump = read_rollouts(path)
    assert len(dump.sequences) == 6 and dump.skipped == 2 and "samples/bad.json" in dump.damaged[0]


def test_a_member_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    from workbench.extensions.interop.importers import zips

    path = put(content_of(LOG), LOG, tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("samples/bomb.json", b" " * (zips.LONGEST_LINE + 1))
    dump = read_rollouts(path)
    assert len(dump.sequences) == 6 and "longer than 64 MiB" in dump.damaged[0]
    monkeypatch.setattr(zips, "MOST_ENTRIES", 3)
    with pytest.raises(DataError):
        with zips.opened(path):
            pass


def test_a_packed_member_that_was_changed_is_refused(tmp_path):
    data = bytearray((FILES / LOG).read_bytes())
    with zipfile.ZipFile(FILES / LOG) as file:
        place = next(i for i in file.infolist() if i.filename.startswith("samples/")).header_offset
    data[place + 200] ^= 0xFF
    (tmp_path / "log.eval").write_bytes(data)
    dump = read_rollouts(tmp_path / "log.eval")
    assert dump.skipped == 1 and len(dump.sequences) == 5 and "unpacked" in dump.damaged[0]


@pytest.mark.parametrize("size", (1, 7, 1 << 16))
def test_pieces_are_the_same_however_little_is_read_at_a_time(size, monkeypatch):
    monkeypatch.setattr(json_pieces, "CHUNK", size)
    value = {"a": [1, {"b": 'x"]}\\', "c": [None, True]}, "é"], "d": -1.5e3}
    for indent in (None, 2):
        stream = io.BytesIO(json.dumps(value, indent=indent).encode())
        pieces = dict(json_pieces.pieces(stream, lambda path: path in ((), ("a",))))
        assert {path: json.loads(data) for path, data in pieces.items()} == {
            ("a", 0): 1,
            ("a", 1): value["a"][1],
            ("a", 2): "é",
            ("d",): -1500.0,
        }


def test_a_value_without_an_end_is_not_read_to_its_end():
    stream = io.BytesIO(b'[["' + b"x" * 300_000)
    with pytest.raises(DataError, match="longer than"):
        list(json_pieces.pieces(stream, lambda path: len(path) < 2, longest=1000))


@pytest.mark.parametrize("text", ("[[1 2]]", '{"a" 1}', "[[}", "{1: 2}", "", "["))
def test_what_is_no_json_is_refused(text):
    with pytest.raises(DataError):
        list(json_pieces.pieces(io.BytesIO(text.encode()), lambda path: True))


@settings(deadline=None, max_examples=25)
@given(file=st.sampled_from((GYM, TREES, LOG_JSON)), data=st.data())
def test_whatever_stands_in_a_row_it_is_read_or_named(file, data, tmp_path_factory):
    content = content_of(file)
    rows = content["samples"] if file == LOG_JSON else content
    row = rows[0][0] if file == TREES else rows[0]
    holder, key = data.draw(st.sampled_from(list(places(row))))
    holder[key] = data.draw(JSON)
    dump = read_rollouts(put(content, file, tmp_path_factory.mktemp("any")))
    assert len(dump.trajectories) + dump.skipped == (2 if file == LOG_JSON else 6)


def test_foreign_text_acts_nowhere(tmp_path):
    bad = "\x1b[31m<script>alert(1)</script>\u202e"
    rows = content_of(GYM)
    rows[0] |= {"_ng_task_index": bad, "_ng_failure_class": bad, "agent_ref": {"name": bad}}
    rows[1]["response"]["output"][3]["call_id"] = bad
    groups = content_of(TREES)
    groups[0][0] |= {"rollout_id": bad, "error": bad}
    samples = content_of(LOG)
    samples[0] |= {
        "id": bad,
        "input": bad,
        "scores": {bad: {"value": 1}},
        "error": {"message": bad},
    }
    for content, file in ((rows, GYM), (groups, TREES), (samples, LOG)):
        path = put(content, file, tmp_path)
        view, linted = wb.show(wb.read_rollouts(path)), wb.lint(path)
        for text in (view.text, view.html, linted.text, linted.view().html):
            assert "\x1b" not in text and "\u202e" not in text
        assert "<script>" not in view.html + linted.view().html


def test_a_pickle_is_refused_in_words(tmp_path):
    """verl's saved batches: reading one would run what it holds."""
    import pickle

    (tmp_path / "gen_batch.dp").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(DataError, match="pickle.*runs whatever it holds"):
        read_rollouts(tmp_path / "gen_batch.dp")
    with zipfile.ZipFile(tmp_path / "tq_batch.pt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    with pytest.raises(DataError, match="pickle.*runs whatever it holds"):
        read_rollouts(tmp_path / "tq_batch.pt")
