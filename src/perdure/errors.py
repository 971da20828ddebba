"""The one exception class of Perdure and its closed list of codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Retry = Literal["never", "same", "later"]


class Code(StrEnum):
    """Error codes: stable, public, append-only. A code names no backend or provider; those go into `details`."""

    # input at the edge
    INVALID_ARGUMENT = "invalid_argument"
    INVALID_ID = "invalid_id"
    INVALID_JSON = "invalid_json"
    INVALID_TEXT = "invalid_text"
    INVALID_CURSOR = "invalid_cursor"
    INPUT_TOO_LARGE = "input_too_large"
    INPUT_KEY_CONFLICT = "input_key_conflict"
    QUEUE_FULL = "queue_full"
    TARGET_INVALID = "target_invalid"

    # sessions, agents, turns
    AGENT_UNKNOWN = "agent_unknown"
    AGENT_INVALID = "agent_invalid"
    MODEL_UNKNOWN = "model_unknown"
    MODEL_KEY_MISSING = "model_key_missing"
    MODEL_PACKAGE_MISSING = "model_package_missing"
    CONFIG_UNTRUSTED = "config_untrusted"
    SESSION_UNKNOWN = "session_unknown"
    SESSION_AGENT_CONFLICT = "session_agent_conflict"
    SESSION_BUSY = "session_busy"
    TURN_UNKNOWN = "turn_unknown"
    TURN_EVENT_UNEXPECTED = "turn_event_unexpected"
    TURN_FAILED = "turn_failed"
    RECORD_UNKNOWN = "record_unknown"
    RESULT_TIMEOUT = "result_timeout"
    SESSION_EXISTS = "session_exists"
    TURN_NOT_RETRYABLE = "turn_not_retryable"
    EXPORT_INVALID = "export_invalid"
    OUTPUT_INVALID = "output_invalid"

    # schedules
    SCHEDULE_INVALID = "schedule_invalid"
    SCHEDULE_ZONE_UNKNOWN = "schedule_zone_unknown"
    SCHEDULE_LIMIT = "schedule_limit"
    SCHEDULE_UNKNOWN = "schedule_unknown"
    SCHEDULE_CONFLICT = "schedule_conflict"
    SCHEDULE_ENDED = "schedule_ended"

    # sub-agents
    SUBAGENT_DEPTH_EXCEEDED = "subagent_depth_exceeded"
    SUBAGENT_ACTIVE_EXCEEDED = "subagent_active_exceeded"
    SUBAGENT_TOTAL_EXCEEDED = "subagent_total_exceeded"
    SUBAGENT_CLAIM_INVALID = "subagent_claim_invalid"
    SUBAGENT_FAILED = "subagent_failed"
    SUBAGENT_CANCELLED = "subagent_cancelled"
    SUBAGENT_TIMEOUT = "subagent_timeout"
    SUBAGENT_GONE = "subagent_gone"
    SUBAGENT_OUTPUT_INVALID = "subagent_output_invalid"

    # triggers
    TRIGGER_INVALID = "trigger_invalid"
    TRIGGER_CONFLICT = "trigger_conflict"
    TRIGGER_LIMIT = "trigger_limit"
    TRIGGER_SOURCE_UNKNOWN = "trigger_source_unknown"
    TRIGGER_SUBSCRIPTION_UNKNOWN = "trigger_subscription_unknown"
    TRIGGER_REVISION_CONFLICT = "trigger_revision_conflict"

    # people
    APPROVAL_UNKNOWN = "approval_unknown"
    APPROVAL_ALREADY_DECIDED = "approval_already_decided"
    APPROVAL_STALE = "approval_stale"
    ORIGINAL_CALL_MAY_STILL_RUN = "original_call_may_still_run"
    TOOL_CALL_UNKNOWN = "tool_call_unknown"
    TOOL_CALL_ANSWERED = "tool_call_answered"
    TOOL_RESULT_INVALID = "tool_result_invalid"
    ANSWER_INVALID = "answer_invalid"

    # tools as they are registered
    TOOL_INVALID = "tool_invalid"
    TOOL_UNKNOWN = "tool_unknown"
    TOOL_PACKAGE_MISSING = "tool_package_missing"

    # files of a session
    FILE_PATH_INVALID = "file_path_invalid"
    FILE_CONTENT_INVALID = "file_content_invalid"
    FILE_PATTERN_INVALID = "file_pattern_invalid"
    FILE_UNKNOWN = "file_unknown"
    FILE_KIND_CONFLICT = "file_kind_conflict"
    FILE_READONLY = "file_readonly"
    FILE_LIMIT_EXCEEDED = "file_limit_exceeded"
    FILE_SEED_UNSUPPORTED = "file_seed_unsupported"
    FILES_DISABLED = "files_disabled"

    # tasks of a session
    TASK_UNKNOWN = "task_unknown"
    TASK_LIMIT_EXCEEDED = "task_limit_exceeded"

    # the runtime
    RUNTIME_CLOSED = "runtime_closed"
    RUNTIME_FORKED = "runtime_forked"

    # the store
    LEASE_LOST = "lease_lost"
    COMMIT_CONFLICT = "commit_conflict"
    GATE_CLOSED = "gate_closed"
    STORE_COMMIT_BYTE_BUDGET_EXCEEDED = "store_commit_byte_budget_exceeded"
    STORE_COMMIT_ROW_BUDGET_EXCEEDED = "store_commit_row_budget_exceeded"
    STORE_URL_INVALID = "store_url_invalid"
    STORE_READ_ONLY = "store_read_only"
    STORE_FULL = "store_full"
    STORE_LOCKED = "store_locked"
    STORE_CORRUPT = "store_corrupt"
    STORE_NEWER = "store_newer"
    STORE_NOT_OURS = "store_not_ours"
    STORE_UNAVAILABLE = "store_unavailable"
    STORE_FAILED = "store_failed"
    BLOB_UNKNOWN = "blob_unknown"
    FORMAT_NEWER = "format_newer"
    CODEC_FAILED = "codec_failed"
    STORE_ACCESS_DENIED = "store_access_denied"
    STORE_CONNECTIONS_EXHAUSTED = "store_connections_exhausted"
    FOLDER_UNSAFE = "folder_unsafe"

    # processes
    PROCESS_UNKNOWN = "process_unknown"
    PROCESS_CONFLICT = "process_conflict"
    PROCESS_DEFINITION_INVALID = "process_definition_invalid"
    PROCESS_DEFINITION_UNKNOWN = "process_definition_unknown"
    PROCESS_REGISTRATION_INVALID = "process_registration_invalid"
    PROCESS_EVENT_UNDECLARED = "process_event_undeclared"
    PROCESS_EVENT_TYPE_INVALID = "process_event_type_invalid"
    PROCESS_EVENT_INVALID = "process_event_invalid"
    PROCESS_EVENT_REPLAY_KEY_REQUIRED = "process_event_replay_key_required"
    PROCESS_EVENT_CONFLICT = "process_event_conflict"
    PROCESS_ALREADY_TERMINAL = "process_already_terminal"
    PROCESS_SIGNAL_INVALID = "process_signal_invalid"
    PROCESS_FAILED = "process_failed"
    PROCESS_NOT_EXTERNAL = "process_not_external"
    PROCESS_HANDLE_INVALID = "process_handle_invalid"
    PROCESS_NOT_VISIBLE = "process_not_visible"
    PROCESS_NOT_ENDED = "process_not_ended"
    PROCESS_CHILDREN_EXCEEDED = "process_children_exceeded"
    PROCESS_DEPTH_EXCEEDED = "process_depth_exceeded"
    PROCESS_WAIT_CYCLE = "process_wait_cycle"
    COMMAND_INVALID = "command_invalid"
    COMMAND_UNKNOWN = "command_unknown"
    COMMAND_FOLDER_UNKNOWN = "command_folder_unknown"

    # the effect seam
    REPLAY_MISMATCH = "replay_mismatch"
    RUNTIME_EFFECT_INVOCATION_SUBJECT = "runtime_effect_invocation_subject"
    RUNTIME_EFFECT_INVOCATION_KIND = "runtime_effect_invocation_kind"
    RUNTIME_EFFECT_REPLAY_REQUIRED = "runtime_effect_replay_required"
    RUNTIME_EFFECT_ENVELOPE_HASH = "runtime_effect_envelope_hash"
    RUNTIME_EFFECT_WRONG_OUTCOME = "runtime_effect_wrong_outcome"
    RUNTIME_EFFECT_TOOL_CALL_PENDING = "runtime_effect_tool_call_pending"
    RUNTIME_EFFECT_TOOL_BATCH_EMPTY = "runtime_effect_tool_batch_empty"
    RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE = "runtime_effect_attachment_missing_reference"
    RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE = "runtime_effect_attachment_media_type"
    RUNTIME_EFFECT_ATTACHMENT_STORE = "runtime_effect_attachment_store"
    RUNTIME_EFFECT_LOCAL_EXECUTOR_MISMATCH = "runtime_effect_local_executor_mismatch"
    RUNTIME_EFFECT_LOCAL_EXECUTOR_UNAVAILABLE = "runtime_effect_local_executor_unavailable"
    RUNTIME_EFFECT_IN_DOUBT = "runtime_effect_in_doubt"
    INVALID_AWAIT_EVENT_WAIT_IDENTITY = "invalid_await_event_wait_identity"
    EVENT_KEY_INVALID = "event_key_invalid"

    # durable effects inside a tool
    DURABLE_EFFECTS_MISSING_CALL_ID = "durable_effects_missing_call_id"
    DURABLE_EFFECTS_UNAVAILABLE = "durable_effects_unavailable"
    DURABLE_EFFECTS_UNAVAILABLE_IN_TOOL_BATCH = "durable_effects_unavailable_in_tool_batch"
    DURABLE_EFFECT_STATE_POISONED = "durable_effect_state_poisoned"
    DURABLE_EFFECT_EMPTY_STEP_ID = "durable_effect_empty_step_id"
    DURABLE_EFFECT_DUPLICATE_STEP_ID = "durable_effect_duplicate_step_id"
    DURABLE_EFFECT_EMPTY_EVENT_KEY = "durable_effect_empty_event_key"
    DURABLE_EFFECT_EVENT_TIMEOUT = "durable_effect_event_timeout"
    DURABLE_EFFECT_EVENT_CANCELLED = "durable_effect_event_cancelled"
    DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE = "durable_effect_process_event_unavailable"
    DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE = "durable_effect_empty_process_event_type"
    DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED = "durable_effect_process_event_append_failed"
    DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH = "durable_effect_process_event_process_mismatch"
    TOOL_COMPLETION_KEY_MISSING_CALL_ID = "tool_completion_key_missing_call_id"
    TOOL_COMPLETION_STATE_POISONED = "tool_completion_state_poisoned"
    PROCESS_SIGNAL_WAIT_TIMEOUT = "process_signal_wait_timeout"
    PROCESS_SIGNAL_WAIT_CANCELLED = "process_signal_wait_cancelled"


@dataclass(frozen=True, slots=True)
class Trait:
    """The HTTP status of a code, and whether a retry can help."""

    status: int
    retry: Retry = "never"


_BAD = Trait(400)
_CONFLICT = Trait(409)
_MISSING = Trait(404)
_BROKEN = Trait(500)
_AWAY = Trait(503, "later")

TRAITS: Mapping[Code, Trait] = {
    Code.INVALID_ARGUMENT: _BAD,
    Code.INVALID_ID: _BAD,
    Code.INVALID_JSON: _BAD,
    Code.INVALID_TEXT: _BAD,
    Code.INVALID_CURSOR: _BAD,
    Code.INPUT_TOO_LARGE: Trait(413),
    Code.INPUT_KEY_CONFLICT: _CONFLICT,
    Code.QUEUE_FULL: Trait(429, "later"),
    Code.TARGET_INVALID: _BAD,
    Code.AGENT_UNKNOWN: _MISSING,
    Code.AGENT_INVALID: _BAD,
    Code.MODEL_UNKNOWN: _BAD,
    Code.MODEL_KEY_MISSING: _BAD,
    Code.MODEL_PACKAGE_MISSING: _BAD,
    Code.CONFIG_UNTRUSTED: _BAD,
    Code.SESSION_UNKNOWN: _MISSING,
    Code.SESSION_AGENT_CONFLICT: _CONFLICT,
    Code.SESSION_BUSY: Trait(409, "later"),
    Code.TURN_UNKNOWN: _MISSING,
    Code.TURN_EVENT_UNEXPECTED: _BROKEN,
    Code.TURN_FAILED: Trait(502),
    Code.RECORD_UNKNOWN: _MISSING,
    Code.RESULT_TIMEOUT: Trait(504, "same"),
    Code.SESSION_EXISTS: _CONFLICT,
    Code.EXPORT_INVALID: _BAD,
    Code.OUTPUT_INVALID: Trait(502),
    Code.SUBAGENT_DEPTH_EXCEEDED: Trait(409),
    Code.SUBAGENT_ACTIVE_EXCEEDED: Trait(409, "later"),
    Code.SUBAGENT_TOTAL_EXCEEDED: Trait(409),
    Code.SUBAGENT_CLAIM_INVALID: Trait(409),
    Code.SUBAGENT_FAILED: Trait(502),
    Code.SUBAGENT_CANCELLED: Trait(409),
    Code.SUBAGENT_TIMEOUT: Trait(504),
    Code.SUBAGENT_GONE: Trait(410),
    Code.SUBAGENT_OUTPUT_INVALID: Trait(502),
    Code.TURN_NOT_RETRYABLE: _CONFLICT,
    Code.SCHEDULE_INVALID: _BAD,
    Code.SCHEDULE_ZONE_UNKNOWN: _BAD,
    Code.SCHEDULE_LIMIT: _CONFLICT,
    Code.SCHEDULE_UNKNOWN: _MISSING,
    Code.SCHEDULE_CONFLICT: _CONFLICT,
    Code.SCHEDULE_ENDED: _CONFLICT,
    Code.TRIGGER_INVALID: _BAD,
    Code.TRIGGER_CONFLICT: _CONFLICT,
    Code.TRIGGER_LIMIT: _CONFLICT,
    Code.TRIGGER_SOURCE_UNKNOWN: _MISSING,
    Code.TRIGGER_SUBSCRIPTION_UNKNOWN: _MISSING,
    Code.TRIGGER_REVISION_CONFLICT: _CONFLICT,
    Code.APPROVAL_UNKNOWN: _MISSING,
    Code.APPROVAL_ALREADY_DECIDED: _CONFLICT,
    Code.APPROVAL_STALE: _CONFLICT,
    Code.ORIGINAL_CALL_MAY_STILL_RUN: Trait(409, "later"),
    Code.TOOL_CALL_UNKNOWN: _MISSING,
    Code.TOOL_CALL_ANSWERED: _CONFLICT,
    Code.TOOL_RESULT_INVALID: _BAD,
    Code.ANSWER_INVALID: _BAD,
    Code.TOOL_INVALID: _BAD,
    Code.TOOL_UNKNOWN: _MISSING,
    Code.TOOL_PACKAGE_MISSING: Trait(500),
    Code.FILE_PATH_INVALID: _BAD,
    Code.FILE_CONTENT_INVALID: _BAD,
    Code.FILE_PATTERN_INVALID: _BAD,
    Code.FILE_UNKNOWN: _MISSING,
    Code.FILE_KIND_CONFLICT: _CONFLICT,
    Code.FILE_READONLY: _CONFLICT,
    Code.FILE_LIMIT_EXCEEDED: Trait(413),
    Code.FILE_SEED_UNSUPPORTED: Trait(501),
    Code.FILES_DISABLED: _MISSING,
    Code.TASK_UNKNOWN: _MISSING,
    Code.TASK_LIMIT_EXCEEDED: Trait(409, "later"),
    Code.RUNTIME_CLOSED: _AWAY,
    Code.RUNTIME_FORKED: _BROKEN,
    Code.LEASE_LOST: Trait(409, "later"),
    Code.COMMIT_CONFLICT: _CONFLICT,
    Code.GATE_CLOSED: _CONFLICT,
    Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED: Trait(413),
    Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED: Trait(413),
    Code.STORE_URL_INVALID: _BAD,
    Code.STORE_READ_ONLY: Trait(503),
    Code.STORE_FULL: Trait(507, "later"),
    Code.STORE_LOCKED: _AWAY,
    Code.STORE_CORRUPT: _BROKEN,
    Code.STORE_NEWER: Trait(503),
    Code.STORE_NOT_OURS: _BAD,
    Code.STORE_UNAVAILABLE: _AWAY,
    Code.STORE_FAILED: _AWAY,
    Code.BLOB_UNKNOWN: _MISSING,
    Code.FORMAT_NEWER: Trait(503),
    Code.CODEC_FAILED: Trait(503),
    Code.STORE_ACCESS_DENIED: Trait(503),
    Code.STORE_CONNECTIONS_EXHAUSTED: _AWAY,
    Code.FOLDER_UNSAFE: Trait(503),
    Code.PROCESS_UNKNOWN: _MISSING,
    Code.PROCESS_CONFLICT: _CONFLICT,
    Code.PROCESS_DEFINITION_INVALID: _BAD,
    Code.PROCESS_DEFINITION_UNKNOWN: _MISSING,
    Code.PROCESS_REGISTRATION_INVALID: _BAD,
    Code.PROCESS_EVENT_UNDECLARED: _BAD,
    Code.PROCESS_EVENT_TYPE_INVALID: _BAD,
    Code.PROCESS_EVENT_INVALID: _BAD,
    Code.PROCESS_EVENT_REPLAY_KEY_REQUIRED: _BAD,
    Code.PROCESS_EVENT_CONFLICT: _CONFLICT,
    Code.PROCESS_ALREADY_TERMINAL: _CONFLICT,
    Code.PROCESS_SIGNAL_INVALID: _BAD,
    Code.PROCESS_FAILED: Trait(502),
    Code.PROCESS_NOT_EXTERNAL: _CONFLICT,
    Code.PROCESS_HANDLE_INVALID: _BAD,
    Code.PROCESS_NOT_VISIBLE: _MISSING,
    Code.PROCESS_NOT_ENDED: _CONFLICT,
    Code.PROCESS_CHILDREN_EXCEEDED: _CONFLICT,
    Code.PROCESS_DEPTH_EXCEEDED: _CONFLICT,
    Code.PROCESS_WAIT_CYCLE: _CONFLICT,
    Code.COMMAND_INVALID: _BAD,
    Code.COMMAND_UNKNOWN: _BAD,
    Code.COMMAND_FOLDER_UNKNOWN: _BAD,
    Code.REPLAY_MISMATCH: _CONFLICT,
    Code.RUNTIME_EFFECT_INVOCATION_SUBJECT: _BROKEN,
    Code.RUNTIME_EFFECT_INVOCATION_KIND: _BROKEN,
    Code.RUNTIME_EFFECT_REPLAY_REQUIRED: _BROKEN,
    Code.RUNTIME_EFFECT_ENVELOPE_HASH: _BROKEN,
    Code.RUNTIME_EFFECT_WRONG_OUTCOME: _BROKEN,
    Code.RUNTIME_EFFECT_TOOL_CALL_PENDING: _CONFLICT,
    Code.RUNTIME_EFFECT_TOOL_BATCH_EMPTY: _BAD,
    Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE: _BAD,
    Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE: Trait(415),
    Code.RUNTIME_EFFECT_ATTACHMENT_STORE: _AWAY,
    Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_MISMATCH: _BROKEN,
    Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_UNAVAILABLE: _BROKEN,
    Code.RUNTIME_EFFECT_IN_DOUBT: _CONFLICT,
    Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY: _BAD,
    Code.EVENT_KEY_INVALID: _MISSING,
    Code.DURABLE_EFFECTS_MISSING_CALL_ID: _BAD,
    Code.DURABLE_EFFECTS_UNAVAILABLE: _BAD,
    Code.DURABLE_EFFECTS_UNAVAILABLE_IN_TOOL_BATCH: _BAD,
    Code.DURABLE_EFFECT_STATE_POISONED: _BROKEN,
    Code.DURABLE_EFFECT_EMPTY_STEP_ID: _BAD,
    Code.DURABLE_EFFECT_DUPLICATE_STEP_ID: _CONFLICT,
    Code.DURABLE_EFFECT_EMPTY_EVENT_KEY: _BAD,
    Code.DURABLE_EFFECT_EVENT_TIMEOUT: Trait(504),
    Code.DURABLE_EFFECT_EVENT_CANCELLED: _CONFLICT,
    Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE: _BAD,
    Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE: _BAD,
    Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED: _CONFLICT,
    Code.DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH: _BROKEN,
    Code.TOOL_COMPLETION_KEY_MISSING_CALL_ID: _BAD,
    Code.TOOL_COMPLETION_STATE_POISONED: _BROKEN,
    Code.PROCESS_SIGNAL_WAIT_TIMEOUT: Trait(504),
    Code.PROCESS_SIGNAL_WAIT_CANCELLED: _CONFLICT,
}


class Error(Exception):
    """The one exception Perdure raises: what is wrong, the fact behind it, and what to do."""

    def __init__(self, code: Code, message: str, *, because: str = "", hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.because = because
        self.hint = hint
        self.details = details

    @property
    def retry(self) -> Retry:
        """Whether the same call can succeed: `never`, `same` (unchanged, at once) or `later`."""
        return TRAITS[self.code].retry

    def __str__(self) -> str:
        because = f" (because {self.because})" if self.because else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.code}: {self.message}{because}{hint}"
