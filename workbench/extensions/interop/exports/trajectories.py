"""The forms that trajectories go out in, and the one function that writes them.

export_trajectories(run, "trl-dpo", "pairs.jsonl")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.extensions.interop.exports import inspect_log, rows, verifiers
from workbench.extensions.interop.exports.job import Export
from workbench.look import text_view
from workbench.run.store import Run
from workbench.run.writer import make_folder
from workbench.values import View
from workbench.values.errors import ConfigError, StoreError

_JSON = "datasets.load_dataset('json', data_files={dest!r}, split='train')"


@dataclass(frozen=True)
class ExportFormat:
    """A form of trajectories.

    write: what writes it.
    what: what its rows are.
    ending: of the file's name, "" for a folder.
    read: how it is read back.
    chooses: only trajectories that are good enough go out, so `min_reward` acts.
    """

    write: Callable[[Export], None]
    what: str
    ending: str
    read: str
    chooses: bool = False


def _write_dataset(job: Export) -> None:
    from workbench.extensions.interop.exports import dataset  # its schema is pyarrow's

    dataset.write(job)


FORMATS: Mapping[str, ExportFormat] = {
    "trl-sft": ExportFormat(
        rows.writer_of(rows.sft), "conversations to imitate", ".jsonl", _JSON, chooses=True
    ),
    "trl-sft-tokens": ExportFormat(
        rows.writer_of(rows.sft_tokens),
        "sequences to imitate, as sampled, with masks",
        ".jsonl",
        _JSON,
        chooses=True,
    ),
    "trl-dpo": ExportFormat(
        rows.writer_of(rows.dpo), "pairs: the best and the worst of a group", ".jsonl", _JSON
    ),
    "trl-grpo": ExportFormat(
        rows.writer_of(rows.grpo), "prompts, each once, with their columns", ".jsonl", _JSON
    ),
    "openai": ExportFormat(
        rows.writer_of(rows.openai),
        "conversations to imitate",
        ".jsonl",
        "upload it as a fine-tuning file",
        chooses=True,
    ),
    "dataset": ExportFormat(
        _write_dataset, "trajectories", "", "datasets.load_dataset({dest!r}, split='train')"
    ),
    "verifiers": ExportFormat(
        verifiers.write_traces, "episodes", "", "wb.read_rollouts({dest!r}), or verifiers"
    ),
    "inspect": ExportFormat(
        inspect_log.write,
        "samples",
        ".eval",
        "inspect view --log-dir {folder!r}, or inspect_ai.log.read_eval_log({dest!r})",
    ),
}


def export_trajectories(
    run: Run,
    to: str,
    dest: str | Path | None,
    *,
    steps: Sequence[int] | None = None,
    min_reward: float | None = None,
) -> View:
    """Write the trajectories of a run's committed steps into a new file or folder; says what is in it and what is not."""
    form = FORMATS[to]
    if dest is None:
        raise ConfigError(
            f"say where to write: workbench export RUN --to {to} DEST{form.ending or ' (a folder)'}"
        )
    dest = Path(dest)
    if form.ending and dest.suffix != form.ending:
        raise ConfigError(
            f"a file for {to} ends in {form.ending}, by which its readers know it; got {dest.name}"
        )
    if min_reward is not None and not form.chooses:
        raise ConfigError(
            f"min_reward has no effect: {to} takes trajectories whatever they earned; leave it out"
        )
    refuse_inside(run, dest)
    # The writer would refuse it too, but only after much has been read.
    if dest.exists() or dest.is_symlink():
        raise StoreError(
            f"{dest} is there already, and an export is never written over one; choose another name"
        )
    job = Export(run, dest, _steps(run, steps), min_reward)
    make_folder(dest.absolute().parent)
    form.write(job)
    seen = job.count.seen
    lines = [
        f"{seen['rows']:,} rows ({form.what}) of {seen['trajectories']:,} trajectories of "
        f"{len(job.steps)} steps are in {dest}"
    ]
    if form.chooses:
        good = "succeeded" if min_reward is None else f"earned {min_reward:g} or more"
        lines.append(f"chosen: trajectories that {good}")
    lines += job.count.report()
    lines.append(f"read it: {form.read.format(dest=str(dest), folder=str(dest.parent))}")
    return text_view("\n".join(lines), title=f"{run.name} exported to {to}")


def refuse_inside(run: Run, dest: Path) -> None:
    """The run folder holds what the run was and nothing else. Raises StoreError."""
    if run.path.absolute() in (dest.absolute(), *dest.absolute().parents):
        raise StoreError(
            f"{dest} is inside the run folder, which holds what the run was and nothing else; choose "
            "another place"
        )


def _steps(run: Run, steps: Sequence[int] | None) -> tuple[int, ...]:
    committed = run.steps()
    if not committed:
        raise StoreError(
            f"run {run.name} has no committed step yet, so there are no trajectories; train at least one"
        )
    unknown = [step for step in steps or () if step not in committed]
    if unknown:
        raise ConfigError(
            f"run {run.name} has no committed step {unknown[0]}; it has {committed[0]} to {committed[-1]}"
        )
    return tuple(sorted(set(committed if steps is None else steps)))
