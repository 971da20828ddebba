"""OpenAI Agents SDK with SQLiteSession (a stored conversation, not durable execution): w2a, w2b."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from load import ask
from measure import ANSWER, ARGUMENT, ASK, FOUND, options, stored_bytes, tell
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

CHOSEN = options("w2a", "w2b")


class Scripted(Model):
    """A model that calls the tool, then answers."""

    replies = 0

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> ModelResponse:
        self.replies += 1
        last = input[-1] if isinstance(input, list) else {}
        output = self._answer() if last.get("type") == "function_call_output" else self._call()
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def _answer(self) -> ResponseOutputMessage:
        text = ResponseOutputText(type="output_text", text=ANSWER, annotations=[])
        id = f"m{self.replies}"
        return ResponseOutputMessage(id=id, type="message", role="assistant", status="completed", content=[text])

    def _call(self) -> ResponseFunctionToolCall:
        arguments, n = f'{{"item": "{ARGUMENT}"}}', self.replies
        kind = "function_call"
        return ResponseFunctionToolCall(id=f"f{n}", call_id=f"c{n}", type=kind, name="lookup", arguments=arguments)

    def stream_response(self, *rest: Any, **more: Any) -> Any:
        raise NotImplementedError


@function_tool
async def lookup(item: str) -> str:
    """Look an item up."""
    return FOUND


async def main() -> None:
    agent = Agent(name="bench", model=Scripted(), tools=[lookup])
    sessions: dict[str, SQLiteSession] = {}

    async def turn(name: str) -> None:
        session = sessions.get(name) or sessions.setdefault(name, SQLiteSession(name, CHOSEN.dir / "sessions.sqlite"))
        await Runner.run(agent, ASK, session=session, run_config=RunConfig(tracing_disabled=True))

    tell(**await ask(turn, CHOSEN), stored=stored_bytes(CHOSEN.dir))
    os._exit(0)


asyncio.run(main())
