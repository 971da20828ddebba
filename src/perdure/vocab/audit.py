"""Acts of the audit log: the closed set of their names, and the stored form of one."""

from __future__ import annotations

from typing import Literal

from perdure.vocab.wire import Value

Act = Literal[
    "approval_approved",
    "approval_edited",
    "approval_denied",
    "doubt_settled",
    "grant_made",
    "grant_revoked",
    "question_answered",
    "result_posted",
    "key_resolved",
    "keys_revoked",
    "turn_cancelled",
    "turn_retried",
    "input_cancelled",
    "session_paused",
    "session_resumed",
    "model_set",
    "record_redacted",
    "session_deleted",
    "session_exported",
    "session_imported",
    "secret_stored",
    "secret_read",
    "process_cancelled",
    "process_abandoned",
    "process_deleted",
    "refusals_omitted",
    "event_resolved",
    "wait_cancelled",
]
"""Append-only. `docs/ops/audit.md` names the target of each."""

ActOutcome = Literal["done", "refused"]

MAX_FIELD_CHARS = 512
"""The length of a longer field after it was cut. Ids are never longer."""


class ActRecorded(Value, frozen=True):
    """One act: author, way, subject and outcome. Contains no payloads, secrets or signatures.

    `act` and `outcome` are plain text, so that an older version lists the acts of a newer one.
    """

    act: str
    by: str
    via: str
    outcome: str = "done"
    session: str = ""
    target: str = ""
    detail: str = ""
