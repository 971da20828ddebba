"""The list of codes is public and append-only: a code may be added here, never changed or removed."""

from __future__ import annotations

import re

import pytest

from perdure.errors import TRAITS, Code, Error

CODES = [
    "invalid_argument",
    "invalid_id",
    "invalid_json",
    "invalid_text",
    "invalid_cursor",
    "input_too_large",
    "input_key_conflict",
    "queue_full",
    "target_invalid",
    "agent_unknown",
    "agent_invalid",
    "model_unknown",
    "model_key_missing",
    "model_package_missing",
    "config_untrusted",
    "session_unknown",
    "session_agent_conflict",
    "session_busy",
    "turn_unknown",
    "turn_event_unexpected",
    "turn_failed",
    "record_unknown",
    "result_timeout",
    "session_exists",
    "turn_not_retryable",
    "export_invalid",
    "output_invalid",
    "schedule_invalid",
    "schedule_zone_unknown",
    "schedule_limit",
    "schedule_unknown",
    "schedule_conflict",
    "schedule_ended",
    "subagent_depth_exceeded",
    "subagent_active_exceeded",
    "subagent_total_exceeded",
    "subagent_claim_invalid",
    "subagent_failed",
    "subagent_cancelled",
    "subagent_timeout",
    "subagent_gone",
    "subagent_output_invalid",
    "trigger_invalid",
    "trigger_conflict",
    "trigger_limit",
    "trigger_source_unknown",
    "trigger_subscription_unknown",
    "trigger_revision_conflict",
    "approval_unknown",
    "approval_already_decided",
    "approval_stale",
    "original_call_may_still_run",
    "tool_call_unknown",
    "tool_call_answered",
    "tool_result_invalid",
    "answer_invalid",
    "tool_invalid",
    "tool_unknown",
    "tool_package_missing",
    "file_path_invalid",
    "file_content_invalid",
    "file_pattern_invalid",
    "file_unknown",
    "file_kind_conflict",
    "file_readonly",
    "file_limit_exceeded",
    "file_seed_unsupported",
    "files_disabled",
    "task_unknown",
    "task_limit_exceeded",
    "runtime_closed",
    "runtime_forked",
    "lease_lost",
    "commit_conflict",
    "gate_closed",
    "store_commit_byte_budget_exceeded",
    "store_commit_row_budget_exceeded",
    "store_url_invalid",
    "store_read_only",
    "store_full",
    "store_locked",
    "store_corrupt",
    "store_newer",
    "store_not_ours",
    "store_unavailable",
    "store_failed",
    "blob_unknown",
    "format_newer",
    "codec_failed",
    "store_access_denied",
    "store_connections_exhausted",
    "folder_unsafe",
    "process_unknown",
    "process_conflict",
    "process_definition_invalid",
    "process_definition_unknown",
    "process_registration_invalid",
    "process_event_undeclared",
    "process_event_type_invalid",
    "process_event_invalid",
    "process_event_replay_key_required",
    "process_event_conflict",
    "process_already_terminal",
    "process_signal_invalid",
    "process_failed",
    "process_not_external",
    "process_handle_invalid",
    "process_not_visible",
    "process_not_ended",
    "process_children_exceeded",
    "process_depth_exceeded",
    "process_wait_cycle",
    "command_invalid",
    "command_unknown",
    "command_folder_unknown",
    "replay_mismatch",
    "runtime_effect_invocation_subject",
    "runtime_effect_invocation_kind",
    "runtime_effect_replay_required",
    "runtime_effect_envelope_hash",
    "runtime_effect_wrong_outcome",
    "runtime_effect_tool_call_pending",
    "runtime_effect_tool_batch_empty",
    "runtime_effect_attachment_missing_reference",
    "runtime_effect_attachment_media_type",
    "runtime_effect_attachment_store",
    "runtime_effect_local_executor_mismatch",
    "runtime_effect_local_executor_unavailable",
    "runtime_effect_in_doubt",
    "invalid_await_event_wait_identity",
    "event_key_invalid",
    "durable_effects_missing_call_id",
    "durable_effects_unavailable",
    "durable_effects_unavailable_in_tool_batch",
    "durable_effect_state_poisoned",
    "durable_effect_empty_step_id",
    "durable_effect_duplicate_step_id",
    "durable_effect_empty_event_key",
    "durable_effect_event_timeout",
    "durable_effect_event_cancelled",
    "durable_effect_process_event_unavailable",
    "durable_effect_empty_process_event_type",
    "durable_effect_process_event_append_failed",
    "durable_effect_process_event_process_mismatch",
    "tool_completion_key_missing_call_id",
    "tool_completion_state_poisoned",
    "process_signal_wait_timeout",
    "process_signal_wait_cancelled",
]

SEED_CODES = [
    "runtime_effect_wrong_outcome",
    "runtime_effect_tool_call_pending",
    "runtime_effect_invocation_subject",
    "runtime_effect_invocation_kind",
    "runtime_effect_replay_required",
    "runtime_effect_envelope_hash",
    "runtime_effect_attachment_missing_reference",
    "runtime_effect_attachment_media_type",
    "runtime_effect_attachment_store",
]
"""Those of the seeds' register that turns and effects need; the others come with steps, waits and processes."""

STATUSES = {400, 404, 409, 410, 413, 415, 429, 500, 501, 502, 503, 504, 507}


def test_the_codes_are_these() -> None:
    assert [code.value for code in Code] == CODES


def test_every_code_has_its_traits_and_nothing_else_has() -> None:
    assert set(TRAITS) == set(Code)


@pytest.mark.parametrize("code", SEED_CODES)
def test_the_codes_of_the_seeds_exist(code: str) -> None:
    assert Code(code).value == code


@pytest.mark.parametrize("code", list(Code))
def test_code_is_snake_case_and_contains_no_backend_name(code: Code) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)
    assert code.name == code.value.upper()
    assert not re.search(r"sqlite|postgres|memory|openai|anthropic|restate|redis", code.value)


@pytest.mark.parametrize("code", list(Code))
def test_the_traits_of_a_code_are_ones_a_client_can_act_on(code: Code) -> None:
    assert TRAITS[code].status in STATUSES
    assert TRAITS[code].retry in ("never", "same", "later")
    assert Error(code, "x").retry == TRAITS[code].retry


@pytest.mark.parametrize(
    ("code", "status", "retry"),
    [
        (Code.INVALID_JSON, 400, "never"),
        (Code.SESSION_UNKNOWN, 404, "never"),
        (Code.INPUT_KEY_CONFLICT, 409, "never"),
        (Code.LEASE_LOST, 409, "later"),
        (Code.REPLAY_MISMATCH, 409, "never"),
        (Code.RESULT_TIMEOUT, 504, "same"),
        (Code.STORE_FULL, 507, "later"),
        (Code.RUNTIME_CLOSED, 503, "later"),
        (Code.FORMAT_NEWER, 503, "never"),
    ],
)
def test_code_has_the_contracted_status_and_retry(code: Code, status: int, retry: str) -> None:
    assert (TRAITS[code].status, TRAITS[code].retry) == (status, retry)


def test_an_error_says_what_because_and_what_to_do() -> None:
    error = Error(Code.LEASE_LOST, "nothing was written", because="another worker has it", hint="reload", stream="s")
    assert str(error) == "lease_lost: nothing was written (because another worker has it) (hint: reload)"
    assert (error.code, error.message, error.details) == (Code.LEASE_LOST, "nothing was written", {"stream": "s"})
    assert error.args == ("nothing was written",)


def test_an_error_without_reasons_is_short() -> None:
    assert str(Error(Code.SESSION_UNKNOWN, "there is no such session")) == "session_unknown: there is no such session"
