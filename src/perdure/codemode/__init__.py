"""Code mode: the model writes a program that calls the agent's tools; every call is a separate effect."""

from perdure.codemode.limits import ProgramLimits
from perdure.codemode.mode import code_mode

__all__ = ["ProgramLimits", "code_mode"]
