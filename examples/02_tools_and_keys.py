"""Shows: effect classes (`pure`, `once`), the idempotency key of a call, and the probe that settles a doubt.

Run:     python examples/02_tools_and_keys.py
See:     a charged booking, then one whose connection fails after the charge. The tool is not run again; the probe asks
         the bank by key. The bank has exactly one charge per booking.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, DidNotHappen, Happened, OutcomeUnknown, Runtime, ToolContext, tool

bank: list[str] = []  # an external system that stores the key of every charge


@tool(effect="pure")  # may run again after a crash, without effect
def search_flights(city: str) -> list[dict[str, object]]:
    """Search flights to a city."""
    return [{"flight": "TP931", "to": city, "price_cents": 18_900}]


def was_charged(ctx: ToolContext) -> Happened | DidNotHappen:
    """Probe an unknown outcome: look up the charge by key."""
    known = ctx.idempotency_key in bank
    print("   probe: the bank is asked by key, and", "has it" if known else "does not have it")
    return Happened(f"rcpt-{bank.index(ctx.idempotency_key) + 1}") if known else DidNotHappen()


@tool(effect="once", probe=was_charged)  # never rerun blindly, not after a crash, timeout or cancel
def charge_card(ctx: ToolContext, amount_cents: int, description: str) -> str:
    """Charge the customer's card."""
    bank.append(ctx.idempotency_key)  # the same for every attempt and after every restart
    if len(bank) == 2:
        raise OutcomeUnknown("the line went dead before the bank could answer")
    return f"rcpt-{len(bank)}"


agent = Agent("travel", model="sim:travel", tools=[search_flights, charge_card])


async def main(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder / 'travel.db'}", agents=[agent]) as rt:
        for number in (1, 2):
            session = await rt.session(f"trip-{number}", agent="travel")
            print(f"{number} ", await session.ask("Book me a flight to Porto"))
    print("   charges:", len(bank), "for 2 bookings")
    print("   keys:   ", "all different" if len(set(bank)) == 2 else "not unique")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
