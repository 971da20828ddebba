"""What a running call changes in its own session: which tools it has, and whose the conversation is."""

from __future__ import annotations

from collections.abc import Callable

from perdure.runtime.calls.clients import CallSite
from perdure.runtime.turns.loop import TurnDriver
from perdure.runtime.worker.owned import OwnedStream
from perdure.session.fold import SessionState, with_membership
from perdure.tools.errors import ToolError
from perdure.vocab.records import HandedOver, ToolMembershipChanged


class CallChanges:
    """Changes that calls of the turn under way make; each is durable when it returns."""

    def __init__(
        self, owned: OwnedStream, state: Callable[[], SessionState], driver: Callable[[], TurnDriver | None]
    ) -> None:
        self._owned = owned
        self._state = state
        self._driver = driver

    async def tools(self, site: CallSite, names: tuple[str, ...], present: bool) -> int:
        """Take tools out of this session or put them back, from its next turn on."""
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
        """Give the conversation to another agent, who is asked next. Said again by the same call, it is the same."""
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
            raise ToolError("The call is over: nobody waits for it any more", code="tool_cancelled")
        return driver
