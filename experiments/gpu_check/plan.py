"""The parts of a check: what each asks, how long it may take, and which call to a lent machine it belongs to.

A part is a process of its own, so that a crash, a hang or memory that ran out ends that part and no other.
"""

from __future__ import annotations

from dataclasses import dataclass

MODULES = "experiments.gpu_check"


@dataclass(frozen=True)
class Part:
    """One question to the device."""

    name: str
    call: int  # which of the calls, of at most ten minutes each, it belongs to
    limit_s: int  # on a GPU; then it is ended
    question: str
    work: str  # module:function, called as function(setting, keep)


PARTS = (
    Part("doctor", 1, 60, "what is installed, and what works", "agreement:doctor"),
    Part(
        "agreement",
        1,
        60,
        "engine, learner, packing and sync against a plain forward pass on the CPU",
        "agreement:agreement",
    ),
    Part("tests", 1, 90, "the tests that need a CUDA device", "agreement:tests"),
    Part(
        "determinism", 1, 60, "what is equal, bit for bit, when done twice", "agreement:determinism"
    ),
    Part("decode", 1, 240, "decoding, against bandwidth and plain generate", "speed:decode"),
    Part(
        "update",
        2,
        270,
        "an update of 8k tokens: tokens/s, share of the matrix product",
        "speed:update",
    ),
    Part("loss", 2, 60, "the loss over 152k words, whole and in pieces: peak memory", "speed:loss"),
    Part(
        "states",
        2,
        150,
        "sync, checkpoint, resume: seconds, and whether bits are equal",
        "states:states",
    ),
    Part(
        "shipped",
        3,
        270,
        "shipped policies trained here: success, engine against trainer",
        "learning:shipped",
    ),
    Part(
        "real",
        4,
        370,
        "a pretrained model of 135 million parameters learns to guess",
        "learning:real",
    ),
    Part("lint", 4, 120, "what the lint takes of a step, on and off in turns", "speed:lint"),
)
NAMES = tuple(part.name for part in PARTS)


def chosen(names: list[str] | None, call: int | None) -> list[Part]:
    """The parts that were asked for, in the plan's order."""
    wanted = NAMES if names is None else names
    return [part for part in PARTS if part.name in wanted and call in (None, part.call)]


@dataclass(frozen=True)
class Setting:
    """Where and how large. `tiny`: shapes that a CPU does in seconds, to see that everything runs."""

    device: str
    tiny: bool
    seconds: float = 600.0  # that this part may take
    model: str = ""  # folder of the pretrained model; "": there is none

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def dtype(self) -> str:
        """Of an engine on this device."""
        return "bfloat16" if self.on_gpu else "float32"

    @property
    def precision(self) -> str:
        """Of training on this device."""
        return "bf16" if self.on_gpu else "fp32"
