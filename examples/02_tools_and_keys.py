"""Shows: what a tool promises (`pure`, `once`), the idempotency key it is given, and the probe that settles a doubt.

Run:     python examples/02_tools_and_keys.py
See:     a booking that is charged, then one whose tool loses its connection after the money moved: the runtime does
         not run it again, it asks the bank by key, and the bank has exactly one charge per booking.
Also:    cd examples && perdure run 02_tools_and_keys:agent "Book a flight to Porto"
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, DidNotHappen, Happened, OutcomeUnknown, Runtime, ToolContext, tool


class Bank:
    """An outside system. It notes every charge it is sent, and can be asked by key."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, int]] = []
        self.line_is_bad = False

    def charge(self, cents: int, *, key: str) -> str:
        self.charges.append((key, cents))
        if self.line_is_bad:
            raise ConnectionError("the line went dead before the bank could answer")
        return f"rcpt-{len(self.charges)}"

    def find(self, key: str) -> int | None:
        return next((number for number, (used, _) in enumerate(self.charges, 1) if used == key), None)


bank = Bank()


@tool(effect="pure")  # may run again after a crash: nobody notices
def search_flights(city: str) -> list[dict[str, object]]:
    """Search flights to a city."""
    return [{"flight": "TP931", "to": city, "price_cents": 18_900}]


def was_charged(ctx: ToolContext) -> Happened | DidNotHappen:
    """The probe: asked when nobody knows whether a charge took effect."""
    number = bank.find(ctx.idempotency_key)
    print("   probe: the bank is asked by key, and", "has it" if number else "does not have it")
    return Happened(f"rcpt-{number}") if number else DidNotHappen()


@tool(effect="once", probe=was_charged)  # never run again blindly: not after a crash, a timeout or a cancel
def charge_card(ctx: ToolContext, amount_cents: int, description: str) -> str:
    """Charge the customer's card."""
    try:
        # The key is the same for every attempt and after every restart. Hand it to the outside system.
        return bank.charge(amount_cents, key=ctx.idempotency_key)
    except ConnectionError as problem:
        raise OutcomeUnknown(str(problem)) from problem


agent = Agent("travel", model="sim:travel", tools=[search_flights, charge_card])


async def main(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder / 'travel.db'}", agents=[agent]) as rt:
        for number, bad in ((1, False), (2, True)):
            bank.line_is_bad = bad
            session = await rt.session(f"trip-{number}", agent="travel")
            print(f"{number} ", await session.ask("Book me a flight to Porto"))
    print("   charges:", len(bank.charges), "for 2 bookings")
    print("   keys:   ", "all different" if len({key for key, _ in bank.charges}) == 2 else "not unique")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
