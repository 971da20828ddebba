"""Failure messages that name the steps of a body, so that finished steps are not taken for undone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from perdure.vocab.outcomes import Failed, InDoubt, ToolOutput

LEFT_BEHIND = InDoubt(reason="cancelled", message="the body went on without it")
_NOT_RUN = re.compile(r"\b(it|the tool) was not run\b")


def with_steps(output: ToolOutput, steps: Mapping[str, bool]) -> ToolOutput:
    """Return a failure whose message names the steps; return any other output unchanged.

    `steps` maps each step that has an outcome to whether that outcome is known.
    """
    if not isinstance(output, Failed) or not steps:
        return output
    failure = output.failure
    message, begun = failure.message, 0
    if not failure.error_type:  # a message from user code stays as it is
        message, begun = _NOT_RUN.subn(r"\1 had begun, and was not run to its end", message)
    if begun and (done := [name for name, known in steps.items() if known]):
        message += f" Steps that are done: {_listed(done)}."
    if doubted := [name for name, known in steps.items() if not known]:
        message += f" Steps whose effect is unknown: {_listed(doubted)}."
    return replace(output, failure=replace(failure, message=message))


def _listed(names: list[str]) -> str:
    return ", ".join(f"the step {name!r}" if not index else repr(name) for index, name in enumerate(names))
