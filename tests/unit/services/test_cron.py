"""When something is due, written down by hand: both changes of the clock in four zones, and what is refused."""

from __future__ import annotations

import zoneinfo
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from perdure.errors import Code, Error
from perdure.services.cron import check_cron, due_after, zone_of


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def due(cron: str, zone: str, after: str, count: int) -> list[str]:
    moments = islice(due_after(cron, zone, ms(after)), count)
    return [datetime.fromtimestamp(at / 1000, tz=ZoneInfo("UTC")).strftime("%m-%d %H:%M") for at in moments]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # Berlin, 29 March 2026: 02:00 CET is 03:00 CEST. What was due at 02:30 is due at 03:00, which is 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00+00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        # and what is due at 09:00 goes on at 09:00 by the clock on the wall
        ("0 9 * * *", "Europe/Berlin", "2026-03-28T00:00:00+00:00", ["03-28 08:00", "03-29 07:00", "03-30 07:00"]),
        # Berlin, 25 October 2026: 02:30 comes twice, and is due the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00+00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        # asked between the two half past twos, it is due the next day
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:45:00+00:00", ["10-26 01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15:00+00:00", ["10-26 01:30"]),
        # New York, 8 March 2026: 02:00 EST is 03:00 EDT.
        ("30 2 * * *", "America/New_York", "2026-03-07T00:00:00+00:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30"]),
        # New York, 1 November 2026: 01:30 comes twice.
        ("30 1 * * *", "America/New_York", "2026-10-31T00:00:00+00:00", ["10-31 05:30", "11-01 05:30", "11-02 06:30"]),
        # Lord Howe, 4 October 2026: the clock jumps by half an hour, from 02:00 to 02:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T16:00:00+00:00", ["10-03 15:30", "10-04 15:15"]),
        # no change of the clock: Kolkata is half an hour off all year
        ("0 9 * * 1-5", "Asia/Kolkata", "2026-11-13T00:00:00+00:00", ["11-13 03:30", "11-16 03:30", "11-17 03:30"]),
        ("0 0 29 2 *", "UTC", "2026-11-15T00:00:00+00:00", ["02-29 00:00"]),
        ("*/20 * * * *", "UTC", "2026-11-15T10:20:00+00:00", ["11-15 10:40", "11-15 11:00"]),
    ],
)
def test_cron_expression_is_due_at_the_expected_times(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert due(cron, zone, after, len(expected)) == expected


def test_every_hour_is_every_hour_through_both_changes_of_the_clock() -> None:
    spring = due("0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00+00:00", 4)
    assert spring == ["03-29 00:00", "03-29 01:00", "03-29 02:00", "03-29 03:00"]
    autumn = due("0 * * * *", "America/New_York", "2026-11-01T03:30:00+00:00", 4)
    assert autumn == ["11-01 04:00", "11-01 05:00", "11-01 06:00", "11-01 07:00"]


def test_two_moments_that_the_clock_makes_one_are_due_once() -> None:
    """02:00 does not exist that day and is due at 03:00, where another is due anyway."""
    assert due("0 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00+00:00", 2) == ["03-29 01:00", "03-30 00:00"]


@pytest.mark.parametrize(
    ("cron", "because"),
    [
        ("* * * *", "4 fields instead of five"),
        ("0 0 9 * * *", "6 fields instead of five"),
        ("61 * * * *", "Bad minute"),
        ("0 25 * * *", "Bad hour"),
        ("0 9 30 2 *", "Bad day-of-month"),
        ("nonsense every so often please", "Bad minute"),
    ],
)
def test_invalid_cron_expression_is_refused_with_the_reason(cron: str, because: str) -> None:
    with pytest.raises(Error) as caught:
        check_cron(cron, "UTC", ms("2026-11-15T00:00:00+00:00"))
    assert (caught.value.code, caught.value.because) == (Code.SCHEDULE_INVALID, because)
    assert "minute, hour" in (caught.value.hint or "")


@pytest.mark.parametrize("cron", ["* * * * *", "*/4 * * * *", "58,2 * * * *", "0,1 9 1 6 *", "0-10/2 3 * * 1"])
def test_cron_interval_below_five_minutes_is_refused(cron: str) -> None:
    with pytest.raises(Error, match="the minimum interval is 300 s"):
        check_cron(cron, "UTC", ms("2026-11-15T00:00:00+00:00"))


@pytest.mark.parametrize("cron", ["*/5 * * * *", "57,2 * * * *", "0 9 * * *", "0 0 29 2 *", "0 9 1 1 *"])
def test_cron_interval_of_five_minutes_is_accepted(cron: str) -> None:
    check_cron(cron, "Europe/Berlin", ms("2026-11-15T00:00:00+00:00"))


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "../../etc/passwd", "", "Europe", "Europe/Berlin\x00", "localtime", "right/UTC"]
)
def test_a_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(Error) as caught:
        zone_of(name)
    assert caught.value.code is Code.SCHEDULE_ZONE_UNKNOWN
    assert caught.value.hint == "use a name such as Europe/Berlin or UTC"


def test_a_machine_without_zones_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_name: str) -> ZoneInfo:
        raise KeyError("no data")

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    monkeypatch.setattr(zoneinfo, "available_timezones", lambda: set[str]())
    with pytest.raises(Error) as caught:
        zone_of("Africa/Nairobi")
    assert caught.value.because == "this machine has no IANA time zone data"
    assert caught.value.hint == "install the package tzdata"


def test_an_expression_as_long_as_a_book_is_refused() -> None:
    with pytest.raises(Error) as caught:
        check_cron(f"{'0' * 5000} * * * *", "UTC", 0)
    assert caught.value.code is Code.SCHEDULE_INVALID
