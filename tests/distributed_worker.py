"""One rank of tests/test_distributed.py: runs every scenario and writes what came out, rank by rank.

torchrun --nproc_per_node 2 tests/distributed_worker.py OUT_FOLDER [NAME ...]
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from learning_data import make_groups, tiny_model, unscore
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from workbench.learn.algorithms import GRPO, PPO, Credit
from workbench.learn.algorithms.parts import Masks
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.distributed import Ranks, whole
from workbench.learn.learner import Learner
from workbench.learn.microbatch import LOGITS_AT_ONCE
from workbench.learn.optimizer import TrainedWeights
from workbench.learn.update import GradientPass
from workbench.look.cells.train import train_step
from workbench.training.config import load_config
from workbench.training.session import open_session
from workbench.values.errors import LearnerError

LR = 1e-3
COLUMNS = {
    "new_logp",
    "old_logp",
    "entropy",
    "ratio",
    "advantage",
    "weight",
    "value",
    "new_value",
    "return",
    "ref_logp",
}


def bytes_here(tensors: Iterable[Tensor]) -> int:
    """What this process holds of them."""
    return sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in tensors)


def lonely() -> Batch:
    """Only one trajectory weighs anything: a second process has no row at all."""
    groups = unscore(make_groups(tasks=1, attempts=3), 0, 2)
    return Batch.from_groups(groups)


SCENARIOS: dict[str, tuple[Batch, GRPO, dict]] = {
    "append": (
        Batch.from_groups(make_groups(turns=3)),
        GRPO(entropy_coef=0.05),
        {"micro_batch_tokens": 90},
    ),
    "segment-per-turn": (Batch.from_groups(make_groups(turns=3, fresh=True)), GRPO(), {}),
    "minibatches": (
        Batch.from_groups(unscore(make_groups(), 0, 1)),
        GRPO(epochs=2, minibatches=2),
        {},
    ),
    "adapters": (
        Batch.from_groups(make_groups(turns=3)),
        GRPO(minibatches=2),
        {"micro_batch_tokens": 90, "lora_rank": 4, "activation_checkpointing": True},
    ),
    "adapters-and-critic": (Batch.from_groups(make_groups()), PPO(), {"lora_rank": 4}),
    "a-rank-without-rows": (lonely(), GRPO(), {}),
    "sequences-and-wide-masks": (
        Batch.from_groups(unscore(make_groups(turns=3, fresh=True), 0, 1)),
        GRPO(
            reduction="seq-mean-token-mean",
            minibatches=2,
            entropy_coef=0.05,
            masks=Masks(loss_mask=False),
            reference={"kl_coef": 0.05},
        ),
        {"micro_batch_tokens": 90},
    ),
    "critic": (
        Batch.from_groups(make_groups(turns=3)),
        PPO(reference={"kl_coef": 0.05}, estimator={"lam": 0.9}),
        {"micro_batch_tokens": 90},
    ),
    "critic-minibatches": (
        Batch.from_groups(unscore(make_groups(), 0, 1)),
        PPO(epochs=2, minibatches=2),
        {},
    ),
    "critic-on-the-policys-trunk": (
        Batch.from_groups(make_groups(fresh=True)),
        PPO(),
        {"trunk": "policy"},
    ),
    "critic-a-rank-without-rows": (lonely(), PPO(), {}),
    "critic-shared-a-rank-without-rows": (lonely(), PPO(), {"trunk": "policy"}),
}
# The same with weights, gradients and moments dealt out over the processes. In pieces: the output head runs by itself.
SHARDED = {
    f"{name}, sharded": (*SCENARIOS[name][:2], {**SCENARIOS[name][2], "sharding": "full"})
    for name in (
        "append",
        "minibatches",
        "adapters",
        "adapters-and-critic",
        "a-rank-without-rows",
        "sequences-and-wide-masks",
        "critic",
    )
}
SHARDED["checkpointing and logits in pieces, sharded"] = (
    *SCENARIOS["append"][:2],
    {"micro_batch_tokens": 90, "sharding": "full", "activation_checkpointing": True},
)
# On a CPU nothing moves, but torch takes its other path: gradients and moments of what it holds as offloaded.
SHARDED["adapters-and-critic, sharded and offloaded"] = (
    *SCENARIOS["adapters-and-critic"][:2],
    {**SHARDED["adapters-and-critic, sharded"][2], "offload": True},
)
SCENARIOS |= SHARDED
REFUSALS, LINT = "refusals", "lint"


def credit_of(name: str, batch: Batch, algorithm: GRPO) -> Credit:
    credit = algorithm.credit(batch)
    if "a-rank-without-rows" not in name:
        return credit
    first_T = batch.trajectory_of_token_T == 0
    return replace(
        credit, weight_T=credit.weight_T * first_T, advantage_T=credit.advantage_T * first_T
    )


def play(name: str, processes: int) -> tuple[dict[str, Tensor], dict]:
    """Two steps of a scenario. Gradient of the first update, weights and tables after all of them."""
    batch, algorithm, settings = SCENARIOS[name]
    critic = CriticConfig(trunk=settings.get("trunk", "own"))
    config = LearnerConfig(
        lr=LR, num_processes=processes, **{k: v for k, v in settings.items() if k != "trunk"}
    )
    model = tiny_model()
    at_once = dict(LOGITS_AT_ONCE)
    if "in pieces" in name:
        LOGITS_AT_ONCE["cpu"] = 20 * model.config.vocab_size
    try:
        return _played(
            name,
            Learner(model, algorithm, config, critic=critic, reference=model),
            batch,
            algorithm,
        )
    finally:
        LOGITS_AT_ONCE.update(at_once)


def _played(
    name: str, learner: Learner, batch: Batch, algorithm: GRPO
) -> tuple[dict[str, Tensor], dict]:
    if (
        learner.models.critic is not None
    ):  # an opinion from the start: values of zero would hide what goes wrong with them
        torch.nn.init.constant_(learner.models.critic.bare.head.weight, 0.03)
    batch = learner.facts(batch)
    credit, out, held = credit_of(name, batch, algorithm), {}, {}

    def catch_before(owner: object, name: str) -> None:
        step = getattr(owner, name)

        def caught(*arguments) -> None:
            if learner.version == 0:
                held["gradients"] = held.get("gradients") or bytes_here(
                    learner.models.policy.gradients().values()
                )
                out.update(
                    {
                        f"gradient/{n}": whole(g).clone()
                        for n, g in learner.models.gradients().items()
                    }
                )
            step(*arguments)

        setattr(owner, name, caught)

    catch_before(learner.models.policy, "scale_down")
    if learner.models.critic is not None:
        catch_before(
            learner.models.critic.weights, "step"
        )  # comes first, and takes its gradients along
    metrics = []
    for number in range(2):
        if number and "sharded" in name:  # what is saved is whole, and is dealt out again
            learner.load_state(*learner.state())
        for report in learner.update(batch, credit, step=number):
            metrics.append(dict(report.metrics))
            for column in COLUMNS & report.table.columns.keys():
                out[f"table/{number}/{report.table.update}/{column}"] = torch.from_numpy(
                    report.table[column].copy()
                )
    learner.logprobs(batch, batch.eligible_T)  # a look leaves nothing whole
    held |= held_by(learner.models.policy)
    weights = learner.state()[0]
    out |= {
        f"weight/{part}/{name}": tensor.clone()
        for part in ("model", "critic")
        if part in weights
        for name, tensor in weights[part].items()
    }
    return {key: tensor.contiguous() for key, tensor in out.items()}, {
        "metrics": metrics,
        "version": learner.version,
        "held": held,
    }


def held_by(policy: TrainedWeights) -> dict[str, int]:
    """Bytes that this process holds of the model and what is trained."""
    return {
        "weights": bytes_here(policy.module.parameters()),
        "moments": bytes_here(
            t for entry in policy.optimizer.state.values() for t in entry.values() if t.ndim
        ),
    }


def refusals(rank: int, *, sharded: bool = False) -> dict[str, str]:
    """What must be refused, on every rank alike and without hanging."""
    said = {}
    try:
        Learner(tiny_model(), GRPO(), LearnerConfig(num_processes=1))
    except LearnerError as error:
        said["wrong number of processes"] = str(error)
    try:
        Learner(
            tiny_model(),
            PPO(),
            LearnerConfig(num_processes=2, sharding="full"),
            critic=CriticConfig(trunk="policy"),
        )
    except LearnerError as error:
        said["trunk of the policy"] = str(error)
    learner = Learner(
        tiny_model(), GRPO(), LearnerConfig(num_processes=2, sharding="full" if sharded else "none")
    )
    own = Batch.from_groups(make_groups(seed=rank))
    try:
        learner.update(own, GRPO().credit(own), step=0)
    except LearnerError as error:
        said["different batches"] = str(error)
    batch = Batch.from_groups(make_groups())
    credit = GRPO().credit(batch)
    bad_T = credit.advantage_T.clone()
    bad_T[batch.eligible_T.nonzero()[0]] = float("nan")
    before = learner.state()[0]["model"]
    (report,) = learner.update(batch, replace(credit, advantage_T=bad_T), step=0)
    unchanged = all(torch.equal(before[k], w) for k, w in learner.state()[0]["model"].items())
    return said | {"not finite": report.skipped or "", "unchanged": str(unchanged)}


def not_exchanged(self: Ranks, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple:
    return model.eval(), optimizer


def halved(self: GradientPass, *arguments: Tensor) -> Tensor:
    """The exchange takes a mean over processes, and nobody makes a sum of it."""
    return SHARE(self, *arguments) / self.models.ranks.count


SHARE = GradientPass._share_of
# name of a bug -> where it is planted: (class, method, what stands there then)
PLANTED = {
    "nothing": None,
    "not exchanged": (Ranks, "prepare", not_exchanged),
    "halved": (GradientPass, "_share_of", halved),
}


def lint_of_a_step(planted: str) -> dict[str, list[str]]:
    """What the lint names in a step of two processes with this bug."""
    owner, name, wrong = PLANTED[planted] or (Ranks, "prepare", Ranks.prepare)
    right = getattr(owner, name)
    setattr(owner, name, wrong)
    try:
        session = open_session(
            load_config(
                "bandit",
                {
                    "learner.num_processes": 2,
                    "lint.mode": "warn",
                    "train.tasks_per_step": 2,
                    "train.group_size": 4,
                },
            ),
            quiet=True,
        )
        outcome = train_step(session, 1)
    finally:
        setattr(owner, name, right)
    return {
        "updates": [str(outcome.updates)],
        "errors": [
            f"{answer.rule}: {finding.what}" for answer in outcome.lint for finding in answer.errors
        ],
        "looked": [answer.rule for answer in outcome.lint if answer.looked],
    }


def main(folder: Path, *names: str) -> None:
    """Play these scenarios; REFUSALS and LINT are names, too."""
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in (name for name in SCENARIOS if name in names):
        tensors, facts = play(name, processes)
        save_file(tensors, folder / f"{name}.{rank}.safetensors")
        (folder / f"{name}.{rank}.json").write_text(json.dumps(facts))
    if REFUSALS in names:
        for sharded in (False, True):
            said = refusals(rank, sharded=sharded)
            (folder / f"refusals{', sharded' * sharded}.{rank}.json").write_text(json.dumps(said))
    if LINT in names:
        for planted in PLANTED:
            (folder / f"lint.{planted}.{rank}.json").write_text(json.dumps(lint_of_a_step(planted)))
    # Reducers that are still alive, or a peer that is still busy, make gloo abort at exit (4 of 12 runs without these).
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
