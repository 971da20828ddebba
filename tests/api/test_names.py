"""The public names, frozen: one may be added here, never renamed or taken away without a deprecation."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import perdure

NAMES = [
    "Agent",
    "Attachment",
    "BaseTool",
    "CannotTell",
    "Code",
    "DidNotHappen",
    "Error",
    "EventFailed",
    "EventKey",
    "EventTimedOut",
    "Failure",
    "Happened",
    "InitialFile",
    "McpServers",
    "OutcomeUnknown",
    "ProcessContext",
    "RetryPolicy",
    "Runtime",
    "RuntimeOptions",
    "Session",
    "StepFailed",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolHints",
    "TurnHandle",
    "TurnResult",
    "UsageLimits",
    "WorkerOptions",
    "__version__",
    "ask_user",
    "client_tool",
    "code_mode",
    "handoff",
    "per_turn",
    "process",
    "run",
    "spawn_subagent",
    "tool",
]

FRONTS = {
    "perdure.events": [
        "Cursor",
        "DeltasDropped",
        "Event",
        "RecordEvent",
        "TextDelta",
        "TextReset",
        "ToolOutputDelta",
        "ToolProgress",
    ],
    "perdure.providers": ["PreparedToolCall", "ProviderContext", "ToolManifest", "ToolPrepareContext", "ToolProvider"],
    "perdure.security": ["AesGcmCodec", "PayloadCodec"],
    "perdure.tools": ["Image", "ToolRegistry", "ToolResult"],
    "perdure.values": [
        "AttachmentRef",
        "AuditedAct",
        "Cancellation",
        "DepsContext",
        "Explanation",
        "InputLimits",
        "InstructionsContext",
        "PendingCompletion",
        "PendingItem",
        "ProcessLimits",
        "SessionDetails",
        "SessionInfo",
        "SpawnLimits",
        "Usage",
    ],
}

RUNTIME = [
    "agents", "approvals", "audit", "drain", "files", "get_process", "get_session", "import_session", "list_sessions",
    "models", "peek", "processes", "ready", "resolve", "schedule", "schedules", "session", "start", "start_command",
    "tasks", "tenant", "triggers", "worker_id",
]  # fmt: skip
SESSION = [
    "answer", "ask", "cancel", "cancel_input", "cancel_waits", "delete", "events", "export", "files", "grants", "id",
    "info", "journal", "messages", "move", "pause", "pending", "post_result", "post_results", "queued_inputs",
    "redact", "resolve", "resume", "retry", "revoke_grant", "revoke_keys", "send", "set_model", "set_tags",
    "set_title", "usage", "usage_entries", "why",
]  # fmt: skip

CLIENTS = {
    "approvals": ["approve", "deny", "get", "list", "settle", "watch"],
    "processes": ["cancel", "cancel_ability", "cancel_all", "from_json", "list", "share", "unshare"],
    "schedules": ["create", "get", "list"],
    "tasks": ["cancel", "create", "get", "list", "messages", "send_message", "start", "update"],
    "triggers": ["declare", "emit", "list", "subscribe", "subscription"],
}


def members(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


@pytest.mark.parametrize("front", FRONTS)
def test_front_module_has_its_names(front: str) -> None:
    module = import_module(front)
    assert sorted(module.__all__) == FRONTS[front]
    assert all(getattr(module, name) is not None for name in FRONTS[front])


async def test_runtime_and_session_show_no_internals() -> None:
    async with perdure.Runtime("memory://", agents=[perdure.Agent("a", model="sim:echo")], worker=False) as rt:
        assert members(rt) == RUNTIME
        assert members(await rt.session("s", agent="a")) == SESSION
        assert {name: members(getattr(rt, name)) for name in CLIENTS} == CLIENTS


def test_the_public_names_are_these() -> None:
    assert sorted(perdure.__all__) == sorted(NAMES)
    assert dir(perdure) == perdure.__all__


def test_root_has_at_most_forty_names() -> None:
    assert len(perdure.__all__) <= 40


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
