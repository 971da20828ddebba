"""Shows: `ask_user`. A model asks a person typed questions and continues with the answers, after a restart.

Run:     python examples/05_ask_user.py
See:     the question is open, the process ends. Another process lists the question, refuses an invalid option, accepts
         a valid one and resumes the turn. The name of the person is recorded.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, Error, Runtime, ask_user
from perdure.testing import ScriptedModel, call, say

QUESTIONS = [
    {"id": "size", "question": "Which size?", "kind": "choice", "options": ["S", "M", "L"], "default": "M"},
    {"id": "name", "question": "What shall be printed on it?"},
]
model = ScriptedModel(call("ask_user", questions=QUESTIONS), say("Ordered.", exact=True))
agent = Agent("shirts", model=model, tools=[ask_user])


async def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'app.db'}"
    async with Runtime(url, agents=[agent]) as rt:
        session = await rt.session("ann", agent="shirts")
        await session.send("I want a shirt", key="order-1")
        while not await session.pending():
            await asyncio.sleep(0.01)
        print("1 ", (await session.why()).summary)

    async with Runtime(url, agents=[agent]) as rt:
        session = await rt.session("ann", agent="shirts")
        [asked] = await session.pending()
        try:
            await session.answer(asked.id, {"size": "XXL", "name": "Elsa"}, by="ann")
        except Error as problem:
            print("2 ", problem.because)
        await session.answer(asked.id, {"size": "L", "name": "Elsa"}, by="ann", via="shop")
        same = await session.send("I want a shirt", key="order-1")  # the same key: the same input, and its turn
        print("3 ", (await same.result()).text, "Answered by ann:", "'by': 'ann'" in str(await session.messages()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
