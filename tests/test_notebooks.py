"""Every notebook runs under papermill, keeps the manner of the house, and is committed with outputs that travel.

Saved outputs are made by `python -m tests.notebook_kit`; run it after changing a notebook.
"""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebook_kit import (
    FIGURE,
    MACHINE_PATH,
    NOTEBOOKS,
    code_cells,
    differing,
    faults_of_form,
    faults_of_outputs,
    is_parameters,
    made,
    run,
    stripped,
    unfinished,
    written,
)

# As small as they go. A notebook that is not named here runs with its own parameters.
SMALL = {
    "00_tour": {"preset": "small.toml", "steps": 1, "num_tasks": 8, "seed": 3},
    "01_rollout": {"group_size": 3, "num_tasks": 2, "num_held_out": 8},
    "02_masks": {"group_size": 4, "num_tasks": 2, "critic_steps": 1},
    "03_advantages": {"steps": 1, "bias_tasks": "stop_continue", "bias_error": 0.2},
    "04_train": {"steps": 2, "stop_after": 1, "tasks_per_step": 1, "num_tasks": 4},
    "06_tools_and_search": {"steps": 1, "num_tasks": 8},
    "05_silent_bugs": {"steps": 1, "num_tasks": 4, "audit_steps": 1},
    "07_echo_trap": {
        "discovery_steps": 1,
        "retreat_steps": 1,
        "echo_steps": 1,
        "healthy_steps": 1,
        "probes": 4,
    },
    "08_ablation": {"rates": 2, "seeds": 1},
    "09_your_own_env": {"steps": 1, "tool_steps": 1, "num_tasks": 4},
    "10_two_papers": {"seeds": 1, "steps": 1, "probes": 4},
    "11_real_model": {"policy": "stand-in", "demonstrations": 8, "steps": 1, "num_tasks": 4},
    "12_your_agent": {"steps": 1, "num_tasks": 4},
    "plain": {"seed": 1, "group_size": 3, "number": 0},
}

# For a notebook that has no parameter for its number of trajectories. What is asked at a run's start is asked elsewhere.
FEW_TRAJECTORIES = (
    'base = "frozenlake"\n[train]\ntasks_per_step = 2\ngroup_size = 4\n[lint]\nstart = false\n'
)

by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


# Run among the fuller counts; 01_rollout runs in tests/test_lab.py, too, in a real JupyterLab.
LONG = (
    "00_tour",
    "01_rollout",
    "02_masks",
    "03_advantages",
    "04_train",
    "05_silent_bugs",
    "06_tools_and_search",
    "07_echo_trap",
    "08_ablation",
    "09_your_own_env",
    "10_two_papers",
    "11_real_model",
    "12_your_agent",
    "plain",
)


def save_stand_in(folder):
    """In the place of a pretrained model: as many layers, so that the same ones get adapters, of two heads of eight, with the
    tokenizer of a shipped policy."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from workbench.engines.policy import load_policy

    tokenizer = load_policy("frozenlake-tiny").tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=30,
        num_attention_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.full] * (path.stem in LONG))
        for path in NOTEBOOKS
    ],
)
def test_it_runs_under_papermill_with_other_parameters(path, tmp_path):
    (tmp_path / "small.toml").write_text(FEW_TRAJECTORIES)
    if path.stem == "11_real_model":
        save_stand_in(tmp_path / "stand-in")
    ran = run(path, tmp_path, SMALL.get(path.stem, {}))
    assert not ran.faults(), "\n".join(ran.faults())
    injected = [
        cell
        for cell in code_cells(ran.notebook)
        if "injected-parameters" in cell.metadata.get("tags", ())
    ]
    assert len(injected) == (path.stem in SMALL)
    texts = [
        output.data["text/plain"]
        for cell in code_cells(ran.notebook)
        for output in cell.outputs
        if "data" in output
    ]
    if path.stem == "04_train":
        assert any(text.startswith("equal: to the last bit") for text in texts), (
            "stopped and resumed, or never interrupted"
        )
        assert any(text.startswith("different: config.json: learner.lr") for text in texts)
    if path.stem == "11_real_model":
        assert "R39" in str(ran.notebook) and "NOT learned" in texts[-1]
        rows = ("untrained", "warm start", "more fine-tuning", "trained")
        assert all(f"\n{name} " in texts[-1] for name in rows)
    if path.stem == "plain":
        printed = "".join(
            output.get("text", "") for cell in code_cells(ran.notebook) for output in cell.outputs
        )
        assert "3 of 3 trajectories have the same ids, bit for bit" in printed
    if path.stem == "05_silent_bugs":
        assert (
            sum("R6   FOUND" in text for text in texts) == 1
            and sum("R2   FOUND" in text for text in texts) == 1
        )
        assert (
            "nothing was learned from this step" in str(ran.notebook)
            and "stale weights" in texts[-1]
        )
    if path.stem == "00_tour":
        assert (tmp_path / "runs/tour/metrics.jsonl").read_text().count("\n") == SMALL["00_tour"][
            "steps"
        ]
        assert any("100%" in text and " 1/1 [" in text for text in texts), (
            "the progress line is saved in its final state"
        )
        assert any("bit for bit" in text for text in texts)


@by_name
def test_it_keeps_the_manner_of_the_house(path):
    assert not (faults := faults_of_form(nbformat.read(path, as_version=4))), "\n".join(faults)


@by_name
def test_its_saved_outputs_travel(path):
    assert not (faults := faults_of_outputs(nbformat.read(path, as_version=4))), "\n".join(faults)


@pytest.mark.full
@pytest.mark.parametrize("name", ["01_rollout"])  # the others: python -m tests.notebook_kit --check
def test_its_saved_outputs_are_those_of_the_present_code(name):
    path = next(path for path in NOTEBOOKS if path.stem == name)
    assert not (faults := differing(nbformat.read(path, as_version=4), made(path))), "\n".join(
        faults
    )


@by_name
def test_papermill_reads_the_type_and_the_help_of_every_parameter(path):
    from papermill import inspect_notebook

    parameters = inspect_notebook(str(path))
    assert parameters
    for parameter in parameters.values():
        assert (
            parameter["inferred_type_name"] in ("str", "int", "float", "bool")
            and len(parameter["help"]) > 5
        ), parameter
    assert set(SMALL.get(path.stem, {})) <= set(parameters), (
        "papermill only warns about a name that does not exist"
    )


@pytest.mark.full
def test_papermill_prints_that_help():
    tour = next(path for path in NOTEBOOKS if path.stem == "00_tour")
    text = subprocess.run(
        [sys.executable, "-m", "papermill", "--help-notebook", str(tour)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "steps: int (default 8)" in text and "training steps" in text


# ------------------------------------------------------------------------------------------------ negative controls


def sound():
    """The smallest notebook without a fault, as it would be committed."""
    notebook = new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
    )
    parameters = new_code_cell(
        "n: int = 1  # how many", metadata={"tags": ["parameters"]}, execution_count=1
    )
    look = new_code_cell(
        "n + 1",
        execution_count=2,
        outputs=[new_output("execute_result", {"text/plain": "2"}, execution_count=2)],
    )
    notebook.cells = [new_markdown_cell("# How many?"), parameters, look]
    return notebook


def test_the_sound_notebook_has_no_fault():
    assert not faults_of_form(sound()) and not faults_of_outputs(sound())


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("n = 1  # how many", "a parameter reads"),
        ("n: int = 1", "a parameter reads"),
        ("n: int = 1  # how many\n" * 16, "at most 15"),
    ],
)
def test_a_parameter_without_type_or_help_and_a_long_cell_are_noticed(source, fault):
    notebook = sound()
    notebook.cells[1].source = source
    assert any(fault in found for found in faults_of_form(notebook))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f():\n    return 1\nf()", "defines something"),
        ("x = '" + "x" * 120 + "'", "120 columns"),
    ],
)
def test_functions_and_long_lines_are_noticed(source, fault):
    notebook = sound()
    notebook.cells[2].source = source
    assert any(fault in found for found in faults_of_form(notebook))


def test_a_wall_of_text_is_noticed():
    notebook = sound()
    notebook.cells[0].source = "# Why?\n\n" + "word " * 399
    assert not faults_of_form(notebook)
    notebook.cells[0].source += "and another"
    assert any("402 words of prose" in found for found in faults_of_form(notebook))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("2", ""),
        ("mean 0.5001 in 3.2 s", ""),
        ("mean 0.51 in 2.9 s", "saved is 0.5, made is 0.51"),
        ("means 0.5 in 2.9 s", "saved is 'mean # in"),
        ("mean 0.5 in 2.9 s\nmore", "saved is 'nothing', made is 'more'"),
    ],
)
def test_outputs_of_other_code_are_noticed(text, fault):
    saved, again = sound(), sound()
    saved.cells[2].outputs[0].data["text/plain"] = "2" if text == "2" else "mean 0.5 in 2.9 s"
    again.cells[2].outputs[0].data["text/plain"] = text
    found = differing(saved, again)
    assert fault in "".join(found) and bool(found) == bool(fault)
    again.cells[2].outputs[0].data["text/html"] = "<b>2</b>"
    assert "text/html" in differing(saved, again)[0]


def test_a_figure_stands_in_one_line_of_the_file_and_is_read_as_it_was():
    """nbformat alone gives each of its numbers a line of its own."""
    notebook = sound()
    figure = {"data": [{"y": [n / 7 for n in range(200)]}], "layout": {"title": {"text": "«a»"}}}
    outputs = notebook.cells[2].outputs
    outputs.append(new_output("display_data", {FIGURE: figure, "text/plain": "figure 0"}))
    text = written(notebook)
    assert nbformat.reads(text, as_version=4) == notebook and FIGURE in outputs[-1].data
    assert text.count("\n") < 120 < nbformat.writes(notebook).count("\n")


def test_a_function_may_be_written_to_a_file():
    notebook = sound()
    notebook.cells[2].source = "%%writefile my_tool.py\ndef f():\n    return 1"
    assert not faults_of_form(notebook)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (new_output("error", ename="ValueError", evalue="no", traceback=[]), "raised ValueError"),
        (new_output("stream", name="stderr", text="Warning"), "stderr"),
        (new_output("stream", text="saved in /tmp/x/run"), "path of this machine"),
        (
            new_output("display_data", {"text/html": "<style>b{}</style>", "text/plain": ""}),
            "<style",
        ),
        (
            new_output("display_data", {"text/html": "<b onclick=go()>x</b>", "text/plain": ""}),
            "onclick",
        ),
        (new_output("display_data", {"text/html": "<b>x</b>"}), "no text form"),
        (
            new_output(
                "display_data", {"text/html": "<b>x</b>", "text/plain": "x", "image/png": ""}
            ),
            "picture beside its HTML",
        ),
        (
            new_output(
                "display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": ""}
            ),
            "widget",
        ),
        (new_output("display_data", {"text/plain": "x" * 950_000}), "bytes"),
    ],
)
def test_outputs_that_do_not_travel_are_noticed(output, fault):
    notebook = sound()
    notebook.cells[2].outputs = [output]
    assert any(fault in found for found in faults_of_outputs(notebook)), faults_of_outputs(notebook)


def test_a_cell_that_shows_nothing_and_one_that_was_not_run_are_noticed():
    notebook = sound()
    notebook.cells[2].outputs = []
    assert any("nothing to look at" in found for found in faults_of_outputs(notebook))
    notebook.cells[2].execution_count = None
    assert any("was not run" in found for found in unfinished(notebook))


def test_what_belongs_to_one_machine_is_noticed_and_stripped():
    notebook = sound()
    notebook.metadata["papermill"] = {"output_path": "x"}
    notebook.metadata["widgets"] = {}
    notebook.cells[2].metadata["execution"] = {"iopub.status.busy": "now"}
    assert len(faults_of_outputs(notebook)) == 3
    assert not faults_of_outputs(stripped(notebook)) and is_parameters(stripped(notebook).cells[1])


def test_a_stream_that_came_in_pieces_is_saved_as_one():
    notebook = sound()
    notebook.cells[2].outputs = [
        new_output("stream", name=name, text=text)
        for name, text in (("stdout", "a"), ("stdout", "\n"), ("stderr", "b"), ("stdout", "c"))
    ]
    assert [(each.name, each.text) for each in stripped(notebook).cells[2].outputs] == [
        ("stdout", "a\n"),
        ("stderr", "b"),
        ("stdout", "c"),
    ]


def test_a_path_is_told_from_a_division_and_from_a_closing_tag():
    assert not MACHINE_PATH.search("a/b, </answer>, 3/4, https://example.org/home/page")
    assert MACHINE_PATH.search("'/home/somebody/x'")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        pytest.param("1 / 0", "raised ZeroDivisionError", marks=pytest.mark.full),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "papermill ended with status"),
    ],
)
def test_a_run_that_fails_is_never_taken_for_a_success(source, fault, tmp_path):
    """After a killed kernel the written notebook says of itself that every cell was completed: we do not ask it."""
    notebook = sound()
    notebook.cells[2].source = source
    notebook.cells.append(new_code_cell("n + 2"))
    path = tmp_path / "broken.ipynb"
    nbformat.write(notebook, path)
    ran = run(path, tmp_path)
    assert ran.status != 0 and any(fault in found for found in ran.faults()), ran.faults()
    assert any("was not run" in found for found in unfinished(ran.notebook)), (
        "seen without the exit status, too"
    )
