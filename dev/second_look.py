"""A pytest plugin that forgives the known unstable tests: `pytest -p dev.second_look`.

`tests/unstable.toml` lists the tests that lose a race at times, each with a date and a cause. A failed test of the list
is run again alone. The run passes if every failed test is on the list and passes alone `LOOKS` times in a row.
A failed test outside the list fails the run, even if the test passes alone. Laws are never forgiven.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

LIST = Path("tests", "unstable.toml")
LONGEST = 5
LOOKS = 3
FEW = 3
LAWS = (
    "tests/conformance/",
    "tests/crash/",
    "tests/chaos/",
    "tests/scenarios/test_order_of_durability.py",
    "tests/scenarios/test_takeover.py",
    "tests/scenarios/test_store_faults.py",
)


def listed(root: Path) -> list[str]:
    """Return the ids of the unstable tests. Raise `ValueError` if the list breaks its rules."""
    file = root / LIST
    entries = tomllib.loads(file.read_text()).get("test", []) if file.exists() else []
    if len(entries) > LONGEST:
        raise ValueError(f"{LIST} lists {len(entries)} tests, at most {LONGEST} are allowed: mend one first")
    for entry in entries:
        if set(entry) != {"id", "since", "cause"} or not entry["cause"] or type(entry["since"]) is not datetime.date:
            raise ValueError(f"{LIST}: an entry has an id, a date `since` and a cause, not {entry}")
        if entry["id"].startswith(LAWS):
            raise ValueError(f"{LIST}: {entry['id']} is a law, and a law is never unstable")
        path, _, name = entry["id"].partition("::")
        if not (root / path).is_file() or f"def {name.partition('[')[0]}(" not in (root / path).read_text():
            raise ValueError(f"{LIST}: unknown test {entry['id']}")
    return [entry["id"] for entry in entries]


def known(name: str, unstable: Iterable[str]) -> bool:
    """Return True if a test, or the function that its parameters belong to, is on the list."""
    return name in unstable or name.partition("[")[0] in unstable


def passes_alone(name: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", name]
    return all(subprocess.run(command, check=False).returncode == pytest.ExitCode.OK for _ in range(LOOKS))


class SecondLook:
    def __init__(self, unstable: list[str]) -> None:
        self.unstable = unstable
        self.failed: dict[str, None] = {}
        self.unread = False  # a file could not be collected
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.unread |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge only a complete run: an interrupted run has tests without a result."""
        complete = exitstatus == pytest.ExitCode.TESTS_FAILED and not self.unread
        laws = any(name.startswith(LAWS) for name in self.failed)
        if not complete or laws or len(self.failed) > FEW:
            return
        alone = {name: passes_alone(name) for name in self.failed}
        for name in (name for name, passed in alone.items() if passed):
            listing = "listed" if known(name, self.unstable) else f"not in {LIST}: mend it"
            self.lines.append(f"UNSTABLE {name} (failed in the run, passed alone {LOOKS} times, {listing})")
        if all(passed and known(name, self.unstable) for name, passed in alone.items()):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # only the controller of xdist sees the reports of all tests
        return
    try:
        config.pluginmanager.register(SecondLook(listed(config.rootpath)))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
