"""Tasksets of verifiers."""

import verifiers.v1 as vf

from tests.envs.adapters.verifiers_worlds.v1_tools import Calculator, CalculatorConfig


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task[SumData]):
    """A question with one answer: two weighted rewards and a metric."""

    @vf.reward
    async def correct(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    count: int = 40


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield Sum(
                SumData(
                    prompt=f"What is {n} + {n * 7 % 11}?",
                    system_prompt="Be short.",
                    answer=str(n + n * 7 % 11),
                ),
                self.config.task,
            )


class EndlessSums(Sums):
    INFINITE = True

    def load(self):
        n = 0
        while True:
            yield Sum(SumData(prompt=f"What is {n} + 1?", answer=str(n + 1)), self.config.task)
            n += 1


class ToolSums(Sums):
    """With one tool server for all trajectories."""

    @classmethod
    def toolsets(cls, config):
        return [Calculator(CalculatorConfig())]


class Sulky(vf.Task[SumData]):
    """It ends at a word, its reward raises at another one."""

    @vf.stop
    async def enough(self, response: vf.Response) -> bool:
        return "enough" in (response.message.content or "")

    @vf.reward
    async def fine(self, trace) -> float:
        if "raise" in trace.last_reply:
            raise RuntimeError("the judge is away")
        return 1.0


class SulkySums(vf.Taskset[Sulky, SumsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield Sulky(SumData(prompt=f"Say {n}.", answer=str(n)), self.config.task)


class Contained(Sum):
    NEEDS_CONTAINER = True


class ContainedSums(vf.Taskset[Contained, SumsConfig]):
    def load(self):
        return []


def solve(row, said, rng):
    return row["answer"]


def any_number(row, said, rng):
    return str(rng.integers(0, 20))
