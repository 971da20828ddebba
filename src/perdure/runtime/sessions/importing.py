"""The creation of a session with a past: an export, plain messages, or a conversation of another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perdure.codec import Json
from perdure.commit.changes import Audit, NewStream
from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, stream_names
from perdure.models.providers.history import Imported
from perdure.offload import offload
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.agents import only_agent
from perdure.runtime.sessions.archive import history, imported
from perdure.runtime.sessions.conversations import conversation
from perdure.store.protocol import Store

Past = bytes | str | Sequence[Mapping[str, Json]] | Imported


async def create(
    store: Store,
    stream: StreamId,
    past: Past,
    *,
    agent: str | None,
    agents: Mapping[str, Agent],
    now: int,
    audit: Audit = (),
) -> NewStream:
    """Create the session, all or nothing.

    Raises:
        Error: `session_exists`, `export_invalid`; `session_unknown` if no agent is given and the runtime has several.
    """
    if isinstance(past, bytes | str):
        new = await offload(len(past), imported, stream, past, agent=agent, now=now)
    else:
        owner = agent or only_agent(agents, SessionId(stream_names(stream)[2]))
        model = setup_of(agents[owner]).model.name if owner in agents else "imported"
        if isinstance(past, Imported):
            new = conversation(stream, past, agent=owner, model=model, now=now)
        else:
            new = history(stream, past, agent=owner, model=model, now=now)
    try:
        await store.create(replace(new, audit=audit))
    except Error as problem:
        if problem.code is not Code.GATE_CLOSED:
            raise
        raise Error(
            Code.EXPORT_INVALID, "the export has a duplicate entry; nothing was written", because=problem.message
        ) from None
    return new
