"""Lines of `perdure doctor` that depend on a count."""

import pytest

from perdure.store.shapes import unfinished


@pytest.mark.parametrize(
    ("stuck", "status", "detail"),
    [
        (0, "ok", "no unfinished stream is without a live worker"),
        (1, "warn", "1 unfinished stream has no live worker; any worker can claim it"),
        (2, "warn", "2 unfinished streams have no live worker; any worker can claim them"),
    ],
)
def test_unfinished_streams_are_counted_in_words(stuck: int, status: str, detail: str) -> None:
    assert (unfinished(stuck).status, unfinished(stuck).detail) == (status, detail)
