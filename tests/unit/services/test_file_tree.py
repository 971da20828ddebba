"""Changes of a file tree, and its limits without real bytes."""

from __future__ import annotations

import pytest

from perdure.codec import encode
from perdure.errors import Code, Error
from perdure.ids import Seq, SessionId
from perdure.services.files.shapes import MAX_FILE_BYTES, MAX_SESSION_BYTES
from perdure.services.files.tree import MAX_ENTRIES, Node, Tree, blob_name

S = SessionId("s")


def tree(**sizes: int) -> Tree:
    nodes = {f"/{name}": Node(name, 1, 1, hash=f"h-{name}", size=size) for name, size in sizes.items()}
    return Tree(S, Seq(1), nodes)


def refusal(trees: Tree, path: str, content: str) -> Error:
    with pytest.raises(Error) as caught:
        trees.writing(path, (content, "text"), "by")
    assert caught.value.code is Code.FILE_LIMIT_EXCEEDED
    return caught.value


def test_the_limits_are_those_of_the_documents() -> None:
    assert (MAX_FILE_BYTES, MAX_SESSION_BYTES) == (100 * 1024 * 1024, 500 * 1024 * 1024)


def test_a_session_has_room_for_so_many_bytes_and_no_more() -> None:
    full = tree(a=MAX_SESSION_BYTES - 3)
    assert full.writing("/b", ("123", "text"), "by").record.put[0].size == 3
    assert "500" not in refusal(full, "/b", "1234").hint
    assert full.writing("/a", ("1234", "text"), "by").record.put[0].size == 4, "replaced bytes make room"


def test_a_file_has_room_for_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.services.files.tree.MAX_FILE_BYTES", 5)
    assert tree().writing("/a", ("12345", "text"), "by").record.put[0].size == 5
    refusal(tree(), "/a", "123456")
    refusal(tree(), "/a", "ääa€")


def test_a_session_has_so_many_files_and_no_more() -> None:
    crowded = tree(**{f"f{n}": 1 for n in range(MAX_ENTRIES - 1)})
    crowded.writing("/last", ("x", "text"), "by")
    refusal(crowded, "/d/last", "x")
    with pytest.raises(Error) as caught:
        crowded.making("/a/b", "by")
    assert caught.value.code is Code.FILE_LIMIT_EXCEEDED


def test_blob_without_remaining_path_is_released() -> None:
    before = tree(a=1, b=1)
    before.nodes["/c"] = before.nodes["/a"]
    change = before.removing("/a", "by", recursive=False)
    assert change is not None
    after = Tree(S, before.seq, dict(before.nodes))
    after.fold(change.record, Seq(2), 2)
    assert before.let_go(change.record, after) == ()
    after.nodes.pop("/c")
    assert before.let_go(change.record, after) == (blob_name("h-a"),)


def test_a_removed_directory_takes_no_neighbour_with_it() -> None:
    full = Tree(S, Seq(1), {"/d": Node("d", 1, 1), "/d/x": Node("x", 1, 1, hash="h"), "/dx": Node("n", 1, 1, hash="h")})
    change = full.removing("/d", "by", recursive=True)
    assert change is not None
    full.fold(change.record, Seq(2), 2)
    assert list(full.nodes) == ["/dx"]


def test_the_record_of_a_change_is_frozen() -> None:
    change = tree().writing("/d/a", ("one\n", "text"), "by")
    assert encode(change.record).decode() == (
        '{"by":"by","made":["/d"],"put":[{"path":"/d/a",'
        '"hash":"2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806",'
        '"size":4,"encoding":"text","readonly":false}]}'
    )
    assert [blob.hash for blob in change.blobs] == [
        "39b38db055c98f5e66af58449ae55c3413debc880726b242f9d6bfdec2afcb8f",
    ]
