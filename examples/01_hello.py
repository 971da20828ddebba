"""Shows: an agent, a session that remembers, and a store that survives the process. No key, no network.

Run:     python examples/01_hello.py
See:     two answers, then the same session in a new runtime, with its history.
Also:    cd examples && perdure run 01_hello:agent "what time is it?"
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, Runtime

agent = Agent("hello", model="sim:echo", instructions="Be brief.")


async def main(folder: Path) -> None:
    store = f"sqlite:///{folder / 'hello.db'}"

    async with Runtime(store, agents=[agent]) as rt:
        session = await rt.session("visitor-1", agent="hello")
        print("1 ", await session.ask("Hello there."))

        # `send` returns once the input is durable; the same key again is the same input, not a second one.
        sent = await session.send("Remember me.", key="webhook-991")
        again = await session.send("Remember me.", key="webhook-991")
        print("2 ", (await sent.result()).text)
        print("   sent twice, answered once:", again.turn_id == sent.turn_id)

    # Another process, another day: only the store is needed.
    async with Runtime(store, agents=[agent]) as rt:
        session = await rt.session("visitor-1")
        history = await session.messages()
        print("3  after a restart the session has", len(history), "messages:", [message.role for message in history])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
