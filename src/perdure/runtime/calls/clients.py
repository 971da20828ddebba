"""Clients of one tool call: sessions and attachments, and the data they collect for the call's outcome."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from perdure.codec import Json, check_text, to_json
from perdure.commit.plan import Blob, blob_of
from perdure.effects.attachments import Attachment, check_attachment_name, check_bytes, normalise
from perdure.effects.controller import JournaledController
from perdure.errors import Code, Error
from perdure.ids import (
    BlobHash,
    CallId,
    EffectId,
    SessionId,
    StreamId,
    Tenant,
    check_id,
    join,
    session_stream,
    stream_names,
)
from perdure.inbox.admit import delivery
from perdure.inbox.items import Wake
from perdure.runtime.agent import setup_of
from perdure.runtime.calls.lanes import Lanes
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions import verbs
from perdure.runtime.sessions.results import wait_for
from perdure.runtime.sessions.sending import send_as_tool
from perdure.runtime.turns.hydrate import Fetch
from perdure.services.secrets import speaker
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.tools.body_scope import BodyScope
from perdure.tools.clients.sessions import SessionModel, SessionSnapshot, StartedTurn
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import Cancellation
from perdure.tools.durations import seconds
from perdure.tools.errors import ToolError, tool_error_of
from perdure.tools.result_truncation import MAX_KEPT_BYTES
from perdure.tools.services import missing, required
from perdure.turn.state import Turn
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.outcomes import DirectOutcome, DirectUsage
from perdure.vocab.tools import ToolDefinition

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.sessions.session import Session

MAX_ATTACHED_BYTES = 4 * MAX_KEPT_BYTES

_VISIBLE = frozenset(
    {
        Code.AGENT_UNKNOWN,
        Code.INPUT_KEY_CONFLICT,
        Code.INPUT_TOO_LARGE,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ID,
        Code.INVALID_JSON,
        Code.INVALID_TEXT,
        Code.PROCESS_ALREADY_TERMINAL,
        Code.PROCESS_CHILDREN_EXCEEDED,
        Code.PROCESS_CONFLICT,
        Code.PROCESS_DEFINITION_UNKNOWN,
        Code.PROCESS_DEPTH_EXCEEDED,
        Code.PROCESS_EVENT_CONFLICT,
        Code.PROCESS_EVENT_INVALID,
        Code.PROCESS_EVENT_TYPE_INVALID,
        Code.PROCESS_EVENT_UNDECLARED,
        Code.PROCESS_HANDLE_INVALID,
        Code.PROCESS_NOT_EXTERNAL,
        Code.PROCESS_NOT_VISIBLE,
        Code.PROCESS_REGISTRATION_INVALID,
        Code.PROCESS_SIGNAL_INVALID,
        Code.PROCESS_UNKNOWN,
        Code.RESULT_TIMEOUT,
        Code.SESSION_AGENT_CONFLICT,
        Code.SESSION_UNKNOWN,
        Code.TRIGGER_CONFLICT,
        Code.TRIGGER_INVALID,
        Code.TRIGGER_LIMIT,
        Code.TRIGGER_REVISION_CONFLICT,
        Code.TURN_FAILED,
        Code.TURN_UNKNOWN,
        Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE,
        Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE,
        Code.RUNTIME_EFFECT_ATTACHMENT_STORE,
    }
)
"""Error codes that a tool can cause or handle. All other errors are hidden from the model."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Storage of a body for its own later entries.

    No record refers to these bytes, so they may be dropped at any time.
    """

    put: Callable[[Blob], None]
    drop: Callable[[Iterable[BlobHash]], None]


@dataclass(slots=True)
class CallSite:
    """One attempt of one call, as its clients see it, and what they have collected for its outcome.

    `spent_up` returns the limit that forbids the next model call, or "". `keep` stores bytes at once: a step of a
    resumable body may refer to them long before the call ends. `controller` records the tool's model calls as parts of
    `place`. `asked` are those begun so far; `left` are the ends that only the turn can still record.
    """

    turn: Turn
    call: CallId
    effect: EffectId
    turn_context: TurnContext
    spent_up: Callable[[], str]
    cancellation: Cancellation = field(default_factory=Cancellation)
    attached: list[Blob] = field(default_factory=list[Blob])
    spent: list[DirectUsage] = field(default_factory=list[DirectUsage])
    asked: set[EffectId] = field(default_factory=set[EffectId])
    left: dict[EffectId, DirectOutcome] = field(default_factory=dict[EffectId, DirectOutcome])
    place: BodyScope | None = None
    controller: JournaledController | None = None
    triggers: list[Json] = field(default_factory=list[Json])
    counted: Counter[str] = field(default_factory=Counter[str])
    keep: Callable[[Blob], None] | None = None
    cache: Cache | None = None
    created: int = 0
    batches: int = 0
    lanes: Lanes = field(default_factory=Lanes)

    def inside(self, call: CallId, place: BodyScope) -> CallSite:
        """Return this attempt as the clients of an inner body see it.

        Its counters start anew with each entry of that body. The collected data belongs to the outer call.
        """
        return replace(self, call=call, place=place, counted=Counter(), created=0, batches=0, lanes=Lanes(), cache=None)

    def check_running(self) -> None:
        """Raise a `ToolError` if the call has ended, because nothing more of it would be recorded."""
        if self.cancellation.cancelled:
            raise ToolError("The call has ended: its result is no longer awaited", code="tool_cancelled")


@contextmanager
def visibly() -> Generator[None]:
    """Turn an error that concerns the tool into a `ToolError`, which its model may read."""
    try:
        yield
    except Error as problem:
        if problem.code not in _VISIBLE:
            raise
        raise tool_error_of(problem) from problem


class SessionChanges(Protocol):
    """The changes that a call makes to its own session through its turn."""

    async def tools(self, site: CallSite, names: tuple[str, ...], present: bool) -> int:
        """Remove tools from this session or restore them. Return its tools generation."""
        ...

    async def hand_over(self, site: CallSite, to: str, reason: str) -> None:
        """Hand the conversation to another agent."""
        ...


class CallSessionsClient:
    """`ctx.sessions` of one call."""

    def __init__(
        self,
        site: CallSite,
        core: RuntimeCore,
        stream: StreamId,
        agent: Agent,
        changes: SessionChanges | None,
    ) -> None:
        self._site = site
        self._core = core
        self._stream = stream
        self._agent = agent
        self._changes = changes

    def model(self) -> SessionModel:
        """Return the model of the running turn."""
        composition = self._site.turn.composition
        return SessionModel(composition.model, composition.settings)

    # --- reading

    async def snapshot_current(self) -> SessionSnapshot:
        """Return a snapshot of this session, as far as it is durable."""
        return await self._snapshot(self._stream)

    async def snapshot(self, session: str) -> SessionSnapshot:
        """Return a snapshot of another session of this tenant."""
        return await self._snapshot(self._stream_of(session))

    async def _snapshot(self, stream: StreamId) -> SessionSnapshot:
        with visibly():
            session = self._existing(stream)
            messages = await session.messages()
            state = await self._state(stream)
        return SessionSnapshot(
            session_id=session.id,
            agent=state.agent,
            turns=state.turns,
            open_turn=state.open_turn,
            messages=messages,
            usage=state.usage,
            without_tools=state.without_tools,
            tools_generation=state.tools_generation,
        )

    async def _check_known(self, stream: StreamId) -> None:
        if await self._core.store.stream(stream) is None:
            raise Error(Code.SESSION_UNKNOWN, f"unknown session {stream_names(stream)[2]!r}")

    async def _state(self, stream: StreamId) -> SessionState:
        loaded = await self._core.store.load(stream, code=CODE)
        return fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)

    async def tool_catalog(self, session: str | None = None) -> list[Json]:
        """Return the tools of a session as plain JSON."""
        return [to_json(definition) for definition in await self.shared_tool_catalog(session)]

    async def shared_tool_catalog(self, session: str | None = None) -> tuple[ToolDefinition, ...]:
        """Return the tools of a session as shared values."""
        stream = self._stream if session is None else self._stream_of(session)
        if stream == self._stream:
            return tuple(contract.definition for contract in self._site.turn.composition.tools)
        with visibly():
            await self._check_known(stream)
            state = await self._state(stream)
            contracts = setup_of(self._agent_of(state.agent)).toolbox.contracts()
        return tuple(one.definition for one in contracts if one.name not in state.without_tools)

    # --- changing

    async def create_session(self, session: str | None = None, *, agent: str | None = None) -> SessionId:
        """Open a session durably, and return its id."""
        self._site.check_running()
        self._site.created += 1
        named = agent or self._agent.name
        derived = join(self._stream, self._site.call, str(self._site.created))
        name = f"ses_{hashlib.sha256(derived.encode()).hexdigest()[:24]}" if session is None else session
        with visibly():
            stream = self._stream_of(name)
            self._agent_of(named)
            known = await self._core.store.stream(stream)
            if known is not None and known.agent != named:
                raise Error(Code.SESSION_AGENT_CONFLICT, f"session {name!r} belongs to agent {known.agent!r}")
            if known is None:
                source = f"created:{join(self._stream, self._site.call)}"
                opening = delivery(stream, source, Wake(reason="created"), at=self._now(), agent=named)
                await self._core.store.admit(opening)
        return SessionId(name)

    async def close_session(self, session: str) -> bool:
        """Cancel the running turn and the waiting inputs of another session.

        Return True if any cancellation was requested.
        """
        self._site.check_running()
        stream = self._stream_of(session)
        if stream == self._stream:
            raise ToolError("A session cannot be closed by a call of its own turn", code="session_is_own")
        with visibly():
            target = self._existing(stream)
            await self._check_known(stream)
            turns = await verbs.turns_to_come(ref_of(target))
            turns.reverse()  # newest first: the end of one starts the next
            reason = "closed by a tool"
            outcomes = [await target.cancel(turn, reason=reason, via=f"tool:{self._site.call}") for turn in turns]
        return "requested" in outcomes

    async def start_turn(self, session: str, key: str, text: str) -> StartedTurn:
        """Send an input to a session, durably."""
        self._site.check_running()
        with visibly():
            stream = self._stream_of(session)
            to = self._existing(stream)
            sent = await send_as_tool(to, ref_of(to), text, key=key, own=stream == self._stream)
        return StartedTurn(SessionId(session), sent.turn_id, sent.is_duplicate)

    async def turn_result(self, started: StartedTurn, timeout: float | str | None = None) -> str:
        """Wait for a started turn, and return its final text."""
        check_argument("A turn to wait for", started, StartedTurn)
        stream = self._stream_of(started.session_id)
        if stream == self._stream and self._changes is not None:
            raise ToolError(
                "A turn of this very session begins when this one has ended: it cannot be awaited",
                code="session_is_own",
            )
        try:
            with visibly():
                async with asyncio.timeout(seconds(timeout)):
                    result = await wait_for(ref_of(self._existing(stream)), started.turn_id)
        except TimeoutError:
            raise ToolError(f"The turn is not over after {timeout} s; it goes on", code="result_timeout") from None
        if result.status != "finished":
            raise ToolError(f"The turn was stopped: {result.reason}. {result.message}", code="turn_failed")
        return result.text

    async def set_tool_membership(self, names: Sequence[str], present: bool) -> int:
        """Remove tools from this session, or restore them."""
        self._site.check_running()
        changes = required(self._changes, "tool_membership")
        wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
        members = setup_of(self._agent).toolbox.catalog.members
        if unknown := [name for name in wanted if name not in members]:
            raise ToolError(
                f"Unknown tool {', '.join(unknown)}. The tools are: {', '.join(members) or 'none'}",
                code="tool_unavailable",
            )
        return await changes.tools(self._site, wanted, present)

    async def hand_over(self, agent: str, reason: str = "") -> None:
        """Hand this conversation to another agent."""
        self._site.check_running()
        changes = required(self._changes, "handoff")
        with visibly():
            said = check_text(reason, where="the reason")
            self._agent_of(agent)
        if agent == self._site.turn.composition.agent:
            raise ToolError(f"The conversation is {agent}'s already", code="handed_over")
        await changes.hand_over(self._site, agent, said)

    # --- names

    def _stream_of(self, session: str) -> StreamId:
        with visibly():
            tenant = Tenant(stream_names(self._stream)[0])
            return session_stream(tenant, SessionId(check_id(session, what="the session id")))

    def _existing(self, stream: StreamId) -> Session:
        tenant, _, session = stream_names(stream)
        return self._core.get_session(session, tenant=tenant)

    def _agent_of(self, name: str) -> Agent:
        found = self._core.agents.get(name)
        if found is None:
            raise Error(Code.AGENT_UNKNOWN, f"unknown agent {name!r}")
        return found

    def _now(self) -> int:
        return self._core.clock.wall_ms()


class AttachmentsClient:
    """`ctx.attachments` of one call."""

    def __init__(self, site: CallSite, fetch: Fetch, *, stores: bool) -> None:
        self._site = site
        self._fetch = fetch
        self._stores = stores

    async def put(self, data: bytes, media_type: str, *, name: str = "") -> AttachmentRef:
        """Store bytes, and return a reference to them."""
        self._site.check_running()
        if not self._stores:
            raise missing("new_attachments")
        check_argument("The content of an attachment", data, bytes, bytearray, memoryview)
        check_argument("The media type of an attachment", media_type, str)
        check_argument("The name of an attachment", name, str)
        with visibly():
            name = speaker().text(check_attachment_name(name))
            data = await speaker().data_of_any_size(bytes(data))  # threat: S10
            if data:
                check_bytes(data, media_type)
            [ref] = await normalise([Attachment(media_type, data)], _Collected(self._site))
        return AttachmentRef(hash=ref.hash, media_type=ref.media_type, size=ref.size, name=name)

    async def get(self, ref: AttachmentRef) -> bytes:
        """Return the bytes behind a reference of this session."""
        check_argument("An attachment to read", ref, AttachmentRef)
        mine = next((blob for blob in self._site.attached if blob.hash == ref.hash), None)
        if mine is not None:
            return mine.data
        try:
            return await self._fetch(ref)
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            raise ToolError("The session has no such attachment", code="attachment_not_found") from None


class _Collected:
    """The store for attachments of one call: their bytes go into the append that settles it."""

    def __init__(self, site: CallSite) -> None:
        self._attached = site.attached
        self._keep = site.keep

    async def put(self, data: bytes, media_type: str) -> AttachmentRef:
        if len(data) > MAX_KEPT_BYTES:
            raise ValueError(f"the attachment has {len(data)} bytes; at most {MAX_KEPT_BYTES} are stored")
        if sum(len(one.data) for one in self._attached) + len(data) > MAX_ATTACHED_BYTES:
            raise ValueError(f"one call stores at most {MAX_ATTACHED_BYTES} bytes")
        blob = blob_of(data, media_type)
        self._attached.append(blob)
        if self._keep is not None:
            self._keep(blob)
        return AttachmentRef(hash=blob.hash, media_type=media_type, size=len(data))


def check_argument(what: str, given: object, *wanted: type) -> None:
    """Raise a `ToolError` for an argument of another type, worded for the tool's author."""
    if not isinstance(given, wanted):
        names = " or ".join(one.__name__ for one in wanted)
        raise ToolError(f"{what} must be {names}, not {type(given).__name__}", code="invalid_argument")
