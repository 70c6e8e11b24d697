"""Eighteen faults that training meets, and the tests that hold what happens then: behaviour and message.

A fault's tests are named in FAULTS, so that none of them can be forgotten or renamed away; the tests that fit nowhere
else stand below.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_collect import chat, gather, tokenizer  # noqa: F401  (two of them are fixtures)
from workbench.engines.scripted import ScriptedEngine
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.rollouts.metrics import rollout_metrics
from workbench.run import columns
from workbench.run.equality import groups_equal
from workbench.values import Source

ROOT = Path(__file__).resolve().parents[2]

FAULTS: dict[int, tuple[str, str]] = {
    1: (
        "SIGKILL at any instant of training",
        """
        tests/faults/test_kills.py::test_killed_at_random_and_resumed
        tests/faults/test_kills.py::test_the_harness_notices_a_run_that_is_not_the_same
        tests/faults/test_resume.py::test_from_any_step_it_ends_as_the_run_that_was_never_interrupted
        tests/test_store.py::test_a_killed_process_loses_nothing_that_was_committed""",
    ),
    2: (
        "dead before the n-th system call",
        """
        tests/faults/test_kills.py::test_dead_before_the_nth_system_call_of_a_whole_run
        tests/test_store.py::test_a_step_is_committed_or_not_wherever_it_dies
        tests/test_checkpoint.py::test_old_or_new_wherever_a_save_dies
        tests/test_writer.py::test_all_bytes_go_through_the_one_writer""",
    ),
    3: (
        "full, faulty or read-only disk, used-up quota",
        """
        tests/faults/test_kills.py::test_a_full_or_faulty_disk_at_the_nth_system_call_of_a_whole_run
        tests/test_writer.py::test_what_the_disk_refuses_is_said_and_leaves_nothing_behind
        tests/test_writer.py::test_a_full_disk_is_a_full_disk""",
    ),
    4: (
        "flipped bits, cut, zeroed, swapped or missing files of a checkpoint",
        """
        tests/test_checkpoint.py::test_no_mutated_checkpoint_is_ever_accepted
        tests/test_checkpoint.py::test_a_damaged_one_is_named_left_alone_and_the_one_before_is_used
        tests/faults/test_resume.py::test_a_damaged_checkpoint_is_passed_over_with_the_reason_and_made_again""",
    ),
    5: (
        "manifest: bad JSON, newer format, a path outside, a link, another step's folder",
        """
        tests/test_writer.py::test_a_damaged_folder_is_refused_with_the_reason
        tests/test_writer.py::test_a_manifest_cannot_point_outside
        tests/test_checkpoint.py::test_another_steps_folder_and_a_newer_format_are_refused""",
    ),
    6: (
        "a pickle in place of data",
        """
        tests/test_checkpoint.py::test_there_is_no_pickle_anywhere
        tests/test_checkpoint.py::test_a_pickle_in_place_of_weights_is_not_executed
        tests/faults/test_faults.py::test_a_pickle_in_place_of_trajectories_is_not_executed""",
    ),
    7: (
        "half a last line, a step without its line",
        """
        tests/test_store.py::test_a_torn_line_is_left_out_and_said_and_only_a_writer_mends_it
        tests/test_writer.py::test_a_line_is_there_or_not_wherever_it_dies
        tests/test_store.py::test_a_run_goes_on_where_it_was_and_ends_the_same""",
    ),
    8: (
        "metrics or step files shorter than the checkpoint",
        """
        tests/test_store.py::test_a_checkpoint_newer_than_the_metrics_means_loss
        tests/faults/test_resume.py::test_steps_that_are_gone_are_said
        tests/faults/test_faults.py::test_a_run_whose_trajectories_are_gone_does_not_go_on""",
    ),
    9: (
        "two processes on one run",
        """
        tests/test_writer.py::test_one_writer_per_folder_and_no_stale_lock
        tests/test_store.py::test_two_writers_of_one_run_are_refused
        tests/faults/test_resume.py::test_an_edited_config_a_newer_format_and_a_second_process_are_refused""",
    ),
    10: (
        "resumed with other settings, another policy, on another machine",
        """
        tests/faults/test_resume.py::test_what_would_make_it_another_run_is_refused
        tests/faults/test_resume.py::test_steps_may_be_added_and_the_run_knows
        tests/faults/test_resume.py::test_what_changes_only_the_rounding_is_let_pass_and_said
        tests/faults/test_resume.py::test_another_machine_is_written_down_and_said
        tests/faults/test_resume.py::test_on_another_machine_another_rounding_is_let_pass_and_no_more
        tests/faults/test_resume.py::test_another_policy_on_disk_is_refused
        tests/faults/test_resume.py::test_a_step_that_does_not_come_out_again_is_refused_naming_step_and_column""",
    ),
    11: (
        "resumed at step 0, at a checkpoint, at the last step, when complete, twice",
        """
        tests/faults/test_resume.py::test_from_any_step_it_ends_as_the_run_that_was_never_interrupted
        tests/faults/test_resume.py::test_killed_while_measuring_the_baselines
        tests/faults/test_resume.py::test_killed_before_the_folder_is_complete
        tests/faults/test_resume.py::test_a_complete_run_is_left_exactly_as_it_is
        tests/faults/test_resume.py::test_interrupted_twice_and_resumed_twice
        tests/faults/test_resume.py::test_the_command_resumes_prints_what_changes_and_says_when_nothing_is_left""",
    ),
    12: (
        "SIGTERM, Ctrl-C, the kernel's stop button, a second signal",
        """
        tests/faults/test_resume.py::test_a_signal_ends_the_command_with_what_is_committed_and_says_how_it_goes_on
        tests/faults/test_resume.py::test_wherever_it_is_interrupted_the_run_goes_on_to_the_same_end
        tests/faults/test_resume.py::test_a_second_signal_or_the_end_of_the_grace_ends_it_at_once
        tests/faults/test_resume.py::test_a_script_that_trains_heeds_sigterm_too""",
    ),
    13: (
        "a loss, gradient, logprob or ratio that is not finite",
        """
        tests/test_learner.py::test_a_non_finite_loss_is_skipped_before_it_touches_anything
        tests/test_learner.py::test_a_non_finite_gradient_is_skipped_and_named
        tests/test_learner.py::test_bad_weights_are_named_by_what_they_first_spoil
        tests/test_learner.py::test_too_many_bad_updates_in_a_row_end_training_with_reports
        tests/faults/test_resume.py::test_bad_updates_in_a_row_are_counted_across_a_kill""",
    ),
    14: (
        "a reward that is no number, not finite, of another type or missing",
        """
        tests/test_collect.py::test_an_answer_that_cannot_be_stored_or_summed_ends_its_trajectory_and_not_the_run
        tests/test_batch.py::test_a_reward_that_is_not_a_number_is_unscored
        tests/test_learner.py::test_an_unscored_trajectory_is_as_if_it_had_never_been
        tests/test_train.py::test_a_run_in_which_everything_breaks_is_kept_and_names_the_fault""",
    ),
    15: (
        "all rewards of a group, or of all groups, alike; a group of one",
        """
        tests/ops/test_group.py::test_a_flat_group_is_exactly_zero
        tests/test_learner.py::test_a_batch_of_flat_groups_moves_nothing_although_adam_has_momentum
        tests/algorithms/test_grpo.py::test_one_trajectory_per_task_is_an_error_not_a_run_without_learning
        tests/test_train.py::test_a_run_that_cannot_learn_ends_with_the_reason
        tests/faults/test_resume.py::test_steps_that_taught_nothing_are_counted_across_a_kill""",
    ),
    16: (
        "nothing generated: the stop token at once, only control tokens",
        """
        tests/faults/test_faults.py::test_an_answer_of_nothing_is_an_answer""",
    ),
    17: (
        "a whole batch without a token to train",
        """
        tests/test_learner.py::test_a_fully_masked_batch_makes_no_update_and_says_so
        tests/algorithms/test_grpo.py::test_nobody_scored_gives_no_credit_and_no_nan
        tests/test_train.py::test_a_run_in_which_everything_breaks_is_kept_and_names_the_fault""",
    ),
    18: (
        "SIGSTOP, no more memory, a clock that goes back, a kernel that restarts",
        """
        tests/faults/test_interrupted.py::test_what_was_committed_stays_and_the_run_ends_as_the_one_that_was_not_interrupted
        tests/faults/test_interrupted.py::test_after_a_disk_that_filled_up_it_goes_on""",
    ),
}


def names_in(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_fault_has_its_tests():
    assert list(FAULTS) == list(range(1, 19))
    for number, (fault, names) in FAULTS.items():
        assert names.split(), f"fault {number} ({fault}) has no test"
        for node in names.split():
            file, _, name = node.partition("::")
            assert name in names_in(ROOT / file), (
                f"fault {number} ({fault}): there is no test {node}"
            )


@pytest.mark.parametrize("kind", ["stop at once", "control tokens only", "a token of no meaning"])
def test_an_answer_of_nothing_is_an_answer(tokenizer, chat, kind):  # noqa: F811
    """It is sampled, so it is trained; it says nothing, so the environment calls it unreadable; nothing is divided by
    zero, and it is stored and read like any other."""
    stop, start = min(chat.stop_ids), tokenizer.convert_tokens_to_ids("<|im_start|>")
    answer = {
        "stop at once": [stop],
        "control tokens only": [start, start, stop],
        "a token of no meaning": [5, stop],
    }
    groups = gather(
        tokenizer, chat, engine=ScriptedEngine(lambda request: answer[kind]), max_turn_tokens=8
    )
    for trajectory in (t for group in groups for t in group):
        assert trajectory.scored and trajectory.num_sampled == len(trajectory.turns) * len(
            answer[kind]
        )
        assert not any(turn.info["valid_format"] for turn in trajectory.turns)
        for (
            segment
        ) in trajectory.segments:  # a control token that the policy wrote stays the policy's
            sampled = segment.token_ids[segment.sources == Source.POLICY].tolist()
            assert sampled == answer[kind] * (len(sampled) // len(answer[kind]))
    batch = Batch.from_groups(groups)
    credit = GRPO().credit(batch)
    assert bool(torch.isfinite(credit.advantage_T).all()) and bool(
        torch.isfinite(credit.weight_T).all()
    )
    assert all(np.isfinite(value) for value in rollout_metrics(groups).values())
    assert rollout_metrics(groups)["valid_format"] == 0.0
    again = columns.decode_groups(bytes(columns.encode_groups(groups, step=1)), Path("x"))
    assert groups_equal(again, groups)


def test_a_pickle_in_place_of_trajectories_is_not_executed(tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    for decode in (columns.decode_groups, columns.decode_credit):
        with pytest.raises(
            columns.StoreError, match="here.parquet is damaged or not a parquet file"
        ):
            decode(pickle.dumps(Payload()), Path("here.parquet"))
    assert not (tmp_path / "executed").exists()


def test_a_run_whose_trajectories_are_gone_does_not_go_on(tmp_path):
    """Steps that are to be repeated must be there: what cannot be repeated is said, and nothing is made up."""
    from tests.faults.test_resume import go_back, small
    from workbench.look.cells.train import resume_here, train_here
    from workbench.values.errors import StoreError

    train_here(small(), tmp_path / "run")
    go_back(tmp_path / "run", 3)
    gone = tmp_path / "run/steps/step-00000003/trajectories.parquet"
    gone.unlink()
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    with pytest.raises(
        StoreError, match=f"{gone} is missing; restore the file|{gone} is missing; restore"
    ):
        resume_here(tmp_path / "run", on_note=None)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    assert [json.loads(line)["step"] for line in before.splitlines()] == [1, 2, 3]
