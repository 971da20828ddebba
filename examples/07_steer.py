"""Shows: steering. An input to a running turn joins its next model request, or else opens the next turn.

Run:     python examples/07_steer.py
See:     a slow search; a remark that arrives during it; one turn that answers both.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel, call, say

searching = asyncio.Event()
go_on = asyncio.Event()


@tool(effect="pure")
async def search(city: str) -> str:
    """Search flights to a city."""
    searching.set()
    await go_on.wait()
    return f"3 flights to {city}"


model = ScriptedModel.by_input(
    {
        "Find flights to Porto": [call("search", city="Porto"), say("Three flights.", exact=True)],
        "Only in the morning": [say("One of the three leaves in the morning.", exact=True)],
    }
)
agent = Agent("travel", model=model, tools=[search])


async def main() -> None:
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("trip", agent="travel")
        asked = await session.send("Find flights to Porto")
        await searching.wait()
        remark = await session.send("Only in the morning", mode="steer", sent_by="web")  # durable when this returns
        go_on.set()
        answer, same = await asked.result(), await remark.result()
        print(answer.text)
        print("one turn answered both:", answer.turn_id == same.turn_id)
        print("requests to the model:", len(model.requests))


if __name__ == "__main__":
    asyncio.run(main())
