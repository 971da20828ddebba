"""The files of sessions: kept by the store, found by tools and programs, gone with their session."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from perdure import Agent, Code, Error, InitialFile, Runtime, ToolContext, tool
from perdure.codec import Json
from perdure.ids import DEFAULT_TENANT, SessionId, Tenant, files_stream
from perdure.models.scripted import ScriptedModel, Step, call, calls, say
from perdure.runtime.internals import core_of
from perdure.runtime.work import WorkerOptions
from perdure.services.files.factory import (
    DisabledSessionFileSystemFactory,
    SessionFileSystemFactory,
    SessionFileSystemFactoryContext,
)
from perdure.services.files.protocol import SessionFileSystem
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, SessionFile
from perdure.services.files.stored import SNAPSHOT_EVERY
from perdure.services.files.tree import CODE, Tree, blob_name
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.protocol import Store
from perdure.tools.files import file_tools
from perdure.vocab.messages import ImagePart, Message, ToolResultPart
from tests.scenarios.conftest import App, NewStore

GUIDE = InitialFile("/docs/guide.md", "Be brief.\n", readonly=True)
TODO = InitialFile("/workspace/todo.txt", "one\ntwo\n")


def agent(*steps: Step, files: tuple[InitialFile, ...] = ()) -> Agent:
    return Agent("a", model=ScriptedModel(*steps), tools=file_tools(), initial_files=files)


def results(messages: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


async def outcome(rt: Runtime) -> list[Json]:
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=20)
    return results(await session.messages())


async def refused(awaitable: object) -> Error:
    with pytest.raises(Error) as caught:
        await awaitable  # pyright: ignore[reportGeneralTypeIssues]
    return caught.value


# --- what a model does with files


async def test_a_model_reads_writes_edits_searches_and_deletes(new_store: NewStore) -> None:
    steps = [
        call("write_file", path="/workspace/notes/plan.md", content="alpha\nbeta\n"),
        call("read_file", path="notes/plan.md"),
        call(
            "edit_file",
            path="/workspace/notes/plan.md",
            expected_hash="sha256:cc4e20b2e6de9d7cf74b23f8d64db4f0a0a16ef79b9ef4c5a98a5d4a4d8d9fd4",
            edits=[{"old_text": "beta", "new_text": "gamma"}],
        ),
        call("grep_files", pattern="^al", path_pattern="*.md", context=1),
        call("list_directory"),
        call("delete_file", path="/workspace/notes"),
        call("delete_file", path="/workspace/notes", recursive=True),
        call("read_file", path="/workspace/notes/plan.md"),
        call("stat_file", path="/workspace"),
        say("done"),
    ]
    async with Runtime(new_store(), agents=[agent(*steps)]) as rt:
        written, read, stale, found, listed, full, deleted, gone, root = await outcome(rt)
    about = {"path": "/workspace/notes/plan.md", "size_bytes": 11, "content_hash": written["content_hash"]}
    assert written == about
    assert read["content"] == "1|alpha\n2|beta"
    assert (read["first_line"], read["last_line"], read["total_lines"], read["truncated"]) == (1, 2, 2, False)
    assert stale["error"] == (
        "File '/workspace/notes/plan.md' changed since the last read. Expected "
        "sha256:cc4e20b2e6de9d7cf74b23f8d64db4f0a0a16ef79b9ef4c5a98a5d4a4d8d9fd4, found "
        f"{written['content_hash']}. Read the file again before editing."
    )
    assert found["matches"] == [
        {"path": "/workspace/notes/plan.md", "line_number": 1, "line": "alpha", "before": [], "after": ["beta"]}
    ]
    assert [(entry["path"], entry["type"]) for entry in listed["entries"]] == [("/workspace/notes", "directory")]
    assert full["error"] == "/workspace/notes is not empty: set recursive to delete it"
    assert deleted == {"deleted": True}
    assert gone["error"] == "File not found: /workspace/notes/plan.md"
    assert root["type"] == "directory"


async def test_an_edit_applies_to_what_was_read(new_store: NewStore) -> None:
    seen = "sha256:c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8"  # printf 'one\ntwo\n' | sha256sum
    edits = [{"old_text": "two", "new_text": "2"}, {"old_text": "one", "new_text": "1"}]
    edit = call("edit_file", path="todo.txt", expected_hash=seen, edits=edits)
    async with Runtime(new_store(), agents=[agent(edit, edit, say("done"), files=(TODO,))]) as rt:
        session = await rt.session("t", agent="a")
        await session.ask("go", timeout=20)
        done, again = results(await session.messages())
        assert done["edits"] == 2
        assert done["diff"].splitlines()[2:] == ["@@ -1,2 +1,2 @@", "-one", "-two", "+1", "+2"]
        assert "changed since the last read" in again["error"]
        read_back = await session.files.read_file("/todo.txt")
        assert read_back is not None
        assert read_back.content == "1\n2\n"


async def test_pictures_are_shown_and_other_bytes_are_only_described(new_store: NewStore) -> None:
    steps = [
        call("write_file", path="p.png", content="iVBORw0KGgo=", encoding="base64"),
        call("write_file", path="b.bin", content="AAEC", encoding="base64"),
        calls(call("read_file", path="p.png"), call("read_file", path="b.bin")),
        say("done"),
    ]
    async with Runtime(new_store(), agents=[agent(*steps)]) as rt:
        _, _, picture, other = await outcome(rt)
        parts = [part for message in await rt.get_session("s").messages() for part in message.parts]
    assert picture["media_type"] == "image/png"
    assert (other["binary"], other["size_bytes"]) == (True, 3)
    assert sum(isinstance(part, ImagePart) for part in parts) == 1


async def test_file_errors_are_returned_to_the_model(new_store: NewStore) -> None:
    steps = [
        calls(
            call("read_file", path="/../etc/passwd"),
            call("write_file", path="/docs/guide.md", content="x"),
            call("grep_files", pattern="(?=x)"),
            call("list_directory", path="/docs/guide.md"),
        ),
        say("done"),
    ]
    async with Runtime(new_store(), agents=[agent(*steps, files=(GUIDE,))]) as rt:
        escaped, readonly, pattern, kind = await outcome(rt)
    assert escaped["code"] == "file_path_invalid"
    assert readonly["error"] == "/workspace/docs/guide.md is read-only. write another file"
    assert pattern["code"] == "file_pattern_invalid"
    assert kind["code"] == "file_kind_conflict"


# --- what tools and programs do with them


async def test_tools_and_programs_see_the_same_files(new_store: NewStore) -> None:
    @tool
    async def note(ctx: ToolContext, text: str) -> str:
        """Note."""
        await ctx.files.write_file("/notes.txt", text)
        return str([info.name for info in await ctx.files.list_directory("/")])

    model = ScriptedModel(call("note", text="from the tool"), say("noted"))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[note])]) as rt:
        session = await rt.session("s", agent="a")
        assert (await refused(session.files.read_file("/notes.txt"))).code is Code.SESSION_UNKNOWN
        await session.ask("go", timeout=20)
        found = await session.files.read_file("/notes.txt")
        assert found is not None
        assert found.content == "from the tool"
        assert results(await session.messages()) == ["['notes.txt']"]


async def test_a_tool_without_files_says_so(new_store: NewStore) -> None:
    files = DisabledSessionFileSystemFactory()
    steps = [call("read_file", path="x"), say("done")]
    async with Runtime(new_store(), agents=[agent(*steps)], file_system=files) as rt:
        (told,) = await outcome(rt)
        assert told["error"] == "File store not available in this context."
        with pytest.raises(Error) as caught:
            _ = rt.get_session("s").files
    assert (caught.value.code, caught.value.message) == (Code.FILES_DISABLED, "session filesystem is disabled")


async def test_the_disabled_factory_makes_nothing() -> None:
    factory = DisabledSessionFileSystemFactory()
    assert (factory.name(), factory.is_disabled()) == ("DisabledSessionFileSystemFactory", True)
    problem = await refused(factory.create_session_file_system(SessionFileSystemFactoryContext()))
    assert (problem.code, problem.message) == (Code.FILES_DISABLED, "session filesystem is disabled")


def test_a_bag_keeps_one_value_of_each_type() -> None:
    empty = SessionFileSystemFactoryContext()
    bag = empty.with_(7).with_("seven").with_(8)
    assert (bag.get(int), bag.get(str), bag.get(float)) == (8, "seven", None)
    assert empty.get(int) is None
    assert empty.with_(True, as_=object).get(object) is True


async def test_two_tenants_of_one_worker_have_files_of_their_own(new_store: NewStore) -> None:
    writes = agent(call("write_file", path="who", content="first"), say("done"), files=(TODO,))
    async with (
        Runtime(new_store(), agents=[writes], worker=WorkerOptions(all_tenants=True)) as rt,
        Runtime(new_store(), agents=[writes], worker=False, tenant="other") as other,
    ):
        session = await other.session("s", agent="a")
        await session.ask("go", timeout=20)
        assert [info.name for info in await session.files.list_directory()] == ["todo.txt", "who"]
        assert await core_of(rt).store.stream(files_stream(DEFAULT_TENANT, SessionId("s"))) is None
        assert await core_of(rt).store.stream(files_stream(Tenant("other"), SessionId("s"))) is not None


# --- what a session begins with


async def test_a_session_begins_with_its_agents_files_once(new_store: NewStore) -> None:
    steps = [call("delete_file", path="todo.txt"), say("done")]
    async with Runtime(new_store(), agents=[agent(*steps, files=(GUIDE, TODO))]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=20)
    async with Runtime(new_store(), agents=[agent(files=(GUIDE, TODO))]) as rt:
        files = rt.get_session("s").files
        assert [info.name for info in await files.list_directory()] == ["docs"]
        guide = await files.read_file("/docs/guide.md")
        assert guide is not None
        assert (guide.content, guide.is_readonly) == ("Be brief.\n", True)


async def test_runtime_without_the_agent_creates_no_seed_files(new_store: NewStore) -> None:
    known = agent(say("hello"), files=(TODO,))
    async with Runtime(new_store(), agents=[known]) as rt:
        await (await rt.session("s", agent="a")).ask("go", timeout=20)
        async with Runtime(new_store(), worker=False) as stranger:
            problem = await refused(stranger.get_session("s").files.list_directory())
            assert problem.code is Code.AGENT_UNKNOWN
            assert [info.name for info in await rt.get_session("s").files.list_directory()] == ["todo.txt"]
            assert [info.name for info in await stranger.get_session("s").files.list_directory()] == ["todo.txt"]


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ((InitialFile("/../x", ""),), Code.FILE_PATH_INVALID),
        ((InitialFile("/a", "?", "base64"),), Code.FILE_CONTENT_INVALID),
        ((InitialFile("/a", ""), InitialFile("/a/b", "")), Code.FILE_KIND_CONFLICT),
        ((InitialFile("/a/b", ""), InitialFile("/a", "")), Code.FILE_KIND_CONFLICT),
    ],
)
def test_files_that_cannot_be_laid_down_are_refused_with_the_agent(
    files: tuple[InitialFile, ...], code: Code
) -> None:  # fmt: skip
    with pytest.raises(Error) as caught:
        Agent("a", model="sim:echo", initial_files=files)
    assert caught.value.code is code


# --- a file system of the host


class DictFiles(SessionFileSystem):
    """A minimal file system of a third party."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], str] = {}

    def _file(self, session_id: SessionId, path: str) -> SessionFile:
        text = self.texts[session_id, path]
        name = path.rsplit("/", 1)[-1]
        return SessionFile(path, session_id, path, name, text, "text", False, False, len(text), 0, 0)

    async def read_file(self, session_id: SessionId, path: str) -> SessionFile | None:
        return self._file(session_id, path) if (session_id, path) in self.texts else None

    async def write_file(self, session_id: SessionId, path: str, content: str, encoding: str = "text") -> SessionFile:
        self.texts[session_id, path] = content
        return self._file(session_id, path)

    async def delete_file(self, session_id: SessionId, path: str, recursive: bool = False) -> bool:
        return self.texts.pop((session_id, path), None) is not None

    async def list_directory(self, session_id: SessionId, path: str) -> tuple[FileInfo, ...]:
        return ()

    async def stat_file(self, session_id: SessionId, path: str) -> FileStat | None:
        return None

    async def grep_files(
        self, session_id: SessionId, pattern: str, path_pattern: str | None = None
    ) -> tuple[GrepMatch, ...]:  # fmt: skip
        return ()

    async def create_directory(self, session_id: SessionId, path: str) -> FileInfo:
        raise NotImplementedError


class DictFactory(SessionFileSystemFactory):
    def __init__(self, files: DictFiles) -> None:
        self.files = files
        self.context = SessionFileSystemFactoryContext()

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        self.context = context
        return self.files


@pytest.mark.parametrize("by_factory", [True, False])
async def test_a_file_system_of_ones_own_is_seeded_once(new_store: NewStore, by_factory: bool) -> None:
    own = DictFiles()
    factory = DictFactory(own)
    known = agent(call("write_file", path="/b", content="b"), say("done"), files=(InitialFile("/a", "A"),))
    given = factory if by_factory else own
    async with Runtime(new_store(), agents=[known], file_system=given) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=20)
        assert own.texts == {("s", "/a"): "A", ("s", "/b"): "b"}
        if by_factory:
            assert factory.context.get(Store) is core_of(rt).store
        await session.files.delete_file("/a")
    async with Runtime(new_store(), agents=[known], file_system=given) as rt:
        assert await rt.get_session("s").files.read_file("/a") is None, "a deleted file does not come back"


async def test_the_defaults_compare_then_write_and_refuse_read_only_seeds() -> None:
    own, session = DictFiles(), SessionId("s")
    await own.seed_initial_file(session, InitialFile("/a", "A"))
    assert await own.write_file_if_content_matches(session, "/a", "B", "text", "C", "text") is None
    assert await own.write_file_if_content_matches(session, "/a", "A", "base64", "C", "text") is None
    written = await own.write_file_if_content_matches(session, "/a", "A", "text", "C", "text")
    assert written is not None
    assert written.content == "C"
    problem = await refused(own.seed_initial_file(session, InitialFile("/b", "B", readonly=True)))
    assert problem.code is Code.FILE_SEED_UNSUPPORTED
    expected = "read-only initial files require a SessionFileSystem-specific seed implementation"
    assert problem.message == expected
    assert ("s", "/b") not in own.texts


# --- what the store keeps


async def opened(app: App) -> Runtime:
    rt = await app.open(ScriptedModel(say("hello")))
    await (await rt.session("s", agent="a")).ask("go", timeout=20)
    return rt


async def is_kept(rt: Runtime, content: str) -> bool:
    try:
        await core_of(rt).store.blob(blob_name(sha256(content.encode()).hexdigest()))
    except Error as problem:
        if problem.code is not Code.BLOB_UNKNOWN:
            raise
        return False
    return True


async def test_bytes_that_no_file_has_any_more_are_not_kept(app: App) -> None:
    rt = await opened(app)
    files = rt.get_session("s").files
    await files.write_file("/a", "same")
    await files.write_file("/d/b", "same")
    await files.write_file("/a", "other")
    assert (await is_kept(rt, "same"), await is_kept(rt, "other")) == (True, True)
    await files.write_file("/a", "other")
    assert await is_kept(rt, "other"), "writing what stands there lets nothing go"
    await files.delete_file("/d", recursive=True)
    assert (await is_kept(rt, "same"), await is_kept(rt, "other")) == (False, True)


async def test_files_go_with_their_session(app: App) -> None:
    rt = await opened(app)
    session = rt.get_session("s")
    await session.files.write_file("/a", "secret")
    assert await session.delete()
    assert not await is_kept(rt, "secret")
    assert await core_of(rt).store.stream(files_stream(rt.tenant, SessionId("s"))) is None
    assert (await refused(session.files.read_file("/a"))).code is Code.SESSION_UNKNOWN
    again = await rt.session("s", agent="a")
    await again.ask("go", timeout=20)
    assert await again.files.list_directory() == ()


async def test_a_tree_without_its_snapshot_is_the_same_tree(app: App) -> None:
    rt = await opened(app)
    files, stream = rt.get_session("s").files, files_stream(rt.tenant, SessionId("s"))
    for n in range(SNAPSHOT_EVERY + 5):
        await files.write_file(f"/d{n % 7}/f{n % 11}", str(n))
        if n % 10 == 0:
            await files.delete_file(f"/d{n % 7}", recursive=True)
    quick = await core_of(rt).store.load(stream, code=CODE)
    assert quick.snapshot is not None
    assert len(quick.rows) < SNAPSHOT_EVERY, "reads do not grow with the number of past writes"
    found = Tree.of(SessionId("s"), quick.snapshot.data, quick.snapshot.seq, quick.rows)
    await core_of(rt).store.drop_snapshot(stream)
    slow = await core_of(rt).store.load(stream, code=CODE)
    folded = Tree.of(SessionId("s"), None, found.seq, slow.rows)
    assert (slow.snapshot, folded.snapshot()) == (None, found.snapshot())
    assert [info.name for info in await files.list_directory("/d3")] == sorted(
        info.name for info in await files.list_directory("/d3")
    )


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_encrypted_files_leave_neither_words_nor_names(tmp_path: Path) -> None:
    codec, url = AesGcmCodec({"k": bytes(32)}), f"sqlite:///{tmp_path / 's.db'}"
    known = agent(say("hello"), files=(InitialFile("/first-name.txt", "first-words"),))
    async with Runtime(url, agents=[known], payload_codec=codec) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=20)
        for n in range(SNAPSHOT_EVERY):
            await session.files.write_file("/hidden-name.txt", f"hidden-words {n}")
        found = await session.files.grep_files("hidden-words")
        assert [match.line for match in found] == [f"hidden-words {SNAPSHOT_EVERY - 1}"]
        kept = everything_in(tmp_path)
        assert [word for word in (b"hidden-", b"first-", b".txt") if word in kept] == []
    async with Runtime(url, agents=[known]) as rt:
        problem = await refused(rt.get_session("s").files.list_directory())
        assert problem.code is Code.CODEC_FAILED


async def test_many_calls_of_one_reply_write_beside_each_other(new_store: NewStore) -> None:
    writes = [call("write_file", path=f"/d/{n}", content=str(n)) for n in range(8)]
    async with Runtime(new_store(), agents=[agent(calls(*writes), say("done"))]) as rt:
        told = await outcome(rt)
        assert [one["path"] for one in told] == [f"/workspace/d/{n}" for n in range(8)]
        files = rt.get_session("s").files
        found = await asyncio.gather(*[files.read_file(f"/d/{n}") for n in range(8)])
        assert [file.content for file in found if file] == [str(n) for n in range(8)]
