"""A real JupyterLab for tests: its server, and what drives the page."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from tests.notebook_kit import isolated

SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "notebook-extension/tracker": {
        "windowingMode": "none"
    },  # cells outside the window are drawn too
    "docmanager-extension/plugin": {"autosave": False},
}
# The state of the notebook that is open, as JupyterLab has it in memory. Empty while there is none.
CELLS = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    const cells = panel?.content?.model?.cells;
    return cells ? Array.from({length: cells.length}, (_, i) => cells.get(i)).filter(cell => cell.type === 'code').map(cell => (
        {count: cell.executionCount, state: cell.executionState, outputs: cell.outputs.toJSON().map(output => output.output_type),
         trusted: cell.trusted})) : [];
}"""
KERNEL_IS_IDLE = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"


@dataclass(frozen=True)
class Lab:
    """A server that runs: its address, its token, the folder it shows."""

    address: str
    token: str
    folder: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    home = tmp_path_factory.mktemp("lab")
    environment = isolated(home / "jupyter")
    for name, values in SETTINGS.items():
        path = (
            Path(environment["JUPYTERLAB_SETTINGS_DIR"])
            / "@jupyterlab"
            / f"{name}.jupyterlab-settings"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    shown, log = home / "notebooks", home / "lab.log"
    shown.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16), shown)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": shown,
        "IdentityProvider.token": lab.token,
        "LabApp.expose_app_in_browser": True,
        "LabApp.news_url": "",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
    }
    with open(log, "wb") as file:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                "--no-browser",
                "--allow-root",
                *(f"--{name}={value}" for name, value in options.items()),
            ],
            env=environment,
            cwd=shown,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: answers(lab) or server.poll() is not None,
            90,
            lambda: f"no JupyterLab:\n{log.read_text()[-3000:]}",
        )
        assert server.poll() is None, log.read_text()[-3000:]
        yield lab
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_until(ready: Callable[[], bool], limit_s: float, otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.1)


def answers(lab: Lab) -> bool:
    try:
        with urllib.request.urlopen(f"{lab.address}/api/status?token={lab.token}", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def open_notebook(lab: Lab, page, path: Path) -> None:
    """`reset` drops the workspace that an earlier page saved."""
    page.goto(f"{lab.address}/lab/tree/{path.name}?token={lab.token}&reset")
    page.wait_for_function(KERNEL_IS_IDLE)
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")


def write_notebook(path: Path, sources: Sequence[str]) -> Path:
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in sources],
            metadata={
                "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
            },
        ),
        path,
    )
    return path


def run_cell(page, index: int) -> None:
    """Run one cell and do not wait for it."""
    page.evaluate(
        """async index => { const panel = window.jupyterapp.shell.currentWidget; panel.content.activeCellIndex = index;
        await Promise.race([window.jupyterapp.commands.execute('notebook:run-cell'), new Promise(r => setTimeout(r, 200))]); }""",
        index,
    )


def finished(page, index: int) -> None:
    page.wait_for_function(
        f"() => {{ const cell = ({CELLS})()[{index}]; return cell && cell.count && cell.state !== 'running'; }}"
    )


def output_of(page, index: int):
    return page.locator(".jp-CodeCell").nth(index).locator(".jp-OutputArea-output")


def theme(page, name: str) -> None:
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
        f"JupyterLab {name}",
    )
    page.wait_for_function(
        "light => document.body.dataset.jpThemeLight === light", arg=str(name == "Light").lower()
    )
    page.wait_for_selector("#jupyterlab-splash", state="detached")
