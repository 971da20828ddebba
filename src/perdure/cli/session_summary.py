"""Summary of a session: its current state and the amount of work done."""

from __future__ import annotations

from perdure.observe.why import Explanation, explain
from perdure.runtime.internals import core_of
from perdure.runtime.runtime import Runtime
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.store.shapes import StreamInfo


async def look(rt: Runtime, info: StreamInfo) -> tuple[Explanation, SessionState]:
    """Return the explanation of a session's state and its folded state."""
    why = await explain(core_of(rt).store, info.stream, now=core_of(rt).clock.wall_ms())
    loaded = await core_of(rt).store.load(info.stream, code=CODE)
    return why, fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
