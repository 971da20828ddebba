"""The ledger of the outside: one line per effect, from any process, never deduplicated."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from perdure.errors import Code, Error
from perdure.testing import Ledger, LedgerEntry, World
from perdure.testing.crash import Boundary, Crashed, Gate


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world.jsonl")


def test_before_anything_happens_there_is_nothing(world: World) -> None:
    assert world.ledger == Ledger()
    assert world.count() == 0
    assert not world.has("k")
    assert str(world.ledger) == "nothing"


def test_effects_are_counted_by_name_and_by_key(world: World) -> None:
    world.note("charge", key="a", cents=5)
    world.note("charge", key="a", cents=5)
    world.note("charge", key="b", cents=7)
    world.note("mail", to="ann")
    assert world.count() == 4
    assert (world.count("charge"), world.count("mail"), world.count("refund")) == (3, 1, 0)
    assert (world.count("charge", key="a"), world.count("mail", key="a"), world.count(key="a")) == (2, 0, 2)
    assert world.by_key("charge") == {"a": 2, "b": 1}
    assert world.by_key() == {"a": 2, "b": 1, "": 1}
    assert world.has("a")
    assert not world.has("c")
    assert [line.details for line in world.ledger] == [{"cents": 5}, {"cents": 5}, {"cents": 7}, {"to": "ann"}]


def test_a_ledger_is_what_it_was_when_it_was_read(world: World) -> None:
    world.note("charge", key="a")
    before = world.ledger
    world.note("charge", key="a")
    assert (len(before), len(world.ledger)) == (1, 2)


@pytest.mark.parametrize("times", [0, 2, 3])
def test_not_once_is_told_with_the_ledger(world: World, times: int) -> None:
    for n in range(times):
        world.note("charge", key=f"k{n}", cents=5)
    world.note("mail")
    with pytest.raises(AssertionError) as caught:
        world.assert_once("charge")
    lines = [f'charge  key=k{n}  {{"cents":5}}' for n in range(times)]
    said = f"'charge' happened {times} times, not once"
    assert str(caught.value).splitlines() == [said, "the ledger:", *lines, "mail  key=-"]


def test_once_is_once_at_all_or_under_a_key(world: World) -> None:
    world.note("charge", key="a")
    world.assert_once("charge")
    world.note("charge", key="b")
    world.assert_once("charge", key="a")
    with pytest.raises(AssertionError, match="happened 0 times under the key c, not once"):
        world.assert_once("charge", key="c")


@pytest.mark.parametrize("what", ["", " ", "\n"])
def test_an_effect_needs_a_name(world: World, what: str) -> None:
    with pytest.raises(Error) as caught:
        world.note(what)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert world.count() == 0


def test_details_are_json(world: World) -> None:
    with pytest.raises(Error) as caught:
        world.note("charge", card=object())
    assert caught.value.code is Code.INVALID_JSON
    assert "charge.card" in str(caught.value)


def test_hostile_names_and_details_come_back_as_they_were(world: World) -> None:
    world.note('a\n{"what":"b"}', key="\n:\u2028é😀", text="\n\x00", deep={"a": [1, None, 2.5]})
    (line,) = world.ledger
    assert (line.what, line.key) == ('a\n{"what":"b"}', "\n:\u2028é😀")
    assert line.details == {"text": "\n\x00", "deep": {"a": [1, None, 2.5]}}


def _note_many(path: str, name: str) -> None:
    world = World(path, fsync=False)
    for n in range(200):
        world.note(name, key=f"{name}-{n}", padding="x" * 300)


def test_processes_share_it_without_losing_or_tearing_a_line(world: World) -> None:
    forks = multiprocessing.get_context("forkserver")
    children = [forks.Process(target=_note_many, args=(str(world.path), name)) for name in ("ann", "bob", "cat")]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert (world.count("ann"), world.count("bob"), world.count("cat")) == (200, 200, 200)
    assert set(world.by_key().values()) == {1}
    assert len({line.pid for line in world.ledger}) == 3


def test_foreign_line_in_the_file_is_refused(world: World) -> None:
    world.path.write_text("hello\n")
    with pytest.raises(Error) as caught:
        _ = world.ledger
    assert caught.value.code is Code.INVALID_JSON


# --- behind a gate


def test_an_effect_has_a_boundary_on_each_side(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    passed: list[tuple[str, int]] = []
    gate = Gate(lambda boundary: passed.append((str(boundary), World(path).count())))
    World(path, gate=gate).note("charge  it\n")
    assert passed == [("world.1:before:charge it", 0), ("world.1:after:charge it", 1)]


def test_the_dead_do_nothing(tmp_path: Path) -> None:
    gate = Gate(lambda boundary: None)
    world = World(tmp_path / "world.jsonl", gate=gate)
    gate.dead = True
    with pytest.raises(Crashed):
        world.note("charge")
    assert world.count() == 0


@pytest.mark.parametrize(("side", "left"), [("before", 0), ("after", 1)])
def test_crash_at_an_effect_leaves_it_undone_or_done(tmp_path: Path, side: str, left: int) -> None:
    def on_boundary(boundary: Boundary) -> None:
        gate.dead = boundary.side == side

    gate = Gate(on_boundary)
    world = World(tmp_path / "world.jsonl", gate=gate)
    with pytest.raises(Crashed):
        world.note("charge")
    assert world.count() == left


def test_a_line_reads_well() -> None:
    assert str(LedgerEntry(what="charge")) == "charge  key=-"
    assert str(LedgerEntry(what="charge", key="k", details={"cents": 5})) == 'charge  key=k  {"cents":5}'
