"""State kept between the programs of a session, read from its log: the last environment, and all earlier programs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perdure.codec import Json
from perdure.commit.plan import blob_of
from perdure.errors import Code, Error
from perdure.ids import BlobHash, EffectId, Seq, StreamId
from perdure.runtime.calls.clients import Cache, CallSite
from perdure.runtime.turns.hydrate import Fetch
from perdure.store.protocol import Store
from perdure.tools.clients.programs import PastProgram
from perdure.tools.errors import ToolError
from perdure.vocab.messages import AttachmentRef, Reply
from perdure.vocab.outcomes import LlmCallOutcome, Outcome
from perdure.vocab.records import EffectSettled, Row, TurnOpened
from perdure.vocab.refs import EffectRef, call_body, is_part

MEDIA_TYPE = "application/vnd.perdure.program"
PAGE = 512


@dataclass(frozen=True, slots=True)
class ProgramsClient:
    """The programs of one call."""

    site: CallSite
    store: Store
    stream: StreamId
    state: Callable[[], Json]
    get: Fetch

    def environment(self) -> Json:
        """Return what the last program recorded of its environment."""
        return self.state()

    async def history(self) -> Mapping[str, PastProgram]:
        """Return the calls of the session from its log, by call id."""
        after, found = Seq(0), _Found()
        while rows := await self.store.read(self.stream, after=after, limit=PAGE):
            for row in rows:
                found.add(row)
            after = rows[-1].seq
        return {call: found.program(call) for call in found.calls}

    def keep(self, data: bytes) -> str:
        """Store bytes with the next append. Return their hash."""
        blob = blob_of(data, MEDIA_TYPE)
        self._cache().put(blob)
        return blob.hash

    def forget(self, hashes: Iterable[str]) -> None:
        """Release bytes with the next append."""
        self._cache().drop(map(BlobHash, hashes))

    def _cache(self) -> Cache:
        self.site.check_running()
        if self.site.cache is None:
            raise ToolError("Only a resumable tool can store its progress", code="durable_effects_unavailable")
        return self.site.cache

    async def fetch(self, hash: str) -> bytes | None:
        """Return stored bytes, or None if they are gone or damaged."""
        try:
            data = await self.get(AttachmentRef(hash=BlobHash(hash), media_type=MEDIA_TYPE, size=0))
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            return None
        return data if hashlib.sha256(data).hexdigest() == hash.removeprefix("sha256:") else None


class _Found:
    """The calls of a log, and the recorded parts of their bodies."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Json, str]] = {}
        self._turn = 0
        self._parts: dict[str, dict[str, Outcome]] = {}

    def add(self, row: Row) -> None:
        record = row.record
        match record:
            case TurnOpened():
                self._turn += 1
            case EffectSettled(id=id, outcome=outcome) if is_part(id):
                body, _, part = id.partition("/")
                self._parts.setdefault(f"{self._turn}/{body}", {})[part] = outcome
            case EffectSettled(id=id, outcome=LlmCallOutcome(reply=Reply(calls=calls))):
                iteration = EffectRef.parse(EffectId(id)).iteration
                for index, call in enumerate(calls):
                    self.calls[call.id] = (call.args, f"{self._turn}/{call_body(iteration, index)}")
            case _:
                pass

    def program(self, call: str) -> PastProgram:
        args, body = self.calls[call]
        parts: Mapping[str, Outcome] = self._parts.get(body, {})
        return PastProgram(call, args, parts)
