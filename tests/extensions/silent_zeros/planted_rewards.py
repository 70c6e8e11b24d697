"""Mistakes of reward functions and of what stands before them, each with a legitimate twin that is close to it.

All are of one small task, sums, in a shipped policy's tokenizer. A scene is what `check_rewards` is handed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

POLICY = Path(__file__).parents[3] / "data" / "policies" / "chain-sum-tiny"
TAGGED = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)
OPENS = "{{- '<|im_start|>assistant\\n' }}"


def rows(conversational: bool = True, **columns: Any) -> list[dict[str, Any]]:
    made = []
    for k in range(12):
        question = f"What is {k} + {k + 3}?"
        prompt = [{"role": "user", "content": question}] if conversational else question
        made.append({"prompt": prompt, "answer": str(2 * k + 3), "task": "sum", **columns})
    return made


@cache
def tokenizer(edit: Callable[[dict[str, Any]], None] | None = None, template: str = "") -> Any:
    """The policy's tokenizer, or one that differs from it by an edit of its file."""
    made = AutoTokenizer.from_pretrained(POLICY)
    if edit is not None:
        from tokenizers import Tokenizer

        content = json.loads((POLICY / "tokenizer.json").read_text())
        edit(content)
        made._tokenizer = Tokenizer.from_str(json.dumps(content))
    if template:
        made.chat_template = made.chat_template.replace(OPENS, template)
    return made


def with_special_tags(content: dict[str, Any]) -> None:
    for token in content["added_tokens"]:
        token["special"] = token["special"] or "answer" in token["content"]


def in_small_letters(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def without_special_end(content: dict[str, Any]) -> None:
    for token in content["added_tokens"]:
        token["special"] = False


THINKS = "{{- '<|im_start|>assistant\\n<think>\\n' }}"


# ------------------------------------------------------------------------------------------------ functions


def tagged(completions, answer, **columns):
    answers = [TAGGED.search(completion[0]["content"]) for completion in completions]
    return [float(m is not None and m[1] == a) for m, a in zip(answers, answer)]


def tagged_text(completions, answer, **columns):
    answers = [TAGGED.search(completion) for completion in completions]
    return [float(m is not None and m[1] == a) for m, a in zip(answers, answer)]


def exact(completions, answer, **columns):
    return [float(c[0]["content"] == a) for c, a in zip(completions, answer)]


def stripped(completions, answer, **columns):
    return [
        float(c[0]["content"].removesuffix("<|im_end|>").strip() == a)
        for c, a in zip(completions, answer)
    ]


def any_case(completions, name, **columns):
    return [float(c[0]["content"].casefold() == n.casefold()) for c, n in zip(completions, name)]


def same_case(completions, name, **columns):
    return [float(c[0]["content"] == n) for c, n in zip(completions, name)]


def reads_messages_as_text(completions, answer, **columns):
    return [float(a in completion) for completion, a in zip(completions, answer)]


def whole_form(completions, **columns):
    pattern = r"<think>.*</think>\s*<answer>.*</answer>$"
    return [0.5 * bool(re.match(pattern, c[0]["content"], re.DOTALL)) for c in completions]


def form_behind_an_opened_thought(completions, **columns):
    pattern = r"(<think>)?.*</think>\s*<answer>.*</answer>$"
    return [0.5 * bool(re.match(pattern, c[0]["content"], re.DOTALL)) for c in completions]


def wants_solution(completions, solution, **columns):
    return [float(c[0]["content"] == s) for c, s in zip(completions, solution)]


def none_for_right(completions, answer, **columns):
    return [None if TAGGED.search(c[0]["content"]) else 0.0 for c in completions]


def of_other_task(completions, task, **columns):
    return [0.0 if name == "product" else None for name in task]


def share(completions, answer, wrong_answers, **columns):
    """0 / 0 where a row has none."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        return [
            float(np.float64((c[0]["content"] == a) * w) / np.float64(w))
            for c, a, w in zip(completions, answer, wrong_answers)
        ]


def compares_with_numbers(completions, number, **columns):
    return [float(c[0]["content"] == n) for c, n in zip(completions, number)]


def compares_with_their_text(completions, number, **columns):
    return [float(c[0]["content"] == str(n)) for c, n in zip(completions, number)]


def any_answer(completions, **columns):
    return [float(TAGGED.search(c[0]["content"]) is not None) for c in completions]


def length_too(completions, **columns):
    return [-0.001 * len(c[0]["content"]) for c in completions]


def first_row_for_all(completions, answer, **columns):
    return [float(c[0]["content"] == answer[0]) for c in completions]


def too_few(completions, answer, **columns):
    return exact(completions, answer)[:-1]


def one_number(completions, answer, **columns):
    return sum(exact(completions, answer))


def last_word(completions, answer, **columns):
    return [float(c[0]["content"].split()[-1] == a) for c, a in zip(completions, answer)]


def last_word_if_any(completions, answer, **columns):
    return [float((c[0]["content"].split() or [""])[-1] == a) for c, a in zip(completions, answer)]


def turned(completions, answer, **columns):
    return [-value for value in exact(completions, answer)]


def less_for_wrong(completions, answer, **columns):
    return [value - 1 for value in exact(completions, answer)]


def text_for_number(completions, answer, **columns):
    return [str(value) for value in exact(completions, answer)]


def plain_score(text: str, row: Mapping[str, Any]) -> float:
    return float(text == row["answer"])


def plain_zero(text: str, row: Mapping[str, Any]) -> float:
    return float(text is row)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "acc": 1}


def compute_score_of_list(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == [ground_truth]), "acc": 1}


async def late(completions, answer, **columns):
    return exact(completions, answer)


class Rubric:
    """As verifiers has them: functions with weights, called with what they ask for by name."""

    def __init__(self, *funcs: Callable[..., float]):
        self.funcs = list(funcs)
        self.weights = [1.0] * len(funcs)


def of_rubric(completion, answer, state):
    return float(completion[-1]["content"] == answer and state["answer"] == answer)


def of_rubric_as_text(completion, answer):
    return float(completion == answer)


# ------------------------------------------------------------------------------------------------ parsers


def inner(text: str) -> str | None:
    match = TAGGED.search(text)
    return match[1] if match else None


def behind_the_thought(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


def last_line(text: str) -> str:
    return text.rpartition("\n")[2]


def last_full_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def breaks(text: str) -> str:
    return json.loads(text)["answer"]


# ------------------------------------------------------------------------------------------------ scenes


@dataclass(frozen=True)
class Scene:
    """What is handed over. `says`: stands in the finding."""

    rewards: Any
    words: Any = "answer"
    rows: list[dict[str, Any]] = field(default_factory=rows)
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Callable[[], Any] = tokenizer


@dataclass(frozen=True)
class Planted:
    name: str
    step: str  # that is named
    says: str
    bug: Scene
    twin: Scene


def boxed(row: Mapping[str, Any]) -> str:
    return f"<think>\nIt is small.\n</think>\n<answer>{row['answer']}</answer>"


def with_line(row: Mapping[str, Any]) -> str:
    return f"I add them.\n{row['answer']}"


def with_break(row: Mapping[str, Any]) -> str:
    return f"{row['answer']}\n "


def special() -> Any:
    return tokenizer(with_special_tags)


def small() -> Any:
    return tokenizer(in_small_letters)


def end_is_text() -> Any:
    return tokenizer(without_special_end)


def opened() -> Any:
    return tokenizer(template=THINKS)


def broken_template() -> Any:
    return tokenizer(template="{{ raise_exception('no generation prompt') }}")


def named_rows() -> list[dict[str, Any]]:
    names = ("Oslo", "Lima", "Quito", "Riga") * 3
    return [row | {"name": name} for row, name in zip(rows(), names)]


def numbered_rows() -> list[dict[str, Any]]:
    return [row | {"number": int(row["answer"])} for row in rows()]


def one_bad_row() -> list[dict[str, Any]]:
    made = rows()
    made[7]["answer"] += " apples "
    return made


def rows_of_verl() -> list[dict[str, Any]]:
    return [
        {
            "prompt": row["prompt"],
            "data_source": "sums",
            "reward_model": {"ground_truth": row["answer"]},
        }
        for row in rows()
    ]


def exact_of_stripped(completions, answer, **columns):
    return [float(c[0]["content"].strip() == a.strip()) for c, a in zip(completions, answer)]


def first_number(completions, answer, **columns):
    numbers = [re.search(r"\d+$", completion[0]["content"]) for completion in completions]
    return [float(m is not None and m[0] == a) for m, a in zip(numbers, answer)]


def without_one_answer() -> list[dict[str, Any]]:
    made = rows()
    made[4]["answer"] = None
    return made


NEW_LINE = {"stops": ["<|im_end|>", "\n"]}

PLANTED = (
    Planted(
        "messages-read-as-text",
        "scorer",
        "reads the completion itself",
        Scene(reads_messages_as_text),
        Scene(exact),
    ),
    Planted(
        "text-read-as-messages",
        "scorer",
        "string indices must be integers",
        Scene(exact, boxed, rows(False)),
        Scene(tagged_text, boxed, rows(False)),
    ),
    Planted(
        "tags-are-special-tokens",
        "tokenizer",
        "'<answer>'",
        Scene(tagged, tokenizer=special),
        Scene(tagged),
    ),
    Planted(
        "tokenizer-writes-small-letters",
        "tokenizer",
        "does not come back",
        Scene(same_case, "name", named_rows(), tokenizer=small),
        Scene(any_case, "name", named_rows(), tokenizer=small),
    ),
    Planted(
        "prompt-opens-the-thought",
        "template",
        "the prompt ends in <think>",
        Scene([tagged, whole_form], boxed, tokenizer=opened),
        Scene([tagged, form_behind_an_opened_thought], boxed, tokenizer=opened),
    ),
    Planted(
        "answer-behind-an-opened-thought",
        "template",
        "the prompt ends in <think>",
        Scene(exact, tokenizer=opened),
        Scene(exact, tokenizer=opened, options={"parser": behind_the_thought}),
    ),
    Planted(
        "template-raises",
        "template",
        "no generation prompt",
        Scene(exact, tokenizer=broken_template),
        Scene(exact),
    ),
    Planted(
        "completion-too-short",
        "stop",
        "at most 8 tokens",
        Scene(tagged, boxed, options={"max_completion_length": 8}),
        Scene(tagged, boxed, options={"max_completion_length": 40}),
    ),
    Planted(
        "stop-text-is-left-out",
        "stop",
        "'</answer>' ends the completion and is left out",
        Scene(tagged, options={"stops": "</answer>"}),
        Scene(tagged, options={"stops": "</answer>", "keeps_stop_text": True}),
    ),
    Planted(
        "stop-inside-the-answer",
        "stop",
        "ends the completion",
        Scene(last_word_if_any, with_line, options=NEW_LINE),
        Scene(last_word_if_any, options={"stops": "<|im_end|>"}),
    ),
    Planted(
        "end-stays-in-the-text",
        "stop",
        "stays in the text",
        Scene(exact, tokenizer=end_is_text),
        Scene(stripped, tokenizer=end_is_text),
    ),
    Planted(
        "parser-finds-nothing",
        "parser",
        "returns None",
        Scene(plain_score, options={"parser": inner}),
        Scene(plain_score, options={"parser": str.strip}),
    ),
    Planted(
        "parser-reads-an-empty-line",
        "parser",
        "' '",
        Scene(stripped, with_break, options={"parser": last_line}),
        Scene(stripped, with_break, options={"parser": last_full_line}),
    ),
    Planted(
        "parser-raises",
        "parser",
        "is not subscriptable",
        Scene(plain_score, options={"parser": breaks}),
        Scene(plain_score, options={"parser": str}),
    ),
    Planted(
        "column-is-not-there",
        "scorer",
        "the row has the columns prompt, answer, task",
        Scene(wants_solution),
        Scene(wants_solution, rows=[row | {"solution": row["answer"]} for row in rows()]),
    ),
    Planted(
        "right-words-are-unscored",
        "scorer",
        "None for the right words",
        Scene(none_for_right, lambda row: f"<answer>{row['answer']}</answer>"),
        Scene([exact, of_other_task]),
    ),
    Planted(
        "payment-is-nan",
        "scorer",
        "returns NaN",
        Scene(share, rows=rows(wrong_answers=0)),
        Scene(share, rows=rows(wrong_answers=2)),
    ),
    Planted(
        "text-compared-with-a-number",
        "scorer",
        "holds int",
        Scene(compares_with_numbers, "number", numbered_rows()),
        Scene(compares_with_their_text, "number", numbered_rows()),
    ),
    Planted(
        "every-answer-is-paid",
        "scorer",
        "no more than wrong ones",
        Scene(any_answer, lambda row: f"<answer>{row['answer']}</answer>"),
        Scene([tagged, any_answer, length_too], lambda row: f"<answer>{row['answer']}</answer>"),
    ),
    Planted(
        "first-row-for-all",
        "scorer",
        "mixes the rows",
        Scene(first_row_for_all),
        Scene(exact),
    ),
    Planted("too-few-values", "scorer", "11 values for 12", Scene(too_few), Scene(late)),
    Planted("one-number", "scorer", "returns no list", Scene(one_number), Scene(exact)),
    Planted(
        "empty-answer-raises",
        "scorer",
        "IndexError",
        Scene(last_word),
        Scene(last_word_if_any),
    ),
    Planted("sign-is-wrong", "scorer", "pays -1", Scene(turned), Scene(less_for_wrong)),
    Planted(
        "text-for-a-number", "scorer", "which is no number", Scene(text_for_number), Scene(exact)
    ),
    Planted(
        "one-row-is-never-paid",
        "scorer",
        "at other rows (1 of 12 rows)",
        Scene(first_number, rows=one_bad_row()),
        Scene(exact_of_stripped, rows=one_bad_row()),
    ),
    Planted(
        "a-row-without-an-answer",
        "data",
        "no words known to be paid (1 of 12 rows)",
        Scene(exact, rows=without_one_answer()),
        Scene(exact),
    ),
    Planted(
        "plain-function", "scorer", "no more than wrong", Scene(plain_zero), Scene(plain_score)
    ),
    Planted(
        "score-of-verl",
        "scorer",
        "no more than wrong",
        Scene(compute_score_of_list, "reward_model.ground_truth", rows_of_verl()),
        Scene(compute_score, "reward_model.ground_truth", rows_of_verl()),
    ),
    Planted(
        "rubric-of-verifiers",
        "scorer",
        "no more than wrong",
        Scene(Rubric(of_rubric_as_text)),
        Scene(Rubric(of_rubric)),
    ),
)
