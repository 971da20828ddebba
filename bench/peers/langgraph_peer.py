"""LangGraph with its SQLite checkpointer, all workloads. `--mode async` is its default, `sync` its durable mode."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from load import ask
from measure import (
    ANSWER,
    ARGUMENT,
    ASK,
    FOUND,
    PAYLOAD,
    StepLog,
    child,
    cpu_s,
    kill_and_start_again,
    options,
    rss_mb,
    speed,
    stored_bytes,
    tell,
)

CHOSEN = options("w1a", "w1b", "w2a", "w2b", "w3", "w4", "w4child")
DURABILITY: Any = "async" if CHOSEN.mode == "async" else "sync"
LOG = StepLog(CHOSEN.dir) if CHOSEN.work == "w4child" else None
DEADLINE = [float("inf")]


def saver() -> Any:
    return AsyncSqliteSaver.from_conn_string(f"{CHOSEN.dir}/langgraph.sqlite")


def place(name: str) -> Any:
    return {"configurable": {"thread_id": name}, "recursion_limit": CHOSEN.steps + 50}


class Flow(TypedDict):
    name: str
    done: int
    count: int
    last: object


def flow_graph(checkpointer: Any) -> Any:
    async def step(state: Flow) -> dict[str, object]:
        if LOG:
            LOG.step(state["name"], state["done"])
        return {"done": state["done"] + 1, "last": PAYLOAD}

    def more(state: Flow) -> str:
        return "step" if state["done"] < state["count"] and time.perf_counter() < DEADLINE[0] else END

    graph = StateGraph(Flow)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    return graph.compile(checkpointer=checkpointer)


async def steps() -> None:
    async with saver() as checkpointer:
        graph = flow_graph(checkpointer)

        async def flow(name: str, count: int) -> int:
            given = {"name": name, "done": 0, "count": count, "last": None}
            return (await graph.ainvoke(given, place(name), durability=DURABILITY))["done"]

        await flow("warm", 5)
        DEADLINE[0] = time.perf_counter() + CHOSEN.cap
        cpu, began = cpu_s(), time.perf_counter()
        done = sum(await asyncio.gather(*(flow(f"f{k}", CHOSEN.steps) for k in range(CHOSEN.workflows))))
        seconds, used = time.perf_counter() - began, cpu_s() - cpu
    tell(**speed(done, seconds, used, stored=stored_bytes(CHOSEN.dir)))


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def chat_graph(checkpointer: Any) -> Any:
    async def model(state: Chat) -> dict[str, list[AIMessage]]:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage(ANSWER)]}
        call = {"name": "lookup", "args": {"item": ARGUMENT}, "id": f"c{len(state['messages'])}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    async def tools(state: Chat) -> dict[str, list[ToolMessage]]:
        (call,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(FOUND, tool_call_id=call["id"])]}

    graph = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


async def turns() -> None:
    async with saver() as checkpointer:
        graph = chat_graph(checkpointer)

        async def turn(session: str) -> None:
            await graph.ainvoke({"messages": [HumanMessage(ASK)]}, place(session), durability=DURABILITY)

        numbers = await ask(turn, CHOSEN)
    tell(**numbers, stored=stored_bytes(CHOSEN.dir))


async def waiting() -> None:
    woken: list[object] = []

    async def wait(state: Flow) -> dict[str, int]:
        woken.append(interrupt("go"))
        return {"done": 1}

    async with saver() as checkpointer:
        graph = StateGraph(Flow)
        graph.add_node("wait", wait)
        graph.add_edge(START, "wait")
        waits = graph.compile(checkpointer=checkpointer)
        before, at_once = rss_mb(), asyncio.Semaphore(50)

        async def each(given: Any) -> tuple[int, float]:
            began, done = time.perf_counter(), 0

            async def one(name: str) -> None:
                nonlocal done
                async with at_once:
                    if time.perf_counter() - began < CHOSEN.cap:
                        await waits.ainvoke(given, place(name), durability=DURABILITY)
                        done += 1

            await asyncio.gather(*(one(f"w{k}") for k in range(CHOSEN.workflows)))
            return done, time.perf_counter() - began

        started, start_s = await each({"name": "w", "done": 0, "count": 0, "last": None})
        added = rss_mb() - before
        _, all_s = await each(Command(resume="go"))
    tell(
        waiting=started,
        start_s=round(start_s, 2),
        added_mb=round(added, 2),
        idle_cpu=0.0,
        wake_all_s=round(all_s, 2),
        woken=len(woken),
    )


async def recovering() -> None:
    """Invoke every unfinished thread again. LangGraph has no automatic recovery.

    `tasks` tells which threads are unfinished. `next` is empty when the kill fell between the writes of a step and its
    checkpoint.
    """
    async with saver() as checkpointer:
        graph = flow_graph(checkpointer)

        async def flow(name: str) -> None:
            given: Any = {"name": name, "done": 0, "count": CHOSEN.steps, "last": None}
            state = await graph.aget_state(place(name)) if CHOSEN.again else None
            if state is None or not state.values or state.tasks:
                await graph.ainvoke(None if state and state.values else given, place(name), durability=DURABILITY)
            LOG.done(name)

        await asyncio.gather(*(flow(f"f{k}") for k in range(CHOSEN.workflows)))
        await asyncio.sleep(3600)


if __name__ == "__main__":
    if CHOSEN.work == "w4":
        kill_and_start_again(lambda again: child(CHOSEN, again), CHOSEN)
    else:
        runs = {"w1a": steps, "w1b": steps, "w2a": turns, "w2b": turns, "w3": waiting, "w4child": recovering}
        asyncio.run(runs[CHOSEN.work]())
