"""Due times of five-field cron expressions in a time zone, including daylight saving changes.

In the skipped hour, due times move to the end of the jump. In the repeated hour, they are due the first time.
Expressions that are due every hour or every few minutes follow elapsed time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING

from perdure.errors import Code, Error

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MIN_INTERVAL_MS = 300_000
_LOOK_AHEAD = 400  # a day of due times every five minutes, including midnight
_LOOK_AHEAD_MS = 8 * 86_400_000
_OF_THIS_MACHINE = frozenset({"localtime", "posixrules", "Factory"})
"""Names of machine-specific zone files, which differ between machines."""
_WITH_LEAP_SECONDS = ("right/", "posix/")
MAX_CRON_CHARS = 500
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name.

    Raises:
        Error: `schedule_zone_unknown`.
    """
    import zoneinfo  # reads its data at import

    try:
        if name in _OF_THIS_MACHINE or name.startswith(_WITH_LEAP_SECONDS):
            raise KeyError(name)
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as problem:
        known = bool(zoneinfo.available_timezones())
        raise Error(
            Code.SCHEDULE_ZONE_UNKNOWN,
            f"unknown time zone {name!r}",
            because="" if known else "this machine has no IANA time zone data",
            hint="use a name such as Europe/Berlin or UTC" if known else "install the package tzdata",
            timezone=name,
        ) from problem


def due_after(cron: str, timezone: str, after_ms: int) -> Iterator[int]:
    """Yield the due times later than `after_ms`, in order and without duplicates.

    Raises:
        Error: `schedule_invalid` for an invalid cron expression, `schedule_zone_unknown`.
    """
    zone = zone_of(timezone)
    start = datetime.fromtimestamp(after_ms / 1000, tz=UTC).astimezone(zone)
    last = after_ms
    for moment in _simulate(cron, start):
        due = int(moment.timestamp() * 1000)
        if due > last:
            last = due
            yield due


def _simulate(cron: str, start: datetime) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError

    if len(cron) > MAX_CRON_CHARS:
        raise _no_cron(f"{cron[:20]}…", f"the limit is {MAX_CRON_CHARS} characters")
    if len(cron.split()) != 5:
        raise _no_cron(cron, f"{len(cron.split())} fields instead of five")
    try:
        return iter(CronSim(cron, start))
    except CronSimError as problem:
        raise _no_cron(cron, str(problem)) from None


def _no_cron(cron: str, because: str) -> Error:
    return Error(
        Code.SCHEDULE_INVALID,
        f"invalid cron expression {cron!r}",
        because=because,
        hint="minute, hour, day of month, month, day of week: '30 9 * * 1-5' is 09:30 from Monday to Friday",
    )


def check_cron(cron: str, timezone: str, after_ms: int) -> None:
    """Reject an expression that is never due, or too often.

    Raises:
        Error: `schedule_invalid`, `schedule_zone_unknown`.
    """
    if next(due_after(cron, timezone, after_ms), None) is None:
        raise _no_cron(cron, "the expression is never due")
    start = int(_EPOCH.timestamp() * 1000)
    first = next(due_after(cron, "UTC", start))
    soon = takewhile(lambda moment: moment < first + _LOOK_AHEAD_MS, due_after(cron, "UTC", start))
    gaps = [later - sooner for sooner, later in pairwise(islice(soon, _LOOK_AHEAD))]
    if gaps and min(gaps) < MIN_INTERVAL_MS:
        raise Error(
            Code.SCHEDULE_INVALID,
            f"{cron!r} is due every {min(gaps) // 1000} s",
            because=f"the minimum interval is {MIN_INTERVAL_MS // 1000} s",
            hint="use a longer interval, or a process that sleeps between steps",
        )
