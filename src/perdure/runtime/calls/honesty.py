"""What the failure of a body says about steps that it had: whoever reads it must not take them for undone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from perdure.vocab.outcomes import Failed, InDoubt, ToolOutput

LEFT_BEHIND = InDoubt(reason="cancelled", message="the body went on without it")
_NOT_RUN = re.compile(r"\b(it|the tool) was not run\b")


def with_steps(output: ToolOutput, steps: Mapping[str, bool]) -> ToolOutput:
    """A failure that tells of the steps; anything else as it is. `steps` are those with an outcome, and whether it is
    known."""
    if not isinstance(output, Failed) or not steps:
        return output
    failure = output.failure
    message, begun = failure.message, 0
    if not failure.error_type:  # what its own code says of itself is left as it is
        message, begun = _NOT_RUN.subn(r"\1 had begun, and was not run to its end", message)
    if begun and (done := [name for name, known in steps.items() if known]):
        message += f" Steps that are done: {_listed(done)}."
    if doubted := [name for name, known in steps.items() if not known]:
        message += f" Nobody knows whether {_listed(doubted)} took effect."
    return replace(output, failure=replace(failure, message=message))


def _listed(names: list[str]) -> str:
    return ", ".join(f"the step {name!r}" if not index else repr(name) for index, name in enumerate(names))
