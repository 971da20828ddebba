"""Lines of servers over stdio: whole ones, however they come in pieces."""

from __future__ import annotations

import codecs

import pytest

from perdure.tools.mcp import lines
from perdure.tools.mcp.lines import ENCODING, LEFT_OUT, Lines

SAID = "one\nzwei — ☃\n\nthree\nbegun".encode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    decoder = codecs.getincrementaldecoder(ENCODING)("strict")
    pieces = [SAID[at : at + size] for at in range(0, len(SAID), size)]
    heard = [decoder.decode(piece) for piece in pieces]
    assert "".join(heard) == "one\nzwei — ☃\n\nthree\n", "incomplete lines are held back"
    assert all(one.endswith("\n") for one in heard if one)


def test_undecodable_bytes_are_replaced_and_other_lines_read() -> None:
    assert Lines().decode(b"\xff\xfe\nfine\n") == "\ufffd\ufffd\nfine\n"


def test_a_line_that_is_too_long_is_left_out_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    decoder = Lines()
    for _ in range(5):
        assert decoder.decode(b"12345") == ""
    assert decoder.decode(b"6\nfine\n1234567890\n") == f"{LEFT_OUT}fine\n1234567890\n"


def test_messages_to_a_server_are_utf_8() -> None:
    assert "☃\n".encode(ENCODING) == "☃\n".encode()
