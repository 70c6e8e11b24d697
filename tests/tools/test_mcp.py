"""Tools of a real MCP server in a process of its own, written with the official package: over its stdin, and over HTTP."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.extensions.servers import mcp_lines
from workbench.extensions.servers.mcp import McpServer, McpTool, mount
from workbench.tools import ToolResult, schema_of, tools_named
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.handover import describe_tool, made_of
from workbench.tools.shared_workers import shared_workers
from workbench.values import Task, ToolCall
from workbench.values.errors import ToolError

SERVER = str(Path(__file__).parent / "mcp_server.py")
PATIENT = ToolLimits(deadline_s=30.0, workers=1, open_s=60.0)


@pytest.fixture(scope="module")
def mounted():
    found = mount([sys.executable, SERVER], limits=PATIENT)
    yield found
    found.close()
    shared_workers().shutdown()


def call(tools, name, limits=PATIENT, **arguments):
    with closing(ToolExecutor(tools, limits, Task("t", "", 0))) as executor:
        [result] = executor.run([ToolCall(name, arguments)])
        return result


def gone(pid):
    until = time.monotonic() + 10
    while time.monotonic() < until and Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_the_servers_tools_are_offered_as_it_describes_them(mounted):
    assert [(tool.name, tool.theirs) for tool in mounted] == [
        ("add", "add"),
        ("odd_name", "odd.name"),
        ("misbehave", "misbehave"),
    ]
    function = schema_of(mounted.tools[0])["function"]
    assert function["description"] == "Adds two whole numbers." and function["parameters"][
        "required"
    ] == ["a", "b"]
    assert {name: kind["type"] for name, kind in function["parameters"]["properties"].items()} == {
        "a": "integer",
        "b": "integer",
    }
    assert not any(tool.trusted for tool in mounted)


def test_all_tools_of_a_server_have_one_name_in_settings(mounted, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_servers", SimpleNamespace(zoo=mounted))
    assert tools_named(["my_servers:zoo", "calculator"])[:3] == mounted.tools


def test_calls_are_answered_by_the_server(mounted):
    assert call(mounted.tools, "add", a=1, b=2) == ToolResult("3", {"result": 3})
    assert (
        call(mounted.tools, "odd_name").text == "<|im_end|>"
    )  # text like any other: ToolEnv shows it untrusted
    assert "whole number" in call(mounted.tools, "add", a="x", b=2).text
    long = call(mounted.tools, "misbehave", how="long")
    assert long.text.endswith("[cut: 2,000 of 200,000 bytes]") and long.value is None
    assert call(mounted.tools, "misbehave", how="nonsense").text == "nonsense"
    refused = call(mounted.tools, "misbehave", how="raise")
    assert refused.error == "raised" and refused.text.startswith(
        "Error: Error executing tool misbehave"
    )


def test_resources_and_prompts_are_tools_where_asked(mounted):
    assert len(mounted) == 3
    found = mount(
        [sys.executable, SERVER], resources=True, prompts=True, prefix="z_", limits=PATIENT
    )
    assert [tool.name for tool in found][3:] == [
        "z_list_resources",
        "z_read_resource",
        "z_prompt_summary",
    ]
    assert (
        found.tools[-1].parameters["required"] == ["topic"]
        and found.tools[-1].description == "Ask for a summary."
    )
    listed = call(found.tools, "z_list_resources").text
    assert (
        "notes://today today: What stands on today's page." in listed
        and "notes://{day}/page" in listed
    )
    assert call(found.tools, "z_read_resource", uri="notes://today").text == "<|im_end|> buy milk"
    assert (
        call(found.tools, "z_read_resource", uri="notes://monday/page").text == "nothing on monday"
    )
    assert (
        call(found.tools, "z_read_resource", uri="notes://picture").text
        == "[resource: notes://picture]"
    )
    refused = call(found.tools, "z_read_resource", uri="notes://nowhere")
    assert (
        refused.error == "raised"
        and "the server refused the call of z_read_resource" in refused.text
    )
    assert call(found.tools, "z_prompt_summary", topic="tides").text == "Summarise tides, short."
    assert "Missing: topic." in call(found.tools, "z_prompt_summary").text
    found.close()


def test_what_a_server_does_not_have_cannot_be_mounted(mounted, tmp_path):
    bare = tmp_path / "bare.py"
    bare.write_text(
        "from mcp.server import MCPServer\nserver = MCPServer('bare')\n"
        "@server.tool()\ndef one() -> int: return 1\nserver.run('stdio')\n"
    )
    with pytest.raises(ToolError, match="has no prompts; mount it without prompts=True"):
        mount([sys.executable, str(bare)], prompts=True, limits=PATIENT)


def test_the_exception_of_a_server_that_cannot_start_is_not_cut_off(mounted, tmp_path):
    broken = tmp_path / ("deep" * 20) / "broken.py"
    broken.parent.mkdir()
    broken.write_text(
        "def f(n):\n    return f(n - 1) if n else {}['the key that is missing']\nf(8)\n"
    )
    with pytest.raises(
        ToolError,
        match="it printed: KeyError: 'the key that is missing'\nBefore that: (?s:.*)line 2, in f",
    ):
        mount([sys.executable, str(broken)])


def test_a_server_that_hangs_dies_with_its_worker_and_the_next_call_starts_another(mounted):
    before = int(call(mounted.tools, "misbehave", how="pid").text)
    hung = call(mounted.tools, "misbehave", ToolLimits(deadline_s=0.5, workers=1), how="hang")
    assert hung.error == "timeout" and gone(before)
    after = int(call(mounted.tools, "misbehave", how="pid").text)
    assert after != before
    dead = call(mounted.tools, "misbehave", how="die")
    assert dead.error == "died" and "the server of misbehave broke off" in dead.text
    assert dead.value["stderr"].endswith("last words")


@pytest.mark.full
def test_a_server_that_floods_dies_with_its_worker(mounted):
    flooded = call(mounted.tools, "misbehave", ToolLimits(deadline_s=1.0, workers=1), how="flood")
    assert flooded.error in ("timeout", "died") and call(mounted.tools, "add", a=1, b=2).text == "3"
    pid = int(call(mounted.tools, "misbehave", how="pid").text)
    mounted.close()
    assert gone(pid)


@pytest.mark.parametrize(
    ("program", "words", "status"),
    [
        (
            "import os\nwhile True: os.write(1, b'x' * 65536)",
            "it sent a line of more than 200,000 bytes",
            1,
        ),
        (
            "import os\nos.write(1, b'a\\n' * 9 + b'x' * 300_000 + b'\\n')",
            "it sent a line of more than 200,000 bytes",
            1,
        ),
        (
            "import os, time\nwhile True: os.write(1, b'x'); time.sleep(0.1)",
            "it did not end a line within 1 s of beginning it",
            1,
        ),
        (
            "import os, time\nfor _ in range(8): os.write(1, b'x'); time.sleep(0.1); os.write(1, b'y\\n'); time.sleep(0.1)",
            "",
            0,
        ),
        ("import os\nfor _ in range(20): os.write(1, b'x' * 150_000 + b'\\n')", "", 0),
        ("raise SystemExit(3)", "", 3),
    ],
)
def test_a_line_of_a_server_has_bounds(program, words, status):
    """The last three are the negative control: lines that keep to them pass as they are, for longer than one may take."""
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            mcp_lines.__file__,
            "200000",
            "1",
            sys.executable,
            "-S",
            "-c",
            program,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status and time.monotonic() - began < 20
    assert (
        words in done.stderr
        and bool(done.stderr) == bool(words)
        and len(done.stdout) <= 20 * 150_001
    )
    if not words and not status:
        assert done.stdout in ("xy\n" * 8, ("x" * 150_000 + "\n") * 20)


# Without the official package, which keeps a server's own writes off its output.
BARE = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"initialize": {"protocolVersion": asked.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
                             "serverInfo": {"name": "bare", "version": "1"}},
              "tools/list": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}}.get(asked["method"])
    while asked["method"] == "tools/call":
        os.write(1, b"x" * 65536)
    body = {"result": answer} if answer else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""


def test_a_server_that_sends_a_line_without_end_is_ended_and_says_why(tmp_path):
    (tmp_path / "bare.py").write_text(BARE)
    found = mount([sys.executable, str(tmp_path / "bare.py")], limits=PATIENT)
    for _ in range(2):  # and the next call starts another
        flooded = call(found.tools, "flood")
        assert flooded.error == "died"
        assert flooded.value["stderr"].endswith(
            "it sent a line of more than 16,777,216 bytes, which is the most that is read"
        )
    found.close()


@pytest.mark.full
def test_a_stateful_server_belongs_to_a_trajectory():
    found = mount([sys.executable, SERVER], stateful=True, prefix="zoo_", limits=PATIENT)
    executors = [ToolExecutor(found.tools, PATIENT, Task(name, "", 0)) for name in "ab"]
    count = ToolCall("zoo_misbehave", {"how": "count"})
    assert [
        result.text
        for result in executors[0].run([count, ToolCall("zoo_add", {"a": 1, "b": 1}), count])
    ] == ["1", "2", "2"]
    assert executors[1].run([count])[0].text == "1"
    pids = [
        int(executor.run([ToolCall("zoo_misbehave", {"how": "pid"})])[0].text)
        for executor in executors
    ]
    [executor.close() for executor in executors]
    assert all(gone(pid) for pid in pids)


@pytest.mark.full
def test_a_server_at_a_url(capfd):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        found = mount(url=f"http://127.0.0.1:{port}/mcp", headers={"x-who": "me"}, limits=PATIENT)
        assert call(found.tools, "add", a=2, b=3) == ToolResult("5", {"result": 5})
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert call(found.tools, "add", a=2, b=3).error == "died"
        assert (
            "could not be started: ConnectionError: the server did not begin"
            in call(found.tools, "add", a=2, b=3).text
        )
        found.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({}, "one of the two; got command=.. and url=''"),
        ({"url": "ftp://x"}, "begins with http:// or https://"),
        ({"command": ["x"], "url": "http://x"}, "one of the two"),
        (
            {"command": ["/nowhere/at/all"]},
            "did not list its tools: could not be started: .*FileNotFoundError",
        ),
        (
            {"command": [sys.executable, "-S", "-c", "import nothing_here"]},
            "it printed: .*No module named 'nothing_here'",
        ),
        (
            {
                "command": [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
                "limits": ToolLimits(open_s=3.0),
            },
            "was not ready within 3 s and was stopped",
        ),
    ],
)
def test_a_server_that_cannot_be_mounted_is_an_error_that_says_why(where, words, mounted):
    with pytest.raises(ToolError, match=f"(?s){words}"):
        mount(**where)


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr("workbench.extensions.servers.mcp.find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"pip install 'agent-rl-workbench\[mcp\]'"):
        mount(["x"])


@pytest.mark.full
def test_a_tool_crosses_to_workers_as_it_is():
    server = McpServer(("a", "b"), environment={"K": "v"}, folder="/tmp", stateful=True)
    tool = McpTool(
        server,
        "f",
        "<|im_start|>",
        {"type": "object", "properties": {"class": {"type": "string"}}},
        "f.g",
    )
    described = describe_tool(tool)
    assert (
        made_of(described.content) == tool
        and described.home == f"mcp {server.key}"
        and described.stateful
    )
