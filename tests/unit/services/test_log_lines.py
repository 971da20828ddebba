"""T-AUD-02: no text of others forges a line of the log, moves a cursor or fills a disk."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure import Agent, Runtime, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.log_lines import LOGGERS

FORGED = "boom\nCRITICAL:perdure.audit:approved by=ceo \x1b[31m\u202e\r\n"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a host with the plainest formatter writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    yield written
    root.removeHandler(handler)


async def fail_with(message: str) -> None:
    @tool
    async def bad() -> str:
        """Fail."""
        raise RuntimeError(message)

    script = ScriptedModel(call("bad"), say("ok"))
    async with Runtime("memory://", agents=[Agent("a", model=script, tools=[bad])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")


async def test_t_aud_02_exception_of_a_tool_forges_no_log_line(log: io.StringIO) -> None:
    await fail_with(FORGED)
    written = log.getvalue()
    assert "approved by=ceo" in written
    assert not [line for line in written.split("\n") if line.startswith("CRITICAL")]
    assert not re.search("[\x1b\u202e\r]", written)


async def test_t_aud_02_log_of_a_large_exception_is_bounded(log: io.StringIO) -> None:
    await fail_with("A" * 1_000_000)
    assert len(log.getvalue()) < 50_000


@pytest.mark.parametrize("name", LOGGERS)
def test_t_aud_02_fields_are_escaped_by_every_logger(log: io.StringIO, name: str) -> None:
    logging.getLogger(name).error("act failed by=%s times=%d named=%r", FORGED, 3, "x\n")
    logging.getLogger(name).error("act failed problem=%(problem)s", {"problem": FORGED})
    assert len(log.getvalue().splitlines()) == 2
    assert "times=3" in log.getvalue()


def test_t_aud_02_names_of_all_loggers_are_known() -> None:
    modules = Path(perdure.__file__).parent.rglob("*.py")
    found = {name for one in modules for name in re.findall(r'getLogger\("(perdure\.[\w.]+)"\)', one.read_text())}
    assert found <= set(LOGGERS)
