"""A pytest plugin: what failed in the crowd is tried alone, so that one late answer in ten thousand refuses no change.

`pytest -p dev.second_look`. A test that then passes `LOOKS` times in a row is named as unstable, in the last lines of
the run: it is mended before anything else is. Laws are not looked at again: one that was broken once is broken.
Neither is a run in which more than `FEW` failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

LOOKS = 3
FEW = 3
LAWS = ("tests/conformance/", "tests/crash/", "tests/chaos/")


def worth_a_look(failed: Iterable[str]) -> bool:
    names = list(failed)
    return 0 < len(names) <= FEW and not any(name.startswith(LAWS) for name in names)


def passes_alone(name: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", name]
    return all(subprocess.run(command, check=False).returncode == pytest.ExitCode.OK for _ in range(LOOKS))


class SecondLook:
    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.unread = False  # there is a file whose tests nobody has seen
        self.unstable: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.unread |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Only a run that came to its end is judged: one that was broken off has tests that nobody has seen."""
        ended = exitstatus == pytest.ExitCode.TESTS_FAILED and not self.unread
        if ended and worth_a_look(self.failed) and all(map(passes_alone, self.failed)):
            self.unstable = list(self.failed)
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self.unstable:
            terminalreporter.write_line(f"UNSTABLE {name} (failed in the crowd, passed alone {LOOKS} times)", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that hears of all tests, not one of those that run them
        config.pluginmanager.register(SecondLook())
