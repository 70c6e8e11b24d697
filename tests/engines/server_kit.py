"""A vLLM server for tests: the real one, started once a process, and a stand-in that speaks the same routes.

The stand-in is told which promise to break (`faults`); what the engine makes of it is tested wherever the suite runs.
Whether vLLM's own server keeps the promises is asked of the real one: `make test-vllm`.
"""

from __future__ import annotations

import copy
import functools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import load_file
from vllm_kit import CONTEXT, StandIn, need_vllm, wide

from workbench.engines import LayoutConfig, VllmEngineConfig
from workbench.engines.adapter_route import Adapter
from workbench.engines.broadcast import Line, found
from workbench.engines.digests import digests
from workbench.engines.vllm_engine import VllmEngine
from workbench.extensions.vllm_server.opening import open_server_engine
from workbench.extensions.vllm_server.ways import transfer_by
from workbench.learn.adapters import adapted, alone, merged
from workbench.learn.config import LearnerConfig

STALL_S = 8.0  # that a broadcast stands still


class StandInServer:
    """Serves at `url` until `close`. `faults` may change while it serves:

    noise (says that all is well, and loads something else) · digests (of other tensors) · refuse update · hang update ·
    stranger (its tokens are of somebody else's weights) · salt (is not looked at) · forget_prefixes, tied head (as in
    `StandIn`) · half (the connection breaks in the middle, once) · busy (503, once) · dead core (500 with vLLM's words for it, once) · hang turn (once) · no dev mode ·
    no json · no such answer · gone (every connection breaks) · never joins (a broadcast, and says that it did) · leaves (in the
    middle of one, and says that all came) · stalls (in the middle) · swaps (two tensors of one) · no adapters · no routes
    (for them) · knows no layer (of an adapter, and says that it was added) · older adapter (goes on under the new name) ·
    base answers (in its place)
    """

    def __init__(
        self, model: torch.nn.Module | None = None, faults: set[str] | None = None
    ) -> None:
        self.faults = faults if faults is not None else set()
        self.core, self.lock = StandIn(model or wide(seed=9), self.faults), threading.Lock()
        self.version, self.paused, self.arrived, self.asked = "default", False, {}, []
        self.prefixes: dict[str, dict] = {}
        self.line: Line | None = None
        self.joined = 0
        self.adapters: dict[str, StandIn] = {}  # by name, with the weights below them
        self.held: dict[str, str] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            answer = self._answer

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self.answer(self, {})

            def do_POST(self):
                self.answer(
                    self,
                    json.loads(
                        self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"
                    ),
                )

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def once(self, fault: str) -> bool:
        found = fault in self.faults
        self.faults.discard(fault)
        return found

    def _answer(self, handler, body) -> None:
        if "gone" in self.faults:
            handler.close_connection = True
            return None
        path = handler.path.partition("?")[0].strip("/").replace("/", "_")
        if "no dev mode" in self.faults and path != "health":
            return self._say(handler, 404, {"detail": "Not Found"})
        found = getattr(self, f"_{path}")(handler, body)
        if found is not None:
            self._say(handler, *found)

    def _say(self, handler, status, said) -> None:
        text = b"<html>" if "no json" in self.faults else json.dumps(said).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _health(self, handler, body):
        return 200, {}

    def _pause(self, handler, body):
        self.paused = True
        return 200, {}

    def _resume(self, handler, body):
        self.paused = False
        return 200, {}

    def _is_paused(self, handler, body):
        return 200, {"is_paused": self.paused}

    def _weight_info(self, handler, body):
        return 200, {"weight_version": self.version}

    def _start_weight_update(self, handler, body):
        self.arrived = {}
        return 200, {}

    def _update_weights(self, handler, body):
        if "hang update" in self.faults:
            time.sleep(3)
        if "refuse update" in self.faults:
            return 500, {
                "error": {"message": "There is no module or parameter named 'other.weight'"}
            }
        told = body["update_info"].get("told")
        weights = self._received(told) if told else load_file(body["update_info"]["path"])
        if weights is None:
            return 200, {}
        self.arrived = digests(weights)
        if "digests" in self.faults:
            self.arrived[min(self.arrived)] = "float32 1 0000000000000000"
        if "noise" in self.faults:
            weights = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
        with self.lock:
            self.core.load(weights, 0)
        return 200, {}

    def _received(self, told):
        weights, half, line = {}, len(told) // 2, self.line
        for number, (name, dtype, shape) in enumerate(told):
            if number == half and "leaves" in self.faults:
                self.line = line = None
                return None
            if number == half and "stalls" in self.faults:
                time.sleep(STALL_S)
            weights[name] = line.receive(shape, getattr(torch, dtype))
        if "swaps" in self.faults:
            one, other = [
                name for name in weights if name.endswith(("k_proj.weight", "v_proj.weight"))
            ][:2]
            weights[one], weights[other] = weights[other], weights[one]
        return weights

    def _get_world_size(self, handler, body):
        return 200, {"world_size": 1}

    def _init_weight_transfer_engine(self, handler, body):
        if "never joins" in self.faults:
            return 200, {}
        place = body["init_info"]
        self.line = Line(
            found(place["host"], place["port"], place["seconds"]),
            1,
            place["world"],
            backend=place["backend"],
            host=place["host"],
            seconds=place["seconds"],
        )
        self.joined += 1
        return 200, {}

    def _v1_load_lora_adapter(self, handler, body):
        folder = Path(body["lora_path"])
        stated = json.loads((folder / "adapter_config.json").read_text())
        adapter = Adapter(stated, load_file(folder / "adapter_model.safetensors"))
        if "older adapter" in self.faults:
            self.adapters[body["lora_name"]] = next(iter(self.adapters.values()))
            return 200, "added"
        self.adapters = {body["lora_name"]: StandIn(beside(self.core.body, adapter), self.faults)}
        self.held = {} if "knows no layer" in self.faults else adapter.digests("float32")
        return 200, "added"

    def _v1_unload_lora_adapter(self, handler, body):
        return 200, "removed"

    def _update_weight_version(self, handler, body):
        self.version = body["new_version"]
        return 200, {}

    def _finish_weight_update(self, handler, body):
        self.adapters, self.held = {}, {}
        self.version = body["weight_version"]
        return 200, {}

    def _reset_prefix_cache(self, handler, body):
        if "forget_prefixes" not in self.faults:
            self.prefixes.clear()
        return 200, {}

    def _collective_rpc(self, handler, body):
        if body["method"] == "workbench_arrived":
            return 200, {"results": [self.arrived]}
        if body["method"] == "workbench_adapter":
            return 200, {"results": [self.held]}
        if body["method"] == "workbench_adapter_room":
            room = {
                "rank": 0 if "no adapters" in self.faults else 8,
                "routes": "no routes" not in self.faults,
            }
            return 200, {"results": [room]}
        if body["method"] == "workbench_makes_generators":
            return 200, {"results": [self.core.makes_generators]}
        return 200, {
            "results": [self.core.head_logits(torch.tensor(json.loads(body["args"][0]))).tolist()]
        }

    def _inference_v1_generate(self, handler, body):
        self.asked.append(body["request_id"])
        if len(body["cache_salt"]) > 128 or set(body["cache_salt"]) & set(
            "@/\\\0"
        ):  # as vLLM has it
            return 400, {"error": {"message": "Parameter 'cache_salt'"}}
        if self.once("half"):
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(b'{"choices": [')
            handler.close_connection = True
            return None
        if self.once("busy"):
            return 503, {}
        if self.once("dead core"):
            return 500, {
                "error": {
                    "message": "EngineCore encountered an issue. See stack trace (above) for the root cause."
                }
            }
        if self.once("hang turn"):
            time.sleep(3)
        if "no such answer" in self.faults:
            return 200, {"choices": []}
        while self.paused:
            time.sleep(0.01)
        params = body["sampling_params"]
        with self.lock:
            plain = "model" not in body or "base answers" in self.faults
            core = self.core if plain else self.adapters[body["model"]]
            core.kept = self.prefixes.setdefault(
                "" if "salt" in self.faults else body["cache_salt"], {}
            )
            core.add("turn", body["token_ids"], params)
            [found] = core.step()
        version = "somebody:3" if "stranger" in self.faults else self.version
        content = [
            {"token_id": token, "logprob": logprob, "top_logprobs": []}
            for token, logprob in zip(found.token_ids, found.logprobs)
        ]
        scored = (
            [
                None,
                *(
                    {str(token): {"logprob": logprob}}
                    for token, logprob in zip(body["token_ids"][1:], found.prompt_logprobs)
                ),
            ]
            if found.prompt_logprobs is not None
            else None
        )
        return 200, {
            "usage": {"prompt_tokens_details": {"cached_tokens": found.cached_tokens}},
            "prompt_logprobs": scored,
            "choices": [
                {
                    "finish_reason": found.finish,
                    "token_ids": found.token_ids,
                    "logprobs": {"content": content},
                    "weight_versions": [
                        {"version": version, "start": 0, "end": len(found.token_ids)}
                    ],
                }
            ],
        }


def joined(
    server: StandInServer,
    model: torch.nn.Module | None = None,
    folder: str = "",
    seeded: bool | None = None,
    rank: int = 0,
    **layout,
) -> VllmEngine:
    """An engine over a server that somebody else started; `rank`: of adapters that go alone."""
    adapters, config = (
        "routes" if rank else "merged",
        VllmEngineConfig(max_context=CONTEXT, max_rows=16, seeded=seeded),
    )
    layout = LayoutConfig(
        kind="one_node", url=server.url, folder=folder, adapters=adapters, **layout
    )
    return open_server_engine(model or wide(), config, layout, rank)


def on_a_stand_in_server(**layout) -> VllmEngine:
    """An engine over a stand-in server of its own."""
    return joined(StandInServer(), **layout)


# ---------------------------------------------------------------------------------------------- adapters

RANK = 4


def an_adapter(
    seed: int, model: torch.nn.Module | None = None, **settings
) -> tuple[Adapter, dict[str, torch.Tensor]]:
    """An adapter of the model, as if trained, and the weights that the two come to."""
    config = LearnerConfig(**{"lora_rank": RANK, "seed": seed, **settings})
    torch.manual_seed(seed)
    adapted_model = adapted(model or wide(), config, spread=0.2)
    return alone(adapted_model, config), merged(adapted_model, adapted_model.state_dict())


def beside(model: torch.nn.Module, adapter: Adapter) -> torch.nn.Module:
    """The model with the adapter in its weights, multiplied here."""
    found, tensors = copy.deepcopy(model), adapter.tensors
    scale = adapter.stated["lora_alpha"] / adapter.stated["r"]
    with torch.no_grad():
        for name in (name for name in tensors if ".lora_A." in name):
            layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            found.get_submodule(layer).weight += scale * (
                tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
            )
    return found


# ---------------------------------------------------------------------------------------------- the real one

CONFIG = VllmEngineConfig(max_context=CONTEXT, cache_tokens=4096)


def real_server(way: str = "files") -> VllmEngine:
    """An engine at version 0 on the vLLM server of this process, to which weights go by this way (layout.transfer); only the
    newest may be used."""
    core, by_files = _server()
    for name in list(core._asked):
        core.abort(name)
    core._transfer.begin_anew()
    core._transfer._way = by_files if way == "files" else transfer_by(way, core._client, "")
    return VllmEngine(core, wide(), CONFIG)


def routed_server() -> VllmEngine:
    """The same on a server of its own, which takes adapters of RANK alone."""
    core = _server(RANK)[0]
    for name in list(core._asked):
        core.abort(name)
    return VllmEngine(core, wide(), CONFIG)


@functools.cache
def _server(rank: int = 0):
    need_vllm()
    layout = LayoutConfig(kind="one_node", adapters="routes" if rank else "merged")
    core = open_server_engine(wide(), CONFIG, layout, rank)._core
    return core, core._transfer._way
