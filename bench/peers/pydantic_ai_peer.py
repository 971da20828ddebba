"""Pydantic AI: w2a, w2b. `--mode bare` keeps the history in memory, `--mode dbos` runs each turn as a DBOS workflow."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from load import ask
from measure import ANSWER, ARGUMENT, ASK, FOUND, options, stored_bytes, tell
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

CHOSEN = options("w2a", "w2b")
DURABLE = CHOSEN.mode == "dbos"
if DURABLE:
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability


async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if isinstance(messages[-1].parts[-1], ToolReturnPart):
        return ModelResponse(parts=[TextPart(ANSWER)])
    return ModelResponse(parts=[ToolCallPart("lookup", {"item": ARGUMENT})])


async def lookup(item: str) -> str:
    """Look an item up."""
    return FOUND


agent: Any = Agent(FunctionModel(reply), name="bench", capabilities=[DBOSDurability()] if DURABLE else [])
agent.tool_plain(DBOS.step()(lookup) if DURABLE else lookup)

if DURABLE:

    @DBOS.workflow()
    async def durable_turn(prompt: str, history: list[Any]) -> list[Any]:
        return (await agent.run(prompt, message_history=history)).new_messages()


async def main() -> None:
    sessions: dict[str, list[Any]] = {}
    if DURABLE:
        url = CHOSEN.url or f"sqlite:///{CHOSEN.dir}/dbos.sqlite"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()

    async def turn(session: str) -> None:
        history = sessions.setdefault(session, [])
        if DURABLE:
            history.extend(await durable_turn(ASK, history))
        else:
            history.extend((await agent.run(ASK, message_history=history)).new_messages())

    tell(**await ask(turn, CHOSEN), stored=stored_bytes(CHOSEN.dir))
    os._exit(0)


asyncio.run(main())
