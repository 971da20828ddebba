"""The agents of a runtime, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from perdure.errors import Code, Error
from perdure.ids import SessionId, Tenant, session_stream
from perdure.runtime.agent import Agent
from perdure.runtime.readable import Readable
from perdure.services.files.shapes import InitialFile
from perdure.services.files.stored import Seeds
from perdure.store.protocol import Store


def by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Index agents by name.

    Raises:
        Error: `agent_invalid` if two agents share a name.
    """
    named: dict[str, Agent] = {}
    for agent in agents:
        if agent.name in named:
            raise Error(Code.AGENT_INVALID, f"duplicate agent name {agent.name!r}", hint="give each agent its own name")
        named[agent.name] = agent
    return named


def only_agent(agents: Mapping[str, Agent], session: SessionId) -> str:
    """Return the name of the only agent, for a new session that names none.

    Raises:
        Error: `session_unknown` unless there is exactly one agent.
    """
    if len(agents) == 1:
        return next(iter(agents))
    raise Error(
        Code.SESSION_UNKNOWN,
        f"unknown session {session!r}",
        hint='name the agent to create it: rt.session(id, agent="...")',
    )


def agent_unknown(name: str, agents: Mapping[str, Agent]) -> Error:
    """Return the error for an agent that this runtime does not have."""
    return Error(
        Code.AGENT_UNKNOWN,
        f"unknown agent {name!r}",
        because=f"agents of this runtime: {', '.join(sorted(agents)) or 'none'}",
        hint="pass it to Runtime(agents=[...])",
    )


def seeds_of(agents: Mapping[str, Agent], store: Store, readable: Readable) -> Callable[[Tenant], Seeds]:
    """Return a function that gives the initial files of a session: those of its agent."""

    def of_tenant(tenant: Tenant) -> Seeds:
        async def initial_files(session: SessionId) -> tuple[InitialFile, ...]:
            stream = session_stream(tenant, session)
            await readable.check(stream)
            info = await store.stream(stream)
            if info is None:
                return ()
            if info.agent not in agents:
                raise agent_unknown(info.agent, agents)
            return tuple(agents[info.agent].initial_files)

        return initial_files

    return of_tenant
