"""Runs in the background: what a tool that can do that offers, what it is given, and what is kept of its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec import Json
from perdure.services.tasks import TaskProgress

MAX_ACTIVE_PER_SESSION = 5
MAX_ACTIVE_PER_WORKER = 64
MAX_LOG_CHARS = 256 * 1024
MAX_TAIL_CHARS = 2048

BackgroundProgress = TaskProgress


@dataclass(frozen=True, slots=True)
class BackgroundOutcome:
    """What a run came to: a sentence, a value, and the whole of its output if that is more than it said on the way."""

    summary: str
    result: Json = None
    raw_output: str | None = None


class BackgroundEventSink(Protocol):
    """What a run tells while it works. Best effort: nothing fails because nobody could be told."""

    async def status(self, message: str) -> None:
        """What it is doing."""
        ...

    async def output(self, stream: str, delta: str) -> None:
        """A piece of what it prints."""
        ...

    async def progress(self, progress: BackgroundProgress) -> None:
        """How far it is."""
        ...


@dataclass(slots=True)
class OutputLog:
    """What a run has printed: the beginning, up to a limit, and the last characters of it."""

    tail: str = ""
    _kept: list[str] = field(default_factory=list[str])
    _chars: int = 0
    _truncated: bool = False

    def add(self, stream: str, delta: str) -> None:
        """Take a piece in. An empty one is nothing."""
        if not delta:
            return
        piece = f"[{stream}] {delta}"
        self.tail = (self.tail + piece)[-MAX_TAIL_CHARS:]
        room = MAX_LOG_CHARS - self._chars
        self._truncated = self._truncated or len(piece) > room
        if room > 0:
            self._kept.append(piece[:room])
            self._chars += min(len(piece), room)

    def text(self) -> str:
        """All that was kept, and a notice if there was more."""
        return "".join(self._kept) + (_NOTICE if self._truncated else "")


_NOTICE = f"\n[system] background output truncated at {MAX_LOG_CHARS} characters\n"


def capped(raw: str) -> str:
    """The whole output of a run, as far as it is kept."""
    return raw if len(raw) <= MAX_LOG_CHARS else raw[:MAX_LOG_CHARS] + _NOTICE


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of a run: where it leaves what it made."""

    run_id: str
    title: str
    tool: str

    @property
    def artifact_dir(self) -> str:
        """The directory of its files."""
        return f"/.background/{self.run_id}"

    @property
    def log_path(self) -> str:
        """What it printed."""
        return f"{self.artifact_dir}/output.log"

    @property
    def result_path(self) -> str:
        """What it came to."""
        return f"{self.artifact_dir}/result.json"

    def signal(self, status: str, summary: str) -> str:
        """What its session is told when it is over."""
        return (
            f"Background run {status}.\n- run_id: {self.run_id}\n- title: {self.title}\n- tool: {self.tool}\n"
            f"- summary: {summary}\n- result_path: {self.result_path}\n- log_path: {self.log_path}"
        )
