"""SIGTERM and SIGINT as requests: the first drains, the second stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal


class OsSignals:
    """The stop requests sent to this process, received on the running loop."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C interrupts at once
                loop.add_signal_handler(number, self._asked)

    def _asked(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
