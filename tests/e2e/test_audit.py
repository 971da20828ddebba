"""`perdure audit list`: one escaped line per entry, whatever its fields contain."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path

from perdure import Agent, Runtime
from perdure.models.scripted import ScriptedModel, say
from tests.e2e.command import Ran, in_this_process

HOSTILE = '\n2026-01-01 forged\r\x1b[31mred\x1b[0m\u202e{"type":"act"}"\\\u2028'


async def acted(path: Path) -> None:
    """Leave three entries, one of them hostile."""
    async with Runtime(f"sqlite:///{path}", agents=[Agent("a", model=ScriptedModel(say("done")))]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("hello")
        await session.pause(by="ann" + HOSTILE + "ü" * 1500, via=HOSTILE)
        await session.resume(by="ben")


async def test_t_aud_02_hostile_entry_is_one_line_of_text_and_of_json(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await acted(path)

    async def command(*args: str) -> Ran:
        return await asyncio.to_thread(in_this_process, *args, "--db", str(path))

    exported = await command("sessions", "export", "s", "-o", str(tmp_path / "export"))
    assert exported.code == 0
    told = await command("audit", "list")
    assert told.code == 0
    lines = told.out.splitlines()
    assert len(lines) == 4  # the titles, and one line per entry
    assert [line.split()[1] for line in lines[1:]] == ["session_exported", "session_resumed", "session_paused"]
    assert "3 acts." in told.err
    assert not any(ord(char) < 32 or char in "\x7f\u202e\u2028" for char in told.out.replace("\n", ""))
    assert len(lines[3]) < 300
    listed = await command("audit", "list", "--json")
    assert [one["act"] for one in listed.objects] == ["session_exported", "session_resumed", "session_paused"]
    assert listed.out.isascii() or not any(char in listed.out for char in "\x1b\u202e\u2028")
    exporter, _, hostile = listed.objects
    assert (exporter["by"], exporter["via"], exporter["session"]) == (getpass.getuser(), "cli", "s")
    assert len(str(hostile["by"])) == 512
    [ben] = (await command("audit", "list", "--by", "ben", "--since", "1h", "--json")).objects
    assert ben["act"] == "session_resumed"
    assert (await command("audit", "list", "--session", "other")).err == "No audited acts.\n"
    assert (await command("audit", "list", "--act", "spied")).code == 2
