"""Tools of MCP servers: real ones from the registry, and one written with the same SDK that can be killed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, Session
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.session.redaction import blobs_of
from perdure.tools.mcp import McpServers
from perdure.tools.mcp.connection import McpConnection
from perdure.tools.mcp.servers import tool_name
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import EffectSettled
from tests.mcp.shop import PNG
from tests.scenarios.conftest import until

pytestmark = pytest.mark.any_store

SHOP = str(Path(__file__).parents[1] / "mcp" / "shop.py")
ANSWER_S = 30


class Shop:
    """A runtime whose agent has the tools of servers."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self._stack = stack

    def stdio(self, **more: Json) -> dict[str, Json]:
        env: Json = {"SHOP_LEDGER": str(self.ledger), **more.pop("env", {})}
        return {"command": sys.executable, "args": [SHOP], "env": env, "start_timeout": 50, **more}

    async def servers(self, **config: Json) -> McpServers:
        return await self._stack.enter_async_context(McpServers({"mcpServers": config}))

    async def runtime(self, servers: McpServers, *steps: Step, tuning: RuntimeOptions | None = None) -> Runtime:
        agent = Agent("a", model=ScriptedModel(*steps, say("done")), tools=[servers, code_mode()])
        url = f"sqlite:///{self.folder / 's.db'}"
        return await self._stack.enter_async_context(Runtime(url, agents=[agent], options=tuning))

    async def outputs(self, servers: McpServers, *steps: Step) -> list[Json]:
        rt = await self.runtime(servers, *steps)
        session = await rt.session("s", agent="a")
        await session.ask("go")
        return await told(session)

    def done(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


async def told(session: Session) -> list[Json]:
    history = await session.messages()
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with AsyncExitStack() as stack:
        yield Shop(tmp_path, stack)


def children_of(pid: int) -> Sequence[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rpartition(") ")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def running(what: str) -> list[int]:
    mine: list[int] = []
    for pid in children_of(os.getpid()):
        try:
            if what in Path(f"/proc/{pid}/cmdline").read_text():
                mine.append(pid)
        except OSError:
            continue
    return mine


# --- calls


async def test_tools_of_a_server_are_tools_of_the_agent(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    outputs = await shop.outputs(
        servers,
        call("mcp_shop__price", item=3),
        call("mcp_shop__buy", item=3),
        call("mcp_shop__fails"),
        call("mcp_shop__buy", item="many"),
    )
    assert outputs[0] == {"result": 300}
    assert outputs[1] == {"result": "bought 3"}
    assert "out of stock" in str(outputs[2])
    assert "invalid_tool_args" in str(outputs[3])
    assert shop.done() == ["buy 3"]


async def test_pictures_are_shown_and_other_bytes_are_attachments(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    rt = await shop.runtime(servers, call("mcp_shop__picture"), call("mcp_shop__report"))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    parts = [part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)]
    settled = [row.record.outcome for row in await session.journal() if isinstance(row.record, EffectSettled)]
    shown = [one for outcome in settled for one in blobs_of(outcome)]
    assert shown == [hashlib.sha256(PNG).hexdigest()], "the picture is shown to the model"
    report = parts[1].output
    pdf = {"resource": "shop://report", "media_type": "application/pdf"}
    assert report == [
        "the report",
        {**pdf, "attachment": hashlib.sha256(b"%PDF-1.4 ...").hexdigest(), "size": 12},
        {
            **pdf,
            "not_kept": "the bytes are not application/pdf (because they lack the signature of that format). "
            "Hint: pass the media type of the bytes",
            "size": 8,
        },
    ]


async def test_a_program_calls_them_too(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    program = "sum(mcp_shop__price(item=i)['result'] for i in range(1, 4))"
    assert await shop.outputs(servers, call("run_python", code=program)) == [{"result": 600}]


async def test_a_hundred_tools(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio(env={"SHOP_MANY": "100"}))
    names = [manifest.name for manifest in servers.tool_manifests()]
    assert len([name for name in names if name.startswith("mcp_shop__tool-")]) == 100
    outputs = await shop.outputs(servers, *(call(f"mcp_shop__tool-{n}", x=1) for n in (0, 50, 99)))
    assert outputs == [{"result": 1}, {"result": 51}, {"result": 100}]


# --- trust


async def test_a_lying_annotation_widens_nothing(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    effects = {one.name: one.durability.effect for one in servers.tool_manifests()}
    assert set(effects.values()) == {"once"}, "annotations of the server relax nothing"
    assert all(one.hints.readonly is None and one.hints.idempotent is None for one in servers.tool_manifests())
    [output] = await shop.outputs(servers, call("mcp_shop__wipe"))
    assert "outcome_unknown" in str(output) or "unknown" in str(output)
    assert shop.done() == ["wipe"], "the call is in doubt, and was not repeated"


async def test_a_destructive_tool_waits_for_a_person(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    rt = await shop.runtime(servers, call("mcp_shop__drop", table="orders"))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def there() -> bool:
        return len(await rt.approvals.list()) == 1

    await until(there)
    [question] = await rt.approvals.list()
    assert (question.tool, question.args, shop.done()) == ("mcp_shop__drop", {"table": "orders"}, [])
    await rt.approvals.approve(question.id, by="ana")
    assert (await sent.result(timeout=ANSWER_S)).status == "finished"
    assert shop.done() == ["drop orders"]


async def test_the_application_says_what_counts(shop: Shop) -> None:
    trusted = await shop.servers(
        a=shop.stdio(trust=True), b=shop.stdio(tools={"buy": {"effect": "idempotent"}, "wipe": {"hidden": True}})
    )
    effects = {one.name: one.durability.effect for one in trusted.tool_manifests()}
    assert effects["mcp_a__price"] == "pure"
    assert effects["mcp_a__buy"] == "once"
    assert effects["mcp_b__price"] == "once"
    assert effects["mcp_b__buy"] == "idempotent"
    assert "mcp_b__wipe" not in effects


# --- servers that die, hang and come back


async def test_killed_server_leaves_a_once_call_in_doubt(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    rt = await shop.runtime(servers, call("mcp_shop__dawdle", seconds=600))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def begun() -> bool:
        return shop.done() == ["dawdle"]

    await until(begun, seconds=ANSWER_S)
    for pid in running(SHOP):
        os.kill(pid, signal.SIGKILL)
    await sent.result(timeout=ANSWER_S)
    assert "outcome_unknown" in str(await told(session)) or "unknown" in str(await told(session))
    assert shop.done() == ["dawdle"]


async def test_a_server_that_died_is_started_again(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    first = running(SHOP)
    for pid in first:
        os.kill(pid, signal.SIGKILL)

    async def back() -> bool:
        now = running(SHOP)
        return bool(now) and not set(now) & set(first) and servers.connected == {"shop": True}

    await until(back, seconds=50, every=0.05)
    assert await shop.outputs(servers, call("mcp_shop__price", item=1)) == [{"result": 100}]


async def test_a_call_that_takes_too_long_is_in_doubt(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio(call_timeout=0.5))
    [output] = await shop.outputs(servers, call("mcp_shop__dawdle", seconds=600))
    assert "unknown" in str(output)
    assert shop.done() == ["dawdle"]


async def test_a_server_that_is_not_there_costs_its_own_tools_only(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio(), gone={"command": "/nowhere/at/all"})
    assert servers.connected == {"shop": True, "gone": False}
    outputs = await shop.outputs(servers, call("mcp_gone__x"), call("mcp_shop__price", item=1))
    assert "tool_unavailable" in str(outputs[0])
    assert outputs[1] == {"result": 100}


async def test_a_connection_that_breaks_while_it_is_ended_is_ended(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = McpConnection._connected  # pyright: ignore[reportPrivateUsage] - what the transport makes of its end

    async def breaks(self: McpConnection) -> None:
        try:
            await whole(self)
        finally:
            raise BrokenPipeError("in the middle of a list")

    monkeypatch.setattr(McpConnection, "_connected", breaks)
    servers = McpServers({"mcpServers": {"shop": shop.stdio()}})
    await servers.connect()
    assert servers.connected == {"shop": True}
    async with asyncio.timeout(10):
        await servers.disconnect()


@pytest.mark.parametrize("told_by", [{"protocol": "legacy"}, {"refresh": 0}], ids=["notification", "asking again"])
async def test_a_changed_list_counts_from_the_next_turn_on(shop: Shop, told_by: dict[str, Json]) -> None:
    servers = await shop.servers(shop=shop.stdio(**told_by))
    model = ScriptedModel.by_input(
        {
            "grow": [call("mcp_shop__grow"), call("mcp_shop__fresh"), say("ok")],
            "use it": [call("mcp_shop__fresh"), say("ok")],
        }
    )
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[servers])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("grow")
        assert "tool_unavailable" in str((await told(session))[1]), "a turn keeps the tools that it began with"

        async def there() -> bool:
            return any(one.name == "mcp_shop__fresh" for one in servers.tool_manifests())

        await until(there, seconds=ANSWER_S)
        await session.ask("use it")
        assert (await told(session))[2] == {"result": "fresh"}


# --- secrets and names


async def test_secrets_are_references_and_are_not_seen(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2-hunter2")
    servers = await shop.servers(shop=shop.stdio(env={"SHOP_TOKEN": "${SHOP_SECRET}"}))
    rt = await shop.runtime(servers, call("mcp_shop__token"))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert await told(session) == [{"result": "the token is [secret]"}]
    assert "hunter2" not in str([row.data for row in await session.journal()])


def test_a_configuration_that_cannot_be_used_is_refused_without_its_values(tmp_path: Path) -> None:
    cases: list[tuple[Json, str]] = [
        ({"mcpServers": {"x": {"command": "a", "url": "b"}}}, "either a command or a url"),
        ({"mcpServers": {"x": {"url": "http://h", "headers": {"a": 7}}}}, "Expected `str`"),
        ({"mcpServers": {"a b": {"command": "a"}}}, "invalid server name"),
        ({"mcpServers": []}, "must be an object"),
        ({"mcpServers": {"x": {"command": "a", "sercet": "hunter2"}}}, "unknown field"),
    ]
    for config, says in cases:
        with pytest.raises(Error) as refused:
            McpServers(config)
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert says in str(refused.value)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(Error, match="cannot be read"):
        McpServers(tmp_path / "none.json")


def test_names_fit_every_provider() -> None:
    assert tool_name("git", "git_status") == "mcp_git__git_status"
    hostile = [tool_name("s", name) for name in ("a.b", "a/b", "a b", "x" * 80, "x" * 81, "é")]
    assert len(set(hostile)) == len(hostile)
    assert all(len(name) <= 64 and name.isascii() and " " not in name for name in hostile)


# --- servers that ask


@pytest.mark.parametrize(("tool", "protocol"), [("measure", "auto"), ("fit", "legacy")])
@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_server_elicitation_is_answered_by_an_approval(shop: Shop, tool: str, protocol: str, answer: str) -> None:
    servers = await shop.servers(shop=shop.stdio(elicit=True, protocol=protocol))
    rt = await shop.runtime(servers, call(f"mcp_shop__{tool}"), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def there() -> bool:
        return len(await rt.approvals.list()) == 1

    await until(there, seconds=ANSWER_S)
    [question] = await rt.approvals.list()
    assert "Which size?" in str(question.args)
    if answer == "approve":
        await rt.approvals.approve(question.id, by="ana", args={"size": "M"})
    else:
        await rt.approvals.deny(question.id, by="ana")
    assert (await sent.result(timeout=ANSWER_S)).status == "finished"
    said = "size M" if answer == "approve" else "no size: decline"
    assert said in str(await told(session))
    assert shop.done() == [f"{tool} asked", f"{tool} {'accept' if answer == 'approve' else 'decline'}"]


async def test_a_tool_whose_server_asks_is_a_function_of_a_program(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio(elicit=True))
    code = "[mcp_shop__measure(), mcp_shop__measure()]"
    rt = await shop.runtime(servers, call("run_python", code=code), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    for size in ("M", "L"):

        async def there() -> bool:
            return len(await rt.approvals.list()) == 1

        await until(there, seconds=ANSWER_S)
        [question] = await rt.approvals.list()
        await rt.approvals.approve(question.id, by="ana", args={"size": size})

        async def gone() -> bool:
            return await rt.approvals.list() == ()

        await until(gone, seconds=ANSWER_S)
    assert (await sent.result(timeout=ANSWER_S)).status == "finished"
    assert "size M" in str(await told(session))
    assert "size L" in str(await told(session))
    assert shop.done() == ["measure asked", "measure accept"] * 2


async def test_restarted_server_receives_the_recorded_answer(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio(elicit=True))
    rt = await shop.runtime(servers, call("mcp_shop__measure"), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def there() -> bool:
        return len(await rt.approvals.list()) == 1

    async def back() -> bool:
        return servers.connected == {"shop": True} and running(SHOP) not in ([], [server])

    await until(there, seconds=ANSWER_S)
    [server] = running(SHOP)
    os.kill(server, signal.SIGKILL)
    await until(back, seconds=ANSWER_S)
    [question] = await rt.approvals.list()
    await rt.approvals.approve(question.id, by="ana", args={"size": "M"})
    assert (await sent.result(timeout=ANSWER_S)).status == "finished"
    assert "size M" in str(await told(session))
    assert shop.done() == ["measure asked", "measure asked", "measure accept"]


async def test_a_server_that_may_not_ask_is_told_so(shop: Shop) -> None:
    servers = await shop.servers(shop=shop.stdio())
    [output] = await shop.outputs(servers, call("mcp_shop__measure"))
    assert "mcp_" in str(output)
    assert "elicit" in str(output)


# --- over HTTP, and reference servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    def __init__(self, arguments: Sequence[str], env: dict[str, str]) -> None:
        self.port = free_port()
        self._command = [sys.executable, *(one.replace("PORT", str(self.port)) for one in arguments)]
        self._env = {**os.environ, **env}
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self._command, env=self._env, stdout=quiet, stderr=quiet)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def ready(self) -> None:
        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return False
            writer.close()
            return True

        await until(listens, seconds=50, every=0.05)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served([SHOP, "PORT"], {"SHOP_LEDGER": str(tmp_path / "ledger")})
    yield one
    one.process.kill()
    one.process.wait()


@pytest.mark.slow
async def test_a_server_over_http(shop: Shop, served: Served) -> None:
    await served.ready()
    servers = await shop.servers(shop={"url": served.url, "start_timeout": 50})
    outputs = await shop.outputs(servers, call("mcp_shop__price", item=2), call("mcp_shop__buy", item=2))
    assert outputs == [{"result": 200}, {"result": "bought 2"}]


@pytest.mark.slow
async def test_http_server_is_used_again_after_its_restart(shop: Shop, served: Served) -> None:
    await served.ready()
    servers = await shop.servers(shop={"url": served.url, "start_timeout": 50})
    price = call("mcp_shop__price", item=2)
    model = ScriptedModel.by_input({said: [price, say("ok")] for said in ("one", "two", "three")})
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[servers])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("one")
        served.process.kill()
        served.process.wait()
        await session.ask("two")
        served.start()
        await served.ready()

        async def back() -> bool:
            return servers.connected == {"shop": True}

        await until(back, seconds=ANSWER_S)
        await session.ask("three")
        first, away, last = await told(session)
    assert (first, last) == ({"result": 200}, {"result": 200})
    assert "error" in str(away)


@pytest.mark.slow
async def test_a_server_over_http_killed_in_the_middle_of_a_once_call(shop: Shop, served: Served) -> None:
    await served.ready()
    servers = await shop.servers(shop={"url": served.url, "start_timeout": 50})
    rt = await shop.runtime(servers, call("mcp_shop__dawdle", seconds=600))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def begun() -> bool:
        return shop.done() == ["dawdle"]

    await until(begun, seconds=ANSWER_S)
    served.process.kill()
    await sent.result(timeout=ANSWER_S)
    assert "unknown" in str(await told(session))
    assert shop.done() == ["dawdle"]


TIME_OVER_HTTP = """
from mcp_server_time.server import create_server
create_server("UTC").run("streamable-http", port=PORT)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    return tmp_path / "repo"


@pytest.mark.slow
async def test_the_reference_servers_of_the_registry(shop: Shop, repository: Path) -> None:
    over_http = Served(["-c", TIME_OVER_HTTP], {})
    try:
        await over_http.ready()
        servers = await shop.servers(
            time={"command": sys.executable, "args": ["-m", "mcp_server_time"], "start_timeout": 50},
            git={"command": sys.executable, "args": ["-m", "mcp_server_git"], "start_timeout": 50},
            far={"url": over_http.url, "start_timeout": 50},
        )
        assert servers.connected == {"time": True, "git": True, "far": True}
        convert: dict[str, Json] = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        outputs = await shop.outputs(
            servers,
            call("mcp_time__convert_time", **convert),
            call("mcp_git__git_status", repo_path=str(repository)),
            call("mcp_far__convert_time", **convert),
        )
    finally:
        over_http.process.kill()
        over_http.process.wait()
    assert "21:00" in str(outputs[0])
    assert "No commits yet" in str(outputs[1])
    assert "21:00" in str(outputs[2])
