"""Run notebooks, say what is wrong with them, and save their outputs in a form that can be committed.

    python -m tests.notebook_kit                 run every notebook with its own parameters and save its outputs
    python -m tests.notebook_kit 01_rollout      ... only this one
    python -m tests.notebook_kit --check         ... and say where the saved outputs are not those of the present code

Saving strips what belongs to one machine or one moment: timings, widget state, papermill's notes. Pictures stay, so that a
reader on the web sees them without running anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

RUN_BY_HAND_S = (
    2400  # a cell, where a notebook runs with its own parameters: 11 trains a pretrained model
)
MEDIAN_LINES, MOST_LINES, MOST_BYTES = 5, 15, 250_000
MOST_WORDS = 400  # of prose in a notebook
FIGURE = "application/vnd.plotly.v1+json"
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:tmp|home|root|work|var|opt|usr|Users|private|mnt)/[\w.]")
ACTIVE_HTML = re.compile(r"<(style|script|svg|iframe|link)\b|\son\w+\s*=", re.IGNORECASE)
PARAMETER = re.compile(r"\w+: (str|int|float|bool) = .+? +# \S.*")


# ------------------------------------------------------------------------------------------------ running


@dataclass(frozen=True)
class Ran:
    """What came of a run: papermill's exit status, its log, and the notebook that it wrote (None: none)."""

    status: int
    log: str
    notebook: Any | None

    def faults(self) -> list[str]:
        """Why this run does not count as a success; empty where it does.

        Papermill's own notes are not asked: a killed kernel and a time-out leave a notebook that says "completed".
        """
        found = (
            []
            if self.status == 0
            else [f"papermill ended with status {self.status}:\n{self.log[-3000:]}"]
        )
        if self.notebook is None:
            return [*found, "no notebook was written"]
        return found + unfinished(self.notebook)


def isolated(folder: Path) -> dict[str, str]:
    """The environment for a Jupyter that sees none of this user's settings, one thread, no model hub."""
    places = (
        "HOME",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "IPYTHONDIR",
        "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
    )
    paths = {name: str(folder / name.lower()) for name in places}
    for path in paths.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return (
        os.environ
        | paths
        | threads
        | {"PYTHONPATH": search, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    )


def run(
    path: Path, folder: Path, parameters: Mapping[str, Any] = {}, *, limit_s: float = 300
) -> Ran:
    """Run a notebook under papermill in `folder` (which becomes its working directory), in a process of its own."""
    output, settings = folder / f"ran-{path.name}", folder / "parameters.yaml"
    settings.write_text(yaml.safe_dump(dict(parameters)), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(path),
        str(output),
        "-f",
        str(settings),
        "--cwd",
        str(folder),
        "--no-progress-bar",
        "--execution-timeout",
        str(int(limit_s)),
    ]
    done = subprocess.run(
        command,
        env=isolated(folder / "jupyter"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit_s + 60,
    )
    notebook = nbformat.read(output, as_version=4) if output.exists() else None
    return Ran(done.returncode, done.stdout + done.stderr, notebook)


# ------------------------------------------------------------------------------------------------ judging


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_parameters(cell: Any) -> bool:
    return bool({"parameters", "injected-parameters"} & set(cell.metadata.get("tags", ())))


def named(cell: Any) -> str:
    return f"cell {(cell.source.strip().splitlines() or ['(empty)'])[-1][:60]!r}"


def unfinished(notebook: Any) -> list[str]:
    """Cells that were not run to their end, or ended in an error."""
    found = []
    for cell in code_cells(notebook):
        if cell.execution_count is None:
            found.append(f"{named(cell)} was not run")
        found += [
            f"{named(cell)} raised {output.ename}: {output.evalue}"
            for output in cell.outputs
            if output.output_type == "error"
        ]
    return found


WRITES_FILE = re.compile(r"%%writefile (-a )?[a-z_]+\.py\n")


def faults_of_form(notebook: Any) -> list[str]:
    """Where a notebook leaves the manner: short cells, one typed parameters cell, no functions, prose before code."""
    found = []
    cells = code_cells(notebook)
    parameters = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    if len(parameters) != 1:
        found.append(f"expected one cell tagged `parameters`, found {len(parameters)}")
    for line in (line for cell in parameters for line in cell.source.splitlines()):
        if not PARAMETER.fullmatch(line):
            found.append(f"a parameter reads `name: type = default  # help`, got {line!r}")
    words = sum(
        any(map(str.isalnum, word))
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for word in cell.source.split()
    )
    if words > MOST_WORDS:
        found.append(
            f"{words} words of prose, at most {MOST_WORDS}: a notebook is looked at, not read"
        )
    lengths = [len(cell.source.splitlines()) for cell in cells]
    if median(lengths or [0]) > MEDIAN_LINES or max(lengths, default=0) > MOST_LINES:
        found.append(
            f"cells have a median of at most {MEDIAN_LINES} lines and at most {MOST_LINES}, got {lengths}"
        )
    for cell in cells:
        # A cell that writes a file makes what worker processes and a run of its own can import: that is the user's part.
        if re.search(
            r"^\s*(async )?(def|class) ", cell.source, re.MULTILINE
        ) and not WRITES_FILE.match(cell.source):
            found.append(f"{named(cell)} defines something: a notebook calls what the package has")
        found += [
            f"{named(cell)}: longer than 120 columns"
            for line in cell.source.splitlines()
            if len(line) > 120
        ]
    if notebook.cells and notebook.cells[0].cell_type != "markdown":
        found.append("a notebook begins with its question, in words")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append(
            "metadata.kernelspec must name python3: without it JupyterLab asks before it opens"
        )
    return found


def faults_of_outputs(notebook: Any) -> list[str]:
    """What must not be in committed outputs, and what must: something to look at after every cell."""
    found = unfinished(notebook)
    for cell in code_cells(notebook):
        if not cell.outputs and not is_parameters(cell):
            found.append(f"{named(cell)} ends in nothing to look at")
        for output in cell.outputs:
            found += [f"{named(cell)}: {fault}" for fault in _output_faults(output)]
    size = len(written(notebook).encode())
    if size > MOST_BYTES:
        found.append(
            f"{size:,} bytes: at most {MOST_BYTES:,}, or the repository grows with every look"
        )
    own = {"tags"}
    strangers = sorted(
        {key for cell in notebook.cells for key in cell.metadata if key not in own}
        | {key for key in notebook.metadata if key not in ("kernelspec", "language_info")}
    )
    return found + [f"metadata {key!r} belongs to one machine or moment" for key in strangers]


def _output_faults(output: Any) -> list[str]:
    found = []
    if output.output_type == "stream" and output.name == "stderr":
        found.append(f"wrote to stderr: {output.text[:100]!r}")
    data = output.get("data", {})
    found += [f"{kind} needs this machine's widget state" for kind in data if "widget" in kind]
    if data and "text/plain" not in data:
        found.append("has no text form")
    if "text/html" in data and "image/png" in data:
        found.append("has a picture beside its HTML, which no host shows: save the notebook again")
    if match := ACTIVE_HTML.search(
        re.sub(r"""=("[^"]*"|'[^']*')""", "", data.get("text/html", ""))
    ):
        found.append(
            f"{match[0]!r} does not survive where the notebook is not trusted; use inline styles"
        )
    for text in (
        output.get("text", ""),
        *(value for kind, value in data.items() if kind.startswith("text/")),
    ):
        if match := MACHINE_PATH.search(re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)):
            found.append(
                f"names a path of this machine: {text[match.start() : match.end() + 30]!r}"
            )
    return found


# ------------------------------------------------------------------------------------------------ comparing

# What differs from run to run: durations, sizes of processes, paths and folders, versions, and how far progress had come.
MOMENT = re.compile(
    r"\d[\d.,]* ?(s|ms|min|h|kB|MB|GiB|tokens/s)\b|/tmp/\S+|pid \d+|\d+ %|\d{4}-\d\d-\d\d[ T][\d:]+|=+>?\.*"
)
NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def differing(saved: Any, again: Any) -> list[str]:
    """Cells whose outputs are others, in words: their kinds, the words of their texts, or numbers by more than a hundredth (a
    processor of another kind rounds in another way). What belongs to the moment is left out."""
    found = []
    for old, new in zip(code_cells(saved), code_cells(again), strict=True):
        kinds = [
            [(each.output_type, *sorted(each.get("data", {}))) for each in cell.outputs]
            for cell in (old, new)
        ]
        texts = [
            "\n".join(
                each.get("text", "") or each.get("data", {}).get("text/plain", "")
                for each in cell.outputs
            )
            for cell in (old, new)
        ]
        texts = [MOMENT.sub("", text) for text in texts]
        words, numbers = zip(
            *(
                (
                    NUMBER.sub("#", text),
                    [float(each.replace("−", "-")) for each in NUMBER.findall(text)],
                )
                for text in texts
            )
        )
        if kinds[0] != kinds[1]:
            found.append(f"{named(old)}: saved are outputs of {kinds[0]}, made are {kinds[1]}")
        elif words[0] != words[1]:
            a, b = (text.splitlines() for text in words)
            line = next(
                (n for n, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b))
            )
            found.append(
                f"{named(old)}, line {line}: saved is {(a + ['nothing'])[line]!r:.200}, made is {(b + ['nothing'])[line]!r:.200}"
            )
        elif far := [
            (x, y) for x, y in zip(*numbers) if abs(x - y) > 0.01 * max(abs(x), abs(y)) + 1e-3
        ]:
            found.append(
                f"{named(old)}: saved is {far[0][0]}, made is {far[0][1]} ({len(far)} numbers)"
            )
    return found


# ------------------------------------------------------------------------------------------------ saving


def stripped(notebook: Any) -> Any:
    """The same notebook without what belongs to one machine or one moment, and without what no host shows: a picture of
    what the HTML says, where there is HTML. JupyterLab, nbviewer, GitHub and nbconvert all take the HTML."""
    kept = nbformat.from_dict(notebook)
    kept.metadata = nbformat.from_dict(
        {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    )
    for cell in kept.cells:
        cell.metadata = nbformat.from_dict(
            {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        )
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if "text/html" in output.get("data", {}):
                output.data.pop("image/png", None)
    return kept


def joined(outputs: list[Any]) -> list[Any]:
    """Pieces of one stream as one output: where it was cut is a matter of the moment."""
    found: list[Any] = []
    for output in outputs:
        if (
            found
            and output.output_type == found[-1].output_type == "stream"
            and output.name == found[-1].name
        ):
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def written(notebook: Any) -> str:
    """The notebook as a file. A figure stands in one line: nbformat gives each of its numbers one of their own, and as
    much again of spaces before it."""
    kept = nbformat.from_dict(notebook)
    figures: list[str] = []
    for cell in code_cells(kept):
        for output in cell.outputs:
            if FIGURE in output.get("data", {}):
                figures.append(
                    json.dumps(output.data[FIGURE], separators=(",", ":"), ensure_ascii=False)
                )
                output.data[FIGURE] = f"figure {len(figures) - 1} of the notebook"
    text = nbformat.writes(kept)
    for number, figure in enumerate(figures):
        text = text.replace(f'"figure {number} of the notebook"', figure)
    return text + "\n"


def made(path: Path) -> Any:
    """The notebook run with its own parameters, as it would be saved. Raises SystemExit where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run(path, Path(folder), limit_s=RUN_BY_HAND_S)
    if faults := ran.faults():
        raise SystemExit(f"{path.name}: " + "\n".join(faults))
    notebook = stripped(ran.notebook)
    notebook.cells = [
        cell
        for cell in notebook.cells
        if "injected-parameters" not in cell.metadata.get("tags", ())
    ]
    return notebook


def save(path: Path) -> None:
    """Run a notebook and write its outputs into it."""
    notebook = made(path)
    if faults := faults_of_form(notebook) + faults_of_outputs(notebook):
        print(f"{path.name}: saved, but " + "\n".join(faults), file=sys.stderr)
    path.write_text(written(notebook), encoding="utf-8")


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--check"]
    wrong = []
    for each in NOTEBOOKS:
        if names and each.stem not in names:
            continue
        if "--check" in sys.argv:
            wrong += [
                f"{each.name}: {fault}"
                for fault in differing(nbformat.read(each, as_version=4), made(each))
            ]
        else:
            save(each)
            print(f"{each.relative_to(ROOT)}: {each.stat().st_size:,} bytes")
    sys.exit("\n".join(wrong) or None)
