"""Environments of verifiers 0.1."""

import verifiers as vf
from datasets import Dataset

BROKEN = []  # how often the fragile reward function has raised


def sums(count, first=0):
    return Dataset.from_list(
        [
            {
                "question": f"What is {n} + {n * 7 % 11}?",
                "answer": str(n + n * 7 % 11),
                "info": {"even": n % 2 == 0},
            }
            for n in range(first, first + count)
        ]
    )


def last_words(completion):
    return (completion[-1].content or "").strip() if completion else ""


def correct(completion, answer, **others):
    return float(last_words(completion) == answer)


async def short(completion):
    return float(len(last_words(completion)) < 10)


def length(completion, info):
    return float(len(last_words(completion))) + info["even"]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def questions(count=40):
    """SingleTurnEnv: dataset and eval dataset, two weighted functions and a metric."""
    rubric = vf.Rubric(funcs=[correct, short], weights=[1.0, 0.25])
    rubric.add_metric(length)
    return vf.SingleTurnEnv(
        dataset=sums(count),
        eval_dataset=sums(10, count - 2),
        system_prompt="Be short.",
        rubric=rubric,
    )


def tools():
    """ToolEnv: as many calls as fit into four turns."""
    return vf.ToolEnv(
        dataset=sums(40),
        tools=[add],
        max_turns=4,
        rubric=vf.Rubric(funcs=[correct, short], weights=[1.0, 0.25]),
    )


class HigherLower(vf.MultiTurnEnv):
    """Guess a number, which the state holds; the environment has the last word."""

    async def setup_state(self, state):
        state["number"], state["won"] = len(state["answer"]) + int(state["answer"]) % 9, False

    async def env_response(self, messages, state, **others):
        said = messages[-1].content.strip()
        if not said.isdigit():
            return [{"role": "user", "content": "A number, please."}]
        if int(said) == state["number"]:
            state["won"], state["final_env_response"] = (
                True,
                [{"role": "user", "content": "Right."}],
            )
            return state["final_env_response"]
        return [{"role": "user", "content": "Higher." if int(said) < state["number"] else "Lower."}]


def won(state):
    return float(state["won"])


def guessing(max_turns=6, few_shot=False):
    example = [{"role": "user", "content": "Ready?"}, {"role": "assistant", "content": "Yes."}]
    return HigherLower(
        dataset=sums(40),
        max_turns=max_turns,
        few_shot=example if few_shot else None,
        rubric=vf.Rubric(funcs=[won]),
    )


class Forgetful(HigherLower):
    """It rewrites its history."""

    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages if len(messages) < 3 else messages[-1:]


def forgetful():
    return Forgetful(dataset=sums(40), max_turns=6, rubric=vf.Rubric(funcs=[won]))


def fragile(faults=1):
    """Its reward function raises the first `faults` times."""
    BROKEN.clear()

    def judge(completion):
        BROKEN.append(1)
        if len(BROKEN) <= faults:
            raise RuntimeError("the judge is away")
        return 1.0

    return vf.SingleTurnEnv(dataset=sums(40), rubric=vf.Rubric(funcs=[judge]))


def rank(completions, **others) -> list[float]:
    return [0.0] * len(completions)


def of_groups():
    return vf.SingleTurnEnv(dataset=sums(40), rubric=vf.Rubric(funcs=[rank]))


def solve(row, said, rng):
    return row["answer"]


def any_number(row, said, rng):
    return str(rng.integers(0, 20))
