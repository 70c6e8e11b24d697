"""What only vLLM's own server can show: weights arrive, a killed one comes back, two learner processes share one.

Skipped with a reason where vLLM is not installed; `make test-vllm` runs them (and insists).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from engine_models import ask, drain, play, prompts, worst_gap
from safetensors.torch import save_file
from server_kit import an_adapter, beside, real_server, routed_server
from test_server import members, wait_until
from vllm_kit import need_vllm, wide

from workbench import cli
from workbench.engines.base import Request
from workbench.extensions.servers.serve_command import KEY
from workbench.extensions.vllm_server.process import _free_port, is_free
from workbench.look.cells.train import train_here
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.training.reopening import reopen
from workbench.values import Message, Observation
from workbench.values.errors import EngineError

GAP = 2e-5  # nats, largest, in float32: measured 4e-6
SHORT = [
    "--set",
    "engine.kind=vllm",
    "--set",
    "engine.cache_tokens=16384",
    "--set",
    "engine.max_context=1000",
    "--set",
    "train.steps=2",
    "--set",
    "train.tasks_per_step=2",
    "--set",
    "evaluation.num_tasks=4",
]


def turns(engine, count=12):
    for number in range(count):
        engine.submit(
            ask(
                number,
                f"s{number}",
                np.arange(6, 9 + number),
                max_new_tokens=20,
                stop_ids=frozenset(),
            )
        )
    return {done.request_id: (done.token_ids.tolist(), done.error) for done in drain(engine)}


def test_after_every_sync_logprobs_are_those_of_a_plain_forward():
    engine = real_server()
    for version in range(3):
        model = wide(seed=version)
        if version:
            engine.sync(model.state_dict(), version)
        assert worst_gap(model, play(engine, prompts(5, high=20), turns=2)) < GAP
        assert engine.stats()["gap_max"] < GAP


def test_a_server_that_was_killed_comes_back_and_its_turns_are_the_same():
    engine = real_server()
    engine.sync(wide(seed=4).state_dict(), 4)
    undisturbed = turns(engine)
    core, group = engine._core, engine._core._process._child.pid
    for number in range(12):
        engine.submit(
            ask(
                number,
                f"s{number}",
                np.arange(6, 9 + number),
                max_new_tokens=20,
                stop_ids=frozenset(),
            )
        )
    for pid in members(group):
        os.kill(pid, signal.SIGKILL)
    found: dict = {}
    ends = time.monotonic() + 120
    while len(found) < 12 and time.monotonic() < ends:
        found |= {done.request_id: (done.token_ids.tolist(), done.error) for done in engine.poll()}
    assert found == undisturbed and core.restarts == 1
    assert not members(group)
    assert worst_gap(wide(seed=4), play(engine, prompts(3, high=20), turns=1)) < GAP


def test_weights_come_by_broadcast_and_one_that_stalls_has_the_server_started_anew(monkeypatch):
    """The worker is stopped in the middle of a broadcast: named within 20 seconds, and what is started anew gets the copy."""
    engine = real_server("broadcast")
    core, way = engine._core, engine._core._transfer._way
    for version in (1, 2):
        engine.sync(wide(seed=version).state_dict(), version)
        assert worst_gap(wide(seed=version), play(engine, prompts(3, high=20), turns=1)) < GAP
    before, line, said, restart = core.restarts, way._line, [], core._restart
    workers = [
        pid
        for pid in members(core._process._child.pid)
        if b"VLLM::Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]

    def stall(tensors):
        held = list(tensors)
        type(line).send(line, held[:3])
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        type(line).send(line, [torch.zeros(1 << 22), *held[4:]])

    def restarted(why):
        said.append((why, time.monotonic()))
        return restart(why)

    monkeypatch.setattr(line, "send", stall)
    monkeypatch.setattr(core, "_restart", restarted)
    began = time.monotonic()
    engine.sync(wide(seed=3).state_dict(), 3)
    assert workers and core.restarts == before + 1 and way._line is not line
    assert (
        "/update_weights: no answer within" in said[0][0] and said[0][1] - began < 25
    )  # 20, and the time to prepare it
    assert worst_gap(wide(seed=3), play(engine, prompts(3, high=20), turns=1)) < GAP


@pytest.mark.full
def test_a_sync_that_fails_on_the_way_has_the_server_started_anew(monkeypatch):
    """vLLM would die of the next request: half of the weights are in, and a resume shows it only then."""
    engine = real_server()
    core, call, failed = engine._core, engine._core._client.call, []

    def fail_once(method, path, *arguments, **others):
        if path == "/finish_weight_update" and not failed:
            failed.append(path)
            raise EngineError("planted")
        return call(method, path, *arguments, **others)

    before = core.restarts
    monkeypatch.setattr(core._client, "call", fail_once)
    engine.sync(wide(seed=6).state_dict(), 9)
    assert failed and core.restarts == before + 1 and engine.policy_version == 9
    assert worst_gap(wide(seed=6), play(engine, prompts(3, high=20), turns=1)) < GAP


def test_an_adapter_that_goes_alone_is_what_is_sampled_from():
    """Also after other weights came between; and the routes' word that it was added is worth nothing."""
    engine = routed_server()
    core = engine._core
    for version, seed in ((1, 1), (2, 2), (4, 3)):
        if version == 4:
            engine.sync(wide(seed=5).state_dict(), 3)
            assert worst_gap(wide(seed=5), play(engine, prompts(3, high=20), turns=1)) < GAP
        adapter, merged = an_adapter(seed)
        engine.sync_adapter(adapter, merged, version)
        assert worst_gap(beside(wide(), adapter), play(engine, prompts(3, high=20), turns=2)) < GAP
        assert engine.stats()["gap_max"] < GAP and engine.delivery.version == version
    assert (
        worst_gap(wide(), play(engine, prompts(3, high=20), turns=1)) > 0.1 and core.restarts == 0
    )
    hidden_ND = torch.randn(
        60, wide().config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    head_ND = core.head_logits(hidden_ND)
    for rows in (
        1,
        2,
        30,
    ):  # however many rows the batch before had: two, which begin and end together
        for number in range(2):
            engine.submit(
                ask(
                    number,
                    f"together-{number}",
                    np.arange(6, 12),
                    max_new_tokens=8,
                    stop_ids=frozenset(),
                )
            )
        drain(engine)
        torch.testing.assert_close(
            core.head_logits(hidden_ND[:rows]), head_ND[:rows], rtol=0, atol=1e-5
        )
    plain_ND = (hidden_ND @ wide().get_output_embeddings().weight.T).detach()
    torch.testing.assert_close(head_ND, plain_ND, rtol=0, atol=1e-4)
    route, said = core._adapters, []
    strange = type(adapter)(
        adapter.stated,
        {
            name.replace("layers.0.", "layers.7."): tensor
            for name, tensor in adapter.tensors.items()
            if "layers.0." in name
        },
    )
    route.keep(strange, merged, "strange")
    route.hand_over(
        lambda path, body, plain: said.append(core._client.call("POST", path, body, plain=plain))
    )
    held = core._client.call("POST", "/collective_rpc", {"method": "workbench_adapter"})["results"]
    assert said and held == [{}], "vLLM takes it, and applies nothing of it"


def test_a_stale_adapter_has_the_server_started_anew_and_one_that_is_not_asked_for_is_named(
    monkeypatch,
):
    engine = routed_server()
    core, call, said, restart = engine._core, engine._core._client.call, [], engine._core._restart
    engine.sync_adapter(*an_adapter(1), 1)
    older = an_adapter(1)[0]

    def stale_once(method, path, body=None, **others):
        if path == "/v1/load_lora_adapter" and not said:
            save_file(dict(older.tensors), Path(body["lora_path"]) / "adapter_model.safetensors")
        return call(method, path, body, **others)

    def restarted(why):
        said.append(why)
        save_file(dict(newer.tensors), core._adapters._path / "adapter_model.safetensors")
        return restart(why)

    before, (newer, merged) = core.restarts, an_adapter(2)
    monkeypatch.setattr(core._client, "call", stale_once)
    monkeypatch.setattr(core, "_restart", restarted)
    engine.sync_adapter(newer, merged, 2)
    assert (
        core.restarts == before + 1
        and "did not get the weights" in said[0]
        and "(rule R33)" in said[0]
    )
    assert worst_gap(beside(wide(), newer), play(engine, prompts(3, high=20), turns=1)) < GAP
    monkeypatch.setattr(type(core._transfer), "whom", {})
    with pytest.raises(
        EngineError, match="vLLM does not sample from the weights it was given.*R33"
    ):
        engine.sync_adapter(*an_adapter(3), 3)
    with pytest.raises(EngineError, match="request 0 refused"):
        engine.submit(ask(0, "s", np.arange(6, 9)))


OPENED = """
import sys
sys.path[:0] = {path!r}
from server_kit import real_server
core = real_server()._core
print(core._process._child.pid, core._process._port, core._transfer._way._folder, flush=True)
import time; time.sleep(300)
"""


@pytest.mark.full
def test_a_learner_that_is_killed_leaves_no_process_no_port_and_no_file():
    need_vllm()
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    learner = subprocess.Popen(
        [sys.executable, "-c", OPENED.format(path=path)], stdout=subprocess.PIPE, text=True
    )
    group, port, folder = learner.stdout.readline().split()
    assert members(int(group)) and Path(folder).exists()
    learner.kill()
    learner.wait()
    learner.stdout.close()
    wait_until(lambda: not members(int(group)) and is_free(int(port)) and not Path(folder).exists())


def trained(path, *settings, processes=1):
    """The run that `workbench train` makes there, by so many processes."""
    command = [sys.executable, "-m"]
    if processes > 1:
        count = ("--nproc_per_node", str(processes))
        command += ["torch.distributed.run", "--standalone", *count, "-m"]
        settings = (*settings, f"learner.num_processes={processes}")
    command += ["workbench.cli", "train", "frozenlake", "--out", str(path), *SHORT]
    command += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return open_run(path)


def test_two_processes_train_beside_one_server(tmp_path):
    """The same first trajectories as one process with vLLM inside; nothing that is trained is stale or off."""
    need_vllm()
    runs = [
        trained(tmp_path / "by-1"),
        trained(tmp_path / "by-2", "layout.kind=one_node", processes=2),
    ]
    for run in runs:
        metrics = run.metrics()
        assert (metrics["logp_gap_max"] < 1e-4).all() and (metrics["stale_share"] == 0).all()
        assert metrics["policy_version"].tolist() == [1, 2]
    one, two = (
        [
            segment.token_ids.tolist()
            for group in run.groups(1)
            for trajectory in group
            for segment in trajectory.segments
        ]
        for run in runs
    )
    assert one == two


def test_two_processes_train_adapters_that_go_to_one_server_alone(tmp_path):
    need_vllm()
    run = trained(
        tmp_path / "run",
        "layout.kind=one_node",
        "layout.adapters=routes",
        "learner.lora_rank=4",
        "learner.lr=1e-2",
        "train.steps=3",
        processes=2,
    )
    metrics = run.metrics()
    assert metrics["policy_version"].tolist() == [1, 2, 3]
    assert (metrics["logp_gap_max"] < 1e-4).all() and (metrics["stale_share"] == 0).all()


def test_two_processes_that_share_the_weights_train_while_one_server_samples_ahead(tmp_path):
    """Shards are put together for the server, whose digest proves it; its trajectories are of the step before the last."""
    need_vllm()
    run = trained(
        tmp_path / "run",
        "layout.kind=one_node",
        "learner.sharding=full",
        "train.staleness=1",
        "algorithm.sampler_cap=2",
        "train.steps=4",
        processes=2,
    )
    metrics = run.metrics()
    assert metrics["policy_version"].tolist() == [1, 2, 3, 4] and metrics["staleness"].tolist() == [
        0,
        1,
        1,
        1,
    ]
    for step, version in zip(run.steps(), (0, 0, 1, 2)):
        trajectories = [trajectory for group in run.groups(step) for trajectory in group]
        assert {
            span.policy_version
            for t in trajectories
            for s in t.segments
            for span in s.spans
            if span.sampled
        } == {version}
        assert not any(t.error for t in trajectories)


def test_a_run_is_served_to_any_client_and_says_what_the_embedded_engine_says(
    tmp_path, monkeypatch
):
    """`workbench serve`: the run's template, greedy ids and logprobs; Ctrl-C ends it, and nothing is left."""
    need_vllm()
    config = load_config(
        "frozenlake",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "learner.lr": 1e-3,
            "lint.mode": "off",
        },
    )
    run = train_here(config, tmp_path / "first")
    done = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "workbench.cli",
            "serve",
            str(run.path),
            "--port",
            str(_free_port()),
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        url = next(
            line.split()[3].rstrip(";")
            for line in done.stdout
            if line.startswith("serving first at ")
        )
        key = done.stdout.readline().strip().removeprefix(f"export {KEY}=")
        monkeypatch.setenv(KEY, key)
        session = reopen(run, quiet=True)
        observation = Observation((Message("user", "Go from P to G."),))
        prompt = np.concatenate([piece.token_ids for piece in session.chat.open(observation)])
        asked = {
            "model": "first",
            "messages": [{"role": "user", "content": "Go from P to G."}],
            "temperature": 0,
            "max_tokens": 12,
            "logprobs": True,
            "return_token_ids": True,
        }
        completions = f"{url}/chat/completions"
        assert httpx.post(completions, timeout=60, json=asked).status_code == 401
        carried = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(completions, timeout=60, json=asked, headers=carried).json()
        choice = answer["choices"][0]
        assert answer["prompt_token_ids"] == prompt.tolist()
        session.engine.submit(
            Request(
                0,
                "s",
                prompt,
                seed=0,
                temperature=0.0,
                max_new_tokens=12,
                stop_ids=session.chat.stop_ids,
            )
        )
        (mine,) = drain(session.engine)
        assert choice["token_ids"] == mine.token_ids.tolist() and len(mine.token_ids) > 1
        theirs = [token["logprob"] for token in choice["logprobs"]["content"]]
        np.testing.assert_allclose(theirs, mine.logprobs, atol=1e-4)
        assert cli.main(
            [
                "chat",
                str(run.path),
                "--endpoint",
                url,
                "--model",
                "first",
                "--calls",
                "text",
                "--key-env",
                KEY,
                "--ask",
                "7",
            ]
        ) in (0, 1)
        os.kill(done.pid, signal.SIGINT)
        assert done.wait(30) == 0
        assert is_free(int(url.split(":")[2].split("/")[0]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGKILL)
