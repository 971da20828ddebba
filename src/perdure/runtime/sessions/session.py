"""`Session`, the API of one conversation. The implementation is in the modules called here."""

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
    TurnId,
    check_id,
)
from perdure.observe.events import Cursor, Event
from perdure.observe.follow import follow
from perdure.observe.pending import PendingItem, pending
from perdure.observe.why import Explanation, explain
from perdure.offload import offload, weight_of
from perdure.runtime.agent import setup_of
from perdure.runtime.audit import act, actor
from perdure.runtime.sessions import answers, posting, verbs
from perdure.runtime.sessions.archive import export
from perdure.runtime.sessions.editing import checked_tags, checked_title, redact, set_tags, set_title
from perdure.runtime.sessions.info import SessionDetails, details_of
from perdure.runtime.sessions.parts import Content, short_text
from perdure.runtime.sessions.ref import SessionRef
from perdure.runtime.sessions.sending import OpensAt, Sending, model_name, send_again, unanswered
from perdure.runtime.sessions.sent import TurnHandle
from perdure.runtime.sessions.verbs import CancelOutcome, Queued, Withdrawal
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.work import check_place
from perdure.services.files.protocol import SessionFiles
from perdure.session.ledger import UsageEntry, entries
from perdure.store.shapes import Resolved, StreamInfo
from perdure.tools.durations import seconds
from perdure.vocab.messages import Message
from perdure.vocab.promises import Custom, Failure, unknown_key
from perdure.vocab.questions import Answer
from perdure.vocab.records import ApprovalGranted, InputMode, Row
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


class Session:
    """One conversation with one agent: durable, resumable, observable from any worker."""

    def __init__(self, runtime: RuntimeCore, id: SessionId, agent: str | None, opens_at: OpensAt | None = None) -> None:
        opens_at = opens_at or OpensAt()
        self.id = id
        self._ref = SessionRef(runtime, runtime.tenant, id)
        self._may_be_new = agent is not None
        self._sending = Sending(self, self._ref, agent, opens_at)

    # --- inputs

    async def ask(
        self, content: Content, *, key: str | None = None, model: str | None = None, timeout: float | str | None = None
    ) -> str:
        """Send an input, wait, and return the text of the answer. `timeout` is in seconds, or text such as "2m".

        Raises:
            Error: `turn_failed` if the turn was stopped.
        """
        within = seconds(timeout)  # checked before the input is sent
        result = await (await self.send(content, key=key, model=model)).result(within)
        if result.status != "finished":
            raise Error(
                Code.TURN_FAILED,
                f"the turn was stopped: {result.reason}",
                because=result.message,
                hint=result.hint,
                turn=result.turn_id,
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
        sent_by: str = "",
        replace_key: str | None = None,
    ) -> TurnHandle:
        """Send an input to the session. Durable when this returns; the same key and content again is the same input.

        - `content` is text, or a list of parts: text, an `Attachment` (bytes and their media type) or an
          `AttachmentRef` (bytes that were sent before). Bytes commit together with the input.
        - `model` answers this input, instead of the agent's own.
        - `plugin_input` is for the host's own code: a JSON value per plugin. Tools and providers read it during the
          turn as `ctx.plugin_input(...)`; the model never sees it.
        - `mode` applies if a turn is running. `"queue"`: the input waits for its own turn. `"steer"`: the next model
          call of the running turn includes the input, or else the next turn does; exactly once. `"interrupt"`: the
          running turn is cancelled, its waits are withdrawn, and a turn with this input begins, ahead of queued inputs.
        - `sent_by` is recorded as the sender.
        - `replace_key` replaces a queued input of the same mode and replace key; both inputs then have the same answer.

        Raises:
            Error: `input_key_conflict` if the key has other content; `input_too_large`; `invalid_text`;
                `model_unknown`; `queue_full` if too many inputs wait already;
                `invalid_argument` for a `model` or `plugin_input` with `"steer"`, or `replace_key` with `"interrupt"`;
                `runtime_effect_attachment_media_type`; `blob_unknown` for a reference to bytes that this tenant does
                not have; `codec_failed` if the session is encrypted with another key, or is not encrypted although this
                runtime encrypts.
        """
        return await self._sending.send(
            content,
            key=key,
            model=model,
            plugin_input=plugin_input,
            mode=mode,
            source=sent_by,
            merge_key=replace_key,
        )

    async def queued_inputs(self) -> tuple[Queued, ...]:
        """Return queued inputs, oldest first."""
        return await verbs.queue(self._ref)

    async def cancel_input(
        self,
        input: str | TurnHandle,
        *,
        include_later: bool = False,
        reason: str = "",
        by: str = "",
        via: str = "api",
    ) -> Withdrawal:
        """Withdraw a queued input; with `include_later`, also all later ones, all or none.

        The outcome is `cancelled`, or the earlier outcome of the input: `already_claimed` by an open turn, `completed`,
        `already_cancelled` (also if another input replaced it), or `not_found`.
        """
        self._ref.runtime.check_usable()
        await self._ref.runtime.check_readable(self._ref.stream)
        wanted = input.input_id if isinstance(input, TurnHandle) else InputId(check_id(input, what="the input"))
        if type(include_later) is not bool:
            raise Error(Code.INVALID_ARGUMENT, f"include_later must be True or False, not {include_later!r:.40}")
        reason, who = short_text(reason, "the reason"), actor(by, via)
        return await verbs.cancel_input(self._ref, wanted, include_later=include_later, who=who, reason=reason)

    async def retry(self, *, by: str = "", via: str = "api") -> TurnHandle:
        """Retry the input of a dead-lettered turn, if it is the session's last one.

        A new turn answers the input. A second call before that turn ends is the same input. The effects of the
        dead-lettered turn stand, and the model sees them.

        Raises:
            Error: `turn_not_retryable` if the last ended turn was not dead-lettered; `session_unknown`.
        """
        given = unanswered(self._ref, await self.journal())
        done = act("turn_retried", actor(by, via), session=self.id, target=given.turn)
        return await send_again(self, self._ref, given, done)

    # --- reading

    def events(self, after: str = "") -> AsyncIterator[Event]:
        """Yield all events after a cursor, endlessly: durable facts, live deltas, explicit gaps.

        Raises:
            Error: `invalid_cursor`; once iterated, `session_unknown` for a session that does not exist, and
                `runtime_closed` when the runtime closes.
        """
        return self._events(Cursor.parse(after))

    async def _events(self, after: Cursor) -> AsyncIterator[Event]:
        rt = self._ref.runtime
        if not self._may_be_new:
            await self._info()
        async for event in follow(rt.sources, self._ref.stream, after):
            yield event

    async def messages(self) -> tuple[Message, ...]:
        """Return the whole conversation, as a model would see it."""
        rows = await self.journal()
        return await offload(sum([len(row.data) for row in rows]), _conversation, rows)

    async def journal(self) -> tuple[Row, ...]:
        """Return the log.

        Raises:
            Error: `session_unknown`.
        """
        await self._info()
        return await self._ref.runtime.store.read(self._ref.stream)

    async def usage(self) -> Usage:
        """Return the usage of the session's ended turns and of its sub-agents. For a root session, this includes all
        descendants.

        Raises:
            Error: `session_unknown`.
        """
        state = (await verbs.existing(self._ref))[0]
        return state.usage + state.child_usage

    async def usage_entries(self) -> tuple[UsageEntry, ...]:
        """Return the usage entries: turns, direct completions by source, sub-agents.

        Raises:
            Error: `session_unknown`.
        """
        return tuple(entries(row.record for row in await self.journal()))

    async def why(self) -> Explanation:
        """Explain the session's state: current work or wait, its start time, and the action that unblocks it."""
        rt = self._ref.runtime
        places = {name: setup_of(agent).place for name, agent in rt.agents.items()}
        return await explain(rt.store, self._ref.stream, now=rt.clock.wall_ms(), places=places)

    async def pending(self) -> tuple[PendingItem, ...]:
        """Return open external waits (approvals, questions, client results, events), oldest first.

        Raises:
            Error: `session_unknown`.
        """
        return await pending(self._ref.runtime.store, self._ref.stream)

    async def move(self, *, queue: str | None = None, priority: int | None = None) -> None:
        """Set the session's own queue and priority; None means those of its agent. Applies from the next wait for a
        worker.

        Raises:
            Error: `session_unknown`; `invalid_id`; `invalid_argument`.
        """
        self._ref.runtime.check_usable()
        check_place("default" if queue is None else queue, 0 if priority is None else priority)
        await self._ref.runtime.store.place(self._ref.stream, queue, priority)

    # --- control

    async def cancel(
        self, turn: TurnId | None = None, *, reason: str = "", by: str = "", via: str = "api"
    ) -> CancelOutcome:
        """Request the end of a turn, by default the running or next one. Completion may win the race.

        Returns `requested`, `already_requested`, `completion_won`, or `unknown` if there is no such turn. Running calls
        get a grace period; a dispatched `once` call becomes in doubt, never cancelled.
        """
        self._ref.runtime.check_usable()
        reason, who = short_text(reason, "the reason"), actor(by, via)
        if turn is not None:  # a blank id is an error, and never means the running turn
            turn = TurnId(check_id(turn, what="the turn"))
            target = turn if await verbs.has(self._ref, turn) else None
        else:
            target = await verbs.current_turn(self._ref)
        if target is None:
            return "unknown"
        await self._ref.runtime.check_readable(self._ref.stream)
        return await verbs.cancel(self._ref, target, reason=reason, who=who)

    async def pause(self, *, reason: str = "", by: str = "api", via: str = "api") -> bool:
        """Start no more work in this session until `resume`. False if it was paused already.

        Inputs are still accepted, waits can be resolved, and due times stand. A running turn stops at the next
        checkpoint; calls in flight run to their end.
        """
        self._ref.runtime.check_usable()
        await self._ref.runtime.check_readable(self._ref.stream)
        return await verbs.pause(self._ref, who=actor(by, via), reason=short_text(reason, "the reason"))

    async def resume(self, *, by: str = "api", via: str = "api") -> bool:
        """Resume a paused session. False if it was not paused."""
        self._ref.runtime.check_usable()
        await self._ref.runtime.check_readable(self._ref.stream)
        return await verbs.resume(self._ref, who=actor(by, via))

    # --- resolutions

    async def resolve(
        self,
        name: str,
        value: Json = None,
        *,
        error: Failure | None = None,
        cancel: bool = False,
        by: str = "",
        via: str = "api",
    ) -> Resolved:
        """Resolve an event of the current turn, also before its wait: `ctx.wait_for_event(name)` returns the value.

        The first resolution wins, and a later call returns it. With `error`, the wait raises it; with `cancel`, the
        wait is cancelled.

        Raises:
            Error: `event_key_invalid` without an open turn; `invalid_json`.
        """
        self._ref.runtime.check_usable()
        check_id(name, what="the name of an event")
        resolution = await answers.answer_of(value, error, cancel=cancel)
        scope = await self._scope()
        done = act("event_resolved", actor(by, via), session=self.id, target=name)
        audit = await self._ref.runtime.audit_log.notes(self._ref.tenant, done)
        key = unsigned_key(scope.id, Custom(key=name))
        return await answers.resolve(self._ref.runtime, key, resolution, audit=audit)

    async def post_result(
        self, call: str, value: Json = None, *, error: Failure | None = None, by: str = "", via: str = "api"
    ) -> Resolved:
        """Post the result or failure of a client-side call. The first one wins.

        The same result again is accepted, so a client may repeat a post after a lost reply.

        Raises:
            Error: `tool_call_unknown` if this session has no such client-side call; `tool_result_invalid` if the
                result does not match the tool's schema (the call stays open); `tool_call_answered` after another
                result, a timeout or a cancellation; `invalid_json`; `input_too_large` above 256 KiB.
        """
        if error is not None and value is not None:
            raise Error(Code.INVALID_ARGUMENT, "a call has a result or an error, not both")
        if error is not None and not isinstance(error, Failure):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
            raise Error(Code.INVALID_ARGUMENT, f"a failure must be a Failure, not {type(error).__name__}")
        if not isinstance(call, str):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
            raise posting.unknown(call)
        [resolved] = (await self.post_results({call: value if error is None else error}, by=by, via=via)).values()
        return resolved

    async def post_results(
        self, results: Mapping[str, Json | Failure], *, by: str = "", via: str = "api"
    ) -> dict[CallId, Resolved]:
        """Post several results, by call, in one write. If one is invalid or late, none is written.

        Raises:
            Error: as `post_result`.
        """
        self._ref.runtime.check_usable()
        return await posting.post(self._ref.runtime, self.id, results, actor(by, via))

    async def answer(self, call: str, answers: Mapping[str, Answer], *, by: str, via: str = "api") -> Resolved:
        """Answer all questions of an `ask_user` call, by question id. `by` names the person. The first answers win.

        Raises:
            Error: `answer_invalid` if the answers do not match (the questions stay open); `tool_call_unknown`;
                `tool_call_answered`; `invalid_argument`.
        """
        self._ref.runtime.check_usable()
        return await posting.answer(self._ref.runtime, self.id, call, answers, by=by, via=via)

    async def cancel_waits(self, *, by: str = "", via: str = "api") -> int:
        """Cancel all external waits of the current turn, and return their number. The turn goes on.

        Raises:
            Error: `session_unknown`.
        """
        self._ref.runtime.check_usable()
        state = (await verbs.existing(self._ref))[0]
        who = actor(by, via)
        if not state.open_turn:
            return 0
        return await answers.cancel_waits(self._ref.runtime, self._ref.stream, state.turn_seq, who)

    async def revoke_keys(self, *, by: str = "", via: str = "api") -> bool:
        """Revoke every key that the current turn handed out, permanently, and cancel its waits. Later turns have their
        own keys.

        False if that was done before.

        Raises:
            Error: `event_key_invalid` without an open turn; `session_unknown`.
        """
        self._ref.runtime.check_usable()
        new = await answers.revoke_keys(self._ref.runtime, await self._scope(), actor(by, via))
        await self.cancel_waits(by=by, via=via)
        return new

    async def _scope(self) -> TurnScope:
        turn = await verbs.current_turn(self._ref)
        if turn is None:
            raise unknown_key()
        return TurnScope(self._ref.tenant, self.id, turn)

    async def grants(self) -> tuple[ApprovalGranted, ...]:
        """Return the tools approved for all calls in this session.

        Raises:
            Error: `session_unknown`.
        """
        return (await verbs.existing(self._ref))[0].grants

    async def revoke_grant(self, grant: str, *, by: str, via: str = "api") -> None:
        """Revoke a session-wide approval. Later calls ask again; a running call continues.

        Raises:
            Error: `approval_unknown` if the session has no such grant, also for a prefix of its id;
                `invalid_argument` without a name.
        """
        self._ref.runtime.check_usable()
        who, id = actor(by, via), short_text(grant, "the grant")
        if not who.by.strip():
            raise Error(Code.INVALID_ARGUMENT, "a revocation needs a name", hint='by="ana@example.com"')
        await verbs.revoke(self._ref, id, who=who)

    # --- title, tags, redaction

    async def info(self) -> SessionDetails:
        """Return the session's agent, status, title, tags, model, place and times.

        Raises:
            Error: `session_unknown`.
        """
        row = await self._info()
        return details_of(row, (await verbs.existing(self._ref))[0].model, (await self.why()).status)

    async def set_title(self, title: str) -> None:
        """Set the title, durably: one line of at most 200 characters. A blank title removes it.

        Raises:
            Error: `session_unknown`, `invalid_argument`, `invalid_text`.
        """
        self._ref.runtime.check_usable()
        checked = checked_title(title)
        await self._ref.runtime.check_readable(self._ref.stream)
        await set_title(self._ref.runtime.store, self._ref.stream, checked, now=self._ref.runtime.clock.wall_ms())
        await self._ref.runtime.notify_stream(self._ref.stream)

    async def set_model(self, model: str | None, *, by: str = "", via: str = "api") -> None:
        """Set the model from the next turn on, unless an input names another. None means the agent's.

        Raises:
            Error: `session_unknown`, `model_unknown`, `invalid_argument`.
        """
        self._ref.runtime.check_usable()
        named = await self._ref.runtime.models.named(model_name(model)) if model is not None else ""
        await self._ref.runtime.check_readable(self._ref.stream)
        await verbs.set_model(self._ref, named, actor(by, via))

    async def set_tags(self, tags: Iterable[str]) -> None:
        """Replace the session's tags, durably: at most 32 of at most 64 characters, without commas.

        Raises:
            Error: `session_unknown`, `invalid_argument`, `invalid_text`.
        """
        self._ref.runtime.check_usable()
        checked = await offload(weight_of(tags), checked_tags, tags)
        await self._ref.runtime.check_readable(self._ref.stream)
        await set_tags(self._ref.runtime.store, self._ref.stream, checked, now=self._ref.runtime.clock.wall_ms())
        await self._ref.runtime.notify_stream(self._ref.stream)

    async def redact(self, seq: int, *, by: str = "", via: str = "api") -> bool:
        """Delete the payload of a record, physically and permanently. Its sha256 stays. False if that was done before.

        The record keeps its seq. From the next request on, a model sees `[redacted]`. Bytes that no other record refers
        to are deleted. Copies elsewhere (a backup, an export, an observer's) stay.

        Raises:
            Error: `session_busy` for a record of an open turn; `record_unknown`; `session_unknown`;
                `invalid_argument` for a record without payload, or the current title or tags.
        """
        self._ref.runtime.check_usable()
        who = actor(by, via)
        if not isinstance(seq, int) or isinstance(seq, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
            raise Error(Code.INVALID_ARGUMENT, f"seq must be an integer, not {type(seq).__name__}")
        now = self._ref.runtime.clock.wall_ms()
        audit = await verbs.audited(self._ref, act("record_redacted", who, session=self.id, target=str(seq)))
        done = await redact(
            self._ref.runtime.store, self._ref.stream, Seq(seq), origin=who.by or who.via, now=now, audit=audit
        )
        await self._ref.runtime.notify_stream(self._ref.stream)
        return done

    async def export(self, *, by: str = "", via: str = "api") -> bytes:
        """Return the whole session as JSON lines, with its bytes, for `Runtime.import_session`. The audit entry is
        durable before that.

        Raises:
            Error: `session_unknown`.
        """
        rt, who, info = self._ref.runtime, actor(by, via), await self._info()
        await rt.audit_log.record(self._ref.tenant, act("session_exported", who, session=self.id))
        return await export(rt.store, info, now=rt.clock.wall_ms())

    async def _info(self) -> StreamInfo:
        info = await self._ref.runtime.store.stream(self._ref.stream)
        if info is None:
            raise verbs.session_unknown(self._ref.id)
        return info

    @property
    def files(self) -> SessionFiles:
        """The files of this session, which its tools use as `ctx.files`.

        Raises:
            Error: `files_disabled` if this runtime has no file system.
        """
        self._ref.runtime.check_usable()
        return self._ref.runtime.files.of_session(self._ref.tenant, self.id)

    async def delete(self, *, by: str = "", via: str = "api") -> bool:
        """Delete the session and its files, physically. Processes that it started go on, and its entries in the audit
        log stay. False if there was no session.
        """
        self._ref.runtime.check_usable()
        return await verbs.delete(self._ref, actor(by, via))

    def __repr__(self) -> str:
        return f"Session({self.id!r})"


def _conversation(rows: tuple[Row, ...]) -> tuple[Message, ...]:
    transcript = Transcript()
    for row in rows:
        transcript.add(row.seq, row.record)
    return transcript.messages(transcript.open)
