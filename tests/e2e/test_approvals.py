"""`perdure approvals`, from another process than the worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import Agent, Runtime, Tuning, tool
from perdure.models.scripted import ScriptedModel, call, say
from tests.e2e.command import Ran, perdure


async def test_a_person_decides_from_another_process(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    path = tmp_path / "s.db"

    async def command(*args: str) -> Ran:
        return await asyncio.to_thread(perdure, "approvals", *args, "--db", str(path), cwd=tmp_path)

    agent = Agent("bank", model=ScriptedModel(call("refund", cents=700), say("done")), tools=[refund])
    async with Runtime(f"sqlite:///{path}", agents=[agent], tuning=Tuning(patience_s=0.0)) as rt:
        sent = await (await rt.session("s", agent="bank")).send("go")
        async with asyncio.timeout(20):
            while not await rt.approvals.list():  # noqa: ASYNC110 - it is asked by the worker
                await asyncio.sleep(0.01)
        (listed,) = (await command("list", "--json")).objects
        assert (listed["type"], listed["tool"], listed["arguments"]) == ("approval", "refund", {"cents": 700})
        assert (listed["status"], listed["decided_by"]) == ("waiting", None)
        id = str(listed["id"])
        shown = await command("list")
        assert id in shown.out
        assert "1 decision waiting" in shown.err
        assert (await command("approve", id, "--edit", '{"cents": "x"}', "--by", "ana")).code == 2
        assert (await command("approve", id, "--edit", "{", "--by", "ana")).code == 2
        assert (await command("approve", "apr_ffffffffffffffff", "--by", "ana")).code == 3
        approved = await command("approve", id, "--edit", '{"cents": 400}', "--by", "ana")
        assert (approved.code, approved.out) == (0, f"{id}  approved by ana\n")
        late = await command("deny", id, "--by", "bob", "--reason", "no")
        assert late.code == 4
        assert "already decided by ana: approved at" in late.err
        assert (await sent.result(20)).text.startswith("done")
        assert paid == [400]
        (told,) = (await command("show", id, "--json")).objects
        assert (told["status"], told["decided_by"], told["via"]) == ("approved", "ana", "cli")
        assert (told["edited"], told["used_at"] is None) == ({"cents": 400}, False)
        empty = await command("list")
        assert (empty.code, empty.out, empty.err) == (0, "", "Nothing waits for you.\n")
