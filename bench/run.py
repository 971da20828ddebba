"""Run the workloads in interleaved rounds, each candidate in a separate process, and report ratios within a round.

make bench                                            the bare loops and Perdure
make bench ARGS="--works w1b,w2a --rounds 5"          two workloads
make bench ARGS="--peers"                             and the peers that `bench/make_peers.py` installed
make bench ARGS="--works w3 --workflows 50000 --only perdure"
make bench ARGS="--store postgres --peers"            on a temporary Postgres in --dir
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bars import ON_POSTGRES, ON_SQLITE, bars
from report import report

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
try:
    from postgres import Server  # the server of the tests
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed. Run: make venv, then .venv/bin/python bench/run.py")

HOMES = HERE / "peers" / ".venvs"
SERVER = HOMES / "node_modules" / "@restatedev" / "restate-server-linux-x64" / "bin" / "restate-server"
WORKS = ("w1a", "w1b", "w2a", "w2b", "w3", "w4", "cold", "chat", "startup", "w5", "w6", "w7", "w8")


@dataclass(frozen=True)
class Candidate:
    """A program that can run some of the workloads."""

    name: str
    script: str
    works: tuple[str, ...]
    mode: str = ""
    peer: str = ""
    workers: int = 0

    @property
    def python(self) -> Path:
        return HOMES / self.peer / "bin" / "python" if self.peer else Path(sys.executable)

    @property
    def there(self) -> bool:
        return not self.peer or self.python.exists()


ALL, STEPS, TURNS, REACTIONS = WORKS[:6], WORKS[:2], WORKS[2:4], ("w6", "w7")
CANDIDATES = (
    Candidate("raw", "raw.py", ALL),
    Candidate("raw, in the loop", "raw.py", ("w1a",), "inline"),
    Candidate("perdure", "ours.py", WORKS[:-3]),
    Candidate("perdure", "reactions.py", REACTIONS),
    Candidate("perdure", "streams.py", ("w8",)),
    Candidate("perdure, two workers", "reactions.py", REACTIONS, workers=2),
    Candidate("perdure, append path alone", "ours.py", STEPS, "journal"),
    Candidate("perdure, two workers", "ours.py", ("w5",), workers=2),
    Candidate("dbos", "peers/dbos_peer.py", ("w1a", "w1b", "w3", "w4"), peer="dbos"),
    Candidate("langgraph sync", "peers/langgraph_peer.py", ALL, "sync", "langgraph"),
    Candidate("langgraph async", "peers/langgraph_peer.py", (*STEPS, *TURNS, "w4"), "async", "langgraph"),
    Candidate("restate", "peers/restate_peer.py", ALL, peer="restate"),
    Candidate("pydantic-ai bare", "peers/pydantic_ai_peer.py", TURNS, "bare", "pydantic_ai"),
    Candidate("pydantic-ai on dbos", "peers/pydantic_ai_peer.py", TURNS, "dbos", "pydantic_ai"),
    Candidate("openai-agents", "peers/openai_agents_peer.py", TURNS, peer="openai_agents"),
)

POSTGRES_CANDIDATES = (
    Candidate("raw", "raw_postgres.py", (*STEPS, *TURNS)),
    Candidate("perdure", "ours.py", (*ALL, "w5")),
    Candidate("perdure", "reactions.py", REACTIONS),
    Candidate("perdure", "streams.py", ("w8",)),
    Candidate("perdure, two workers", "reactions.py", REACTIONS, workers=2),
    Candidate("perdure, two workers", "ours.py", ("w5",), workers=2),
    Candidate("absurd", "peers/absurd_peer.py", STEPS, peer="absurd"),
    Candidate("dbos", "peers/dbos_peer.py", STEPS, peer="dbos"),
    Candidate("restate", "peers/restate_peer.py", (*STEPS, *TURNS), peer="restate"),
    Candidate("pydantic-ai on dbos", "peers/pydantic_ai_peer.py", TURNS, "dbos", "pydantic_ai"),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--only", default="", help="run candidates whose names contain one of these words")
    parser.add_argument("--peers", action="store_true", help="run the peers too")
    parser.add_argument("--dir", type=Path, default=HERE, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=HERE / "results.jsonl", help="file of all runs, one per line")
    parser.add_argument("--cap", type=float, default=60.0)
    parser.add_argument("--workflows", type=int)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    chosen = parser.parse_args(arguments)
    chosen.dir = chosen.dir.absolute()  # the workers run in another folder
    chosen.out = chosen.out.absolute()
    with _server(chosen) as server:
        runs = _rounds(chosen, server)
    print("\n".join(report(runs)))
    print("\n".join(bars(runs, ON_SQLITE if chosen.store == "sqlite" else ON_POSTGRES)))
    return 0


def _rounds(chosen: argparse.Namespace, server: Server | None) -> list[dict[str, object]]:
    words = [word for word in chosen.only.split(",") if word]
    candidates = POSTGRES_CANDIDATES if server else CANDIDATES
    wanted = [one for one in candidates if (chosen.peers or not one.peer) and one.there]
    wanted = [one for one in wanted if not words or any(word in one.name for word in words)]
    runs: list[dict[str, object]] = []
    for number in range(1, chosen.rounds + 1):
        for work in chosen.works.split(","):
            for one in wanted:
                if work in one.works:
                    runs.append({"round": number, "work": work, "name": one.name, **_run(one, work, chosen, server)})
                    with chosen.out.open("a") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
                    print(*runs[-1].values(), flush=True)
    return runs


@contextmanager
def _server(chosen: argparse.Namespace) -> Iterator[Server | None]:
    """Start a Postgres with default settings on the disk to measure."""
    if chosen.store != "postgres":
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server({"max_connections": "300"}, port=port, home=chosen.dir)
    try:
        yield server
    finally:
        server.remove()


def _run(one: Candidate, work: str, chosen: argparse.Namespace, server: Server | None) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=chosen.dir))
    command = [str(one.python), str(HERE / one.script), work, "--dir", str(folder), "--mode", one.mode]
    command += ["--cap", str(chosen.cap)]
    if workflows := one.workers or chosen.workflows:
        command += ["--workflows", str(workflows)]
    if server:
        asyncio.run(server.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)"))
        asyncio.run(server.execute("CREATE DATABASE bench"))
        command += ["--url", server.url("bench").replace("@/", f"@127.0.0.1:{server.port}/").split("?", 1)[0]]
    environment = {**os.environ, "RESTATE_SERVER": str(SERVER)}
    busy, began = _busy_s(), time.time()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=600 + chosen.cap, env=environment, check=False
        )
        said = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
        problem = ran.stderr.strip().splitlines()[-1:]
        numbers = json.loads(said[-1]) if said else {"error": (problem or ["no output"])[0]}
    except subprocess.TimeoutExpired:
        numbers = {"error": "timeout"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cores = os.cpu_count() or 1
    return {**numbers, "machine_busy": round((_busy_s() - busy) / (time.time() - began) / cores, 2)}


def _busy_s() -> float:
    """Return the CPU seconds of the whole machine. Times of a busy machine mean little; counts stay valid."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (ticks[0] + ticks[1] + ticks[2]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
