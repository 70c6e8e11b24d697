"""The forms of calls by name, and what no template says of a family.

A template is asked which form it writes (`telling`); nothing here goes by a model's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.extensions.families.channels import Harmony
from workbench.extensions.families.dialect import Dialect, types_of
from workbench.extensions.families.json_calls import (
    Cohere,
    DeepSeekV3,
    DeepSeekV31,
    Granite,
    KimiK2,
    LlamaJson,
    Mistral,
    MistralArgs,
    Nemotron2,
    Phi4,
)
from workbench.extensions.families.tag_calls import DeepSeekV32, Glm, MiniMax, Muse, QwenXml
from workbench.extensions.families.value_calls import Gemma4, Lfm2
from workbench.tools.base import Tool


@dataclass(frozen=True)
class FormRow:
    """A form of calls.

    form      what reads and writes it
    families  where it is written
    signs     words of a template that shows tools but writes no call, by which the form is known
    ends      tokens that end a turn with calls although no template writes them, by which models end it themselves
    openers   tokens that end a turn with calls because the reply begins with them: the template's end of turn still follows
              where the reply begins otherwise"""

    form: type[Dialect]
    families: str
    signs: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


ROWS: tuple[FormRow, ...] = (
    FormRow(LlamaJson, "Llama 3.1 to 3.3", ends=("<|eom_id|>",)),
    FormRow(QwenXml, "Qwen3-Coder, Qwen 3.5 and later, Nemotron 3"),
    FormRow(Glm, "GLM 4.5 to 5", openers=("<|observation|>",)),
    FormRow(Lfm2, "LFM2", signs=("<|tool_list_start|>",)),
    FormRow(Gemma4, "Gemma 4", openers=("<|tool_response>",)),
    FormRow(Harmony, "gpt-oss"),
    FormRow(DeepSeekV3, "DeepSeek V3, R1"),
    FormRow(DeepSeekV31, "DeepSeek V3.1"),
    FormRow(DeepSeekV32, "DeepSeek V3.2"),
    FormRow(KimiK2, "Kimi K2"),
    FormRow(Mistral, "Mistral 7B v0.3 to Small 3"),
    FormRow(MistralArgs, "Mistral Small 3.2 and later, Magistral, Devstral"),
    FormRow(MiniMax, "MiniMax M2"),
    FormRow(Muse, "Muse"),
    FormRow(Phi4, "Phi 4 mini"),
    FormRow(Granite, "Granite 3"),
    FormRow(Cohere, "Command R7B, Command A"),
    FormRow(Nemotron2, "Nemotron Nano 2"),
)


def llama_json(tools: Sequence[Tool] = (), think: bool = False) -> LlamaJson:
    """Calls as Llama 3.1 writes them."""
    return LlamaJson(think, types_of(tools))


def qwen_xml(tools: Sequence[Tool] = (), think: bool = False) -> QwenXml:
    """Calls as Qwen 3.5 and Qwen3-Coder write them."""
    return QwenXml(think, types_of(tools))


def glm(tools: Sequence[Tool] = (), think: bool = False) -> Glm:
    """Calls as GLM 4.5 writes them."""
    return Glm(think, types_of(tools))


def lfm2(tools: Sequence[Tool] = (), think: bool = False) -> Lfm2:
    """Calls as LFM2 writes them."""
    return Lfm2(think, types_of(tools))


def gemma4(tools: Sequence[Tool] = (), think: bool = False) -> Gemma4:
    """Calls as Gemma 4 writes them."""
    return Gemma4(think, types_of(tools))


def harmony(tools: Sequence[Tool] = (), think: bool = False) -> Harmony:
    """Calls as gpt-oss writes them."""
    return Harmony(think, types_of(tools))


def deepseek_v3(tools: Sequence[Tool] = (), think: bool = False) -> DeepSeekV3:
    """Calls as DeepSeek V3 and R1 write them."""
    return DeepSeekV3(think, types_of(tools))


def deepseek_v31(tools: Sequence[Tool] = (), think: bool = False) -> DeepSeekV31:
    """Calls as DeepSeek V3.1 writes them."""
    return DeepSeekV31(think, types_of(tools))


def deepseek_v32(tools: Sequence[Tool] = (), think: bool = False) -> DeepSeekV32:
    """Calls as DeepSeek V3.2 writes them."""
    return DeepSeekV32(think, types_of(tools))


def kimi_k2(tools: Sequence[Tool] = (), think: bool = False) -> KimiK2:
    """Calls as Kimi K2 writes them."""
    return KimiK2(think, types_of(tools))


def mistral(tools: Sequence[Tool] = (), think: bool = False) -> Mistral:
    """Calls as Mistral wrote them until Small 3."""
    return Mistral(think, types_of(tools))


def mistral_args(tools: Sequence[Tool] = (), think: bool = False) -> MistralArgs:
    """Calls as Mistral writes them since Small 3.2."""
    return MistralArgs(think, types_of(tools))


def minimax(tools: Sequence[Tool] = (), think: bool = False) -> MiniMax:
    """Calls as MiniMax M2 writes them."""
    return MiniMax(think, types_of(tools))


def muse(tools: Sequence[Tool] = (), think: bool = False) -> Muse:
    """Calls as Muse writes them."""
    return Muse(think, types_of(tools))


def phi4(tools: Sequence[Tool] = (), think: bool = False) -> Phi4:
    """Calls as Phi 4 mini writes them."""
    return Phi4(think, types_of(tools))


def granite(tools: Sequence[Tool] = (), think: bool = False) -> Granite:
    """Calls as Granite 3 writes them."""
    return Granite(think, types_of(tools))


def cohere(tools: Sequence[Tool] = (), think: bool = False) -> Cohere:
    """Calls as Command A writes them."""
    return Cohere(think, types_of(tools))


def nemotron2(tools: Sequence[Tool] = (), think: bool = False) -> Nemotron2:
    """Calls as Nemotron Nano 2 writes them."""
    return Nemotron2(think, types_of(tools))
