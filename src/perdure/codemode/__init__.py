"""Code mode: the model writes a program that calls the agent's tools, and every such call is an effect of its own."""

from perdure.codemode.limits import Limits
from perdure.codemode.mode import code_mode

__all__ = ["Limits", "code_mode"]
