"""Restate, all workloads: its server (path in `RESTATE_SERVER`) and its Python SDK, on the loopback address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import restate
from load import ask
from measure import ANSWER, ARGUMENT, ASK, FOUND, PAYLOAD, StepLog, options, rss_mb, speed, stored_bytes, tell

CHOSEN = options("w1a", "w1b", "w2a", "w2b", "w3", "w4", "serve")
HOST = "127.0.0.1"
INGRESS, ADMIN, NODE, SERVICE = 18080, 19070, 15122, 19080
LOGGED = CHOSEN.mode == "logged"
NOTES = {name: CHOSEN.dir / f"{name}.log" for name in ("asleep", "awake")}

flows, waits, sessions = restate.Service("flows"), restate.Service("waits"), restate.VirtualObject("session")


# --- the service


@flows.handler()
async def run(ctx: restate.Context, asked: dict[str, Any]) -> int:
    log = StepLog(CHOSEN.dir) if LOGGED else None
    while log and not (CHOSEN.dir / "gate").exists():
        await asyncio.sleep(0.02)

    async def step(n: int) -> object:
        if log:
            log.step(asked["name"], n)
        return PAYLOAD

    done, deadline = 0, time.perf_counter() + asked["cap"]
    while done < asked["count"] and time.perf_counter() < deadline:
        await ctx.run_typed("step", step, n=done)
        done += 1
    if log:
        log.done(asked["name"])
    return done


@waits.handler()
async def wait(ctx: restate.Context, k: int) -> int:
    name, woken = ctx.awakeable(type_hint=str)

    async def asleep() -> str:
        note("asleep", name)
        return name

    await ctx.run_typed("asleep", asleep)
    await woken
    note("awake", str(k))
    return k


def note(what: str, text: str) -> None:
    with NOTES[what].open("a") as file:
        file.write(f"{text}\n")


@sessions.handler()
async def turn(ctx: restate.ObjectContext, prompt: str) -> str:
    """Run the agent loop of Restate's guides: the history is the object's state."""
    history: list[Any] = await ctx.get("history", type_hint=list) or []
    history.append({"role": "user", "content": prompt})

    async def model() -> dict[str, Any]:
        if history[-1]["role"] == "tool":
            return {"role": "assistant", "content": ANSWER}
        return {"role": "assistant", "call": {"id": f"c{len(history)}", "name": "lookup", "args": {"item": ARGUMENT}}}

    async def lookup() -> str:
        return FOUND

    while True:
        reply = await ctx.run_typed("model", model)
        history.append(reply)
        if "call" not in reply:
            ctx.set("history", history)
            return reply["content"]
        history.append({"role": "tool", "id": reply["call"]["id"], "content": await ctx.run_typed("lookup", lookup)})


def serve() -> None:
    from hypercorn.asyncio import serve as hypercorn
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"{HOST}:{SERVICE}"]
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = 2**31 - 1  # recommended by the SDK's guide
    config.keep_alive_timeout = 2**31 - 1
    config.loglevel = "ERROR"
    asyncio.run(hypercorn(restate.app([flows, waits, sessions]), config))


# --- processes


class Engine:
    """The server and the service."""

    def __init__(self, mode: str = "") -> None:
        self._mode = mode
        for path in NOTES.values():
            path.touch()
        self.server = self._start_server()
        self.service = self.start_service()
        self._register()

    def _start_server(self) -> subprocess.Popen[bytes]:
        settings = {
            "RESTATE_BASE_DIR": str(CHOSEN.dir / "restate"),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{INGRESS}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{ADMIN}",
            "RESTATE_BIND_ADDRESS": f"{HOST}:{NODE}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://{HOST}:{NODE}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_NODE_NAME": "bench",
            "RESTATE_LOG_FILTER": "error",
        }
        command = [os.environ["RESTATE_SERVER"], "--no-logo"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, env={**os.environ, **settings}, stdout=quiet, stderr=quiet)

    def start_service(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, sys.argv[0], "serve", "--dir", str(CHOSEN.dir), "--mode", self._mode]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _register(self) -> None:
        body = json.dumps({"uri": f"http://{HOST}:{SERVICE}"}).encode()
        request = Request(f"http://{HOST}:{ADMIN}/deployments", body, {"content-type": "application/json"})
        deadline = time.time() + 60
        while time.time() < deadline:
            try:
                with urlopen(request, timeout=20):
                    return
            except OSError:
                time.sleep(0.3)
        raise SystemExit("restate did not come up")

    def cpu_s(self) -> float:
        ticks = 0
        for process in (self.server, self.service):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        return rss_mb(self.server.pid) + rss_mb(self.service.pid)

    def stop(self) -> None:
        for process in (self.service, self.server):
            process.kill()
            process.wait()


class Client:
    """A bare HTTP client with persistent connections, cheap enough not to affect the result."""

    def __init__(self) -> None:
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: object) -> Any:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, INGRESS)
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 2"):
            raise RuntimeError(answer.decode())
        content = await self._content(reader, answer)
        self._idle.append((reader, writer))
        return json.loads(content) if content else None

    async def _content(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"content-length: " in head:
            return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        content = b""
        if b"chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                content += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        return content


async def post_all(requests: Iterable[tuple[str, object]], at_once: int = 50) -> None:
    client, left = Client(), iter(list(requests))

    async def worker() -> None:
        for path, body in left:
            await client.post(path, body)

    await asyncio.gather(*(worker() for _ in range(at_once)))


# --- the workloads


async def steps() -> None:
    engine, client = Engine(), Client()

    async def flow(name: str, count: int) -> int:
        return await client.post("/flows/run", {"name": name, "count": count, "cap": CHOSEN.cap})

    await flow("warm", 5)
    cpu, began = engine.cpu_s(), time.perf_counter()
    done = sum(await asyncio.gather(*(flow(f"f{k}", CHOSEN.steps) for k in range(CHOSEN.workflows))))
    tell(**speed(done, time.perf_counter() - began, engine.cpu_s() - cpu, stored=stored_bytes(CHOSEN.dir)))
    engine.stop()


async def turns() -> None:
    engine, client = Engine(), Client()

    async def one(session: str) -> None:
        await client.post(f"/session/{session}/turn", ASK)

    cpu = engine.cpu_s()
    numbers = await ask(one, CHOSEN)
    used = round((engine.cpu_s() - cpu) / (CHOSEN.turns + 1) * 1e3, 3)
    tell(**{**numbers, "cpu_ms_each": used}, stored=stored_bytes(CHOSEN.dir))
    engine.stop()


def lines(what: str) -> list[str]:
    return NOTES[what].read_text().split()


async def waiting() -> None:
    engine = Engine()
    await asyncio.sleep(1)
    before, began = engine.rss_mb(), time.perf_counter()
    await post_all(("/waits/wait/send", k) for k in range(CHOSEN.workflows))
    while len(lines("asleep")) < CHOSEN.workflows and time.perf_counter() - began < CHOSEN.cap:
        await asyncio.sleep(0.05)
    start_s, added = time.perf_counter() - began, engine.rss_mb() - before
    cpu = engine.cpu_s()
    await asyncio.sleep(3)
    idle, names = (engine.cpu_s() - cpu) / 3, sorted(set(lines("asleep")))
    began = time.perf_counter()
    await post_all((f"/restate/awakeables/{name}/resolve", "go") for name in names)
    while len(lines("awake")) < len(names) and time.perf_counter() - began < CHOSEN.cap:
        await asyncio.sleep(0.02)
    tell(
        waiting=len(names),
        start_s=round(start_s, 2),
        added_mb=round(added, 2),
        idle_cpu=round(idle, 3),
        wake_all_s=round(time.perf_counter() - began, 2),
        woken=len(lines("awake")),
    )
    engine.stop()


async def recovering() -> None:
    """Kill only the service; the server keeps the journal."""
    engine, log = Engine("logged"), StepLog(CHOSEN.dir)
    asked = [{"name": f"f{k}", "count": CHOSEN.steps, "cap": 3600} for k in range(CHOSEN.workflows)]
    await post_all(("/flows/run/send", body) for body in asked)
    await asyncio.sleep(1)
    (CHOSEN.dir / "gate").touch()
    total, began = CHOSEN.workflows * CHOSEN.steps, time.perf_counter()
    while log.steps() < total // 2 and time.perf_counter() - began < CHOSEN.cap:
        await asyncio.sleep(0.005)
    os.kill(engine.service.pid, signal.SIGKILL)
    engine.service.wait()
    before, killed, first_s = log.steps(), time.perf_counter(), 0.0
    engine.service = engine.start_service()
    while len(log.read()[1]) < CHOSEN.workflows and time.perf_counter() - killed < CHOSEN.cap:
        if not first_s and log.steps() > before:
            first_s = time.perf_counter() - killed
        await asyncio.sleep(0.01)
    all_s, (done_steps, done) = time.perf_counter() - killed, log.read()
    tell(
        steps_at_kill=before,
        first_step_s=round(first_s, 2),
        all_done_s=round(all_s, 2),
        done=len(done),
        steps_twice=sum(times > 1 for times in done_steps.values()),
        steps_missing=total - len(done_steps),
    )
    engine.stop()


if __name__ == "__main__":
    if CHOSEN.work == "serve":
        serve()
    else:
        runs = {"w1a": steps, "w1b": steps, "w2a": turns, "w2b": turns, "w3": waiting, "w4": recovering}
        asyncio.run(runs[CHOSEN.work]())
