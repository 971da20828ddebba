"""Background runs: the results and events of their tools, and the stored part of their output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec import Json
from perdure.services.tasks import TaskProgress
from perdure.vocab.notifications import notification

MAX_ACTIVE_PER_SESSION = 5
MAX_ACTIVE_PER_WORKER = 64
MAX_LOG_CHARS = 256 * 1024
MAX_TAIL_CHARS = 2048

BackgroundProgress = TaskProgress


@dataclass(frozen=True, slots=True)
class BackgroundOutcome:
    """The result of a run: a summary, a value, and the full output if it exceeds the streamed one."""

    summary: str
    result: Json = None
    raw_output: str | None = None


class BackgroundEventSink(Protocol):
    """Live notifications of a run. Best effort: a failed notification fails nothing."""

    async def status(self, message: str) -> None:
        """Report the current activity."""
        ...

    async def output(self, stream: str, delta: str) -> None:
        """Report a piece of output."""
        ...

    async def progress(self, progress: BackgroundProgress) -> None:
        """Report the progress."""
        ...


@dataclass(slots=True)
class OutputLog:
    """The output of a run: its beginning, up to a limit, and its last characters."""

    tail: str = ""
    _kept: list[str] = field(default_factory=list[str])
    _chars: int = 0
    _truncated: bool = False

    def add(self, stream: str, delta: str) -> None:
        """Append a piece of output. Empty pieces are ignored."""
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
        """Return the stored output, with a notice if it was truncated."""
        return "".join(self._kept) + (_NOTICE if self._truncated else "")


_NOTICE = f"\n[system] background output truncated at {MAX_LOG_CHARS} characters\n"


def capped(raw: str) -> str:
    """Return a run's full output, truncated to the storage limit."""
    return raw if len(raw) <= MAX_LOG_CHARS else raw[:MAX_LOG_CHARS] + _NOTICE


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One attempt of a run, with the paths of its files."""

    run_id: str
    title: str
    tool: str

    @property
    def artifact_dir(self) -> str:
        """Directory of the run's files."""
        return f"/.background/{self.run_id}"

    @property
    def log_path(self) -> str:
        """Path of the printed output."""
        return f"{self.artifact_dir}/output.log"

    @property
    def result_path(self) -> str:
        """Path of the result."""
        return f"{self.artifact_dir}/result.json"

    def signal(self, status: str, summary: str) -> str:
        """Return the message sent to the session when the run ends."""
        fields = {
            "run_id": self.run_id,
            "title": self.title,
            "tool": self.tool,
            "summary": summary,
            "result_path": self.result_path,
            "log_path": self.log_path,
        }
        return notification(f"Background run {status}.", fields, text="summary")
