"""Shows: a client-side tool. The call is an event, the session waits, the client posts the result by call id.

Run:     python examples/04_client_tool.py
See:     the agent asks the browser for the user's location; the waiting turn uses no memory; a result that violates the
         schema is refused and the call stays open; a valid one goes to the model.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, Error, Runtime, RuntimeOptions, client_tool
from perdure.testing import ScriptedModel, call, say

where_am_i = client_tool(
    "where_am_i",
    "Get the user's location from the browser.",
    {"type": "object", "properties": {"precise": {"type": "boolean"}}},
    result_type={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    timeout="10m",
)
model = ScriptedModel(call("where_am_i", precise=False), say("Then take a coat.", exact=True))
agent = Agent("weather", model=model, tools=[where_am_i])


async def main(folder: Path) -> None:
    async with Runtime(
        f"sqlite:///{folder / 'app.db'}", agents=[agent], options=RuntimeOptions(idle_timeout_s=0)
    ) as rt:
        session = await rt.session("visitor-1", agent="weather")
        sent = await session.send("Do I need a coat?")
        while (await session.why()).status != "waiting":
            await asyncio.sleep(0.01)
        [asked] = await session.pending()  # or the same in an event of session.events()
        print("1  the session waits for", asked.what)
        try:
            await session.post_result(asked.id, {"town": "Porto"})
        except Error as problem:
            print("2 ", problem.message, "-", problem.because)
        await session.post_result(asked.id, {"city": "Porto"})
        print("3 ", (await sent.result()).text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
