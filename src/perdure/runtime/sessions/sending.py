"""How an input gets into a session: checked, named, and put there durably, in one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.codec import Json, encode, to_json
from perdure.errors import Code, Error
from perdure.ids import InputId, Tenant, TurnId, check_id
from perdure.inbox.admit import Admission, Admitted, Conflict, Delivery, Duplicate, delivery
from perdure.inbox.items import Input
from perdure.observe.why import sealed_turn
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.sessions import verbs
from perdure.runtime.sessions.parts import MAX_INPUT_BYTES, Content, said, short_text
from perdure.runtime.sessions.sent import Sent
from perdure.store.shapes import claimed
from perdure.vocab.records import InputAdmitted, InputMode, Row

if TYPE_CHECKING:
    from perdure.runtime.sessions.session import Session

MODES = ("queue", "steer", "interrupt")


@dataclass(frozen=True, slots=True)
class OpensAt:
    """Where a session stands when its first input opens it; None: where its agent does. `none_yet`: when it was asked
    for there was none."""

    queue: str | None = None
    priority: int | None = None
    tenant: Tenant | None = None
    none_yet: bool = False


class Sending:
    """Puts inputs into one session; `agent` answers them if the first one opens it."""

    def __init__(self, session: Session, agent: str | None, opens_at: OpensAt) -> None:
        self._session = session
        self._agent = agent
        self._opens_at = opens_at
        self._none_yet = opens_at.none_yet

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
    ) -> Sent:
        """See `Session.send`."""
        session, rt = self._session, self._session.runtime
        rt.check_usable()
        if key is not None:
            key = check_id(key, what="the input key")
        _check_mode(mode, merge_key, model, plugin_input)
        given = said(content)
        now = rt.clock.wall_ms()
        unique = uuid7(now)
        item = Input(
            input=InputId(short_id("in", now)),
            turn=TurnId(unique),
            parts=given.parts,
            key=key or "",
            plugin_input=_plugin_input(plugin_input),
            model=await rt.models.named(model_name(model)) if model is not None else "",
            mode=mode,
            source=short_text(source, "the source"),
            merge_key=check_id(merge_key, what="the merge key") if merge_key is not None else "",
        )
        attached = given.blobs or given.refers
        if key is None and not attached and await rt.hand(session.stream, item):
            return Sent(session, item.turn, item.input)
        source_key = f"key:{key}" if key else f"in:{unique}"
        plain = delivery(session.stream, source_key, item, at=now, agent=self._agent)
        at = self._opens_at
        new = replace(plain, blobs=given.blobs, refers=given.refers, queue=at.queue, priority=at.priority)
        admission = await self._begin(new) if self._none_yet and mode != "interrupt" and not merge_key else None
        if admission is None:
            await rt.check_readable(session.stream)
            admission = await self._put(new, item)
        return await self._sent(admission, new, item)

    async def _begin(self, new: Delivery) -> Admission | None:
        """Open the session with its first input; None if somebody else was faster. What nobody has opened need not be
        looked at to see that it can be read."""
        self._none_yet = False
        admission = await self._admit(replace(new, fresh=True))
        return None if isinstance(admission, Conflict) else admission

    async def _put(self, new: Delivery, item: Input) -> Admission | None:
        if item.mode == "interrupt":
            return await verbs.interrupt(self._session, new, item)
        if item.merge_key:
            return await verbs.replace_queued(self._session, new, item)
        return await self._admit(new)

    async def _admit(self, new: Delivery) -> Admission:
        rt = self._session.runtime
        claims = self._agent in rt.agents and not rt.has_in_hand(new.stream)
        return await rt.admit(new, claims=claims)

    async def _sent(self, admission: Admission | None, new: Delivery, item: Input) -> Sent:
        """Let whoever drives the session know what was put there, and tell the sender what it has become."""
        session, rt = self._session, self._session.runtime
        match admission:
            case Admitted():
                claim = claimed(new, admission)
                rt.nudge(session.stream, claim, item.turn if claim else None)
                if item.mode != "queue":
                    await rt.tell(session.stream)  # the turn that runs should know
                return Sent(session, item.turn, item.input)
            case Duplicate(turn=turn, input=input_id):
                rt.nudge(session.stream)
                return Sent(session, turn, input_id, duplicate=True)
            case _:
                raise Error(
                    Code.INPUT_KEY_CONFLICT,
                    f"the key {item.key!r} was used before for another input",
                    hint="use a new key for new content, or send the same content again",
                    session=session.id,
                )


def unanswered(session: Session, rows: Sequence[Row]) -> InputAdmitted:
    """What the session's last turn should have answered, if that one was sealed.

    Raises:
        Error: `session_not_sealed`.
    """
    seal = sealed_turn(rows)
    inputs = (row.record for row in rows if isinstance(row.record, InputAdmitted))
    given = next((said for said in inputs if seal is not None and said.turn == seal.turn), None)
    if given is None:
        raise Error(
            Code.SESSION_NOT_SEALED,
            f"there is nothing to retry in session {session.id!r}",
            because="only a turn that was sealed is retried, and only if none has ended since",
            hint="send something",
            session=session.id,
        )
    return given


def model_name(model: object) -> str:
    """A model is recorded by its name."""
    if not isinstance(model, str):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the model of an input is named, not given: {type(model).__name__} is not text",
            hint="the name is recorded, so that any worker can go on; register a Model object with an agent",
        )
    return model


def _plugin_input(given: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """What the host tells its own code: it must survive a restart, so it is JSON, and not too much of it."""
    if given is None:
        return None
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise Error(Code.INVALID_ARGUMENT, f"plugin_input is a value per plugin id, not {type(given).__name__}")
    if not given:
        return None
    plain = {check_id(name, what="the plugin id"): to_json(value, where=name) for name, value in given.items()}
    if (size := len(encode(plain))) > MAX_INPUT_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE, f"the plugin input is {size} bytes", because=f"the limit is {MAX_INPUT_BYTES}"
        )
    return plain


def _check_mode(mode: str, merge_key: str | None, model: str | None, plugin_input: object) -> None:
    """What an option means must be possible in that mode: nothing is ignored."""
    if mode not in MODES:
        raise Error(Code.INVALID_ARGUMENT, f"mode={mode!r:.40} does not exist", hint=f"one of {', '.join(MODES)}")
    if mode == "interrupt" and merge_key is not None:
        because = "each interruption ends a turn and begins one; none waits to be replaced"
        raise Error(Code.INVALID_ARGUMENT, "an interruption has no merge_key", because=because, hint="leave it out")
    if mode == "steer" and model is not None:
        because = "it joins the turn that runs, whose model answers"
        raise Error(Code.INVALID_ARGUMENT, "a steer has no model", because=because, hint='mode="queue", or no model=')
    if mode == "steer" and plugin_input is not None:
        because = "it joins the turn that runs, whose plugin_input holds to its end"
        raise Error(Code.INVALID_ARGUMENT, "a steer has no plugin_input", because=because, hint='mode="queue", or none')
