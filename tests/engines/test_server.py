"""A vLLM server that misbehaves, is gone, or is somebody else's: named, never sampled from. On a stand-in.

What only vLLM's own server can show is in test_server_vllm.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import ask, drain
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import RANK, STALL_S, StandInServer, an_adapter, beside, joined
from vllm_kit import wide

from workbench.engines import LayoutConfig, TransformersEngineConfig, VllmEngineConfig
from workbench.engines.digests import digest, digests, unequal
from workbench.extensions.vllm_server.opening import JUST_MADE_S, OWNER, PREFIX, open_server_engine
from workbench.extensions.vllm_server.process import CONTROL, flags
from workbench.training.config import load_config, to_dict
from workbench.values.errors import ConfigError, EngineError

PROMPT = np.arange(6, 16)


@pytest.fixture
def server():
    server = StandInServer()
    yield server
    server.close()


def sampled(engine, count=6):
    for number in range(count):
        engine.submit(ask(number, f"s{number}", PROMPT[: 3 + number]))
    return {done.request_id: (done.token_ids.tolist(), done.error) for done in drain(engine)}


# ---------------------------------------------------------------------------------------------- digests


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.data())
@settings(max_examples=200, deadline=None)
def test_a_digest_tells_every_bit_and_every_place(values, data):
    tensor = torch.tensor(values)
    bits = tensor.clone().view(torch.int32)
    place = data.draw(st.integers(0, len(values) - 1))
    bits[place] ^= 1 << data.draw(st.integers(0, 30))
    assert digest(tensor) == digest(tensor.clone()) and digest(bits.view(torch.float32)) != digest(
        tensor
    )
    other = data.draw(st.integers(0, len(values) - 1))
    swapped = tensor.clone().view(torch.int32)
    swapped[[place, other]] = swapped[[other, place]]
    same = torch.equal(swapped, tensor.view(torch.int32))
    assert (digest(swapped.view(torch.float32)) == digest(tensor)) == same


def test_a_digest_is_of_type_and_shape_too_and_pieces_do_not_show(monkeypatch):
    zeros = [
        torch.zeros(6),
        torch.zeros(2, 3),
        torch.zeros(6, dtype=torch.bfloat16),
        torch.zeros(6, dtype=torch.int64),
    ]
    assert len({digest(each) for each in zeros}) == 4
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    whole = digest(tensor)
    monkeypatch.setattr("workbench.engines.digests.PIECE", 7)
    assert digest(tensor) == whole == digest(tensor.reshape(10, 100).T.contiguous().T.reshape(1000))


def test_what_did_not_arrive_is_named():
    sent = digests({"a": torch.zeros(2), "b": torch.ones(2)})
    assert unequal(sent, dict(sent)) is None
    assert "1 of 2 tensors are not those that were sent, the first b" in unequal(
        sent, sent | digests({"b": torch.zeros(2)})
    )
    assert "arrived nothing" in unequal(sent, {"a": sent["a"]}) and "sent nothing" in unequal(
        {"a": sent["a"]}, sent
    )


# ---------------------------------------------------------------------------------------------- a sync that goes wrong

BROKEN_SYNCS = {
    "digests": "did not get the weights.*1 of .* tensors are not those that were sent.*so it was not resumed: restart it",
    "refuse update": "/update_weights answered with HTTP status 500: There is no module.*restart it",
    "hang update": "/update_weights: no answer within .* s.*restart it",
    "noise": "vLLM does not sample from the weights it was given",
    "tied head": "output head is stale",
}


@pytest.mark.parametrize("fault", BROKEN_SYNCS)
def test_a_sync_that_goes_wrong_is_named_and_nothing_is_sampled(server, fault):
    engine = joined(server, sync_deadline_s=1.0)
    server.faults.add(fault)
    began = time.monotonic()
    with pytest.raises(EngineError, match=BROKEN_SYNCS[fault]):
        engine.sync(wide(seed=1).state_dict(), 1)
    assert time.monotonic() - began < 20
    assert server.paused == (fault not in ("noise", "tied head")), (
        "it is resumed only where the digests were right"
    )
    assert engine.policy_version == 0
    with pytest.raises(EngineError, match="request 0 refused"):
        engine.submit(ask(0, "s", PROMPT))
    server.faults.clear()
    engine.sync(wide(seed=1).state_dict(), 2)
    assert engine.policy_version == 2 and len(sampled(engine)) == 6


BROKEN_BROADCASTS = {
    "never joins": "the broadcast broke off.*restart it",
    "leaves": "the broadcast broke off.*restart it",
    "stalls": "/update_weights: no answer within .* s.*restart it",
    "swaps": "did not get the weights.*2 of .* tensors are not those that were sent.*restart it",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.full] * (fault != "leaves"))
        for fault in BROKEN_BROADCASTS
    ],
)
def test_a_broadcast_that_goes_wrong_is_named_and_nothing_is_sampled(server, fault):
    if fault == "never joins":
        server.faults.add(fault)
        with pytest.raises(EngineError, match=BROKEN_BROADCASTS[fault]):
            joined(server, transfer="broadcast", sync_deadline_s=1.0)
        return
    engine = joined(server, transfer="broadcast", sync_deadline_s=2 * STALL_S)
    plain, engine._core._transfer._deadline_s = (
        sampled(engine),
        1.0,
    )  # the line itself waits for longer
    server.faults.add(fault)
    began = time.monotonic()
    with pytest.raises(EngineError, match=BROKEN_BROADCASTS[fault]):
        engine.sync(wide(seed=1).state_dict(), 1)
    assert time.monotonic() - began < STALL_S and server.paused
    with pytest.raises(EngineError, match="request 0 refused"):
        engine.submit(ask(0, "s", PROMPT))
    server.faults.clear()
    engine.sync(wide(seed=1).state_dict(), 2)
    assert sampled(engine) != plain and server.joined == 1 + (fault != "swaps"), (
        "a line that broke is made anew"
    )


def test_a_broadcast_brings_what_files_bring(server, tmp_path):
    engine = joined(server, transfer="broadcast")
    filed = joined(other := StandInServer(), folder=str(tmp_path))
    for version in (1, 2):
        for each in (engine, filed):
            each.sync(wide(seed=version).state_dict(), version)
        assert sampled(engine) == sampled(filed)
    assert server.arrived == other.arrived and server.joined == 1
    filed.close()
    other.close()


def test_a_prefix_cache_that_is_not_dropped_cannot_be_hit(server):
    """Every request is salted by version; a server that ignores that, too, is named."""
    engine = joined(server)
    server.faults.add("forget_prefixes")
    engine.sync(wide(seed=1).state_dict(), 1)
    server.faults.add("salt")
    sampled(engine)
    with pytest.raises(EngineError, match="prefix cache is stale"):
        engine.sync(wide(seed=2).state_dict(), 2)
        engine.sync(wide(seed=3).state_dict(), 3)


def test_weights_that_find_no_room_are_refused_before_the_server_is_touched(server, monkeypatch):
    engine = joined(server)

    def full(tensors, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workbench.extensions.vllm_server.ways.save_file", full)
    with pytest.raises(
        EngineError, match="version 1 do not fit into .*No space left.*layout.folder"
    ):
        engine.sync(wide(seed=1).state_dict(), 1)
    assert not server.paused


# ---------------------------------------------------------------------------------------------- adapters alone

BROKEN_ADAPTERS = {
    "knows no layer": "did not get the weights.*42 of 42 tensors are not those that were sent.*arrived nothing",
    "older adapter": "did not get the weights.*42 of 42 tensors are not those that were sent.*restart it",
    "base answers": "vLLM does not sample from the weights it was given",
}


@pytest.mark.parametrize("fault", BROKEN_ADAPTERS)
def test_an_adapter_that_is_not_delivered_is_named_and_nothing_is_sampled(server, fault):
    engine = joined(server, rank=RANK)
    engine.sync_adapter(*an_adapter(1), 1)
    server.faults.add(fault)
    with pytest.raises(EngineError, match=BROKEN_ADAPTERS[fault]):
        engine.sync_adapter(*an_adapter(2), 2)
    assert server.paused == (fault != "base answers") and engine.policy_version == 1
    with pytest.raises(EngineError, match="request 0 refused"):
        engine.submit(ask(0, "s", PROMPT))
    server.faults.clear()
    engine.sync_adapter(*an_adapter(2), 3)
    assert engine.policy_version == 3 and len(sampled(engine)) == 6


def test_an_adapter_alone_says_what_it_says_merged(server, tmp_path):
    """Also after other weights came between: the first ones are brought again, for they are what it is beside."""
    engine, whole = (
        joined(server, rank=RANK, folder=str(tmp_path)),
        joined(other := StandInServer()),
    )
    for version, seed in ((1, 1), (2, 2), (4, 3)):
        if version == 4:
            engine.sync(wide(seed=5).state_dict(), 3)
            assert engine._core._transfer.model == ""
        adapter, merged = an_adapter(seed)
        engine.sync_adapter(adapter, merged, version)
        whole.sync(merged, version)
        assert sampled(engine) == sampled(whole)
        assert len(list(next(tmp_path.iterdir()).glob("*/adapter_model.safetensors"))) == 1, (
            "older ones are gone"
        )
    plain = dict(wide().state_dict())
    torch.testing.assert_close(
        dict(beside(wide(), adapter).state_dict()), plain | merged, atol=1e-5, rtol=1e-5
    )
    assert (
        wide().model.layers[0].mlp.up_proj.weight - merged["model.layers.0.mlp.up_proj.weight"]
    ).abs().max() > 0.1
    whole.close()
    other.close()


@pytest.mark.parametrize(
    "fault, rank, words",
    [
        (
            "no adapters",
            RANK,
            "without --enable-lora.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 1 --max-lora-rank 8",
        ),
        (
            "no routes",
            RANK,
            "without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.*or set layout.adapters = 'merged'",
        ),
        ("", 9, "holds adapters of rank 8 at most.*adapters of rank 9.*--max-lora-rank 16"),
    ],
)
def test_a_server_that_takes_no_such_adapter_is_refused_when_it_is_joined(
    server, fault, rank, words
):
    server.faults.add(fault)
    with pytest.raises(EngineError, match=words):
        joined(server, rank=rank)
    joined(server).close()


def test_an_adapter_that_finds_no_room_is_refused_before_the_server_is_touched(server, monkeypatch):
    engine = joined(server, rank=RANK)

    def full(tensors, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workbench.extensions.vllm_server.adapters.save_file", full)
    with pytest.raises(EngineError, match=":1 does not fit into .*No space left.*layout.folder"):
        engine.sync_adapter(*an_adapter(1), 1)
    assert not server.paused


# ---------------------------------------------------------------------------------------------- turns that go wrong


@pytest.mark.parametrize("fault", ["half", "busy", "dead core", "hang turn"])
def test_a_turn_that_broke_off_is_asked_again_and_is_the_same(server, fault):
    engine = joined(server, answer_deadline_s=1.0)
    plain = sampled(engine)
    asked = len(server.asked)
    server.faults.add(fault)
    assert sampled(engine) == plain and all(error is None for _, error in plain.values())
    assert len(server.asked) == asked + 7 and len(set(server.asked)) == len(server.asked)


@pytest.mark.parametrize("fault", ["half", "busy", "dead core", "hang turn"])
def test_without_seeds_a_turn_that_broke_off_is_another_one_and_one_that_was_too_long_is_not_drawn_again(
    server, fault
):
    engine = joined(server, seeded=False, answer_deadline_s=1.0)
    server.faults.add(fault)
    found = sampled(engine)
    if fault == "hang turn":  # drawn again, it might be shorter: that would choose among turns
        assert all(
            "not over after 1 s" in error and "asked 1 times" in error
            for _, error in found.values()
            if error
        )
        assert any(error for _, error in found.values())
    else:
        assert (
            all(ids and error is None for ids, error in found.values()) and sampled(engine) != found
        )


def test_an_answer_that_comes_late_is_not_taken_for_another_requests(server):
    """Request ids begin anew with each rollout; what was dropped may have been answered already."""
    engine = joined(server)
    engine.submit(ask(0, "old", PROMPT[:3]))
    wait_until(lambda: not engine._core._client._came.empty())
    engine.release("old")
    engine.submit(ask(0, "new", PROMPT[:5], seed=77))
    (done,) = drain(engine)
    again = joined(StandInServer())
    again.submit(ask(0, "new", PROMPT[:5], seed=77))
    assert done.token_ids.tolist() == drain(again)[0].token_ids.tolist()


def test_tokens_of_other_weights_are_an_error_of_their_turn(server):
    engine = joined(server)
    server.faults.add("stranger")
    found = sampled(engine)
    assert all(
        not tokens and "were sampled from the weights 'somebody:3'" in error
        for tokens, error in found.values()
    )


def test_an_answer_that_is_none_ends_its_turn(server):
    engine = joined(server)
    server.faults.add("no such answer")
    assert all(
        "the server's answer is none of its kind (IndexError" in error
        for _, error in sampled(engine).values()
    )


def test_two_runs_on_one_server_are_told(server):
    first = joined(server)
    joined(server)
    assert all("does another run use this server?" in error for _, error in sampled(first).values())
    with pytest.raises(
        EngineError, match="another run uses the same server. Give each run a server of its own"
    ):
        first.sync(wide(seed=1).state_dict(), 1)


def test_a_server_that_is_gone_is_named_to_all_who_wait(server):
    engine = joined(server)
    server.faults.add("gone")
    found = sampled(engine)
    assert len(found) == 6 and not any(tokens for tokens, _ in found.values())
    assert all(
        "broke off in the middle of its answer" in error
        and "started by somebody else: see that it runs, then resume this run" in error
        for _, error in found.values()
    )


def test_a_closed_engine_says_so_and_leaves_nothing(server, tmp_path):
    engine = joined(server, folder=str(tmp_path))
    assert sorted(each.name for each in next(tmp_path.iterdir()).iterdir()) == [
        "0.safetensors",
        OWNER,
    ]
    engine.sync(wide(seed=1).state_dict(), 1)
    assert sorted(each.name for each in next(tmp_path.iterdir()).iterdir()) == [
        "1.safetensors",
        OWNER,
    ]
    engine.close()
    engine.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(EngineError, match="engine was closed"):
        engine.submit(ask(0, "s", PROMPT))


def test_weights_that_a_killed_run_left_are_taken_away_by_the_next_and_those_of_a_living_one_are_not(
    server, tmp_path
):
    living = joined(server, folder=str(tmp_path))
    used = next(tmp_path.iterdir())
    for name in ("killed", "young", "strange"):
        (tmp_path / f"{PREFIX}{name}").mkdir()
    for name in ("killed", "young"):
        (tmp_path / f"{PREFIX}{name}" / OWNER).touch()
    for name in (used.name, f"{PREFIX}killed", f"{PREFIX}strange"):
        os.utime(tmp_path / name, (time.time() - 2 * JUST_MADE_S,) * 2)
    other = StandInServer()
    joined(other, folder=str(tmp_path)).close()
    other.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [used.name, f"{PREFIX}young", f"{PREFIX}strange"]
    )
    living.close()


def test_a_server_that_cannot_be_started_leaves_no_folder(server, tmp_path):
    taken = int(server.url.rpartition(":")[2])
    with pytest.raises(EngineError):  # the port is taken; where vLLM is not installed, that
        open_server_engine(
            wide(),
            VllmEngineConfig(),
            LayoutConfig(kind="one_node", port=taken, folder=str(tmp_path)),
        )
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------- joining


def test_what_is_no_server_of_ours_is_refused_when_it_is_joined(server):
    server.faults.add("no dev mode")
    with pytest.raises(
        EngineError,
        match="is not open .*VLLM_SERVER_DEV_MODE=1 and --enable-scale-out, and .*: docs/guides/vllm.md",
    ):
        joined(server)
    server.faults = {"no json"}
    with pytest.raises(EngineError, match="sent what is no JSON"):
        joined(server)


def test_nobody_there_is_said_with_the_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{found.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"{url} cannot be reached"):
        joined(StandInServerAt(url))


class StandInServerAt:
    def __init__(self, url):
        self.url = url


# ---------------------------------------------------------------------------------------------- settings

SERVED = {"engine.kind": "vllm", "layout.kind": "one_node"}


def test_a_layout_that_cannot_be_is_refused_and_what_cannot_act_is_told():
    with pytest.raises(
        ConfigError, match="engine.kind = 'transformers' lives in the process that trains"
    ):
        load_config("frozenlake", {"layout.kind": "one_node"})
    with pytest.raises(
        ConfigError, match="layout.port has no effect: layout.kind = 'one_device' has no server"
    ):
        load_config("frozenlake", {"layout.port": 8000})
    with pytest.raises(ConfigError, match="layout.devices has no effect: the server at layout.url"):
        load_config(
            "frozenlake", SERVED | {"layout.url": "http://localhost:1", "layout.devices": "1"}
        )
    with pytest.raises(ConfigError, match="begins with http://"):
        load_config("frozenlake", SERVED | {"layout.url": "localhost:8000"})
    with pytest.raises(ConfigError, match="many_nodes.*layout.url.*layout.folder"):
        load_config("frozenlake", SERVED | {"layout.kind": "many_nodes"})
    with pytest.raises(
        ConfigError,
        match="layout.folder has no effect: layout.transfer = 'broadcast' writes no files",
    ):
        load_config(
            "frozenlake", SERVED | {"layout.transfer": "broadcast", "layout.folder": "/weights"}
        )
    assert LayoutConfig(kind="many_nodes", url="http://other:8000", transfer="broadcast").has_server
    with pytest.raises(
        ConfigError, match="layout.folder.*adapters by layout.adapters = 'routes' are files"
    ):
        LayoutConfig(
            kind="many_nodes", url="http://other:8000", transfer="broadcast", adapters="routes"
        )
    alone = SERVED | {"layout.adapters": "routes"}
    with pytest.raises(
        ConfigError,
        match="without learner.lora_rank all weights are trained; set learner.lora_rank",
    ):
        load_config("frozenlake", alone)
    with pytest.raises(ConfigError, match="rank 512 at most, and learner.lora_rank = 513"):
        load_config("frozenlake", alone | {"learner.lora_rank": 513})
    with pytest.raises(
        ConfigError, match="engine.tensor_parallel = 2: each device would hold parts of an adapter"
    ):
        load_config("frozenlake", alone | {"learner.lora_rank": 4, "engine.tensor_parallel": 2})
    with pytest.raises(
        ConfigError, match="layout.adapters has no effect: layout.kind = 'one_device' has no server"
    ):
        load_config("frozenlake", {"layout.adapters": "routes", "learner.lora_rank": 4})
    stored = to_dict(load_config("frozenlake", alone | {"learner.lora_rank": 4}))
    assert stored["layout"]["adapters"] == "routes"
    stored = to_dict(load_config("frozenlake", SERVED))
    assert stored["layout"]["adapters"] == LayoutConfig().adapters
    with pytest.raises(ConfigError, match="one of one_device, one_node, many_nodes"):
        LayoutConfig(kind="ray")
    with pytest.raises(ConfigError, match="tensor_parallel = 2: without a server.*one_node"):
        load_config("frozenlake", {"engine.kind": "vllm", "engine.tensor_parallel": 2})
    with pytest.raises(ConfigError, match="learner.num_processes = 1.*layout.kind = 'one_node'"):
        load_config("frozenlake", {"engine.kind": "vllm", "learner.num_processes": 2})
    assert load_config("frozenlake", SERVED | {"learner.num_processes": 2}).layout.has_server


def test_a_run_is_stored_with_its_layout_whether_or_not_it_has_a_server():
    """Format 2 keeps every setting, so that a later default cannot change what a run was made with."""
    assert to_dict(load_config("frozenlake"))["layout"]["kind"] == "one_device"
    assert to_dict(load_config("frozenlake", SERVED))["layout"]["kind"] == "one_node"
    assert load_config("frozenlake").engine == TransformersEngineConfig()


def test_arguments_become_words_of_a_command():
    words = flags(
        CONTROL | {"max_model_len": 40, "enforce_eager": True, "enable_chunked_prefill": False}
    )
    assert words[-4:] == ["--max-model-len", "40", "--enforce-eager", "--no-enable-chunked-prefill"]
    assert '{"backend": "workbench"}' in words


# ---------------------------------------------------------------------------------------------- the keeper

CHILD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"


def keeper(tmp_path, child=CHILD):
    folder = tmp_path / "weights"
    folder.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "workbench.extensions.vllm_server.keeper",
            str(folder),
            sys.executable,
            "-c",
            child,
        ],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    return process, folder


def members(group: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(each.parent.name))
    return found


def wait_until(true, seconds=15.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "not within its time"
        time.sleep(0.05)


@pytest.mark.parametrize("end", ["closed", "kept", "child killed", "keeper told"])
def test_nothing_of_a_group_outlives_it(tmp_path, end):
    process, folder = keeper(tmp_path)
    wait_until(lambda: len(members(process.pid)) == 3)
    if end == "kept":
        process.stdin.write(b"k")
    if end in ("closed", "kept"):
        process.stdin.close()
    elif end == "child killed":
        child = next(
            pid
            for pid in members(process.pid)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            == str(process.pid)
        )
        os.kill(child, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGTERM)  # to it alone: it stays until its pipe ends
        time.sleep(1)
        assert len(members(process.pid)) == 3
        process.stdin.close()
    process.wait(timeout=15)
    wait_until(lambda: not members(process.pid))
    assert folder.exists() == (end in ("kept", "child killed"))


def test_a_starter_that_is_killed_takes_the_group_along(tmp_path):
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import subprocess, sys, time
keeper = subprocess.Popen([sys.executable, "-m", "workbench.extensions.vllm_server.keeper", {str(tmp_path / "weights")!r}, sys.executable, "-c",
                          {CHILD!r}], stdin=subprocess.PIPE, start_new_session=True)
print(keeper.pid, flush=True)
time.sleep(60)
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    (tmp_path / "weights").mkdir()
    group = int(starter.stdout.readline())
    wait_until(lambda: len(members(group)) == 3)
    starter.kill()
    starter.wait()
    wait_until(lambda: not members(group) and not (tmp_path / "weights").exists())
    starter.stdout.close()


def test_the_config_of_vllm_takes_a_server():
    assert VllmEngineConfig(tensor_parallel=2).tensor_parallel == 2
