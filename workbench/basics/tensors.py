"""torch, imported when something is first computed with it.

    from workbench.basics.tensors import Tensor, torch

The settings of an algorithm stand beside its arithmetic, and configurations are read, checked and listed by commands and
on machines that compute nothing; importing torch takes seconds. So a module that only defines formulas takes torch from
here. `Tensor` and `nn` are for annotations, which are not evaluated. A class that derives from one of torch's needs torch
itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class _ImportedOnUse:
        """A module that is imported when one of its names is first asked for; the name is then remembered."""

        def __init__(self, module: str) -> None:
            self.__module = module

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self.__module), name)
            setattr(self, name, value)
            return value

    torch = _ImportedOnUse("torch")
    nn = _ImportedOnUse("torch.nn")
    Tensor = Any

__all__ = ["Tensor", "nn", "torch"]
