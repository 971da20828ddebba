"""What a user holds: a session, and all that can be done with it. How it is done is in the modules called here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import (
    CallId,
    InputId,
    Seq,
    SessionId,
    StreamId,
    TurnId,
    check_id,
    session_stream,
)
from perdure.inbox.admit import NOBODY
from perdure.observe.events import Cursor, Event
from perdure.observe.follow import follow
from perdure.observe.pending import PendingItem, pending
from perdure.observe.why import Why, explain
from perdure.runtime.sessions import answers, posting, verbs
from perdure.runtime.sessions import results as turn_results
from perdure.runtime.sessions.archive import export
from perdure.runtime.sessions.editing import checked_tags, checked_title, redact, set_tags, set_title
from perdure.runtime.sessions.parts import Content, short_text
from perdure.runtime.sessions.sending import OpensAt, Sending, model_name, unanswered
from perdure.runtime.sessions.sent import Sent
from perdure.runtime.sessions.verbs import CancelOutcome, Queued, Withdrawal
from perdure.runtime.shared import TurnResult
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.work import check_place
from perdure.services.files.protocol import SessionFiles
from perdure.session.ledger import UsageEntry, entries
from perdure.store.shapes import Resolved, StreamInfo
from perdure.tools.durations import seconds
from perdure.vocab.messages import Message
from perdure.vocab.promises import Custom, Err, unknown_key
from perdure.vocab.questions import Answer
from perdure.vocab.records import GrantMade, InputMode, Row
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime


class Session:
    """One conversation with one agent: durable, resumable, observable from anywhere."""

    def __init__(self, runtime: Runtime, id: SessionId, agent: str | None, opens_at: OpensAt | None = None) -> None:
        opens_at = opens_at or OpensAt()
        self.runtime = runtime
        self.id = id
        self.tenant = opens_at.tenant or runtime.tenant
        self.stream: StreamId = session_stream(self.tenant, id)
        self._may_be_new = agent is not None
        self._sending = Sending(self, agent, opens_at)

    # --- saying something

    async def ask(
        self, content: Content, *, key: str | None = None, model: str | None = None, timeout: float | str | None = None
    ) -> str:
        """Send, wait, and return the text of the answer; `timeout` in seconds, or "2m".

        Raises:
            Error: `turn_failed` if the turn was stopped.
        """
        within = seconds(timeout)  # before anything is sent
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
                `model_unknown`; `invalid_argument` for a model= or plugin_input= of a steer or a merge_key of an
                interruption;
                `runtime_effect_attachment_media_type`; `blob_unknown` for a reference to bytes that this tenant does
                not have; `codec_failed` for a session that is encrypted with another key, or is not while this runtime
                encrypts.
        """
        return await self._sending.send(
            content,
            key=key,
            model=model,
            plugin_input=plugin_input,
            mode=mode,
            source=source,
            merge_key=merge_key,
        )

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
        if type(and_behind) is not bool:
            raise Error(Code.INVALID_ARGUMENT, f"and_behind is True or False, not {and_behind!r:.40}")
        reason, origin = short_text(reason, "the reason"), short_text(origin, "the origin")
        return await verbs.cancel_input(self, wanted, and_behind=and_behind, origin=origin, reason=reason)

    async def retry(self) -> Sent:
        """Say again what a sealed turn should have answered: the session's last one, in which every worker died.

        A new turn answers it; called again before that one is over, this is the same input. What the sealed turn did
        stands, and the model is shown it.

        Raises:
            Error: `session_not_sealed` if the last turn that ended was not sealed; `session_unknown`.
        """
        given = unanswered(self, await self.rows())
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
        if not self._may_be_new:
            await self._info()
        async for event in follow(rt.sources, self.stream, after):
            yield event

    async def wait_for(self, turn: TurnId, input: InputId = NOBODY) -> TurnResult:
        """The end of a turn, wherever it runs; or of the one that took the input which had asked for it.

        Raises:
            Error: `turn_unknown`, `session_unknown`, or `runtime_closed` when the runtime closes first.
        """
        return await turn_results.wait_for(self, turn, input)

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
        await self._info()
        return await self.runtime.store.read(self.stream)

    async def usage(self) -> Usage:
        """The tokens of its turns that are over and of its sub-agents; of theirs too, if it is the first in line.

        Raises:
            Error: `session_unknown`.
        """
        state = (await verbs.existing(self))[0]
        return state.usage + state.child_usage

    async def ledger(self) -> tuple[UsageEntry, ...]:
        """What the session has bought, entry by entry: its turns, direct completions by their source, its sub-agents.

        Raises:
            Error: `session_unknown`.
        """
        return tuple(entries(row.record for row in await self.rows()))

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
        reason, origin = short_text(reason, "the reason"), short_text(origin, "the origin")
        if turn is not None:  # a blank one is a slip, and never "the one that runs"
            turn = TurnId(check_id(turn, what="the turn"))
            target = turn if await verbs.has(self, turn) else None
        else:
            target = await verbs.current_turn(self)
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
        return await verbs.pause(self, by=short_text(by, "who pauses it"), reason=short_text(reason, "the reason"))

    async def resume(self, *, by: str = "api") -> bool:
        """Go on with a session that was paused. False if it was not."""
        self.runtime.check_usable()
        await self.runtime.check_readable(self.stream)
        return await verbs.resume(self, by=short_text(by, "who resumes it"))

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
        state = (await verbs.existing(self))[0]
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
        turn = await verbs.current_turn(self)
        if turn is None:
            raise unknown_key()
        return TurnScope(self.tenant, self.id, turn)

    async def grants(self) -> tuple[GrantMade, ...]:
        """The tools that somebody approved for this whole session.

        Raises:
            Error: `session_unknown`.
        """
        return (await verbs.existing(self))[0].grants

    async def revoke(self, grant: str, *, by: str, via: str = "api") -> None:
        """Take a grant back: from now on somebody is asked again. A call that has begun is not stopped.

        Raises:
            Error: `approval_unknown` if the session has no such grant; `invalid_id` if several begin like that;
                `invalid_argument` without a name.
        """
        self.runtime.check_usable()
        name, origin, prefix = short_text(by, "by"), short_text(via, "via"), short_text(grant, "the grant")
        if not name.strip():
            raise Error(Code.INVALID_ARGUMENT, "a revocation needs a name", hint='by="ana@example.com"')
        await verbs.revoke(self, prefix, by=name, via=origin)

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

    async def model(self) -> str:
        """The model that was chosen for the session; blank if its agent's answers.

        Raises:
            Error: `session_unknown`.
        """
        return (await verbs.existing(self))[0].model

    async def set_model(self, model: str | None) -> None:
        """Choose the model that answers from the next turn on, unless an input names another; None: the agent's.

        Raises:
            Error: `session_unknown`, `model_unknown`, `invalid_argument`.
        """
        self.runtime.check_usable()
        named = await self.runtime.models.named(model_name(model)) if model is not None else ""
        await self.runtime.check_readable(self.stream)
        await verbs.set_model(self, named)

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
        origin = short_text(origin, "the origin")
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
            raise verbs.session_unknown(self.id)
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
        return await verbs.delete(self)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"
