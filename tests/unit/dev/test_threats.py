"""The threat page is a function of the ids, the guards and the tests."""

from __future__ import annotations

import pytest

from dev.threats.__main__ import Threat, Wrong, filled, ids_of_guards, ids_of_tests, listed, page


def threats(**more: str) -> dict[str, Threat]:
    return {"S9": Threat("S9", "Store", "Swap.", more.get("open", ""), more.get("accepted", ""))}


def test_threat_with_guard_and_test_is_mitigated() -> None:
    found = threats()
    filled(
        found,
        {"src/a.py": "check()  # threat: S9\n"},
        {"tests/b.py": "def test_s9_swap(): ...\nasync def test_s09_drop(): ..."},
    )
    assert found["S9"].row == "| S9 | Store | Swap. | `src/a.py` | `tests/b.py` (2) | MITIGATED |"


@pytest.mark.parametrize(
    ("sources", "tests", "status"),
    [
        ({}, {}, "OPEN: no guard and no test"),
        ({"a.py": "# threat: S9"}, {}, "OPEN: no test"),
        ({}, {"b.py": "def test_s9_x(): ..."}, "OPEN: no guard"),
        ({}, {"b.py": "def test_swap_as_in_s9_x(): ...\ndef helper_s9_x(): ..."}, "OPEN: no guard and no test"),
    ],
)
def test_threat_without_guard_or_test_is_open(sources: dict[str, str], tests: dict[str, str], status: str) -> None:
    found = threats()
    filled(found, sources, tests)
    assert found["S9"].status == status


@pytest.mark.parametrize(("word", "status"), [("open", "OPEN: why"), ("accepted", "ACCEPTED: why")])
def test_reason_outweighs_guard_and_test(word: str, status: str) -> None:
    found = threats(**{word: "why"})
    filled(found, {"a.py": "# threat: S9"}, {"b.py": "def test_s9_x(): ..."})
    assert found["S9"].status == status


def test_comment_and_name_may_have_several_ids() -> None:
    assert ids_of_guards("x = 1  # threat: S1, T-TOOL-02\n") == ["S1", "T-TOOL-02"]
    assert ids_of_tests("class TestA:\n    def test_s1_t_tool_02_x(self): ...") == ["S1", "T-TOOL-02"]


@pytest.mark.parametrize("comment", ["# threat: S1 and more", "# threat: T-SEC-4", "# threat:", "# threat: S0"])
def test_comment_without_an_id_is_an_error(comment: str) -> None:
    with pytest.raises(Wrong):
        ids_of_guards(comment)


def test_unknown_id_is_an_error_everywhere() -> None:
    for sources, tests in (({"a.py": "# threat: S26"}, {}), ({}, {"b.py": "def test_t_xyz_01_x(): ..."})):
        with pytest.raises(Wrong, match=r"S26|T-XYZ-01"):
            filled(threats(), sources, tests)
    with pytest.raises(Wrong, match="S26"):
        page("S26 {table}", threats().values())


@pytest.mark.parametrize(
    "row",
    [
        'area = "A"',
        'area = "A"\nattack = "B"\nstatus = "MITIGATED"',
        'area = "A"\nattack = "B"\nopen = "x"\naccepted = "y"',
        'area = "A"\nattack = " "',
    ],
)
def test_incomplete_row_is_an_error(row: str) -> None:
    with pytest.raises(Wrong):
        listed(f"[S1]\n{row}")
