"""Seed 004, and the images of seed 003: how the end of a call becomes what its caller gets."""

from __future__ import annotations

import logging

import pytest

from perdure.codec import Json
from perdure.tools.builtin import EchoTool, FailingTool
from perdure.tools.execution_result import (
    ConnectionRequired,
    FailedInternally,
    FailedVisibly,
    Image,
    SucceededWithImages,
    ToolInternalError,
    ToolResult,
    ToolSucceeded,
)

HIDDEN = "An internal error occurred while executing the tool"


async def test_echo_tool() -> None:
    result = await EchoTool().execute({"message": "Hello, world!"})
    assert result == ToolSucceeded({"echoed": "Hello, world!", "length": 13})


@pytest.mark.parametrize(
    ("arguments", "echoed"),
    [
        ({}, {"echoed": "", "length": 0}),
        ({"message": 7}, {"echoed": "", "length": 0}),
        ({"message": "漢"}, {"echoed": "漢", "length": 3}),
    ],
)
async def test_echo_counts_bytes_and_takes_no_message_for_an_empty_one(arguments: Json, echoed: Json) -> None:
    assert await EchoTool().execute(arguments) == ToolSucceeded(echoed)


async def test_failing_tool_with_tool_error() -> None:
    result = await FailingTool.with_tool_error("Something went wrong").execute({})
    assert result == FailedVisibly("Something went wrong")


async def test_failing_tool_with_internal_error() -> None:
    result = await FailingTool.with_internal_error("Database connection failed").execute({})
    assert isinstance(result, FailedInternally)
    assert result.error.message == "Database connection failed"
    assert result.error.source is None


async def test_failing_tool_fails_visibly_unless_told_otherwise() -> None:
    tool = FailingTool()
    assert (tool.name, await tool.execute({})) == ("failing_tool", FailedVisibly("Tool execution failed"))


def test_tool_result_conversion(caplog: pytest.LogCaptureFixture) -> None:
    fine = ToolResult.success({"value": 42}).into_tool_result("call_1", "test_tool")
    assert (fine.tool_call_id, fine.result, fine.error) == ("call_1", {"value": 42}, None)

    failed = ToolResult.tool_error("Invalid input").into_tool_result("call_2", "test_tool")
    assert (failed.result, failed.error) == ({"error": "Invalid input"}, "Invalid input")

    with caplog.at_level(logging.ERROR, "perdure.tools"):
        hidden = ToolResult.internal_error_msg("Secret database error").into_tool_result("call_3", "test_tool")
    assert (hidden.result, hidden.error) == ({"error": HIDDEN}, HIDDEN)
    (logged,) = caplog.records
    assert "Secret database error" in logged.getMessage()
    assert (vars(logged)["tool"], vars(logged)["call"]) == ("test_tool", "call_3")


def test_connection_required_is_neither_success_nor_failure() -> None:
    result = ToolResult.connection_required("github")
    assert (result.is_success, result.is_error, result.is_connection_required) == (False, False, True)
    told = result.into_tool_result("call_1", "demo")
    assert (told.result, told.error, told.connection_required) == ({"connection_required": "github"}, None, "github")


def test_pictures_travel_beside_the_result_and_none_is_none() -> None:
    picture = Image("AAAA", "image/png")
    told = ToolResult.success_with_images({"w": 1}, [picture]).into_tool_result("call_1", "demo")
    assert (told.result, told.images, told.error) == ({"w": 1}, (picture,), None)
    assert ToolResult.success_with_images({}, []).into_tool_result("call_1", "demo").images is None


@pytest.mark.parametrize(
    ("result", "kind", "success", "error", "connection"),
    [
        (ToolResult.success(1), ToolSucceeded, True, False, False),
        (ToolResult.success_with_raw_output(1, "raw"), ToolSucceeded, True, False, False),
        (ToolResult.success_with_images(1, []), SucceededWithImages, True, False, False),
        (ToolResult.tool_error("m"), FailedVisibly, False, True, False),
        (ToolResult.internal_error(ValueError("m")), FailedInternally, False, True, False),
        (ToolResult.internal_error_msg("m"), FailedInternally, False, True, False),
        (ToolResult.connection_required("p"), ConnectionRequired, False, False, True),
    ],
)
def test_result_constructors_set_their_kind(
    result: ToolResult, kind: type[ToolResult], success: bool, error: bool, connection: bool
) -> None:
    assert type(result) is kind
    assert (result.is_success, result.is_error, result.is_connection_required) == (success, error, connection)


# --- raw output


def test_success_with_raw_output_object_preserves_shape() -> None:
    given = {"stdout": "hello"}
    told = ToolResult.success_with_raw_output(given, "raw stdout bytes").into_tool_result("call_1", "demo")
    assert told.result == {"stdout": "hello"}, "the sidecar must not reach the model"
    assert told.raw_output == "raw stdout bytes"
    assert given == {"stdout": "hello"}, "the tool's own value is not modified"


@pytest.mark.parametrize("value", ["compact summary", 7, None, [1, 2], True])
def test_success_with_raw_output_scalar_unwraps_to_itself(value: Json) -> None:
    told = ToolResult.success_with_raw_output(value, "full output bytes").into_tool_result("call_1", "demo")
    assert told.result == value
    assert told.raw_output == "full output bytes"


@pytest.mark.parametrize(
    "value", [{"_raw_output_scalar": "user_value", "kept": True}, {"_raw_output_scalar": "v"}], ids=["beside", "alone"]
)
def test_a_result_with_a_raw_output_scalar_key_is_not_unwrapped(value: Json) -> None:
    told = ToolResult.success(value).into_tool_result("call_1", "demo")
    assert told.result == value
    assert told.raw_output is None


def test_a_scalar_key_beside_others_stays_even_with_raw_output() -> None:
    value = {"_raw_output_scalar": "v", "kept": True}
    told = ToolResult.success_with_raw_output(value, "raw").into_tool_result("call_1", "demo")
    assert (told.result, told.raw_output) == (value, "raw")


def test_a_raw_output_that_is_no_text_is_dropped() -> None:
    told = ToolResult.success({"_raw_output": 7, "kept": True}).into_tool_result("call_1", "demo")
    assert (told.result, told.raw_output) == ({"kept": True}, None)


# --- internal errors


def test_a_chain_names_every_cause_once() -> None:
    try:
        try:
            raise OSError("disk full")
        except OSError as cause:
            raise RuntimeError("cannot save") from cause
    except RuntimeError as problem:
        error = ToolInternalError(problem)
    assert (error.message, str(error)) == ("cannot save", "cannot save")
    assert error.chain_string() == "cannot save: disk full"


def test_a_chain_follows_an_exception_raised_while_another_was_handled() -> None:
    problem = RuntimeError("cannot save")
    problem.__context__ = OSError("disk full")
    assert ToolInternalError(problem).chain_string() == "cannot save: disk full"
    problem.__suppress_context__ = True  # as `raise ... from None` does
    assert ToolInternalError(problem).chain_string() == "cannot save"


def test_a_chain_leaves_out_what_only_repeats_and_ends() -> None:
    same = ValueError("same")
    same.__cause__ = ValueError("same")
    assert ToolInternalError(same).chain_string() == "same"
    assert ToolInternalError.from_message("alone").chain_string() == "alone"
    loop = ValueError("a")
    loop.__cause__ = KeyError("b")
    loop.__cause__.__cause__ = loop
    assert ToolInternalError(loop).chain_string().startswith("a: 'b': a")


def test_an_exception_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert ToolInternalError(Mute()).chain_string() == "Mute"


# --- images of seed 003: a resolved image has the same shape as one a tool returns


def test_resolved_image_new() -> None:
    image = Image("SGVsbG8=", "image/png")
    assert (image.base64, image.media_type, image.data()) == ("SGVsbG8=", "image/png", b"Hello")


def test_resolved_image_to_data_url() -> None:
    assert Image("SGVsbG8=", "image/png").to_data_url() == "data:image/png;base64,SGVsbG8="


def test_resolved_image_jpeg() -> None:
    assert Image("base64data", "image/jpeg").to_data_url().startswith("data:image/jpeg;base64,")
