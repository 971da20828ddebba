"""Calls to tools of MCP servers, and conversion of their results."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from perdure.codec import Json, digest
from perdure.tools.context import dispatch_of
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.execution_result import IMAGE_TYPES, Image, SucceededWithImages
from perdure.tools.json_schema import mismatches
from perdure.tools.mcp.connection import KEY, ConnectionLost, McpConnection, NotConnected
from perdure.tools.step_outcomes import StepFailed
from perdure.tools.steps import StepEffect

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import MCPError

    from perdure.tools.context import ToolContext

MAX_ROUNDS = 10
STATE_REFUSED = "mcp_error-32602"


@dataclass(frozen=True, slots=True)
class Target:
    """The tool of a server to call, with its effect class."""

    connection: McpConnection
    tool: str
    effect: StepEffect


async def call_once(target: Target, args: Json, ctx: ToolContext[object]) -> object:
    """Call a tool without questions. A server's request for input is refused."""
    from mcp_types import InputRequiredResult

    answer = await _send(target, args, ctx.idempotency_key, None, None)
    if isinstance(answer, InputRequiredResult):
        message = 'The server asked for input, which its configuration does not allow: "elicit" is not true'
        raise ToolError(message, code="mcp_input_required")
    value, images = await _read(answer, target.connection, ctx)
    return SucceededWithImages(value, images) if images else value


async def call_durably(target: Target, args: Json, ctx: ToolContext[object]) -> object:
    """Call a tool whose server may ask people. Each request is a step; questions go to the approvals.

    A restarted server may refuse its own former state. The refused request had no effect, so the call starts again.
    Equal questions reuse their former answers.
    """
    answers: dict[str, Json] | None = None
    state: str | None = None
    known: dict[str, Json] = {}

    async def leg(given: Json, answers: dict[str, Json] | None, state: str | None, n: int) -> Json:
        return await _leg(target, given, answers, state, ctx, n)

    for n in range(1, MAX_ROUNDS + 1):
        try:
            said = await ctx.step(f"call:{n}", leg, args, answers, state, n, effect=target.effect)
        except StepFailed as failed:
            if failed.code == STATE_REFUSED and state is not None:
                answers = state = None
                continue
            raise ToolError(failed.message, code=failed.code) from None
        told = cast("dict[str, Json]", said)
        if "asks" not in told:
            return told["value"]
        state = told["state"]
        asked = cast("dict[str, dict[str, Json]]", told["asks"])
        for key, one in asked.items():
            question = digest([key, one])
            if question not in known:
                known[question] = await ask_person(ctx, f"asks:{n}:{key}", target, one)
        answers = {key: known[digest([key, one])] for key, one in asked.items()}
    raise ToolError(f"The server asked for input {MAX_ROUNDS} times; the call was stopped", code="mcp_input_required")


async def _leg(
    target: Target, args: Json, answers: dict[str, Json] | None, state: str | None, ctx: ToolContext[object], n: int
) -> Json:
    from mcp_types import ElicitRequest, ElicitResult, InputRequiredResult

    connection = target.connection
    count = 0

    async def in_the_middle(params: types.ElicitRequestParams) -> types.ElicitResult:
        nonlocal count
        count += 1
        asked = connection.redactor.json(params.model_dump(mode="json", by_alias=True, exclude_none=True))
        return ElicitResult.model_validate(await ask_person(ctx, f"asks:{n}.{count}", target, asked))

    async with connection.alone:
        connection.eliciting(in_the_middle)
        try:
            given = {key: ElicitResult.model_validate(one) for key, one in answers.items()} if answers else None
            answer = await _send(target, args, ctx.idempotency_key, cast("types.InputResponses | None", given), state)
        except NotConnected:
            message = f"the MCP server {connection.name} is not reachable; nothing was sent"
            raise ToolError(message, code="mcp_not_connected", retry_safe=True) from None
        except ConnectionLost:
            raise OutcomeUnknown(f"the MCP server {connection.name} disconnected before it answered") from None
        finally:
            connection.eliciting(None)
    if not isinstance(answer, InputRequiredResult):
        value, images = await _read(answer, connection, ctx)
        kept = [await _attached(ctx, one.base64, one.media_type) for one in images]
        return {"value": {"result": value, "pictures": kept} if kept else value}
    asks: dict[str, Json] = {}
    for key, one in (answer.input_requests or {}).items():
        if not isinstance(one, ElicitRequest):
            raise ToolError(f"The server asked for {one.method}, which is not supported", code="mcp_input_required")
        asks[key] = connection.redactor.json(one.params.model_dump(mode="json", by_alias=True, exclude_none=True))
    return {"asks": asks, "state": answer.request_state}


async def ask_person(ctx: ToolContext[object], step: str, target: Target, asked: dict[str, Json]) -> Json:
    """Request a server's input through the approvals. Approval with changed arguments fills in the form."""
    schema = asked.get("requestedSchema")
    about: Json = {"message": asked.get("message"), **({"schema": schema} if schema else {"url": asked.get("url")})}
    decision = await dispatch_of(ctx).ask(step, f"{ctx.tool_name} (asks)", about)
    if decision is None:
        return {"action": "cancel"}
    if decision.verdict != "approve":
        return {"action": "decline"}
    if schema is None:
        return {"action": "accept"}
    content = decision.args or {}
    if wrong := await mismatches(schema, content):
        told = "\n".join(wrong)
        raise ToolError(
            f"the answer of {decision.by} does not match the server's form: {told}", code="mcp_answer_invalid"
        )
    return {"action": "accept", "content": content}


async def _send(
    target: Target, args: Json, key: str, answers: types.InputResponses | None, state: str | None
) -> types.CallToolResult | types.InputRequiredResult:
    from mcp import MCPError

    connection = target.connection
    given = cast("dict[str, Json]", args)
    try:
        return await connection.request(
            lambda client: client.session.call_tool(
                target.tool,
                given,
                read_timeout_seconds=connection.config.call_timeout,
                input_responses=answers,
                request_state=state,
                meta={KEY: key},
                allow_input_required=True,
            )
        )
    except MCPError as problem:
        raise _refusal(problem, connection, connection.statuses.get(key)) from None
    except ValueError:  # the server answered, so the call was made; its outcome is unreadable
        raise OutcomeUnknown(f"the MCP server {connection.name} sent an unreadable answer") from None
    except RuntimeError as problem:  # the answer does not match the server's own schema
        raise ToolError(connection.redactor.text(str(problem)), code="mcp_result_invalid") from None
    finally:
        connection.statuses.pop(key, None)


def _refusal(problem: MCPError, connection: McpConnection, status: int | None) -> ToolError | OutcomeUnknown:
    """Classify a server's error: a readable refusal means that the call had no effect.

    A timeout or an unreadable answer (as from a proxy) leaves the outcome unknown. `status` is the HTTP status of a
    response without an MCP answer.
    """
    from mcp_types import PARSE_ERROR, REQUEST_TIMEOUT

    error, name = problem.error, connection.name
    if error.code == REQUEST_TIMEOUT:
        return OutcomeUnknown(f"the MCP server {name} timed out")
    if status is not None and not 400 <= status < 500:
        return OutcomeUnknown(f"the MCP server {name} sent no readable answer, with the HTTP status {status}")
    if error.code == PARSE_ERROR and connection.config.url and error.message.startswith("Failed to parse"):
        return OutcomeUnknown(f"the MCP server {name} sent an unreadable answer")
    said = connection.redactor.text(error.message)
    return ToolError(said if status is None else f"{said} (HTTP status {status})", code=f"mcp_error{error.code}")


# --- results ----------------------------------------------------------------------------------------------------


async def _read(
    answer: types.CallToolResult, connection: McpConnection, ctx: ToolContext[object]
) -> tuple[Json, tuple[Image, ...]]:
    """Return the value and the images of an answer. Other bytes become attachments that the value refers to."""
    parts: list[Json] = []
    images: list[Image] = []
    for block in answer.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "image" if block.mime_type in IMAGE_TYPES:
                images.append(Image(block.data, block.mime_type))
            case "image" | "audio":
                parts.append(await _attached(ctx, block.data, block.mime_type))
            case "resource_link":
                parts.append({"resource": str(block.uri), "name": block.name})
            case "resource":
                parts.append(await _resource(block, ctx))
    parts = connection.redactor.json(parts)
    if answer.is_error:
        said = " ".join(part if isinstance(part, str) else str(part) for part in parts)
        raise ToolError(said or "The tool failed without a message", code="mcp_tool_error")
    bare = all(isinstance(part, str) for part in parts)
    if answer.structured_content is not None:
        structured = connection.redactor.json(answer.structured_content)
        return (structured if bare else {"structured": structured, "content": parts}), tuple(images)
    return (parts[0] if bare and len(parts) == 1 else parts), tuple(images)


async def _resource(block: types.EmbeddedResource, ctx: ToolContext[object]) -> Json:
    from mcp_types import TextResourceContents

    found = block.resource
    if isinstance(found, TextResourceContents):
        return {"resource": str(found.uri), "text": found.text}
    kept = await _attached(ctx, found.blob, found.mime_type or "application/octet-stream")
    return {"resource": str(found.uri), **cast("dict[str, Json]", kept)}


async def _attached(ctx: ToolContext[object], base64: str, media_type: str) -> Json:
    try:
        data = b64decode(base64, validate=True)
    except ValueError:  # the call was made, whatever its bytes are
        return {"not_kept": "the server sent invalid base64", "media_type": media_type, "size": 0}
    if not data:
        return {"attachment": "", "media_type": media_type, "size": 0}
    try:
        ref = await ctx.attachments.put(data, media_type)
    except ToolError as refusal:
        return {"not_kept": refusal.message, "media_type": media_type, "size": len(data)}
    return {"attachment": ref.hash, "media_type": media_type, "size": len(data)}
