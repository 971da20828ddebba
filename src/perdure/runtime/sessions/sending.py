"""Sending an input to a session: check, name and store it in one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.codec import Json, encode, to_json
from perdure.errors import Code, Error
from perdure.ids import InputId, TurnId, check_id
from perdure.inbox.admit import Admission, Admitted, Conflict, Delivery, Duplicate, delivery
from perdure.inbox.items import Input
from perdure.observe.why import dead_lettered_turn
from perdure.offload import offload, weight_of
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.sessions import verbs
from perdure.runtime.sessions.parts import MAX_INPUT_BYTES, Content, checked_content, short_text
from perdure.runtime.sessions.sent import TurnHandle
from perdure.store.shapes import claimed
from perdure.vocab.audit import ActRecorded
from perdure.vocab.records import InputAdmitted, InputMode, Row

if TYPE_CHECKING:
    from perdure.runtime.sessions.ref import SessionRef
    from perdure.runtime.sessions.session import Session

MODES = ("queue", "steer", "interrupt")


@dataclass(frozen=True, slots=True)
class OpensAt:
    """The queue and priority of a session that its first input opens; None: those of its agent.

    `none_yet` is true if the session did not exist when its handle was made.
    """

    queue: str | None = None
    priority: int | None = None
    none_yet: bool = False


class Sending:
    """Sends inputs to one session. `agent` serves the session if the first input opens it.

    `by_session`: the session itself is the sender. `done`: the audited act that each input is.
    """

    def __init__(
        self,
        session: Session,
        ref: SessionRef,
        agent: str | None,
        opens_at: OpensAt,
        *,
        by_session: bool = False,
        done: ActRecorded | None = None,
    ) -> None:
        self._session = session
        self._ref = ref
        self._agent = agent
        self._opens_at = opens_at
        self._none_yet = opens_at.none_yet
        self._by_session = by_session
        self._done = done

    async def send(
        self,
        content: Content,
        *,
        key: str | None,
        model: str | None,
        plugin_input: Mapping[str, Json] | None,
        mode: InputMode,
        source: str,
        merge_key: str | None,
    ) -> TurnHandle:
        """Send an input. See `Session.send`."""
        ref, rt = self._ref, self._ref.runtime
        rt.check_usable()
        if key is not None:
            key = check_id(key, what="the input key")
        _check_mode(mode, merge_key, model, plugin_input)
        given = await offload(weight_of(content), checked_content, content)
        now = rt.clock.wall_ms()
        unique = uuid7(now)
        item = Input(
            input=InputId(short_id("in", now)),
            turn=TurnId(unique),
            parts=given.parts,
            key=key or "",
            plugin_input=await offload(weight_of(plugin_input), _plugin_input, plugin_input),
            model=await rt.models.named(model_name(model)) if model is not None else "",
            mode=mode,
            source=short_text(source, "the source"),
            merge_key=check_id(merge_key, what="the replace key") if merge_key is not None else "",
            by_session=self._by_session,
        )
        attached = given.blobs or given.refers
        if key is None and not attached and await rt.hand(ref.stream, item):
            return TurnHandle(self._session, ref, item.turn, item.input)
        source_key = f"key:{key}" if key else f"in:{unique}"
        plain = delivery(ref.stream, source_key, item, at=now, agent=self._agent)
        at = self._opens_at
        room = rt.queues.limits(ref.tenant).room
        new = replace(plain, blobs=given.blobs, refers=given.refers, queue=at.queue, priority=at.priority, room=room)
        await rt.queues.check(ref.tenant, new.input_bytes)
        admission = await self._begin(new) if self._none_yet and mode != "interrupt" and not merge_key else None
        if admission is None:
            await rt.check_readable(ref.stream)
            admission = await self._put(new, item)
        return await self._sent(admission, new, item)

    async def _begin(self, new: Delivery) -> Admission | None:
        """Open the session with its first input, or return None if a concurrent input opened it.

        A new stream has no payloads, so no readability check is needed.
        """
        self._none_yet = False
        admission = await self._admit(replace(new, fresh=True))
        return None if isinstance(admission, Conflict) else admission

    async def _put(self, new: Delivery, item: Input) -> Admission | None:
        if item.mode == "interrupt":
            return await verbs.interrupt(self._ref, new, item)
        if item.merge_key:
            return await verbs.replace_queued(self._ref, new, item)
        if self._done is not None:
            return await verbs.sent(self._ref, new, self._done)
        return await self._admit(new)

    async def _admit(self, new: Delivery) -> Admission:
        rt = self._ref.runtime
        claims = self._agent in rt.agents and not rt.has_in_hand(new.stream)
        return await rt.admit(new, claims=claims)

    async def _sent(self, admission: Admission | None, new: Delivery, item: Input) -> TurnHandle:
        """Notify the worker of the admitted input, and return the handle of the input."""
        ref, rt = self._ref, self._ref.runtime
        match admission:
            case Admitted():
                rt.queues.admitted(ref.tenant, new.input_bytes)
                claim = claimed(new, admission)
                rt.notify(ref.stream, claim, item.turn if claim else None)
                if item.mode != "queue":
                    await rt.notify_stream(ref.stream)  # for the running turn
                return TurnHandle(self._session, ref, item.turn, item.input)
            case Duplicate(turn=turn, input=input_id):
                rt.notify(ref.stream)
                return TurnHandle(self._session, ref, turn, input_id, is_duplicate=True)
            case _:
                raise Error(
                    Code.INPUT_KEY_CONFLICT,
                    f"the key {item.key!r} was used for another input",
                    hint="use a new key for new content, or send the same content again",
                    session=ref.id,
                )


async def send_as_tool(session: Session, ref: SessionRef, content: str, *, key: str | None, own: bool) -> TurnHandle:
    """Send an input for a tool. `own`: the tool runs in a turn of the same session."""
    sending = Sending(session, ref, None, OpensAt(), by_session=own)
    return await sending.send(
        content, key=key, model=None, plugin_input=None, mode="queue", source="", merge_key=None
    )  # fmt: skip


async def send_again(session: Session, ref: SessionRef, given: InputAdmitted, done: ActRecorded) -> TurnHandle:
    """Send the input of a dead-lettered turn again, once, as this audited act."""
    sending = Sending(session, ref, None, OpensAt(), done=done)
    return await sending.send(
        given.parts,
        key=f"retry:{given.turn}",
        model=given.model or None,
        plugin_input=given.plugin_input,
        mode="queue",
        source="",
        merge_key=None,
    )


def unanswered(session: SessionRef, rows: Sequence[Row]) -> InputAdmitted:
    """Return the input of the session's last turn, if that turn was dead-lettered.

    Raises:
        Error: `turn_not_retryable`.
    """
    failed = dead_lettered_turn(rows)
    inputs = (row.record for row in rows if isinstance(row.record, InputAdmitted))
    given = next((said for said in inputs if failed is not None and said.turn == failed.turn), None)
    if given is None:
        raise Error(
            Code.TURN_NOT_RETRYABLE,
            f"session {session.id!r} has no turn to retry",
            because="the last turn was not dead-lettered; after any other stop the input is sent again, with a new key",
            hint="await session.send(...)",
            session=session.id,
        )
    return given


def model_name(model: object) -> str:
    """Return the name of a model. Inputs record the model by name."""
    if not isinstance(model, str):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the model of an input must be a name, not {type(model).__name__}",
            hint="register a Model object with an agent: Agent(model=...)",
        )
    return model


def _plugin_input(given: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """Return the host's plugin data as plain JSON. Raise if it is too large."""
    if given is None:
        return None
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(Code.INVALID_ARGUMENT, f"plugin_input must map plugin ids to values, not {type(given).__name__}")
    if not given:
        return None
    plain = {check_id(name, what="the plugin id"): to_json(value, where=name) for name, value in given.items()}
    if (size := len(encode(plain))) > MAX_INPUT_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE, f"the plugin input is {size} bytes", because=f"the limit is {MAX_INPUT_BYTES}"
        )
    return plain


def _check_mode(mode: str, merge_key: str | None, model: str | None, plugin_input: object) -> None:
    """Raise if an option has no meaning in the mode; no option is ignored."""
    if mode not in MODES:
        raise Error(Code.INVALID_ARGUMENT, f"unknown mode {mode!r:.40}", hint=f"one of {', '.join(MODES)}")
    if mode == "interrupt" and merge_key is not None:
        because = "an interruption starts a turn at once, so no queued one can be replaced"
        raise Error(
            Code.INVALID_ARGUMENT,
            "replace_key is not allowed with mode='interrupt'",
            because=because,
            hint="omit replace_key",
        )
    if mode == "steer" and model is not None:
        because = "the input joins the running turn, whose model answers"
        raise Error(
            Code.INVALID_ARGUMENT, "model is not allowed with mode='steer'", because=because, hint='mode="queue"'
        )
    if mode == "steer" and plugin_input is not None:
        because = "the input joins the running turn and its plugin_input"
        raise Error(
            Code.INVALID_ARGUMENT, "plugin_input is not allowed with mode='steer'", because=because, hint='mode="queue"'
        )
