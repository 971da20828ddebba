"""What a user holds: a session, and the inputs sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from perdure.codec import Json, check_text, encode, to_json
from perdure.commit.plan import Entry
from perdure.effects.promises import SECRET, TurnScope, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import (
    CallId,
    InputId,
    Seq,
    SessionId,
    StreamId,
    Tenant,
    TurnId,
    check_id,
    files_stream,
    session_stream,
    tasks_stream,
    without_keys,
)
from perdure.inbox.admit import NOBODY, Admission, Admitted, Delivery, Duplicate, delivery
from perdure.inbox.items import Input
from perdure.observe.ends import has_turn, told
from perdure.observe.events import Cursor, Delta, Event, Fact, OutputDelta, Progress
from perdure.observe.follow import follow
from perdure.observe.hub import Subscription
from perdure.observe.pending import PendingItem, pending
from perdure.observe.text import TextFlow
from perdure.observe.why import Why, explain, sealed_turn
from perdure.processes.visibility import edge_tags
from perdure.runtime import answers, posting, verbs
from perdure.runtime.agent import find_model
from perdure.runtime.archive import export
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.editing import checked_tags, checked_title, redact, set_tags, set_title
from perdure.runtime.parts import MAX_INPUT_BYTES, Content, said
from perdure.runtime.shared import TurnResult, Waiter
from perdure.runtime.subagents import parent_of, tell_of_deletion
from perdure.runtime.transcript import Transcript
from perdure.runtime.verbs import CancelOutcome, Queued, Withdrawal
from perdure.runtime.waiting import Waiting
from perdure.runtime.work import check_place
from perdure.services.files.protocol import SessionFiles
from perdure.session.fold import SessionState
from perdure.store.protocol import Claim, InboxRow, Resolved, StreamInfo
from perdure.tools.durations import duration_ms
from perdure.vocab.messages import Message
from perdure.vocab.processes import SessionScope
from perdure.vocab.promises import AwaitEventKey, Custom, Err, TurnCancelGate, TurnTerminal, WaitIdentity, unknown_key
from perdure.vocab.questions import Answer
from perdure.vocab.records import (
    GrantMade,
    GrantRevoked,
    InputAdmitted,
    InputCancelled,
    InputMode,
    Row,
    TurnEnded,
    TurnOpened,
    input_key,
    open_key,
)
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

MAX_REASON_BYTES = 4096

MODES = ("queue", "steer", "interrupt")


def _seconds(timeout: object) -> float | None:
    """How long a caller waits.

    Raises:
        Error: `invalid_argument` if that is not a duration.
    """
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool)):
        return timeout
    return duration_ms(cast("str", timeout), what="the timeout") / 1000


@dataclass(frozen=True, slots=True)
class Sent:
    """An input that is durable, and the turn it asked for.

    One that was steered into a running turn is answered by that one, and has no turn of its own; `result` and `events`
    know.
    """

    session: Session
    turn: TurnId
    input: InputId
    duplicate: bool = False

    async def result(self, timeout: float | str | None = None) -> TurnResult:
        """How the turn ended, once that is durable. Cancelling the wait, or its timeout, changes nothing.

        Raises:
            Error: `result_timeout` if the turn is not over in time; `session_unknown` if the session was deleted.
        """
        within = _seconds(timeout)
        try:
            async with asyncio.timeout(within):
                return await self.session.wait_for(self.turn, self.input)
        except TimeoutError:
            raise Error(
                Code.RESULT_TIMEOUT,
                f"the turn is not over after {within} s; it goes on",
                hint="wait again, or ask session.why() what it waits for",
                turn=self.turn,
            ) from None

    async def events(self) -> AsyncIterator[Event]:
        """The events of the turn that answers this input, from the moment it takes it to its end.

        Raises:
            Error: `turn_unknown` once its session was deleted.
        """
        begun, answered_in, rt = False, self.turn, self.session.runtime
        before = Cursor.parse(await self._before())
        async for event in follow(rt.store, rt.hub, self.session.stream, before, while_there=True):
            match event:
                case Delta(turn=turn) | Progress(turn=turn) | OutputDelta(turn=turn) if turn != answered_in:
                    continue
                case Fact(record=InputAdmitted(input=self.input, turn=turn)):
                    begun, answered_in = True, turn
                case Fact(record=TurnOpened(turn=turn)) if turn == answered_in:
                    begun = True
                case Fact(record=InputCancelled(input=self.input)):
                    yield event
                    return
                case _:
                    pass
            if begun:
                yield event
            if isinstance(event, Fact) and isinstance(event.record, TurnEnded) and event.record.turn == answered_in:
                return
        raise self.session.no_turn(answered_in)

    async def _before(self) -> str:
        """A place before the turn's first record: its input stands right before its opening, late news aside."""
        store, stream = self.session.runtime.store, self.session.stream
        info = await store.stream(stream)  # first: if the turn opens meanwhile, it opens behind this
        opened = await store.find(stream, open_key(self.turn))
        if opened:
            return str(Cursor(Seq(max(0, opened.seq - 2))))
        if joined := await store.find(stream, input_key(self.input)):
            return str(Cursor(Seq(joined.seq - 1)))
        return str(Cursor(info.last_seq if info else Seq(0)))

    async def cancel_key(self) -> AwaitEventKey:
        """A key with which somebody without access to the session can ask for this turn to end: `rt.resolve(key)`."""
        return await self._key(TurnCancelGate(turn_id=self.turn))

    async def terminal_key(self) -> AwaitEventKey:
        """A key with which somebody without access to the session can see how this turn ends: `rt.peek(key)`."""
        return await self._key(TurnTerminal(turn_id=self.turn))

    async def _key(self, wait: WaitIdentity) -> AwaitEventKey:
        rt = self.session.runtime
        rt.check_usable()
        scope = TurnScope(self.session.tenant, self.session.id, self.turn)
        return signed_key(await rt.secrets.get(SECRET), scope.id, wait)

    async def text_stream(self) -> AsyncIterator[str]:
        """The text of the turn's replies as it is written, each on a line of its own.

        A reply that broke off is followed by the whole new one; text missed by a slow reader is filled in from the
        saved reply.
        """
        flow = TextFlow()
        async for event in self.events():
            if text := flow.feed(event):
                yield text


@dataclass(frozen=True, slots=True)
class OpensAt:
    """Where a session stands when its first input opens it; None: where its agent does."""

    queue: str | None = None
    priority: int | None = None
    tenant: Tenant | None = None


class Session:
    """One conversation with one agent: durable, resumable, observable from anywhere."""

    def __init__(self, runtime: Runtime, id: SessionId, agent: str | None, opens_at: OpensAt | None = None) -> None:
        self.runtime = runtime
        self.id = id
        self._opens_at = opens_at or OpensAt()
        self.tenant = self._opens_at.tenant or runtime.tenant
        self.stream: StreamId = session_stream(self.tenant, id)
        self._agent = agent

    # --- saying something

    async def ask(
        self, content: Content, *, key: str | None = None, model: str | None = None, timeout: float | str | None = None
    ) -> str:
        """Send, wait, and return the text of the answer; `timeout` in seconds, or "2m".

        Raises:
            Error: `turn_failed` if the turn was stopped.
        """
        within = _seconds(timeout)  # before anything is sent
        result = await (await self.send(content, key=key, model=model)).result(within)
        if result.status != "finished":
            raise Error(
                Code.TURN_FAILED,
                f"the turn was stopped: {result.reason}",
                because=result.message,
                turn=result.turn,
                reason=result.reason,
            )
        return result.text

    async def send(
        self,
        content: Content,
        *,
        key: str | None = None,
        model: str | None = None,
        plugin_input: Mapping[str, Json] | None = None,
        mode: InputMode = "queue",
        source: str = "",
        merge_key: str | None = None,
    ) -> Sent:
        """Put an input into the session; durable when this returns. The same key and content again is the same input.

        `content` is text, or a list of parts: text, an `Attachment` (bytes and their media type) or an `AttachmentRef`
        (bytes that were sent before). Bytes are durable together with the input. `model` is the one that answers this
        input, instead of the agent's own.
        `plugin_input` is for the host's own code: a JSON value per plugin, which the model never sees and which tools
        and providers read as `ctx.plugin_input(...)` for the length of the turn.

        `mode` says where it goes if a turn is running. `"queue"`: it waits for its turn. `"steer"`: the model is shown
        it the next time it is asked, in the turn that runs, or in the next one if that ends first; exactly once.
        `"interrupt"`: the turn ends as cancelled, what it waits for is withdrawn, and a turn begins with this input,
        ahead of what is queued. `source` is recorded: who or what sent it. With `merge_key`, it replaces an input of
        the same mode and merge key that nobody has taken yet, which then has the same answer.

        Raises:
            Error: `input_key_conflict` if the key was used for something else; `input_too_large`; `invalid_text`;
                `model_unknown`; `invalid_argument` for a model= of a steer or a merge_key of an interruption;
                `runtime_effect_attachment_media_type`; `blob_unknown` for a reference to bytes that this tenant does
                not have; `codec_failed` for a session that is encrypted with another key, or is not while this runtime
                encrypts.
        """
        rt = self.runtime
        rt.check_usable()
        if key is not None:
            key = check_id(key, what="the input key")
        _check_mode(mode, merge_key, model)
        given = said(content)
        now = rt.clock.wall_ms()
        unique = uuid7(now)
        item = Input(
            input=InputId(short_id("in", now)),
            turn=TurnId(unique),
            parts=given.parts,
            key=key or "",
            plugin_input=_plugin_input(plugin_input),
            model=find_model(_named(model), rt.agents.values()).name if model is not None else "",
            mode=mode,
            source=_short_text(source, "the source"),
            merge_key=check_id(merge_key, what="the merge key") if merge_key is not None else "",
        )
        attached = given.blobs or given.refers
        if key is None and not attached and await rt.hand(self.stream, item):
            return Sent(self, item.turn, item.input)
        await rt.check_readable(self.stream)
        source_key = f"key:{key}" if key else f"in:{unique}"
        plain = delivery(self.stream, source_key, item, at=now, agent=self._agent)
        at = self._opens_at
        new = replace(plain, blobs=given.blobs, refers=given.refers, queue=at.queue, priority=at.priority)
        match await self._put(new, item):
            case Admitted(fence=fence):
                if fence is None:
                    rt.nudge(self.stream)
                else:
                    rt.nudge(self.stream, Claim(self.stream, fence, Seq(0)), item.turn)
                if mode != "queue":
                    await rt.tell(self.stream)  # the turn that runs should know
                return Sent(self, item.turn, item.input)
            case Duplicate(turn=turn, input=input_id):
                rt.nudge(self.stream)
                return Sent(self, turn, input_id, duplicate=True)
            case _:
                raise Error(
                    Code.INPUT_KEY_CONFLICT,
                    f"the key {key!r} was used before for another input",
                    hint="use a new key for new content, or send the same content again",
                    session=self.id,
                )

    async def _put(self, new: Delivery, item: Input) -> Admission | None:
        rt = self.runtime
        if item.mode == "interrupt":
            return await verbs.interrupt(self, new, item)
        if item.merge_key:
            return await verbs.replace_queued(self, new, item)
        serves = rt.takes_work and self._agent in rt.agents
        claim_for = rt.worker_id if serves and not rt.has_in_hand(self.stream) else None
        return await rt.store.admit(new, claim_for=claim_for)

    async def queue(self) -> tuple[Queued, ...]:
        """The inputs that nobody has taken yet, in the order in which they came."""
        return await verbs.queue(self)

    async def cancel_input(
        self, input: str | Sent, *, and_behind: bool = False, reason: str = "", origin: str = "api"
    ) -> Withdrawal:
        """Take back an input that waits; with `and_behind`, everything that came after it too, all or nothing.

        The outcome is `cancelled`, or what had become of it before: `already_claimed` by a turn that is not over,
        `completed`, `already_cancelled` (also if another input replaced it), or `not_found`.
        """
        self.runtime.check_usable()
        await self.runtime.check_readable(self.stream)
        wanted = input.input if isinstance(input, Sent) else InputId(check_id(input, what="the input"))
        reason, origin = _short_text(reason, "the reason"), _short_text(origin, "the origin")
        return await verbs.cancel_input(self, wanted, and_behind=and_behind, origin=origin, reason=reason)

    async def retry(self) -> Sent:
        """Say again what a sealed turn should have answered: the session's last one, in which every worker died.

        A new turn answers it; called again before that one is over, this is the same input. What the sealed turn did
        stands, and the model is shown it.

        Raises:
            Error: `session_not_sealed` if the last turn that ended was not sealed; `session_unknown`.
        """
        rows = await self.rows()
        seal = sealed_turn(rows)
        inputs = (row.record for row in rows if isinstance(row.record, InputAdmitted))
        given = next((said for said in inputs if seal is not None and said.turn == seal.turn), None)
        if given is None:
            raise Error(
                Code.SESSION_NOT_SEALED,
                f"there is nothing to retry in session {self.id!r}",
                because="only a turn that was sealed is retried, and only if none has ended since",
                hint="send something",
                session=self.id,
            )
        key, model = f"retry:{given.turn}", given.model or None
        return await self.send(given.parts, key=key, model=model, plugin_input=given.plugin_input)

    # --- watching

    def events(self, after: str = "") -> AsyncIterator[Event]:
        """Everything after a cursor, endlessly: durable facts, live deltas, explicit gaps.

        Raises:
            Error: `invalid_cursor`; once iterated, `session_unknown` for a session that was expected to exist, and
                `runtime_closed` when the runtime closes.
        """
        return self._events(Cursor.parse(after))

    async def _events(self, after: Cursor) -> AsyncIterator[Event]:
        rt = self.runtime
        if self._agent is None and await rt.store.stream(self.stream) is None:
            raise _unknown(self.id)
        async for event in follow(rt.store, rt.hub, self.stream, after):
            yield event

    async def wait_for(self, turn: TurnId, input: InputId = NOBODY) -> TurnResult:
        """The end of a turn, wherever it runs; or of the one that took the input which had asked for it.

        Raises:
            Error: `turn_unknown`, `session_unknown`, or `runtime_closed` when the runtime closes first.
        """
        rt = self.runtime
        while True:
            here = rt.results.wait_for(turn)
            try:
                ended = await here if rt.drives(self.stream, turn) else await self._look_for_end(turn, input, here)
            finally:
                rt.results.forget(turn, here)
            if isinstance(ended, TurnResult):
                return ended
            if ended is not None:
                turn, input = ended

    async def _look_for_end(
        self, turn: TurnId, input: InputId, here: Waiter
    ) -> TurnResult | tuple[TurnId, InputId] | None:
        """The end of a turn that runs elsewhere, or nowhere yet, or who answers its input instead. None: it is or was
        here; look again."""
        with self.runtime.hub.subscribe(self.stream, live=False) as news:
            while not (here.done() or self.runtime.drives(self.stream, turn)):
                if (found := await self._ended(turn)) is not None:
                    return found
                if await self._known(turn) is None:
                    if (elsewhere := await verbs.whereabouts(self, input)) is not None:
                        return elsewhere
                    raise self.no_turn(turn)
                await _either(here, news)
        return here.result() if here.done() else None

    def no_turn(self, turn: TurnId) -> Error:
        """The refusal to tell anything of a turn that is not there: it never was, or was deleted with its session."""
        return Error(Code.TURN_UNKNOWN, f"session {self.id!r} has no turn {turn!r}", turn=turn)

    async def _ended(self, turn: TurnId) -> TurnResult | None:
        store = self.runtime.store
        over = await told(store, self.stream, turn)
        info = await store.stream(self.stream)
        if over is None and info is None:
            raise _unknown(self.id)
        agent = self.runtime.agents.get(info.agent) if info else None
        return TurnResult.of(*over, agent.output_as if agent else None) if over is not None else None

    async def history(self) -> tuple[Message, ...]:
        """The whole conversation, as a model would be shown it."""
        transcript = Transcript()
        for row in await self.rows():
            transcript.add(row.seq, row.record)
        return transcript.messages(transcript.open)

    async def rows(self) -> tuple[Row, ...]:
        """The log itself.

        Raises:
            Error: `session_unknown`.
        """
        if await self.runtime.store.stream(self.stream) is None:
            raise _unknown(self.id)
        return await self.runtime.store.read(self.stream)

    async def usage(self) -> Usage:
        """The tokens of its turns that are over and of its sub-agents; of theirs too, if it is the first in line.

        Raises:
            Error: `session_unknown`.
        """
        state = (await self._loaded())[0]
        return state.usage + state.child_usage

    async def why(self) -> Why:
        """What the session is doing or waiting for, since when, and who could change that."""
        rt = self.runtime
        places = {name: agent.place for name, agent in rt.agents.items()}
        return await explain(rt.store, self.stream, now=rt.clock.wall_ms(), places=places)

    async def pending(self) -> tuple[PendingItem, ...]:
        """What the session waits for that somebody or something outside must bring, the longest waiting first.

        Raises:
            Error: `session_unknown`.
        """
        return await pending(self.runtime.store, self.stream)

    async def place(self, *, queue: str | None = None, priority: int | None = None) -> None:
        """Give the session a queue and a priority of its own; None: those of its agent. It counts from the next time it
        waits for a worker.

        Raises:
            Error: `session_unknown`; `invalid_id`; `invalid_argument`.
        """
        self.runtime.check_usable()
        check_place("default" if queue is None else queue, 0 if priority is None else priority)
        await self.runtime.store.place(self.stream, queue, priority)

    # --- stopping

    async def cancel(self, turn: TurnId | None = None, *, reason: str = "", origin: str = "api") -> CancelOutcome:
        """Ask for a turn to end: the one that runs, or the next in line. Completion may win the race.

        Answers `requested`, `already_requested`, `completion_won`, or `unknown` if there is no such turn. What runs is
        told to stop and given a moment; a dispatched `once` call is in doubt then, and never "cancelled".
        """
        self.runtime.check_usable()
        _short_text(turn or "", "the turn")
        reason, origin = _short_text(reason, "the reason"), _short_text(origin, "the origin")
        target = await self._known(turn) if turn else await self._current_turn()
        if target is None:
            return "unknown"
        await self.runtime.check_readable(self.stream)
        return await verbs.cancel(self, target, reason=reason, origin=origin)

    async def pause(self, *, reason: str = "", by: str = "api") -> bool:
        """Begin nothing more in this session, until it is resumed. False if it was paused already.

        Inputs are accepted and kept; what is waited for can be answered, and due times stand. A turn that runs stops at
        the next checkpoint: what is under way goes on to its end, and nothing follows it.
        """
        self.runtime.check_usable()
        await self.runtime.check_readable(self.stream)
        return await verbs.pause(self, by=_short_text(by, "who pauses it"), reason=_short_text(reason, "the reason"))

    async def resume(self, *, by: str = "api") -> bool:
        """Go on with a session that was paused. False if it was not."""
        self.runtime.check_usable()
        await self.runtime.check_readable(self.stream)
        return await verbs.resume(self, by=_short_text(by, "who resumes it"))

    # --- answering

    async def resolve(
        self, name: str, value: Json = None, *, error: Err | None = None, cancel: bool = False
    ) -> Resolved:
        """Answer an event that the current turn waits for, or will wait for: `ctx.event(name)` returns the value.

        The first answer stands; a later one is told what that was. With `error`, the wait raises it instead; with
        `cancel`, it is told that nobody will answer.

        Raises:
            Error: `await_event_unknown_or_revoked` if no turn is under way; `invalid_json`.
        """
        self.runtime.check_usable()
        check_id(name, what="the name of an event")
        resolution = answers.answer_of(value, error, cancel=cancel)
        scope = await self._scope()
        return await answers.resolve(self.runtime, unsigned_key(scope.id, Custom(key=name)), resolution)

    async def post_result(self, call: str, value: Json = None, *, error: Err | None = None) -> Resolved:
        """Bring the result of a call that the client runs, or its failure. The first one stands.

        The same result again is no error, so that a client that did not hear back may post once more.

        Raises:
            Error: `tool_call_unknown` if this session left no such call to its client; `tool_result_invalid` if the
                result does not fit the tool's schema (the call stays open); `tool_call_answered` if there is another
                result, or nobody waits any more; `invalid_json`; `input_too_large` above 256 KiB.
        """
        if error is not None and value is not None:
            raise Error(Code.INVALID_ARGUMENT, "a call has a result or an error, not both")
        if error is not None and not isinstance(error, Err):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
            raise Error(Code.INVALID_ARGUMENT, f"a failure is an Err, not {type(error).__name__}")
        if not isinstance(call, str):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
            raise posting.unknown(call)
        [resolved] = (await self.post_results({call: value if error is None else error})).values()
        return resolved

    async def post_results(self, results: Mapping[str, Json | Err]) -> dict[CallId, Resolved]:
        """Bring several results, by call, in one write: if one of them does not fit, or comes too late, none is taken.

        Raises:
            Error: as `post_result`.
        """
        self.runtime.check_usable()
        return await posting.post(self.runtime, self.id, results)

    async def answer(self, call: str, answers: Mapping[str, Answer], *, by: str, via: str = "api") -> Resolved:
        """Answer the questions of a call of `ask_user`, all of them, by their ids; `by` says who does.

        The first answers stand.

        Raises:
            Error: `answer_invalid` if they do not fit (the questions stay open); `tool_call_unknown`;
                `tool_call_answered`; `invalid_argument`.
        """
        self.runtime.check_usable()
        return await posting.answer(self.runtime, self.id, call, answers, by=by, via=via)

    async def cancel_waits(self) -> int:
        """End whatever the current turn waits for outside with `Cancelled`: how many waits there were.

        The turn goes on, and its calls are told.

        Raises:
            Error: `session_unknown`.
        """
        self.runtime.check_usable()
        state = (await self._loaded())[0]
        return await answers.cancel_waits(self.runtime, self.stream, state.turn_seq) if state.open_turn else 0

    async def revoke_keys(self) -> bool:
        """Make every key that the current turn handed out worthless, for good, and cancel its waits: nobody else may be
        able to answer them. Later turns have keys of their own. False if that was done before.

        Raises:
            Error: `await_event_unknown_or_revoked` if no turn is under way; `session_unknown`.
        """
        self.runtime.check_usable()
        new = await answers.revoke_keys(self.runtime, await self._scope())
        await self.cancel_waits()
        return new

    async def _scope(self) -> TurnScope:
        turn = await self._current_turn()
        if turn is None:
            raise unknown_key()
        return TurnScope(self.tenant, self.id, turn)

    async def grants(self) -> tuple[GrantMade, ...]:
        """The tools that somebody approved for this whole session.

        Raises:
            Error: `session_unknown`.
        """
        return (await self._loaded())[0].grants

    async def revoke(self, grant: str, *, by: str, via: str = "api") -> None:
        """Take a grant back: from now on somebody is asked again. A call that has begun is not stopped.

        Raises:
            Error: `approval_unknown` if the session has no such grant; `invalid_id` if several begin like that;
                `invalid_argument` without a name.
        """
        self.runtime.check_usable()
        name, origin, prefix = _short_text(by, "by"), _short_text(via, "via"), _short_text(grant, "the grant")
        if not name.strip():
            raise Error(Code.INVALID_ARGUMENT, "a revocation needs a name", hint='by="ana@example.com"')
        state, _ = await self._loaded()
        found = [made.grant for made in state.grants if made.grant.startswith(prefix) and prefix]
        if len(found) > 1:
            raise Error(
                Code.INVALID_ID, f"{without_keys(prefix)!r} could be several grants", hint="type more of the id"
            )
        if not found:
            what = f"session {self.id!r} has no grant {without_keys(prefix)!r}"
            raise Error(Code.APPROVAL_UNKNOWN, what, hint="session.grants()")
        await self.runtime.check_readable(self.stream)
        revoked = GrantRevoked(grant=found[0], by=name, via=origin)
        await self.runtime.store.annotate(self.stream, Entry.of(revoked, at=self.runtime.clock.wall_ms()))
        await self.runtime.tell(self.stream)

    async def _known(self, turn: TurnId) -> TurnId | None:
        """The turn, if this session has it: waiting in the inbox, or begun."""
        store = self.runtime.store
        if await store.stream(self.stream) is None:
            raise _unknown(self.id)
        return turn if await has_turn(store, self.stream, turn) else None

    async def _current_turn(self) -> TurnId | None:
        state, inbox = await self._loaded()
        if state.open_turn:
            return state.open_turn
        waiting = Waiting()
        waiting.see(inbox)
        following = waiting.first()
        return following[1].turn if following else None

    async def _loaded(self) -> tuple[SessionState, tuple[InboxRow, ...]]:
        state, found = await verbs.loaded(self)
        if not state.seq:  # not even a first record
            raise _unknown(self.id)
        return state, found.inbox

    # --- title, tags, redaction

    async def title(self) -> str:
        """What the session is called; blank if nobody named it.

        Raises:
            Error: `session_unknown`.
        """
        return (await self._info()).title

    async def set_title(self, title: str) -> None:
        """Name the session, durably: one line of at most 200 characters; blank takes the title away.

        Raises:
            Error: `session_unknown`, `invalid_argument`, `invalid_text`.
        """
        self.runtime.check_usable()
        checked = checked_title(title)
        await self.runtime.check_readable(self.stream)
        await set_title(self.runtime.store, self.stream, checked, now=self.runtime.clock.wall_ms())
        await self.runtime.tell(self.stream)

    async def tags(self) -> tuple[str, ...]:
        """The session's tags, in order.

        Raises:
            Error: `session_unknown`.
        """
        return (await self._info()).tags

    async def set_tags(self, tags: Iterable[str]) -> None:
        """Give the session exactly these tags, durably: at most 32 of at most 64 characters, without commas.

        Raises:
            Error: `session_unknown`, `invalid_argument`, `invalid_text`.
        """
        self.runtime.check_usable()
        checked = checked_tags(tags)
        await self.runtime.check_readable(self.stream)
        await set_tags(self.runtime.store, self.stream, checked, now=self.runtime.clock.wall_ms())
        await self.runtime.tell(self.stream)

    async def redact(self, seq: int, *, origin: str = "api") -> bool:
        """Take what a record says out of the session, physically and for good; its sha256 stays. False if it was done
        before.

        The record keeps its place, so nothing else changes: a model is shown `[redacted]` from its next request on, and
        bytes that no other record refers to are gone. A copy elsewhere (a backup, an export, an observer's own) is not
        ours to find.

        Raises:
            Error: `session_busy` for a record of a turn that is not over; `record_unknown`; `session_unknown`;
                `invalid_argument` for a record that says nothing, or for the title and tags the session has now.
        """
        self.runtime.check_usable()
        origin = _short_text(origin, "the origin")
        if not isinstance(seq, int) or isinstance(seq, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
            raise Error(Code.INVALID_ARGUMENT, f"a record is named by its number, not by {type(seq).__name__}")
        now = self.runtime.clock.wall_ms()
        done = await redact(self.runtime.store, self.stream, Seq(seq), origin=origin, now=now)
        await self.runtime.tell(self.stream)
        return done

    async def export(self) -> bytes:
        """The whole session as JSON lines, with the bytes it refers to: for `Runtime.import_session`, anywhere.

        Raises:
            Error: `session_unknown`.
        """
        return await export(self.runtime.store, await self._info(), now=self.runtime.clock.wall_ms())

    async def _info(self) -> StreamInfo:
        info = await self.runtime.store.stream(self.stream)
        if info is None:
            raise _unknown(self.id)
        return info

    @property
    def files(self) -> SessionFiles:
        """The files of this session, which its tools find as `ctx.files`.

        Raises:
            Error: `files_disabled` if this runtime has none.
        """
        self.runtime.check_usable()
        return self.runtime.files.of_session(self.tenant, self.id)

    async def delete(self) -> bool:
        """Remove the session, physically, and its files. Processes it started go on. False if there was none."""
        self.runtime.check_usable()
        rt, beside = self.runtime, (files_stream(self.tenant, self.id), tasks_stream(self.tenant, self.id))
        parent = await parent_of(rt.store, self.stream)
        edges = edge_tags(SessionScope(session_id=self.id))
        deleted = await rt.store.delete(self.stream, beside=beside, edges=edges)
        if deleted and parent is not None:
            await tell_of_deletion(rt.store, self.stream, parent, now=rt.clock.wall_ms())
            rt.nudge(parent.stream)
            await rt.tell(parent.stream)
        if self.runtime.worker:
            self.runtime.worker.serving.forget(self.stream)
        self.runtime.revealed.pop(self.stream, None)
        self.runtime.hub.stir(self.stream)
        return deleted

    def __repr__(self) -> str:
        return f"Session({self.id!r})"


def _short_text(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise Error(Code.INVALID_ARGUMENT, f"{what} must be text, not {type(text).__name__}")
    plain = check_text(text, where=what)
    if len(plain.encode()) > MAX_REASON_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is too long", because=f"the limit is {MAX_REASON_BYTES} bytes")
    return plain


def _named(model: object) -> str:
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


async def _either(here: Waiter, news: Subscription) -> None:
    """Until the turn has ended in this process, or something has happened to look at."""
    waiting = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({here, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        waiting.cancel()
    news.items.clear()


def _unknown(id: SessionId) -> Error:
    return Error(
        Code.SESSION_UNKNOWN,
        f"there is no session {without_keys(id)!r}",
        hint="list them with `perdure sessions list`, or create it by sending something with agent=",
    )


def _check_mode(mode: str, merge_key: str | None, model: str | None) -> None:
    """What an option means must be possible in that mode: nothing is ignored."""
    if mode not in MODES:
        raise Error(Code.INVALID_ARGUMENT, f"mode={mode!r:.40} does not exist", hint=f"one of {', '.join(MODES)}")
    if mode == "interrupt" and merge_key is not None:
        because = "each interruption ends a turn and begins one; none waits to be replaced"
        raise Error(Code.INVALID_ARGUMENT, "an interruption has no merge_key", because=because, hint="leave it out")
    if mode == "steer" and model is not None:
        because = "it joins the turn that runs, whose model answers"
        raise Error(Code.INVALID_ARGUMENT, "a steer has no model", because=because, hint='mode="queue", or no model=')
