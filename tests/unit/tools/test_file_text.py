"""Windows of a text file for the model, and edits of it."""

from __future__ import annotations

import pytest

from perdure.tools.errors import ToolError
from perdure.tools.file_text import MAX_SHOWN_BYTES, Edit, diff, edited, window


def numbered(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(1, count + 1))


# --- windows


@pytest.mark.parametrize(
    ("name", "total", "first", "last"),
    [
        ("a.md", 3000, 1, 2000),
        ("a.log", 3000, 2501, 3000),
        ("a.log", 3, 1, 3),
        ("a.csv", 3000, 1, 101),
        ("a.tsv", 50, 1, 50),
        ("a.min.js", 3000, 1, 20),
    ],
)
def test_default_window_depends_on_the_file(name: str, total: int, first: int, last: int) -> None:
    seen = window(name, numbered(total), None, None)
    assert (seen.first, seen.last, seen.total) == (first, last, total)
    assert seen.truncated is (total > 500 or (first, last) != (1, total))
    assert seen.text.splitlines()[0] == f"{first}|line {first}"


def test_lines_that_are_asked_for_are_shown() -> None:
    seen = window("a.log", numbered(10), 4, 2)
    assert (seen.text, seen.first, seen.last, seen.truncated) == ("4|line 4\n5|line 5", 4, 5, True)
    assert window("a.md", numbered(10), 11, 5).text == ""
    assert window("a.md", numbered(10), -3, 0).text == "1|line 1"
    assert window("a.md", numbered(3000), 1, 99_999).last == 2000


def test_an_empty_file_has_no_lines() -> None:
    seen = window("a.md", "", None, None)
    assert (seen.text, seen.total, seen.last, seen.truncated) == ("", 0, 0, False)
    assert window("a.md", "\n", None, None).text == "1|"
    assert window("a.md", "\ufeffone\r\ntwo", None, None).text == "1|one\n2|two"


def test_nothing_longer_than_the_cap_is_shown() -> None:
    seen = window("a.md", ("x" * 999 + "\n") * 100, None, None)
    assert (seen.last, seen.truncated) == (49, True)
    assert len(seen.text.encode()) <= MAX_SHOWN_BYTES
    long = window("a.md", "ä" * 100_000, None, None)
    assert long.text.endswith(" […]")
    assert len(long.text.encode()) < MAX_SHOWN_BYTES + 10


# --- edits


def problem(text: str, *edits: tuple[str, str]) -> str:
    with pytest.raises(ToolError) as caught:
        edited(text, [Edit(*one) for one in edits])
    return caught.value.message


def test_edits_apply_to_the_text_as_it_was() -> None:
    assert edited("a b c", [Edit("c", "a"), Edit("a", "b"), Edit("b", "")]) == "b  a"


def test_an_edit_that_does_not_fit_is_refused() -> None:
    assert problem("a b a", ("a", "x")) == ("Edit 1: old_text occurs more than once in the file; include more context")
    assert problem("aaa", ("aa", "x")).startswith("Edit 1: old_text occurs more than once in the file")
    assert problem("a", ("a", "x"), ("b", "x")) == "Edit 2: old_text is not in the file"
    assert problem("abc", ("bc", "x"), ("ab", "y")) == "Edits 1 and 2 overlap"
    assert problem("abc", ("", "x")) == "Edit 1: old_text must not be empty"
    assert problem("abc") == "Missing required parameter: edits (at least one)"


def test_a_byte_order_mark_and_line_ends_stay() -> None:
    assert edited("\ufeffone\r\ntwo\r\n", [Edit("one\ntwo", "1\n2\n3")]) == "\ufeff1\r\n2\r\n3\r\n"
    assert edited("one\r\ntwo\n", [Edit("two", "2")]) == "one\r\n2\n"


# --- diffs


def test_a_diff_counts_lines_of_the_whole_file() -> None:
    old = numbered(100)
    new = old.replace("line 50\n", "fifty\n")
    assert diff("/f", old, new).splitlines() == [
        "--- /f",
        "+++ /f",
        "@@ -47,7 +47,7 @@",
        " line 47",
        " line 48",
        " line 49",
        "-line 50",
        "+fifty",
        " line 51",
        " line 52",
        " line 53",
    ]


def test_a_diff_is_no_longer_than_it_may_be() -> None:
    assert len(diff("/f", "a\n" * 1500, "".join(f"{n} {'b' * 20}\n" for n in range(1500)))) <= 16_004
    assert diff("/f", numbered(5000), "x\n" * 5000) == ""
    assert diff("/f", "same\n", "same\n") == ""
