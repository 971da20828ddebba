"""The verdict on a run: what was promised, what the world saw and what the tables hold must tell one story.

The tables are read with plain SQL, and the ledgers are files that the store knows nothing about.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from perdure import Runtime
from perdure.codec import encode
from perdure.ids import SessionId, Tenant, join, session_stream
from perdure.observe.verify import verify
from perdure.runtime.internals import core_of
from perdure.session.fold import CODE, fold_all
from perdure.store.postgres.address import parse
from perdure.store.postgres.driver import Cells, dial
from perdure.testing import World
from perdure.testing.world import LedgerEntry
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import (
    Done,
    DurableStepOutcome,
    Failed,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    Success,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.records import (
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    OutcomeArrivedLate,
    Record,
    TurnEnded,
    TurnOpened,
    read,
)
from tests.chaos.app import BEGUN, DONE, ONCE, PROBED, REFUSED
from tests.chaos.load import ACCEPTED, ANSWERED

_ROWS = """
    SELECT s.name, l.seq, l.at, l.fence, l.n, l.kind, l.data
    FROM {p}log AS l JOIN {p}streams AS s ON s.id = l.stream WHERE s.kind <> 'audit' ORDER BY 1, 2
"""
_STREAMS = "SELECT name, last_seq, fence, active, parked FROM {p}streams WHERE kind <> 'audit' ORDER BY 1"
_LEFT = "SELECT (SELECT count(*) FROM {p}inbox), (SELECT count(*) FROM {p}timers), (SELECT count(*) FROM {p}waits)"


SEAL_AFTER = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a log as the table has it."""

    seq: int
    at: int
    fence: int | None
    n: int | None
    record: Record


@dataclass(frozen=True, slots=True)
class Stream:
    """A row of the streams."""

    last_seq: int
    fence: int
    unfinished: bool


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that was stored, by session."""

    logs: dict[str, list[Entry]]
    streams: dict[str, Stream]
    left: tuple[int, int, int]


async def read_tables(url: str) -> Tables:
    """What the tables hold, asked without any code of the store."""
    rows, streams, left = await _postgres(url) if url.startswith("postgresql") else _sqlite(url)
    logs: dict[str, list[Entry]] = defaultdict(list)
    for name, seq, at, fence, n, kind, data in rows:
        logs[name].append(Entry(seq, at, fence, n, read(kind, bytes(data))))
    known = {name: Stream(last, fence, bool(active or parked)) for name, last, fence, active, parked in streams}
    inbox, timers, waits = left
    return Tables(dict(logs), known, (inbox, timers, waits))


async def _postgres(url: str) -> tuple[list[Cells], list[Cells], Cells]:
    address = parse(url)
    connection = await dial(address.dsn, settings={}, cached=0, connect_s=10, command_s=60)
    try:
        at = f"{address.schema}."
        rows = await connection.fetch(_ROWS.format(p=at))
        streams = await connection.fetch(_STREAMS.format(p=at))
        (left,) = await connection.fetch(_LEFT.format(p=at))
    finally:
        await connection.close()
    return rows, streams, left


def _sqlite(url: str) -> tuple[list[Cells], list[Cells], Cells]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        rows = connection.execute(_ROWS.format(p="")).fetchall()
        streams = connection.execute(_STREAMS.format(p="")).fetchall()
        left = connection.execute(_LEFT.format(p="")).fetchone()
    finally:
        connection.close()
    return rows, streams, left


# --- what clients were promised


def unanswered(promised: Sequence[LedgerEntry], tables: Tables) -> Iterator[str]:
    """Every accepted input entered its log once and its turn ended once, with an answer to that very input."""
    accepted = [line for line in promised if line.what == ACCEPTED]
    answered = Counter(line.key for line in promised if line.what == ANSWERED)
    for line in accepted:
        log = tables.logs.get(str(line.details["session"]), [])
        turn = line.details["turn"]
        entered = [e for e in log if isinstance(e.record, InputAdmitted) and e.record.key == line.key]
        opened = [e for e in log if isinstance(e.record, TurnOpened) and e.record.turn == turn]
        ended = [e for e in log if isinstance(e.record, TurnEnded) and e.record.turn == turn]
        if (len(entered), len(opened), len(ended)) != (1, 1, 1):
            yield f"{line.key}: entered {len(entered)} times, opened {len(opened)} times, ended {len(ended)} times"
        if answered[line.key] != 1:
            yield f"{line.key}: its client got {answered[line.key]} answers"
    for line in promised:
        if line.what == ANSWERED and line.details["status"] == "finished":
            if not str(line.details["text"]).startswith(f"answer to {line.key}"):
                yield f"{line.key}: answered with {line.details['text']!r}"
        elif line.what == ANSWERED and line.details["reason"] != "no_forward_progress":
            yield f"{line.key}: the turn was {line.details['status']}: {line.details['reason']}"
    keys = {line.key for line in accepted}
    for name, log in tables.logs.items():
        for entry in log:
            if isinstance(entry.record, InputAdmitted) and entry.record.key not in keys:
                yield f"{name}: the input {entry.record.key} was accepted from nobody"


def hasty(tables: Tables) -> Iterator[str]:
    """A turn is dead-lettered only when three owners in a row have got no further."""
    for name, log in tables.logs.items():
        owned = [entry for entry in log if entry.fence is not None]
        fences = [(entry.fence or 0, entry.record) for entry in owned if not _repeats(entry.record)]
        for index, (fence, record) in enumerate(fences):
            if isinstance(record, TurnEnded) and record.reason == "no_forward_progress":
                before = next((other for other, _ in reversed(fences[:index]) if other != fence), 0)
                if fence - before < SEAL_AFTER:
                    yield f"{name}: dead-lettered by owner {fence}, and owner {before} had got further"


def _repeats(record: Record) -> bool:
    """Whether it only says that a model call was lost with its worker, or that a model is asked."""
    match record:
        case EffectSettled(outcome=LlmCallOutcome(error=LlmError(kind="worker_lost"))):
            return True
        case EffectStarted(kind=EffectKind.LLM_CALL):
            return True
        case _:
            return False


# --- what the world saw


def repeated(world: Sequence[LedgerEntry]) -> Iterator[str]:
    """A `once` effect begins again only after it was settled as not done, and it is never done twice."""
    of_key: dict[str, list[LedgerEntry]] = defaultdict(list)
    for line in world:
        of_key[line.key].append(line)
    for key, lines in of_key.items():
        if not any(line.details.get("tool") in ONCE for line in lines):
            continue
        if (done := sum(line.what == DONE for line in lines)) > 1:
            yield f"{key} was done {done} times"
        may_begin = True
        for line in lines:
            if line.what == BEGUN:
                if not may_begin:
                    yield f"{key} was dispatched again, and nobody had settled it as not done"
                may_begin = False
            elif line.what == REFUSED or (line.what == PROBED and not line.details["found"]):
                may_begin = True


def unrecorded(world: Sequence[LedgerEntry], tables: Tables) -> Iterator[str]:
    """What was dispatched had an intent, what succeeded was done, and what was not run was not begun."""
    begun = {line.key for line in world if line.what == BEGUN and line.details.get("tool") in ONCE}
    done = {line.key for line in world if line.what == DONE}
    intended: set[str] = set()
    for name, log in tables.logs.items():
        for key, settled in _fates(name, log):
            intended.add(key)
            match settled:
                case "success" if key not in done:
                    yield f"{key}: the log says that it succeeded, and the world never saw it"
                case "failed" if key in done:
                    yield f"{key}: the log says that it failed, and the world saw it done"
                case "not run" if key in begun:
                    yield f"{key}: the log says that it never ran, and the world saw it begin"
                case _:
                    pass
    for key in sorted(begun - intended):
        yield f"{key} was dispatched without an intent in the log"


def _fates(session: str, log: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """The last known fate of each `once` call and step, under the idempotency key that the world saw."""
    keys: dict[str, str] = {}
    fates: dict[str, str] = {}
    for entry in log:
        match entry.record:
            case TurnOpened():
                keys = {}
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply)):
                for call in reply.calls:
                    _, iteration, index = call.id.rsplit(".", 2)
                    keys[f"c{iteration}.{index}"] = _tool_key(session, call.id, call.name)
            case EffectStarted(id=id, effect="once"):
                fates[_key(keys, id)] = "begun"
            case OutcomeArrivedLate(call=call, tool=name, output=output):
                fates[_tool_key(session, call, name)] = _fate(output)
            case EffectSettled(id=id, outcome=ToolCallOutcome(launch=Done(result=result))) if result.tool_name in ONCE:
                fates[_key(keys, id)] = _fate(result.output)
            case EffectSettled(id=id, outcome=DurableStepOutcome() as step) if "/step:" in id:
                known = step.in_doubt is None and step.error is None
                fates[_key(keys, id)] = "success" if known else "unknown"
            case _:
                pass
    yield from fates.items()


def _tool_key(session: str, call: str, tool: str) -> str:
    return f"perdure-tool:default:{session}:{call}:{tool}"


def _key(keys: Mapping[str, str], effect: str) -> str:
    place, _, part = effect.partition("/")
    call = keys[".".join(place.split(".")[:2])]
    return join(call, "step", part.removeprefix("step:")) if part else call


def _fate(output: ToolOutput) -> str:
    match output:
        case Success():
            return "success"
        case NotRun():
            return "not run"
        case InDoubt():
            return "in doubt"
        case Failed():
            return "failed"


# --- what the tables hold


def forked(tables: Tables) -> Iterator[str]:
    """Every log is dense, and its owners wrote one after the other: no fence comes back, no append is out of order."""
    for name, log in tables.logs.items():
        if [entry.seq for entry in log] != list(range(1, len(log) + 1)):
            yield f"{name}: its log has holes or doubles"
        if tables.streams[name].last_seq != len(log):
            yield f"{name}: its row says {tables.streams[name].last_seq}, its log has {len(log)}"
        written = [(entry.fence, entry.n or 0) for entry in log if entry.fence is not None]
        for before, after in pairwise(key for key, _ in groupby(written)):
            if not before < after:
                yield f"{name}: the append {after} stands behind {before}"
        if written and written[-1][0] > tables.streams[name].fence:
            yield f"{name}: written under a fence that nobody has had"


def leftovers(tables: Tables) -> Iterator[str]:
    """Nothing waits any more."""
    yield from (f"{name}: its turn is not over" for name, row in tables.streams.items() if row.unfinished)
    for what, count in zip(("inbox rows", "timers", "waits"), tables.left, strict=True):
        if count:
            yield f"{count} {what} are left"


async def contradictions(rt: Runtime, names: Sequence[str]) -> Iterator[str]:
    """Where a log contradicts itself, or a snapshot its log."""
    problems: list[str] = []
    for name in names:
        stream = session_stream(Tenant("default"), SessionId(name))
        info = await core_of(rt).store.stream(stream)
        assert info is not None
        verdict = verify(info, await core_of(rt).store.read(stream), await core_of(rt).store.load(stream, code=CODE))
        problems += (f"{name}: {problem}" for problem in verdict.problems)
    return iter(problems)


async def folds(url: str) -> dict[str, str]:
    """The fold of every session, from its snapshot and the rest of its log, as a digest."""
    found: dict[str, str] = {}
    async with Runtime(url, worker=False) as rt:
        for info in await core_of(rt).session_streams(limit=10_000):
            loaded = await core_of(rt).store.load(info.stream, code=CODE)
            state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
            found[info.name] = hashlib.sha256(encode(state)).hexdigest()
    return found


def ledger(path: Path) -> Sequence[LedgerEntry]:
    """The lines of a ledger, in the order in which they were written."""
    return World(path).ledger.lines


def counts(promised: Sequence[LedgerEntry], world: Sequence[LedgerEntry], tables: Tables) -> dict[str, int]:
    """How much there was to judge: a run in which nothing was in doubt proves nothing."""
    fates = Counter(fate for name, log in tables.logs.items() for _, fate in _fates(name, log))
    owners = sum(len({entry.fence for entry in log if entry.fence is not None}) for log in tables.logs.values())
    dead_lettered = sum(line.what == ANSWERED and line.details["status"] != "finished" for line in promised)
    return {
        "inputs answered": sum(line.what == ANSWERED for line in promised),
        "of them dead-lettered": dead_lettered,
        "once effects done": sum(line.what == DONE and line.details["tool"] in ONCE for line in world),
        "in doubt": fates["in doubt"] + fates["unknown"],
        "probes": sum(line.what == PROBED for line in world),
        "ownerships": owners,
        "records": sum(map(len, tables.logs.values())),
    }


def write_down(tables: Tables, path: Path) -> None:
    """Write the logs as text, for the analysis of a failed run."""
    with path.open("w") as file:
        for name, log in tables.logs.items():
            for e in log:
                file.write(f"{name} #{e.seq} at {e.at} by {e.fence}.{e.n} {encode(e.record).decode()}\n")
