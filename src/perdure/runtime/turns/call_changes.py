"""Changes that a running call makes to its own session: tool membership and handoff."""

from __future__ import annotations

from collections.abc import Callable

from perdure.runtime.calls.clients import CallSite
from perdure.runtime.turns.loop import TurnDriver
from perdure.runtime.worker.owned import OwnedStream
from perdure.session.fold import SessionState, with_membership
from perdure.tools.errors import ToolError
from perdure.vocab.records import HandedOver, ToolMembershipChanged


class CallChanges:
    """The session changes made by calls of the current turn. Each is durable when its method returns."""

    def __init__(
        self, owned: OwnedStream, state: Callable[[], SessionState], driver: Callable[[], TurnDriver | None]
    ) -> None:
        self._owned = owned
        self._state = state
        self._driver = driver

    async def tools(self, site: CallSite, names: tuple[str, ...], present: bool) -> int:
        """Remove tools from this session or restore them, from its next turn on. Return its tools generation."""
        driver, state = self._driving(site), self._state()
        for record in self._owned.undurable():
            if isinstance(record, ToolMembershipChanged):
                state = with_membership(state, record)
        changed = tuple(name for name in names if (name in state.without_tools) is present)
        if changed:
            change = ToolMembershipChanged(names=changed, present=present, call=site.call)
            state = with_membership(state, change)
            driver.submit(change)
        await self._owned.durable()
        return state.tools_generation

    async def hand_over(self, site: CallSite, to: str, reason: str) -> None:
        """Hand the conversation to another agent, which gets the next model call.

        A repetition by the same call changes nothing.
        """
        driver, turn = self._driving(site), site.turn.id
        told = [record for record in driver.records if isinstance(record, HandedOver) and record.turn == turn]
        if driver.turn.to and told[-1].call != site.call:
            raise ToolError(f"The conversation is being handed over to {driver.turn.to} already", code="handed_over")
        if not driver.turn.to:
            driver.submit(HandedOver(turn=turn, call=site.call, to=to, reason=reason))
        await self._owned.durable()

    def _driving(self, site: CallSite) -> TurnDriver:
        driver = self._driver()
        if driver is None or site.effect not in driver.flights:
            raise ToolError("The call has ended: its result is no longer awaited", code="tool_cancelled")
        return driver
