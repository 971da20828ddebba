"""Exit codes, and the printed form of errors: message, because, hint. No traceback unless PERDURE_DEBUG is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from perdure.cli.program import pasteable
from perdure.cli.screen import in_line
from perdure.errors import Code, Error
from perdure.ids import without_keys

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
AT_APPROVAL = 5
OVER_LIMIT = 6
NO_STORE = 7
INTERRUPTED = 130

EXITS: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: USAGE,
    Code.INVALID_ID: USAGE,
    Code.INVALID_JSON: USAGE,
    Code.INVALID_TEXT: USAGE,
    Code.INVALID_CURSOR: USAGE,
    Code.INPUT_TOO_LARGE: USAGE,
    Code.TARGET_INVALID: USAGE,
    Code.AGENT_INVALID: USAGE,
    Code.MODEL_UNKNOWN: USAGE,
    Code.MODEL_KEY_MISSING: USAGE,
    Code.MODEL_PACKAGE_MISSING: USAGE,
    Code.TOOL_INVALID: USAGE,
    Code.STORE_URL_INVALID: USAGE,
    Code.AGENT_UNKNOWN: NOT_FOUND,
    Code.SESSION_UNKNOWN: NOT_FOUND,
    Code.TURN_UNKNOWN: NOT_FOUND,
    Code.RECORD_UNKNOWN: NOT_FOUND,
    Code.BLOB_UNKNOWN: NOT_FOUND,
    Code.EVENT_KEY_INVALID: NOT_FOUND,
    Code.APPROVAL_UNKNOWN: NOT_FOUND,
    Code.APPROVAL_ALREADY_DECIDED: CONFLICT,
    Code.APPROVAL_STALE: CONFLICT,
    Code.ORIGINAL_CALL_MAY_STILL_RUN: CONFLICT,
    Code.TOOL_CALL_UNKNOWN: NOT_FOUND,
    Code.TOOL_CALL_ANSWERED: CONFLICT,
    Code.INPUT_KEY_CONFLICT: CONFLICT,
    Code.SESSION_AGENT_CONFLICT: CONFLICT,
    Code.SESSION_BUSY: CONFLICT,
    Code.SESSION_EXISTS: CONFLICT,
    Code.TURN_NOT_RETRYABLE: CONFLICT,
    Code.LEASE_LOST: CONFLICT,
    Code.COMMIT_CONFLICT: CONFLICT,
    Code.GATE_CLOSED: CONFLICT,
    Code.REPLAY_MISMATCH: CONFLICT,
    Code.STORE_READ_ONLY: NO_STORE,
    Code.STORE_FULL: NO_STORE,
    Code.STORE_LOCKED: NO_STORE,
    Code.STORE_CORRUPT: NO_STORE,
    Code.STORE_NEWER: NO_STORE,
    Code.STORE_NOT_OURS: NO_STORE,
    Code.STORE_UNAVAILABLE: NO_STORE,
    Code.STORE_FAILED: NO_STORE,
    Code.FORMAT_NEWER: NO_STORE,
}
"""The exit code of each error code. All other codes exit with 1."""


class ReaderLeft(Exception):
    """The reader of stdout closed the pipe (`perdure … | head`). A separate class, because typer reports EPIPE as a
    failure.
    """


def debugging() -> bool:
    """Return True if PERDURE_DEBUG asks for tracebacks."""
    return os.environ.get("PERDURE_DEBUG", "") not in ("", "0")


def complain(what: str, because: str = "", hint: str = "") -> None:
    """Print an error for a person."""
    print(f"error: {_escaped(what)}", file=sys.stderr)
    if because:
        lines = f"\n{'':<11}".join(_escaped(line) for line in because.split("\n"))
        print(f"  because  {lines}", file=sys.stderr)
    if hint:
        print(f"  hint     {pasteable(_escaped(hint))}", file=sys.stderr)


def _escaped(text: str) -> str:
    """Escape a line of an error text: foreign text stays on the line, and keys are removed."""
    return in_line(without_keys(text))


def exit_code(problem: Error) -> int:
    """Return the exit code of an error."""
    return EXITS.get(problem.code, FAILED)


def refuse(problem: Error) -> int:
    """Print an error and return its exit code."""
    complain(problem.message, problem.because, problem.hint)
    return exit_code(problem)
