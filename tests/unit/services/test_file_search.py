"""Searches in files: limits of pattern, text, result and time."""

from __future__ import annotations

import random

import pytest

from perdure.errors import Code, Error
from perdure.services.files import search as searching
from perdure.services.files.search import check_pattern, search, wanted_paths
from perdure.services.files.shapes import GrepMatch

LETTERS = "".join(random.Random(0).choices("ab", k=500_000))

HOSTILE = [
    "[ab]*a[ab]{900}c",
    "(a|b)*a(a|b){300}c",
    ".*a.{900}c",
    r"[^\n]*b[^\n]{900}\x00",
]


@pytest.mark.parametrize("pattern", HOSTILE)
async def test_s3_t_tool_03_pattern_exceeds_the_budget_as_an_error(pattern: str) -> None:
    check_pattern(pattern)
    with pytest.raises(Error) as caught:
        await search(pattern, [(f"/{n}.txt", LETTERS) for n in range(10)])
    assert caught.value.code is Code.FILE_LIMIT_EXCEEDED
    assert caught.value.because == "more than 0.5 s of CPU time"


async def test_s3_t_tool_03_search_after_a_stopped_one_finds_lines() -> None:
    with pytest.raises(Error):
        await search(HOSTILE[0], [("/a.txt", LETTERS * 10)])
    texts = [("/a.txt", "one\r\ntwo\n"), ("/b.txt", "none\nTwo\n\u5b57two")]
    assert await search("two$", texts) == (GrepMatch("/a.txt", 2, "two"), GrepMatch("/b.txt", 3, "\u5b57two"))


async def test_ordinary_pattern_searches_the_largest_text() -> None:
    text = "a line of forty characters, as in a book\n" * 12_500
    assert await search("needle", [(f"/{n}.txt", text) for n in range(10)]) == ()


@pytest.mark.parametrize("pattern", ["(?=a)", "(", r"(a)\1"])
async def test_pattern_that_the_engine_refuses_is_invalid(pattern: str) -> None:
    with pytest.raises(Error) as caught:
        await search(pattern, [("/a.txt", "a")])
    assert caught.value.code is Code.FILE_PATTERN_INVALID


async def test_result_is_limited_in_matches_and_characters() -> None:
    assert len(await search("", [("/a.txt", "x\n" * 20_000)])) == searching.MAX_MATCHES
    (cut,) = await search("x", [("/a.txt", "x" * 5_000)])
    assert cut.line == "x" * searching.MAX_MATCH_CHARS
    long = await search("x", [("/a.txt", ("x" * 3_000 + "\n") * 100) for _ in range(10)])
    assert sum(len(one.line) for one in long) <= searching.MAX_MATCHED_CHARS + searching.MAX_MATCH_CHARS


async def test_t44_globs_select_the_same_paths_here_and_in_the_child() -> None:
    few = ["/src/a.py", "/src/b.txt", "/c.py"]
    many = [*few, *(f"/d/{n}.md" for n in range(200))]
    for pattern in ("*.py", "/src/*", "src/*.py", "b.t", " ", None):
        found = await wanted_paths(pattern, few)
        assert [path for path in await wanted_paths(pattern, many) if path in few] == found
    assert await wanted_paths("*.py", few) == ["/src/a.py", "/c.py"]
