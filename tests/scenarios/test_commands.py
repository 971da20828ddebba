"""Commands of the operating system as processes: on every store, with real commands."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure import Agent, Error, ProcessContext, Runtime, RuntimeOptions, ToolContext, process, tool
from perdure.codec import Json
from perdure.errors import Code
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.processes.commands import Spawned
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.tasks.commands import CommandCode
from perdure.services.os_commands import RunFolder
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Text
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import ProcessFailure, ProcessWasAbandoned, ProcessWasCancelled
from tests.scenarios.conftest import NewStore, until

SH = "/bin/sh"
WAITS = 30.0


class Machine:
    """Opens runtimes on one store, as one machine or as others."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack, folder: Path) -> None:
        self.new_store = new_store
        self.folder = folder
        self._stack = stack

    def runtime(
        self,
        *,
        host: str = "here",
        idle_timeout_s: float = WAITS,
        drain_s: float = 10.0,
        at_once: int = 64,
        tools: tuple[AnyTool, ...] = (),
        **more: Json,
    ) -> Runtime:
        model = ScriptedModel.by_input(
            {"go": [call("build"), say("ok", exact=True)]}, default=[say("noted", exact=True)]
        )
        runs = self.folder / "runs"
        tuning = RuntimeOptions(host=host, commands_in=runs, idle_timeout_s=idle_timeout_s, drain_s=drain_s,
                        max_commands=at_once)  # fmt: skip
        return Runtime(self.new_store(), agents=[Agent("a", model=model, tools=tools)], options=tuning, **more)

    async def open(self, **more: Json) -> Runtime:
        return await self._stack.enter_async_context(self.runtime(**more))


@pytest.fixture
async def machine(new_store: NewStore, tmp_path: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        yield Machine(new_store, stack, tmp_path)


async def events(handle: ProcessHandle, *names: str) -> list[Json]:
    found = [row.record for row in await handle.journal() if isinstance(row.record, ProcessEvent)]
    return [one.payload for one in found if one.event in {f"command.{name}" for name in names}]


async def names(handle: ProcessHandle) -> list[str]:
    return [row.record.event for row in await handle.journal() if isinstance(row.record, ProcessEvent)]


async def spawned(handle: ProcessHandle) -> Spawned:
    async def is_there() -> bool:
        return bool(await events(handle, "spawned"))

    await until(is_there, seconds=WAITS)
    (said,) = await events(handle, "spawned")
    return Spawned(attempt=said["attempt"], pid=said["pid"], start=said["start"])


def when(file: Path) -> str:
    """A piece of shell that waits for a file."""
    return f"until [ -e '{file}' ]; do sleep 0.02; done"


async def seen(look: Callable[[], bool]) -> None:
    async def so() -> bool:
        return look()

    await until(so, seconds=WAITS)


# --- the plain story


async def test_a_command_is_registered_spawned_once_and_told_with_what_it_printed(machine: Machine) -> None:
    rt = await machine.open()
    handle = await rt.start_command([SH, "-c", "echo out; echo err >&2; pwd; echo $NAME"], id="c", cwd=machine.folder,
                              env={"NAME": "höhö"})  # fmt: skip
    printed = f"out\n{machine.folder}\nhöhö\n"
    assert await handle.result(WAITS) == {"exit_code": 0, "stdout": printed, "stderr": "err\n"}
    assert (await handle.output(), await handle.output("stderr")) == (printed, "err\n")
    told = await names(handle)
    assert told[0] == "command.spawning", "the intent comes first"
    assert told[-2:] == ["command.exited", "process.completed"]
    assert told.count("command.spawned") == 1
    (said,) = await events(handle, "spawned")
    assert (said["pid"] > 1, said["start"] > 0) == (True, True)
    assert (await handle.info()).status == "completed"
    await seen(lambda: not any((machine.folder / "runs").iterdir()))  # what is in the log is not left behind
    again = await rt.start_command([SH, "-c", "echo out; echo err >&2; pwd; echo $NAME"], id="c", cwd=machine.folder,
                             env={"NAME": "höhö"})  # fmt: skip
    assert await again.result(WAITS) == await handle.result(WAITS), "the same again is the same one"
    with pytest.raises(Error) as caught:
        await rt.start_command([SH, "-c", "echo other"], id="c")
    assert caught.value.code == "process_conflict"


@pytest.mark.parametrize(
    ("script", "code", "raw"),
    [
        ("echo bad >&2; exit 3", "command_failed", {"exit_code": 3, "stdout": "", "stderr": "bad\n"}),
        ("kill -KILL $$", "command_killed", {"signal": 9, "stdout": "", "stderr": ""}),
    ],
)
async def test_how_a_command_ended_is_told_as_it_was(machine: Machine, script: str, code: str, raw: Json) -> None:
    rt = await machine.open()
    output = await (await rt.start_command([SH, "-c", script])).wait(WAITS)
    assert isinstance(output, ProcessFailure)
    assert (output.code, output.raw) == (code, raw)


async def test_command_that_cannot_execute_fails_without_doubt(machine: Machine) -> None:
    program = machine.folder / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o700)
    rt = await machine.open()
    output = await (await rt.start_command([str(program)])).wait(WAITS)
    assert isinstance(output, ProcessFailure)
    assert output.code == "command_not_executed"
    assert "No such file" in output.message


async def test_a_shell_is_used_only_where_it_was_asked_for(machine: Machine) -> None:
    rt = await machine.open()
    with pytest.raises(Error) as caught:
        await rt.start_command("echo a | tr a b")
    assert caught.value.code == "command_invalid"
    assert (await (await rt.start_command("echo a | tr a b", shell=True)).result(WAITS))["stdout"] == "b\n"
    assert (await (await rt.start_command(["/bin/echo", "a; $HOME", "*"])).result(WAITS))["stdout"] == "a; $HOME *\n"


BAD: list[tuple[Json, dict[str, Json], str]] = [
    ([], {}, "command_invalid"),
    ([""], {}, "command_invalid"),
    ("  ", {"shell": True}, "command_invalid"),
    (["echo", 1], {}, "command_invalid"),
    (["echo", "a\0b"], {}, "command_invalid"),
    (["echo", "\ud800"], {}, "command_invalid"),
    ([SH, "-c", "true"], {"shell": True}, "command_invalid"),
    (b"echo", {}, "command_invalid"),
    (["echo"], {"env": {"A": 1}}, "command_invalid"),
    (["echo"], {"env": {"A=B": "c"}}, "command_invalid"),
    (["echo"], {"env": {"A": "\0"}}, "command_invalid"),
    (["echo"], {"keep_bytes": -1}, "command_invalid"),
    (["echo"], {"inherit": "PATH"}, "command_invalid"),
    (["echo"], {"inherit": ["A=B"]}, "command_invalid"),
    (["echo", "x" * 70_000], {}, "input_too_large"),
    (["echo"], {"env": {"A": "x" * 70_000}}, "input_too_large"),
    (["no-such-program-anywhere"], {}, "command_unknown"),
    (["/etc/passwd"], {}, "command_unknown"),
    (["echo"], {"env": {"PATH": "/nowhere"}}, "command_unknown"),
    (["echo"], {"cwd": "/no/such/folder"}, "command_folder_unknown"),
    (["echo"], {"cwd": "/etc/passwd"}, "command_folder_unknown"),
    (["echo"], {"grace": "soon"}, "invalid_argument"),
    (["echo"], {"id": "a#b"}, "invalid_id"),
]


async def test_invalid_command_is_refused_before_registration(machine: Machine) -> None:
    rt = await machine.open()
    for argv, options, code in BAD:
        with pytest.raises(Error) as caught:
            await rt.start_command(argv, **options)
        assert caught.value.code == code, (argv, options)
    assert await rt.processes.list(ended=True) == ()


# --- what it prints


async def test_command_output_is_cut_at_a_whole_character(machine: Machine) -> None:
    rt = await machine.open()
    write = "import sys; sys.stdout.buffer.write('ä'.encode() * 40_000); sys.stdout.buffer.write(b'\\xff')"
    handle = await rt.start_command([sys.executable, "-c", write], keep_bytes=50_001)
    await handle.result(WAITS)
    pieces = await events(handle, "output")
    assert [piece["offset"] for piece in pieces] == [0, 16384, 32768, 49152]
    assert all(set(piece["text"]) == {"ä"} for piece in pieces), "no character is taken apart"
    assert len(await handle.output()) == 25_000
    (cut,) = await events(handle, "output_cut")
    assert (cut["stream"], cut["offset"]) == ("stdout", 50_000)


async def test_undecodable_output_is_replaced_and_counted_in_bytes(machine: Machine) -> None:
    rt = await machine.open()
    handle = await rt.start_command([SH, "-c", r"printf 'a\377b\303'"])
    await handle.result(WAITS)
    assert await handle.output() == "a\ufffdb\ufffd"
    assert sum(piece["size"] for piece in await events(handle, "output")) == 4


# --- another worker goes on


async def test_parked_command_ends_without_holding_a_slot(machine: Machine) -> None:
    rt = await machine.open(idle_timeout_s=0.0)
    end = machine.folder / "end"
    handle = await rt.start_command([SH, "-c", f"{when(end)}; echo done"])
    await spawned(handle)

    async def parked() -> bool:
        info = await core_of(rt).store.stream(handle.stream)
        worker = core_of(rt).worker
        assert worker is not None
        return info is not None and info.parked and handle.stream not in worker.stream_pool.busy

    await until(parked, seconds=WAITS)
    end.touch()
    assert (await handle.result(WAITS))["stdout"] == "done\n"


async def test_another_worker_goes_on_reading_where_the_first_one_was(machine: Machine) -> None:
    go, end = machine.folder / "go", machine.folder / "end"
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", f"echo one; {when(go)}; echo two; {when(end)}"], id="c")

        async def printed() -> bool:
            return await handle.output() == "one\n"

        await until(printed, seconds=WAITS)
        first = await spawned(handle)
    go.touch()
    rt = await machine.open()
    handle = rt.get_process("c")
    end.touch()
    assert (await handle.result(WAITS))["stdout"] == "one\ntwo\n"
    assert await spawned(handle) == first, "the command was adopted, not spawned again"
    assert [piece["offset"] for piece in await events(handle, "output")] == [0, 4]


async def test_supervisor_reports_an_exit_without_running_worker(machine: Machine) -> None:
    end = machine.folder / "end"
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", f"{when(end)}; echo last; exit 7"], id="c")
        pid = (await spawned(handle)).pid
        folder = await folder_of(handle)
    end.touch()
    await seen(lambda: (folder / "exit.json").exists())
    assert is_dead(pid)
    rt = await machine.open()
    output = await rt.get_process("c").wait(WAITS)
    assert isinstance(output, ProcessFailure)
    assert (output.code, output.raw["stdout"]) == ("command_failed", "last\n")


def size_of(path: str) -> int:
    return Path(path).stat().st_size


async def folder_of(handle: ProcessHandle) -> Path:
    (attempt,) = await events(handle, "spawning")
    return Path(attempt["folder"])


async def test_command_without_known_end_is_lost_and_not_repeated(machine: Machine) -> None:
    ran = machine.folder / "ran"
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", f"echo x >> {ran}; exec sleep 60"], id="c")
        told, folder = await spawned(handle), await folder_of(handle)
        await seen(ran.exists)
        (said,) = await events(handle, "spawned")
        os.kill(said["supervisor"], signal.SIGKILL)
        await seen(lambda: not Path(f"/proc/{said['supervisor']}").exists() or is_dead(said["supervisor"]))
    os.kill(told.pid, signal.SIGKILL)
    await seen(lambda: is_dead(told.pid))
    rt = await machine.open()
    output = await rt.get_process("c").wait(WAITS)
    assert isinstance(output, ProcessWasAbandoned)
    assert output.reason == "lost: the process is gone without a recorded exit"
    assert "command.lost" in await names(rt.get_process("c"))
    assert ran.read_text() == "x\n"
    await seen(lambda: not folder.exists())


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def test_reused_pid_is_not_taken_for_the_command(machine: Machine) -> None:
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", "exec sleep 600"], id="c")
        await spawned(handle)
        (said,) = await events(handle, "spawned")
        folder = await folder_of(handle)
    os.kill(said["supervisor"], signal.SIGKILL)
    os.kill(said["pid"], signal.SIGKILL)
    await seen(lambda: is_dead(said["supervisor"]) and is_dead(said["pid"]))
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    (folder / "started.json").write_text(f'{{"pid": {stranger.pid}, "start": 1, "supervisor": {stranger.pid}}}')
    client = await machine.open(worker=False)
    await client.get_process("c").cancel()  # before a worker finds out that it is gone
    rt = await machine.open()
    output = await rt.get_process("c").wait(WAITS)
    assert isinstance(output, ProcessWasAbandoned)
    assert await events(rt.get_process("c"), "signalled") == []
    assert not is_dead(stranger.pid), "an unrelated process receives no signal"
    stranger.kill()
    await stranger.wait()


async def test_a_run_folder_that_is_gone_is_a_doubt(machine: Machine) -> None:
    end = machine.folder / "end"
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", when(end)], id="c")
        await spawned(handle)
        folder = await folder_of(handle)
    folder.rename(machine.folder / "moved")
    rt = await machine.open()
    output = await rt.get_process("c").wait(WAITS)
    end.touch()
    assert isinstance(output, ProcessWasAbandoned)
    assert output.reason == "lost: the run folder is missing"


# --- killed between intent and pid


async def intended(machine: Machine, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A command whose worker ended right after it said that it spawns it."""
    over = threading.Event()

    def spawns_nothing(_: RunFolder) -> int:
        return 0

    def is_over(*_: object) -> bool:
        return over.wait()

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "spawn", spawns_nothing)
        patched.setattr(RunFolder, "wait", is_over)
        try:
            async with machine.runtime(drain_s=0.0) as rt:
                handle = await rt.start_command([SH, "-c", script], id="c")

                async def said() -> bool:
                    return bool(await events(handle, "spawning"))

                await until(said, seconds=WAITS)
                return await folder_of(handle)
        finally:
            over.set()


async def test_command_that_never_started_is_started_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = machine.folder / "ran"
    folder = await intended(machine, monkeypatch, f"echo x >> {ran}")
    rt = await machine.open()
    handle = rt.get_process("c")
    await handle.result(WAITS)
    told = [
        name for name in await names(handle) if name in ("command.spawning", "command.not_spawned", "command.spawned")
    ]
    assert told == ["command.spawning", "command.not_spawned", "command.spawning", "command.spawned"]
    assert ran.read_text() == "x\n"
    await seen(lambda: not folder.exists())


async def test_a_supervisor_that_comes_too_late_begins_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = machine.folder / "ran"
    folder = await intended(machine, monkeypatch, f"echo x >> {ran}; sleep 0.1")
    token = (folder / "token").read_text().strip('"')
    late = RunFolder(folder, token)
    assert type(late.inspect("another boot")).__name__ == "NotBegun", "the inspection takes the claim"
    late.wait(late.spawn())
    assert not (folder / "started.json").exists()
    rt = await machine.open()
    await rt.get_process("c").result(WAITS)
    assert ran.read_text() == "x\n"


async def test_a_cancel_before_it_is_spawned_spawns_nothing(machine: Machine) -> None:
    ran = machine.folder / "ran"
    async with machine.runtime(worker=False) as rt:
        handle = await rt.start_command([SH, "-c", f"echo x >> {ran}"], id="c")
        await handle.cancel("not needed")
    rt = await machine.open()
    assert await rt.get_process("c").wait(WAITS) == ProcessWasCancelled(reason="not needed")
    assert not ran.exists()
    assert await events(rt.get_process("c"), "spawning") == []


# --- ending it


async def test_a_cancel_reaches_the_whole_group_and_is_patient_before_it_kills(machine: Machine) -> None:
    rt = await machine.open()
    pids = machine.folder / "pids"
    stubborn = f"trap 'echo asked' TERM; (trap '' TERM; sleep 600) & echo $! $$ > {pids}; while :; do sleep 0.02; done"
    handle = await rt.start_command([SH, "-c", stubborn], grace=0.3)
    await spawned(handle)
    await seen(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    await handle.cancel("enough")
    assert await handle.wait(WAITS) == ProcessWasCancelled(reason="enough")
    sent = await events(handle, "signalled")
    assert [one["signal"] for one in sent] == ["SIGTERM", "SIGKILL"]
    assert sent[1]["at"] - sent[0]["at"] >= 300
    assert "asked\n" in await handle.output()
    assert (await events(handle, "exited"))[0]["signal"] == 9
    for pid in pids.read_text().split():
        await seen(lambda pid=pid: is_dead(int(pid)))


async def test_s18_child_that_calls_setsid_does_not_survive_cancel(machine: Machine) -> None:
    rt = await machine.open()
    pids = machine.folder / "pids"
    daemon = f"(setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; sleep 600' &)"
    handle = await rt.start_command([SH, "-c", f"{daemon}; {daemon}; sleep 600"], grace=0.2)
    await spawned(handle)
    await seen(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    await handle.cancel("enough")
    assert await handle.wait(WAITS) == ProcessWasCancelled(reason="enough")
    assert [is_dead(int(pid)) for pid in pids.read_text().split()] == [True, True]


async def test_child_that_calls_setsid_outlives_a_command_that_ends_itself(machine: Machine) -> None:
    rt = await machine.open()
    pids = machine.folder / "pids"
    handle = await rt.start_command([SH, "-c", f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & sleep 0.2"])
    assert (await handle.result(WAITS))["exit_code"] == 0
    await seen(lambda: pids.exists() and bool(pids.read_text()))
    assert not is_dead(int(pids.read_text()))
    os.kill(int(pids.read_text()), signal.SIGKILL)


async def test_s12_command_inherits_only_listed_variables(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OPENAI_API_KEY", "sk-canary"), ("MY_FLAG", "on"), ("LC_TIME", "C"), ("PERDURE_DB", "pw")):
        monkeypatch.setenv(name, value)
    rt = await machine.open()
    handle = await rt.start_command(["env"], env={"GIVEN": "yes"}, inherit=["MY_FLAG", "NOT_SET"])
    lines = (await handle.result(WAITS))["stdout"].splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    listed = {"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM"}
    assert {name for name in found if name not in listed and not name.startswith("LC_")} == {"GIVEN", "MY_FLAG"}
    assert (found["GIVEN"], found["MY_FLAG"], found["LC_TIME"], found["PATH"]) == ("yes", "on", "C", os.environ["PATH"])
    supervisor = (await events(handle, "spawned"))[0]["supervisor"]
    assert supervisor > 0


async def test_s18_output_goes_with_its_process_even_when_it_was_cut(machine: Machine) -> None:
    rt = await machine.open()
    handle = await rt.start_command([SH, "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], keep_bytes=1000)
    assert (await handle.result(WAITS))["exit_code"] == 0
    assert [(cut["stream"], cut["offset"]) for cut in await events(handle, "output_cut")] == [("stdout", 1000)]
    await seen(lambda: list((machine.folder / "runs").iterdir()) == [])


async def test_command_finished_before_its_cancellation_succeeds(machine: Machine) -> None:
    end = machine.folder / "end"
    async with machine.runtime() as rt:
        handle = await rt.start_command([SH, "-c", f"{when(end)}; exit 0"], id="c")
        await spawned(handle)
        folder = await folder_of(handle)
    end.touch()
    await seen(lambda: (folder / "exit.json").exists())
    async with machine.runtime(worker=False) as rt:
        await rt.get_process("c").cancel("too late")
    rt = await machine.open()
    assert (await rt.get_process("c").result(WAITS))["exit_code"] == 0
    assert await events(rt.get_process("c"), "signalled") == []


async def test_command_result_is_refused_from_outside(machine: Machine) -> None:
    rt = await machine.open(worker=False)
    handle = await rt.start_command([SH, "-c", "true"])
    with pytest.raises(Error) as caught:
        await handle.complete({"exit_code": 0})
    assert caught.value.code == "process_not_external"


# --- other machines


async def test_another_machine_leaves_it_alone_and_shows_whose_it_is(machine: Machine) -> None:
    ran = machine.folder / "ran"
    async with machine.runtime(host="there", worker=False) as rt:
        handle = await rt.start_command([SH, "-c", f"echo x >> {ran}"], id="c")
    here = await machine.open(host="here")
    probe = await here.start_command([SH, "-c", "true"])
    await probe.result(WAITS)
    record = await here.get_process("c").info()
    assert (record.status, record.known.definition) == ("registered", "command:there")
    again = await here.start_command([SH, "-c", f"echo x >> {ran}"], id="c")
    assert again.id == "c", "the same command, whichever machine asks for it"
    assert not ran.exists()
    there = await machine.open(host="there")
    await there.get_process("c").result(WAITS)
    assert ran.read_text() == "x\n"
    assert handle.id == "c"


async def test_a_command_of_a_machine_that_is_gone_can_be_given_up(machine: Machine) -> None:
    async with machine.runtime(host="there", worker=False) as rt:
        await rt.start_command([SH, "-c", "true"], id="c")
    here = await machine.open(host="here")
    assert await here.get_process("c").abandon("the machine is gone", by="ann") is True
    assert await here.get_process("c").wait(WAITS) == ProcessWasAbandoned(reason="the machine is gone", by="ann")
    there = await machine.open(host="there")
    await (await there.start_command([SH, "-c", "true"])).result(WAITS)
    assert await events(there.get_process("c"), "spawning") == []


# --- from tools and processes


def builds(folder: Path) -> AnyTool:
    @tool(effect="idempotent")
    async def build(ctx: ToolContext) -> str:
        """Build it."""
        first = await ctx.start_command([SH, "-c", f"echo x >> {folder / 'ran'}; echo built"], label="the build")
        again = await ctx.start_command([SH, "-c", f"echo x >> {folder / 'ran'}; echo built"], label="the build")
        assert first.id == again.id
        return first.id

    return build


async def test_command_outlives_its_turn_and_notifies_the_session(machine: Machine) -> None:
    rt = await machine.open(tools=(builds(machine.folder),))
    session = await rt.session("s", agent="a")
    assert await session.ask("go", timeout=WAITS) == "ok"
    (listed,) = await rt.processes.list(ended=True, session="s")
    assert (await listed.handle.info()).known.label == "the build"
    await listed.handle.result(WAITS)

    async def told() -> bool:
        texts = [part.text for message in await session.messages() for part in message.parts if isinstance(part, Text)]
        return any(text.startswith("Process news.") and '- label: "the build"' in text for text in texts)

    await until(told, seconds=WAITS)
    assert (machine.folder / "ran").read_text() == "x\n"


async def test_a_process_starts_a_command_and_waits_for_it(machine: Machine) -> None:
    @process
    async def nightly(ctx: ProcessContext) -> Json:
        handle = await ctx.start_command([SH, "-c", "echo $WHO"], env={"WHO": "ann"})
        return (await ctx.wait_for_process(handle))["stdout"], handle.id

    rt = await machine.open(processes=[nightly], idle_timeout_s=0.0)
    assert await (await rt.start(nightly, id="n")).result(WAITS) == ["ann\n", "n/command:1"]


async def test_a_bad_command_of_a_process_fails_with_its_code(machine: Machine) -> None:
    @process
    async def nightly(ctx: ProcessContext) -> Json:
        await ctx.start_command(["no-such-program-anywhere"])

    rt = await machine.open(processes=[nightly])
    output = await (await rt.start(nightly, id="n")).wait(WAITS)
    assert isinstance(output, ProcessFailure)
    assert output.code == "command_unknown"
    assert [one.handle.id for one in await rt.processes.list(ended=True)] == ["n"]


async def test_secrets_of_the_session_are_hidden_in_what_its_commands_print(machine: Machine) -> None:
    rt = await machine.open()
    await (await rt.session("s", agent="a")).ask("hello", timeout=WAITS)
    core_of(rt).seen_secrets.add(ref_of(rt.get_session("s")).stream, "hunter2-hunter2")
    handle = await rt.start_command([SH, "-c", "echo key=hunter2-hunter2"], session="s")
    assert (await handle.result(WAITS))["stdout"] == "key=[secret]\n"
    assert SessionId("s") == handle_session(await handle.info())


async def test_s10_secret_that_straddles_two_pieces_of_output_is_hidden(machine: Machine) -> None:
    rt = await machine.open()
    await (await rt.session("s", agent="a")).ask("hello", timeout=WAITS)
    core_of(rt).seen_secrets.add(ref_of(rt.get_session("s")).stream, "hunter2-hunter2")
    gate = machine.folder / "gate"
    straddles = "import sys; sys.stdout.write('x' * (16384 - 5) + 'hunter2-hunter2' + 'y' * 100)"
    slowly = f"printf 'hunter2-'; {when(gate)}; printf 'hunter2 end'"
    first = await rt.start_command([sys.executable, "-c", straddles], session="s")
    second = await rt.start_command(slowly, shell=True, session="s")
    third = await rt.start_command("printf 'a hunter2-hunter2'", shell=True, session="s", keep_bytes=10)
    await spawned(second)
    gate.touch()
    for handle in (first, second, third):
        await handle.result(WAITS)
    assert await first.output() == "x" * (16384 - 5) + "[secret]" + "y" * 100
    assert await second.output() == "[secret] end"
    assert await third.output() == "a "
    assert len(await events(third, "output_cut")) == 1


def handle_session(record: Json) -> str:
    return record.known.provenance.originator.session_id


# --- how many, and what is left


async def test_a_worker_runs_so_many_at_once_and_the_others_wait(machine: Machine) -> None:
    rt = await machine.open(at_once=2, idle_timeout_s=0)
    gate = machine.folder / "gate"
    first = [await rt.start_command(when(gate), shell=True, id=f"first-{number}") for number in range(2)]
    for one in first:
        await spawned(one)
    later = [await rt.start_command("echo later", shell=True, id=f"later-{number}") for number in range(3)]
    stopped = await rt.start_command("echo never", shell=True, id="stopped")

    async def all_wait() -> bool:
        infos = [await core_of(rt).store.stream(one.stream) for one in (*later, stopped)]
        return all(info is not None and info.parked for info in infos)

    await until(all_wait, seconds=WAITS)
    assert [await names(one) for one in later] == [[], [], []], "nothing of them was begun"
    await stopped.cancel("not needed")
    assert isinstance(await stopped.wait(WAITS), ProcessWasCancelled)
    gate.touch()
    for one in (*first, *later):
        assert (await one.result(WAITS))["exit_code"] == 0
    await seen(lambda: core_of(rt).command_code.running == set())


async def test_command_folder_is_removed_despite_a_worker_crash(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy = CommandCode.clean_up
    reached = asyncio.Event()

    async def dies(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CommandCode, "clean_up", dies)
    async with machine.runtime(drain_s=0.05) as rt:
        handle = await rt.start_command("echo done", shell=True, id="c")
        await handle.result(WAITS)
        await reached.wait()
    assert [path.name for path in (machine.folder / "runs").iterdir()] != []
    monkeypatch.setattr(CommandCode, "clean_up", tidy)
    await machine.open()
    await seen(lambda: list((machine.folder / "runs").iterdir()) == [])


async def test_command_events_are_refused_from_outside(machine: Machine) -> None:
    rt = await machine.open()
    gate = machine.folder / "gate"
    handle = await rt.start_command(when(gate), shell=True, id="c")
    await spawned(handle)
    for name in ("spawning", "spawned", "output", "output_cut", "signalled", "exited", "lost", "not_spawned"):
        with pytest.raises(Error) as caught:
            await handle.append_event(f"command.{name}", {"attempt": 1}, replay="x")
        assert caught.value.code is Code.PROCESS_EVENT_UNDECLARED
    assert await events(handle, "output", "exited") == []
    gate.touch()
    assert (await handle.result(WAITS))["exit_code"] == 0
