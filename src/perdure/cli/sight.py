"""What a command sees of a session at a glance: what it is doing, and how much it has done."""

from __future__ import annotations

from perdure.observe.why import Why, explain
from perdure.runtime.runtime import Runtime
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.store.shapes import StreamInfo


async def look(rt: Runtime, info: StreamInfo) -> tuple[Why, SessionState]:
    """One session: why it stands where it stands, and its folded state."""
    why = await explain(rt.store, info.stream, now=rt.clock.wall_ms())
    loaded = await rt.store.load(info.stream, code=CODE)
    return why, fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
