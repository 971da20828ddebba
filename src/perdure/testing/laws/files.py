"""The laws of session files, for any implementation, as tests to inherit.

    class TestMyFiles(FileLaws):
        @pytest.fixture
        def app(self) -> FileDesk:
            return FileDesk(MyFiles(...), MyFiles(...), SessionId("one"), SessionId("two"))

`FileDesk` has two handles on the same files, like two processes, and two existing sessions.
"""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable
from dataclasses import dataclass

import pytest

from perdure.errors import Code, Error
from perdure.ids import SessionId
from perdure.services.files.protocol import SessionFiles, SessionFileSystem
from perdure.services.files.shapes import InitialFile

PIXEL = b64encode(bytes(range(256))).decode()


@dataclass(frozen=True, slots=True)
class FileDesk:
    """Two handles on the same files, and two sessions."""

    files: SessionFileSystem
    others: SessionFileSystem
    session: SessionId
    other_session: SessionId

    @property
    def here(self) -> SessionFiles:
        """The first session's files, through the first handle."""
        return SessionFiles(self.files, self.session)

    @property
    def there(self) -> SessionFiles:
        """The first session's files, through the other handle."""
        return SessionFiles(self.others, self.session)


async def refused(awaitable: Awaitable[object]) -> Code:
    """Return the error code of a refused call."""
    with pytest.raises(Error) as caught:
        await awaitable
    return caught.value.code


async def said(files: SessionFiles, path: str) -> str | None:
    """Return the content of a file; None without a file."""
    found = await files.read_file(path)
    return None if found is None else found.content


async def names(files: SessionFiles, path: str = "/") -> list[str]:
    """Return the names in a directory."""
    return [info.name for info in await files.list_directory(path)]


class FileLaws:
    """Laws of session files. A subclass provides the fixture `app`."""

    # --- reading and writing

    async def test_a_file_is_read_as_it_was_written(self, app: FileDesk) -> None:
        written = await app.here.write_file("/notes/plan.md", "# Plan\r\ngrüßt\n")
        read = await app.there.read_file("/notes/plan.md")
        assert read == written
        assert (written.path, written.name, written.content) == ("/notes/plan.md", "plan.md", "# Plan\r\ngrüßt\n")
        assert (written.encoding, written.is_directory, written.is_readonly) == ("text", False, False)
        assert (written.size_bytes, written.session_id) == (16, app.session)

    @pytest.mark.parametrize("content", ["", "\ufeffwith a mark", "a\x00b", "\n\n", "no end"])
    async def test_no_character_is_changed(self, app: FileDesk, content: str) -> None:
        await app.here.write_file("/a", content)
        assert await said(app.there, "/a") == content

    async def test_bytes_that_are_no_text_come_in_base64(self, app: FileDesk) -> None:
        await app.here.write_file("/p.png", PIXEL, "base64")
        read = await app.there.read_file("/p.png")
        assert read is not None
        assert (read.content, read.encoding, read.size_bytes, read.data) == (PIXEL, "base64", 256, bytes(range(256)))

    @pytest.mark.parametrize(
        ("content", "encoding"), [("not base64!", "base64"), ("QR==", "base64"), ("QQ", "base64"), ("x", "latin-1")]
    )
    async def test_unreadable_content_is_refused(self, app: FileDesk, content: str, encoding: str) -> None:
        assert await refused(app.here.write_file("/a", content, encoding)) is Code.FILE_CONTENT_INVALID
        assert await app.here.read_file("/a") is None

    async def test_text_that_is_no_unicode_is_refused(self, app: FileDesk) -> None:
        assert await refused(app.here.write_file("/a", "\ud800")) is Code.INVALID_TEXT

    async def test_rewritten_file_keeps_its_id_and_creation_time(self, app: FileDesk) -> None:
        first = await app.here.write_file("/a", "one")
        second = await app.there.write_file("/a", PIXEL, "base64")
        assert (second.id, second.created_at) == (first.id, first.created_at)
        assert await names(app.here) == ["a"]
        assert await said(app.here, "/a") == PIXEL

    async def test_a_file_made_anew_is_another_one(self, app: FileDesk) -> None:
        first = await app.here.write_file("/a", "one")
        await app.here.delete_file("/a")
        assert (await app.here.write_file("/a", "one")).id != first.id

    async def test_missing_path_is_reported_as_none(self, app: FileDesk) -> None:
        assert await app.here.read_file("/nowhere") is None
        assert await app.here.stat_file("/nowhere/at/all") is None
        assert await app.here.delete_file("/nowhere") is False
        assert await refused(app.here.list_directory("/nowhere")) is Code.FILE_UNKNOWN

    async def test_sessions_do_not_see_each_others_files(self, app: FileDesk) -> None:
        other = SessionFiles(app.files, app.other_session)
        await app.here.write_file("/a", "mine")
        assert await other.read_file("/a") is None
        await other.write_file("/a", "yours")
        await app.here.delete_file("/a")
        assert await said(other, "/a") == "yours"

    async def test_a_session_that_is_not_there_has_no_files(self, app: FileDesk) -> None:
        nobody = SessionFiles(app.files, SessionId("nobody"))
        assert await refused(nobody.write_file("/a", "x")) is Code.SESSION_UNKNOWN
        assert await refused(nobody.list_directory("/")) is Code.SESSION_UNKNOWN

    # --- directories

    async def test_directories_above_a_file_are_made(self, app: FileDesk) -> None:
        await app.here.write_file("/a/b/c.txt", "x")
        assert await names(app.there) == ["a"]
        assert await names(app.there, "/a") == ["b"]
        above = await app.there.stat_file("/a/b")
        assert above is not None
        assert (above.is_directory, above.size_bytes, above.name) == (True, 0, "b")

    async def test_a_directory_is_read_without_content(self, app: FileDesk) -> None:
        made = await app.here.create_directory("/a/b")
        read = await app.there.read_file("/a/b")
        assert read is not None
        assert (read.is_directory, read.content, read.id) == (True, None, made.id)
        assert await app.here.create_directory("/a/b") == made

    async def test_a_directory_lists_what_stands_in_it_by_name(self, app: FileDesk) -> None:
        for path in ("/b", "/a/deep", "/c-d/e", "/c"):
            await app.here.write_file(path, "x")
        assert await names(app.there) == ["a", "b", "c", "c-d"]
        assert [info.is_directory for info in await app.there.list_directory("/")] == [True, False, False, True]

    async def test_path_of_the_wrong_kind_is_refused(self, app: FileDesk) -> None:
        await app.here.write_file("/a", "x")
        await app.here.create_directory("/d")
        assert await refused(app.here.write_file("/a/b", "x")) is Code.FILE_KIND_CONFLICT
        assert await refused(app.here.write_file("/d", "x")) is Code.FILE_KIND_CONFLICT
        assert await refused(app.here.create_directory("/a")) is Code.FILE_KIND_CONFLICT
        assert await refused(app.here.create_directory("/a/b")) is Code.FILE_KIND_CONFLICT
        assert await refused(app.here.list_directory("/a")) is Code.FILE_KIND_CONFLICT
        assert await names(app.here) == ["a", "d"]

    async def test_a_directory_goes_only_with_all_that_is_in_it(self, app: FileDesk) -> None:
        await app.here.write_file("/d/x", "x")
        await app.here.write_file("/d-not/x", "x")
        await app.here.create_directory("/empty")
        assert await app.here.delete_file("/d") is False
        assert await said(app.there, "/d/x") == "x"
        assert await app.here.delete_file("/empty") is True
        assert await app.here.delete_file("/d", recursive=True) is True
        assert await names(app.there) == ["d-not"]
        assert await app.there.read_file("/d/x") is None

    async def test_the_root_is_always_there(self, app: FileDesk) -> None:
        root = await app.here.stat_file("/")
        assert root is not None
        assert root.is_directory
        assert await names(app.here) == []
        assert await refused(app.here.delete_file("/", recursive=True)) is Code.FILE_PATH_INVALID
        assert await refused(app.here.write_file("/", "x")) is Code.FILE_KIND_CONFLICT
        assert (await app.here.create_directory("/")).is_directory

    # --- paths

    @pytest.mark.parametrize(
        "path", ["/a/b", "a/b", "/workspace/a/b", "/a//b", "/a/./b/", "/workspace//a/b", "workspace/../a/b"][:6]
    )
    async def test_one_file_has_many_spellings_and_one_path(self, app: FileDesk, path: str) -> None:
        written = await app.here.write_file(path, "x")
        assert written.path == "/a/b"
        assert await said(app.there, "/workspace/a/b") == "x"
        assert await names(app.there) == ["a"]

    @pytest.mark.parametrize(
        "path", ["", "   ", "/../x", "/a/../../x", "/workspace/../x", "..", "/a\x00b", "/a\nb", "/" + "n" * 256]
    )
    async def test_invalid_path_is_refused(self, app: FileDesk, path: str) -> None:
        assert await refused(app.here.write_file(path, "x")) is Code.FILE_PATH_INVALID
        assert await refused(app.here.read_file(path)) is Code.FILE_PATH_INVALID
        assert await refused(app.here.delete_file(path)) is Code.FILE_PATH_INVALID
        assert await names(app.here) == []

    async def test_a_path_that_is_too_long_is_refused(self, app: FileDesk) -> None:
        assert await refused(app.here.write_file("/abc" * 300, "x")) is Code.FILE_PATH_INVALID

    async def test_a_backslash_is_a_character_like_others(self, app: FileDesk) -> None:
        written = await app.here.write_file("/a\\b", "x")
        assert (written.path, written.name) == ("/a\\b", "a\\b")
        assert (await app.here.write_file("/..\\x", "y")).name == "..\\x"
        assert await names(app.here) == ["..\\x", "a\\b"]

    async def test_only_the_first_name_stands_for_the_root(self, app: FileDesk) -> None:
        assert (await app.here.write_file("/workspace/workspace/a", "x")).path == "/workspace/a"
        assert (await app.here.write_file("/workspaces", "x")).path == "/workspaces"

    # --- compare and write

    async def test_a_file_is_written_if_it_says_what_is_expected(self, app: FileDesk) -> None:
        await app.here.write_file("/a", "one")
        written = await app.there.write_file_if_content_matches("/a", "one", "text", "two", "text")
        assert written is not None
        assert written.content == "two"
        assert await said(app.here, "/a") == "two"

    async def test_otherwise_nothing_is_written(self, app: FileDesk) -> None:
        await app.here.write_file("/a", "QQ==")
        await app.here.create_directory("/d")
        compare = app.there.write_file_if_content_matches
        assert await compare("/a", "other", "text", "two", "text") is None
        assert await compare("/a", "QQ==", "base64", "two", "text") is None
        assert await compare("/a", "not base64!", "base64", "two", "text") is None
        assert await compare("/nowhere", "", "text", "two", "text") is None
        assert await compare("/d", "", "text", "two", "text") is None
        assert await said(app.here, "/a") == "QQ=="
        assert await names(app.here) == ["a", "d"]

    async def test_concurrent_compare_and_write_loses_no_update(self, app: FileDesk) -> None:
        await app.here.write_file("/count", "0")
        both = (app.here, app.there)

        async def add(which: int) -> None:
            for _ in range(5):
                while True:
                    seen = await said(both[which % 2], "/count") or ""
                    new = str(int(seen) + 1)
                    if await both[which % 2].write_file_if_content_matches("/count", seen, "text", new, "text"):
                        break

        await asyncio.gather(*[add(which) for which in range(4)])
        assert await said(app.here, "/count") == "20"

    async def test_files_written_at_once_are_all_there(self, app: FileDesk) -> None:
        both = (app.here, app.there)
        await asyncio.gather(*[both[n % 2].write_file(f"/d{n % 3}/f{n}", str(n)) for n in range(12)])
        found = [info.path for d in range(3) for info in await app.here.list_directory(f"/d{d}")]
        assert sorted(found) == sorted(f"/d{n % 3}/f{n}" for n in range(12))
        assert [await said(app.there, f"/d{n % 3}/f{n}") for n in range(12)] == [str(n) for n in range(12)]

    # --- initial files

    async def test_an_initial_file_is_a_file(self, app: FileDesk) -> None:
        await app.files.seed_initial_file(app.session, InitialFile("/workspace/guide.md", "Read me."))
        await app.here.write_file("/guide.md", "Read me too.")
        assert await said(app.there, "/guide.md") == "Read me too."

    async def test_a_read_only_file_stays_as_it_is(self, app: FileDesk) -> None:
        seed = InitialFile("/rules/law.md", "Be kind.", readonly=True)
        try:
            await app.files.seed_initial_file(app.session, seed)
        except Error as problem:
            assert problem.code is Code.FILE_SEED_UNSUPPORTED  # noqa: PT017 - refusing it is one of two ways to keep this law
            return
        here = app.there
        assert await refused(here.write_file("/rules/law.md", "x")) is Code.FILE_READONLY
        same = here.write_file_if_content_matches("/rules/law.md", "Be kind.", "text", "x", "text")
        assert await refused(same) is Code.FILE_READONLY
        assert await refused(here.delete_file("/rules/law.md")) is Code.FILE_READONLY
        assert await refused(here.delete_file("/rules", recursive=True)) is Code.FILE_READONLY
        stat = await here.stat_file("/rules/law.md")
        assert stat is not None
        assert stat.is_readonly
        assert await said(here, "/rules/law.md") == "Be kind."
        await here.write_file("/rules/mine.md", "x")  # other files of the folder are writable

    # --- searching

    async def test_lines_that_match_are_found(self, app: FileDesk) -> None:
        await app.here.write_file("/a.txt", "one\r\ntwo TODO\n\nTODO three")
        await app.here.write_file("/d/b.md", "nothing\nTODO: later")
        await app.here.write_file("/p.png", PIXEL, "base64")
        found = await app.there.grep_files("TODO")
        assert [(m.path, m.line_number, m.line) for m in found] == [
            ("/a.txt", 2, "two TODO"),
            ("/a.txt", 4, "TODO three"),
            ("/d/b.md", 2, "TODO: later"),
        ]
        assert [m.line for m in await app.there.grep_files(r"^TODO\b")] == ["TODO three", "TODO: later"]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.md", ["/d/b.md", "/top.md"]),
            ("/d/*.md", ["/d/b.md"]),
            ("/workspace/d/*", ["/d/b.md", "/d/c.txt"]),
            ("d/b", ["/d/b.md"]),
            ("?.txt", ["/d/c.txt"]),
            ("nowhere", []),
            ("", ["/d/b.md", "/d/c.txt", "/top.md"]),
        ],
    )
    async def test_files_to_search_are_chosen_by_path(
        self, app: FileDesk, pattern: str, expected: list[str]
    ) -> None:  # fmt: skip
        for path in ("/d/b.md", "/d/c.txt", "/top.md"):
            await app.here.write_file(path, "x")
        assert [match.path for match in await app.here.grep_files("x", pattern)] == expected

    @pytest.mark.parametrize("pattern", ["", "(", "(?=x)", r"(a)\1", "x" * 1001, "((a{50}){50}){50}", r"\w{500}"])
    async def test_a_pattern_that_cannot_be_matched_safely_is_refused(self, app: FileDesk, pattern: str) -> None:
        await app.here.write_file("/a", "aaa")
        assert await refused(app.here.grep_files(pattern)) is Code.FILE_PATTERN_INVALID

    async def test_a_hostile_pattern_takes_no_longer(self, app: FileDesk) -> None:
        await app.here.write_file("/a", "a" * 50_000 + "!")
        assert await app.here.grep_files("^(a+)+$") == ()

    async def test_long_files_are_passed_over_and_too_much_text_is_refused(self, app: FileDesk) -> None:
        await app.here.write_file("/long", "x" * (512 * 1024 + 1))
        assert await app.here.grep_files("x") == ()
        for n in range(11):
            await app.here.write_file(f"/many/{n}", "x\n" * (256 * 1024 - 1))
        assert await refused(app.here.grep_files("y")) is Code.FILE_LIMIT_EXCEEDED
        assert await app.here.grep_files("y", "/many/1*") == ()
