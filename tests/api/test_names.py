"""The public names, frozen: one may be added here, never renamed or taken away without a deprecation."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perdure

NAMES = [
    "AesGcm",
    "Codec",
    "Agent",
    "Attachment",
    "AttachmentRef",
    "CancelToken",
    "AwaitEventKey",
    "Err",
    "EventFailed",
    "EventTimedOut",
    "PendingCompletion",
    "StepFailed",
    "ChildCall",
    "Code",
    "Cursor",
    "Delta",
    "DepsContext",
    "DidNotHappen",
    "DirectRequest",
    "Error",
    "Event",
    "Fact",
    "Gap",
    "Happened",
    "InitialFile",
    "InstructionsContext",
    "OutcomeUnknown",
    "OutputDelta",
    "PendingItem",
    "PreparedToolCall",
    "ProcessContext",
    "Progress",
    "RetryPolicy",
    "Runtime",
    "Sent",
    "Session",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolExecutionResult",
    "ToolHints",
    "ToolManifest",
    "ToolObject",
    "ToolPrepareContext",
    "ToolProvider",
    "ToolRegistry",
    "ToolResultImage",
    "Tuning",
    "TurnResult",
    "Unknown",
    "Usage",
    "Why",
    "Work",
    "__version__",
    "ask_user",
    "client_tool",
    "per_turn",
    "process",
    "run",
    "tool",
]


def test_the_public_names_are_these() -> None:
    assert sorted(perdure.__all__) == sorted(NAMES)
    assert dir(perdure) == perdure.__all__


def test_there_are_at_most_sixty() -> None:
    assert len(perdure.__all__) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(perdure, name) is not None


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Teleport'"):
        _ = perdure.Teleport


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after one statement."""
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_perdure_loads_nothing_that_is_not_used() -> None:
    loaded = loaded_after("import perdure")
    assert "perdure.errors" in loaded
    for heavy in (
        "pydantic",
        "fastapi",
        "typer",
        "rich",
        "httpx2",
        "sqlite3",
        "asyncpg",
        "cryptography",
        "opentelemetry",
    ):
        assert heavy not in loaded
    for lazy in ("perdure.runtime", "perdure.tools", "perdure.store", "perdure.observe", "perdure.vocab"):
        assert lazy not in loaded


def test_a_name_is_loaded_when_it_is_first_used() -> None:
    assert "perdure.vocab.tools" not in loaded_after("import perdure")
    loaded = loaded_after("from perdure import RetryPolicy")
    assert "perdure.vocab.tools" in loaded
    assert "perdure.runtime" not in loaded
