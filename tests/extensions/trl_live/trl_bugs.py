"""Silent bugs of TRL runs, each planted by itself, with the rule that must name it; and legitimate twins, which must be clean.

A bug is a class of trainer, a reward, a rollout function or a setting, as it stands in a user's run or once stood in TRL
itself (the thread that reported it is named). Training goes on with all of them, and no curve shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from tests.extensions.trl_live.trl_trainers import Library, spread_reward, text_of

GAME = "frozenlake-tiny"


@dataclass(frozen=True)
class Planted:
    """`rules`: those of which at least one must name it as an error; none for a twin. `says`: words of the finding."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of `trainer_of`
    rules: tuple[str, ...] = ()
    says: str = ""
    thread: str = ""
    after: Callable[[Any], None] | None = None  # done to the trainer, before the lint is attached


TOOLS = {"tools": True, "max_completion_length": 120}


# ------------------------------------------------------------------------------------------------ masks


class AllTokensTrained(GRPOTrainer):
    """The tool mask gets lost: what tools wrote is trained (a patched trainer that ignores env_mask)."""

    def _generate(self, prompts):
        made = list(super()._generate(prompts))
        made[2] = [[1] * len(ids) for ids in made[1]]
        return tuple(made)


class ShiftedMask(GRPOTrainer):
    """The tool mask lies one token late."""

    def _generate(self, prompts):
        made = list(super()._generate(prompts))
        made[2] = [[1, *mask[:-1]] for mask in made[2]]
        return tuple(made)


class MaskNotUsed(GRPOTrainer):
    """The loss counts all tokens of a completion, whatever the tool mask says."""

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {k: v for k, v in inputs.items() if k != "tool_mask"})


class MaskFromIds(GRPOTrainer):
    """Padding is told by its id, which is the stop token's as well."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        pad = self._tokenizer.pad_token_id
        output["completion_mask"] = (output["completion_ids"] != pad).long()
        return output


class StopTokenLeftOut(GRPOTrainer):
    """The stop token is cut off each row's mask."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        stop = torch.isin(output["completion_ids"], torch.tensor(self.eos_token_ids))
        output["completion_mask"] = output["completion_mask"] * (~stop).long()
        return output


class OneMaskOfTwo(GRPOTrainer):
    """Truncated completions are masked in one mask and live in the other."""

    def _generate_and_score_completions(self, inputs):
        self.mask_truncated_completions = False
        output = super()._generate_and_score_completions(inputs)
        ends = [
            int(ids[int(mask.sum()) - 1]) in self.eos_token_ids
            for ids, mask in zip(output["completion_ids"], output["completion_mask"])
        ]
        output["completion_mask"] = output["completion_mask"] * torch.tensor(ends)[:, None].long()
        return output


class CutCountAsEnded(GRPOTrainer):
    """Truncated completions are to be left out, and are trained."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.mask_truncated_completions = False


def second_stop_token(trainer) -> None:
    """The sampler stops at a second stop token, which the trainer does not know."""
    tokenizer = trainer._tokenizer
    stops = [tokenizer.eos_token_id, tokenizer.encode("</answer>", add_special_tokens=False)[-1]]
    trainer.generation_config.eos_token_id = stops
    cut = trainer._generate_single_turn

    def at_any_stop(*args, **named):
        trainer.eos_token_ids, kept = stops, trainer.eos_token_ids
        try:
            return cut(*args, **named)
        finally:
            trainer.eos_token_ids = kept

    trainer._generate_single_turn = at_any_stop


class PaddingAttended(GRPOTrainer):
    """The left padding of prompts counts as prompt."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["prompt_mask"] = torch.ones_like(output["prompt_mask"])
        return output


# ------------------------------------------------------------------------------------------------ tokens


class TokenizedAgain(GRPOTrainer):
    """Completions are decoded and encoded: the same text, other tokens."""

    def _generate(self, prompts):
        made = list(super()._generate(prompts))
        made[1] = [
            self._tokenizer.encode(self._tokenizer.decode(ids), add_special_tokens=False)
            for ids in made[1]
        ]
        return tuple(made)


def rollout_of(
    temperature: float = 1.0,
    *,
    top_p: float = 1.0,
    drops_stop: bool = False,
    reorders: bool = False,
    logprobs: str = "right",
    masks: str = "right",
    turns: int = 2,
) -> Callable[..., Any]:
    """A rollout function as users write it: `generate`, an observation, `generate` again."""

    def rollout(prompts, trainer):
        tokenizer = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)
        settings = GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            max_new_tokens=16,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        prompt_ids = [
            tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            for prompt in prompts
        ]
        completions = [[] for _ in prompts]
        mask = [[] for _ in prompts]
        for turn in range(turns):
            histories = [p + c for p, c in zip(prompt_ids, completions)]
            longest = max(map(len, histories))
            pad = tokenizer.pad_token_id
            ids = torch.tensor([[pad] * (longest - len(h)) + h for h in histories])
            seen = torch.tensor([[0] * (longest - len(h)) + [1] * len(h) for h in histories])
            with torch.no_grad():
                answers = model.generate(
                    input_ids=ids, attention_mask=seen, generation_config=settings
                )[:, longest:].tolist()
            for k, answer in enumerate(answers):
                if tokenizer.eos_token_id in answer:
                    answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
                    if drops_stop:
                        answer = answer[:-1]
                completions[k] += answer
                mask[k] += [1] * len(answer)
                if turn + 1 < turns:
                    seen_ids = tokenizer.encode(
                        f"\n<|im_start|>user\nTurn {turn} is over.<|im_end|>\n<|im_start|>assistant\n",
                        add_special_tokens=False,
                    )
                    completions[k] += seen_ids
                    mask[k] += [0] * len(seen_ids)
        values = _logprobs(model, prompt_ids, completions, mask, temperature)
        if logprobs == "shifted":
            values = [[0.0, *row[:-1]] for row in values]
        elif logprobs == "plain":
            values = _logprobs(model, prompt_ids, completions, mask, 1.0)
        elif logprobs == "dummy":
            values = [[0.0] * len(row) for row in values]
        if masks == "none":
            mask = [[1] * len(row) for row in mask]
        made = {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": values,
            "env_mask": mask,
        }
        if reorders:
            order = list(range(len(prompts)))[::-1]
            made = {name: [values[k] for k in order] for name, values in made.items()}
        return made

    return rollout


def _logprobs(model, prompts, completions, mask, temperature):
    """Of every sampled token under the model; 0 where nothing was sampled."""
    values = []
    training = model.training
    model.eval()
    for prompt, completion, sampled in zip(prompts, completions, mask):
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
        logp = torch.log_softmax(logits.float(), -1)
        own = logp.gather(1, torch.tensor(completion)[:, None])[:, 0]
        values.append([float(v) if s else 0.0 for v, s in zip(own, sampled)])
    model.train(training)
    return values


# ------------------------------------------------------------------------------------------------ credit


class OthersAdvantages(GRPOTrainer):
    """Advantages are laid to the rows of another group."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"].roll(self.num_generations)
        return output


class ShuffledApart(GRPOTrainer):
    """Rows are shuffled, and their advantages are not."""

    def _prepare_inputs(self, generation_batch):
        inputs = dict(super()._prepare_inputs(generation_batch))
        inputs["advantages"] = inputs["advantages"].flip(0)
        return inputs


class OthersRewards(GRPOTrainer):
    """The trainer lays rewards to the next row."""

    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args).roll(1, 0)


class UnscoredIsZero(GRPOTrainer):
    """What no reward function scored earns 0."""

    def _calculate_rewards(self, *args):
        return torch.nan_to_num(super()._calculate_rewards(*args), nan=0.0)


class OthersEnvironments(GRPOTrainer):
    """Rows are scored by the environment of the next row."""

    def _calculate_rewards(self, *args):
        self.environments = self.environments[1:] + self.environments[:1]
        return super()._calculate_rewards(*args)


class OneEnvironment(GRPOTrainer):
    """All rows are played in one environment."""

    def _generate(self, prompts):
        self.environments = self.environments[:1] * len(self.environments)
        return super()._generate(prompts)


class OwnSampler(GRPOTrainer):
    """A sampler of the user's own, which does not repeat a prompt for its group."""

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset or self.train_dataset)


def of_the_next_row(completions, **columns):
    """A reward function that lays its numbers to the wrong rows."""
    values = spread_reward(completions)
    return values[1:] + values[:1]


def by_the_first_answer(completions, answer, **columns):
    """A reward function that compares every row with the first row's answer."""
    return [
        float(answer[0] in text_of(completion)) + len(text_of(completion)) / 1000
        if answer[0] > "N"
        else spread_reward([completion])[0]
        for completion in completions
    ]


def sometimes_none(completions, **columns):
    values = spread_reward(completions)
    return [None if k % 3 == 1 else value for k, value in enumerate(values)]


def none_by_text(completions, **columns):
    return [None if len(text_of(c)) % 3 == 1 else spread_reward([c])[0] for c in completions]


def second_reward(completions, **columns):
    return [len(text_of(completion)) / 50 for completion in completions]


class OtherLibrary(Library):
    """Every instance begins otherwise, though its group shares a baseline."""

    made = 0

    def reset(self, name="Mira", **columns):
        super().reset(name)
        OtherLibrary.made += 1
        return f" Room {OtherLibrary.made}."


# ------------------------------------------------------------------------------------------------ logprobs and loss


def no_temperature_in_the_loss(trainer) -> None:
    """Logits are not divided by the temperature."""
    model = trainer.model
    model.forward = type(model).forward.__get__(model)
    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))


def other_temperature_of_the_sampler(trainer) -> None:
    trainer.generation_config.temperature = 0.6


def greedy(trainer) -> None:
    trainer.generation_config.do_sample = False


def models_own_top_k(trainer) -> None:
    """The model's own generation_config wins where the trainer's is not set."""
    trainer.generation_config.top_k = None
    trainer.model.generation_config.top_k = 5


class ShiftedLogprobs(GRPOTrainer):
    """Log-probabilities are read one position off."""

    def _get_per_token_logps_and_entropies(self, *args, **named):
        logp, entropy, aux = super()._get_per_token_logps_and_entropies(*args, **named)
        return logp.roll(1, 1), entropy, aux


class OtherDenominator(GRPOTrainer):
    """The loss is divided once more."""

    def compute_loss(self, *args, **named):
        return super().compute_loss(*args, **named) / 4


class WrongSign(GRPOTrainer):
    """What is minimised is A log pi."""

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs | {"advantages": -inputs["advantages"]})


class KLOfTools(GRPOTrainer):
    """A penalty of the user's own counts what tools wrote."""

    def _get_per_token_logps_and_entropies(self, *args, **named):
        result = super()._get_per_token_logps_and_entropies(*args, **named)
        self.own_logp = result[0]
        return result

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        return loss + 0.01 * (self.own_logp**2 * inputs["completion_mask"]).mean()


BUGS = (
    Planted(
        "others-environments",
        {**TOOLS, "kind": OthersEnvironments},
        ("R14",),
        "scored by",
        "OpenEnv#841",
    ),
    Planted(
        "one-environment",
        {**TOOLS, "kind": OneEnvironment},
        ("R14",),
        "very environment",
        "OpenEnv#841",
    ),
    Planted(
        "tool-tokens-trained",
        {**TOOLS, "kind": AllTokensTrained},
        ("R3",),
        "did not sample",
        "unsloth#5673",
    ),
    Planted(
        "tool-mask-shifted", {**TOOLS, "kind": ShiftedMask}, ("R3",), "did not sample", "trl#5144"
    ),
    Planted(
        "tool-mask-not-used", {**TOOLS, "kind": MaskNotUsed}, ("R10",), "moves", "unsloth#5673"
    ),
    Planted("kl-of-tools", {**TOOLS, "kind": KLOfTools}, ("R10",), "moves", "Search-R1#21"),
    Planted(
        "mask-from-ids",
        {"policy": GAME, "kind": MaskFromIds, "pad": "eos"},
        ("R4",),
        "comparing ids",
        "trl#4974",
    ),
    Planted(
        "stop-token-not-trained",
        {"policy": GAME, "kind": StopTokenLeftOut},
        ("R4",),
        "learns to stop",
        "trl#6357",
    ),
    Planted(
        "cut-in-one-mask",
        {
            **TOOLS,
            "max_completion_length": 10,
            "kind": OneMaskOfTwo,
            "mask_truncated_completions": True,
        },
        ("R11",),
        "tool_mask",
        "trl#4976",
    ),
    Planted(
        "cut-counts-as-ended",
        {"policy": GAME, "kind": CutCountAsEnded, "mask_truncated_completions": True},
        ("R11",),
        "is trained",
        "trl#3248",
    ),
    Planted(
        "second-stop-token",
        {"mask_truncated_completions": True},
        ("R11",),
        "does not know",
        "trl#7039",
        second_stop_token,
    ),
    Planted(
        "padding-attended",
        {"policy": GAME, "kind": PaddingAttended, "data": "uneven"},
        ("R4",),
        "attended",
        "trl#2708",
    ),
    Planted(
        "tokenized-again",
        {"policy": GAME, "kind": TokenizedAgain, "temperature": 3.0},
        ("R1",),
        "tokenized again",
        "trl#5224",
    ),
    Planted(
        "stop-token-dropped",
        {"rollout": rollout_of(drops_stop=True)},
        ("R1",),
        "never learns to stop",
        "trl#4970",
    ),
    Planted(
        "rollout-mask-lost",
        {"rollout": rollout_of(masks="none"), "max_completion_length": 80},
        ("R3",),
        "did not sample",
        "unsloth#5673",
    ),
    Planted(
        "rows-in-another-order",
        {"rollout": rollout_of(reorders=True)},
        ("R7",),
        "another order",
        "trl#4543",
    ),
    Planted(
        "others-advantages",
        {"policy": GAME, "kind": OthersAdvantages},
        ("R6",),
        "credited",
        "PipelineRL#54",
    ),
    Planted(
        "shuffled-apart", {"policy": GAME, "kind": ShuffledApart}, ("R6",), "advantage", "trl#2669"
    ),
    Planted(
        "others-rewards",
        {"policy": GAME, "kind": OthersRewards},
        ("R16",),
        "returned",
        "OpenEnv#841",
    ),
    Planted(
        "unscored-is-zero",
        {"policy": GAME, "kind": UnscoredIsZero, "reward": none_by_text},
        ("R16",),
        "unscored",
        "trl#5902",
    ),
    Planted(
        "reward-of-the-next-row", {"policy": GAME, "reward": of_the_next_row}, ("R29",), "place", ""
    ),
    Planted("reward-by-the-first-answer", {"reward": by_the_first_answer}, ("R29",), "place", ""),
    Planted(
        "prompts-not-repeated",
        {"policy": GAME, "kind": OwnSampler},
        ("R7",),
        "different prompts",
        "tinker-cookbook#771",
    ),
    Planted(
        "environment-starts-differ",
        {**TOOLS, "environment": OtherLibrary},
        ("R7",),
        "different prompts",
        "Search-R1#88",
    ),
    Planted(
        "no-temperature-in-the-loss",
        {"policy": GAME, "temperature": 0.7},
        ("R12",),
        "temperature 1",
        "trl#3029",
        no_temperature_in_the_loss,
    ),
    Planted(
        "sampler-at-another-temperature",
        {"policy": GAME},
        ("R12",),
        "temperature 0.6",
        "trl#4159",
        other_temperature_of_the_sampler,
    ),
    Planted(
        "rollout-at-another-temperature",
        {"rollout": rollout_of(0.6)},
        ("R12",),
        "temperature 0.6",
        "trl#4159",
    ),
    Planted("greedy", {"policy": GAME}, ("R12",), "greedily", "trl#5783", greedy),
    Planted(
        "top-k-of-the-model", {"policy": GAME}, ("R12",), "top_k", "trl#5783", models_own_top_k
    ),
    Planted(
        "logprobs-shifted",
        {"policy": GAME, "kind": ShiftedLogprobs},
        ("R12",),
        "shifted",
        "trl#3681",
    ),
    Planted(
        "rollout-logprobs-shifted",
        {"rollout": rollout_of(logprobs="shifted")},
        ("R23",),
        "shifted",
        "trl#5224",
    ),
    Planted(
        "rollout-logprobs-plain",
        {"rollout": rollout_of(0.6, logprobs="plain"), "temperature": 0.6},
        ("R23",),
        "differ",
        "trl#6789",
    ),
    Planted(
        "another-denominator",
        {"policy": GAME, "kind": OtherDenominator},
        ("R18", "R19"),
        "denominator",
        "trl#3187",
    ),
    Planted("wrong-sign", {"policy": GAME, "kind": WrongSign}, ("R19",), "times", ""),
)

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
TWINS = (
    *(
        Planted(
            f"loss-{kind}",
            {
                "policy": GAME,
                "loss_type": kind,
                **({"epsilon_high": 5.0} if kind == "cispo" else {}),
            },
        )
        for kind in LOSSES
    ),
    *(
        Planted(f"scale-{scale}", {"policy": GAME, "scale_rewards": scale})
        for scale in ("group", "batch", "none")
    ),
    Planted("tools", TOOLS),
    Planted("tools-cut", {**TOOLS, "max_completion_length": 10}),
    Planted(
        "tools-cut-left-out",
        {**TOOLS, "max_completion_length": 10, "mask_truncated_completions": True},
    ),
    Planted(
        "cut-left-out",
        {"policy": GAME, "mask_truncated_completions": True, "max_completion_length": 8},
    ),
    Planted("pad-is-eos", {"policy": GAME, "pad": "eos"}),
    Planted("rollout", {"rollout": rollout_of()}),
    Planted("rollout-dummy-logprobs", {"rollout": rollout_of(logprobs="dummy")}),
    Planted("rollout-temperature", {"rollout": rollout_of(0.6), "temperature": 0.6}),
    Planted("rollout-top-p", {"rollout": rollout_of(top_p=0.9)}),
    Planted("temperature", {"policy": GAME, "temperature": 0.7}),
    Planted("top-p", {"policy": GAME, "top_p": 0.9}),
    Planted("reference", {"policy": GAME, "beta": 0.1}),
    Planted(
        "reference-corrected",
        {
            "policy": GAME,
            "beta": 0.1,
            "use_bias_correction_kl": True,
            "importance_sampling_level": "sequence",
        },
    ),
    Planted("several-updates", {"policy": GAME, "num_iterations": 2, "max_steps": 4}),
    Planted(
        "split-generation",
        {
            "policy": GAME,
            "per_device_train_batch_size": 4,
            "steps_per_generation": 2,
            "max_steps": 4,
        },
    ),
    Planted(
        "accumulated",
        {"policy": GAME, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    ),
    Planted(
        "accumulated-split",
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "max_steps": 4,
        },
    ),
    Planted(
        "two-rewards",
        {"policy": GAME, "reward": [spread_reward, second_reward], "reward_weights": [1.0, 0.5]},
    ),
    Planted(
        "two-rewards-normalized",
        {
            "policy": GAME,
            "reward": [spread_reward, second_reward],
            "multi_objective_aggregation": "normalize_then_sum",
        },
    ),
    Planted("some-unscored", {"policy": GAME, "reward": none_by_text}),
    Planted("off-policy-mask", {"policy": GAME, "off_policy_mask_threshold": 0.5}),
    Planted("entropy-bonus", {"policy": GAME, "entropy_coef": 0.01}),
    Planted("high-entropy-tokens", {"policy": GAME, "top_entropy_quantile": 0.5}),
    Planted("two-sided", {"policy": GAME, "delta": 1.5, "epsilon_high": 0.28}),
    Planted("adapters", {"policy": GAME, "adapters": True}),
    Planted("adapters-reference", {"policy": GAME, "adapters": True, "beta": 0.1}),
    Planted("uneven-prompts", {"policy": GAME, "data": "uneven"}),
    Planted(
        "evaluated", {"policy": GAME, "evaluates": True, "eval_strategy": "steps", "eval_steps": 1}
    ),
    Planted("half-precision", {"policy": GAME, "bf16": True}),
    Planted("checkpointed", {"policy": GAME, "gradient_checkpointing": True}),
    Planted("padded-to-8", {"policy": GAME, "pad_to_multiple_of": 8}),
)
