"""The workers of a run: real `perdure worker` processes that are killed, stopped, thawed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.chaos.app import LEASE_S, SKEW_MS, WORLD
from tests.chaos.schedule import SKEWS_MS

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Place:
    """Where the run keeps what it leaves."""

    folder: Path
    url: str
    lease_s: float

    @property
    def world(self) -> Path:
        """The outside ledger."""
        return self.folder / "world"


def environment(place: Place, **more: str) -> dict[str, str]:
    """Ours, without what would change how perdure behaves."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "PYTHON"))}
    ours = {WORLD: str(place.world), LEASE_S: str(place.lease_s), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return {**clean, **ours, **more}


@dataclass
class Worker:
    """One place in the fleet; a dead worker in it is replaced."""

    place: Place
    index: int
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0
    fell: list[int] = field(default_factory=list[int])
    """How those ended whom nobody killed."""
    _log: IO[bytes] | None = None
    _begins_at: int = 0

    @property
    def log(self) -> Path:
        """What those who were here said."""
        return self.place.folder / f"worker-{self.index}.log"

    @property
    def ready(self) -> bool:
        """Whether the one that is there has begun to work."""
        if self.process is None or self.process.poll() is not None:
            return False
        return b" is ready: " in self.log.read_bytes()[self._begins_at :]

    def start(self) -> None:
        """Start one, if none is there."""
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None and self.process.returncode != -signal.SIGKILL:
            self.fell.append(self.process.returncode)
        if self._log is None:
            self._log = self.log.open("ab")
        self._begins_at = self.log.stat().st_size
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "perdure", "worker", "tests.chaos.app:app", "--db", self.place.url],
            cwd=self.place.folder,
            env=environment(self.place, **{SKEW_MS: str(SKEWS_MS[self.index])}),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the one that is there."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.kills += 1

    def end(self, timeout_s: float) -> int | None:
        """SIGTERM; its exit code, or None if it did not end in time."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def remove(self) -> None:
        """Nothing of it stays."""
        self.kill()
        if self._log is not None:
            self._log.close()
