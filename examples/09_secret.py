"""Shows: a secret question. The token never enters a log, event or prompt; a tool reads it by reference.

Run:     python examples/09_secret.py
See:     a model passes a reference to a tool, which leaks the value; the output is redacted, and no file has the token.
"""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from perdure import Agent, Runtime, ToolContext, ask_user, tool
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.testing import ScriptedModel, call, say

QUESTION = {"id": "token", "question": "The token of your account?", "kind": "secret"}
SCRIPT = ScriptedModel(call("ask_user", questions=[QUESTION]), call("sync", token="$ref"), say("Done.", exact=True))


@tool
async def sync(ctx: ToolContext, token: str) -> str:
    """Synchronise. `token` is a reference."""
    value = (await ctx.secrets.get(token)).reveal()
    return f"synchronised with {value}, {len(value)} characters"


class Model:
    """A scripted model that passes on the reference it received, like a real one."""

    name = "scripted"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        told = re.findall("secret:[0-9a-f]{32}", str(request.messages))
        async for event in SCRIPT.stream(request):
            if isinstance(event, ModelReply) and told and isinstance(event.parts[0], ProviderCall):
                handed = replace(event.parts[0], arguments=event.parts[0].arguments.replace("$ref", told[-1]))
                event = replace(event, parts=(handed,))
            yield event


async def main(folder: Path) -> None:
    agent = Agent("sync", model=Model(), tools=[ask_user, sync])
    async with Runtime(f"sqlite:///{folder / 'app.db'}", agents=[agent]) as rt:
        session = await rt.session("ann", agent="sync")
        sent = await session.send("Synchronise my account")
        while not (asked := await session.pending()):
            await asyncio.sleep(0.01)
        await session.answer(asked[0].id, {"token": "tok-4f1b99"}, by="ann")
        print("1 ", (await sent.result()).text)
        print("2 ", *re.findall("synchronised with .*?characters", str(await session.messages())))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
        files = [file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()]
        print("3  in the files of the store:", any(b"tok-4f1b99" in file for file in files))
