"""Session files in the store: a separate stream per session, with the changes as log, the tree as fold, and blobs for
bytes.

The stream is unowned and written optimistically. A writer folds the stream, checks its change on that tree, and appends
a record under the key of the next seq. If the key is taken, the writer starts again. So each change is checked on
exactly the tree it modifies, in every process and on every store.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias

from perdure.clock import Clock
from perdure.codec import brief, decode, digest, encode
from perdure.commit.changes import Amendment, NewStream
from perdure.commit.plan import Entry, Snapshot
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, Seq, SessionId, Tenant, files_stream, session_stream
from perdure.offload import offload, weight_of
from perdure.services.files.factory import SessionFileSystemFactory, SessionFileSystemFactoryContext
from perdure.services.files.paths import normal, shown
from perdure.services.files.protocol import SessionFileSystem
from perdure.services.files.search import (
    MAX_SEARCHED_FILE_BYTES,
    check_pattern,
    check_scan,
    search,
    wanted_paths,
)
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, InitialFile, SessionFile, bytes_of, text_of
from perdure.services.files.tree import CODE, KIND, Change, FilesChanged, Node, Tree, blob_name
from perdure.store.protocol import Store

SNAPSHOT_EVERY = 64
_FIRST = Seq(1)


Seeds: TypeAlias = Callable[[SessionId], Awaitable[tuple[InitialFile, ...]]]


async def _no_seeds(session: SessionId) -> tuple[InitialFile, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class SessionFileAccess:
    """The tenant of a file system's sessions, and the source of their initial files."""

    tenant: Tenant = DEFAULT_TENANT
    seeds: Seeds = _no_seeds


@dataclass(frozen=True, slots=True)
class StoredFiles(SessionFileSystem):
    """The files of one tenant's sessions. Initial files are loaded when a session's files are first used."""

    store: Store
    clock: Clock
    sessions: SessionFileAccess = SessionFileAccess()
    signature: str = ""

    # --- signed changes

    def signed(self, name: str) -> StoredFiles:
        """Return the same files with signed changes, which can be found again by this name."""
        return replace(self, signature=brief(digest(name)))

    async def signed_change(self, session_id: SessionId) -> FilesChanged | None:
        """Return the first change with this signature, or None. Reads the whole log."""
        rows = await self.store.read(files_stream(self.sessions.tenant, session_id))
        records = (decode(row.data, FilesChanged) for row in rows)
        mine = (record for record in records if record.by.partition(".")[0] == self.signature)
        return next(mine, None) if self.signature else None

    # --- reading

    async def read_file(self, session_id: SessionId, path: str) -> SessionFile | None:
        """Return a file with its content, a directory without, or None."""
        where = normal(path)
        while True:
            tree = await self._tree(session_id)
            info = tree.info(where)
            if info is None or info.is_directory:
                return None if info is None else _file(info, None, "text")
            node = tree.nodes[where]
            content = await self._content(session_id, node)
            if content is not None:
                return _file(info, content, node.encoding)

    async def _content(self, session_id: SessionId, node: Node) -> str | None:
        """Return the content of a file, or None if a later change released it."""
        stream = files_stream(self.sessions.tenant, session_id)
        try:
            blob = await self.store.blob(blob_name(node.hash), stream=stream)
            return await offload(len(blob.data), text_of, blob.data, node.encoding)
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            if await self._is_current(session_id, node):
                raise
            return None

    async def _is_current(self, session_id: SessionId, node: Node) -> bool:
        return any(known.hash == node.hash for known in (await self._tree(session_id)).nodes.values())

    async def list_directory(self, session_id: SessionId, path: str) -> tuple[FileInfo, ...]:
        """Return the entries of a directory, ordered by name."""
        where, tree = normal(path), await self._tree(session_id)
        if not tree.is_directory(where):
            if where in tree.nodes:
                raise Error(Code.FILE_KIND_CONFLICT, f"{shown(where)} is not a directory", because="the path is a file")
            raise Error(Code.FILE_UNKNOWN, f"unknown directory {shown(where)}")
        found = (tree.info(child) for child in tree.children(where))
        return tuple(info for info in found if info is not None)

    async def stat_file(self, session_id: SessionId, path: str) -> FileStat | None:
        """Return the metadata of a path, or None."""
        where = normal(path)
        return (await self._tree(session_id)).stat(where)

    async def grep_files(
        self, session_id: SessionId, pattern: str, path_pattern: str | None = None
    ) -> tuple[GrepMatch, ...]:
        """Return the matching lines of text files. Binary and oversized files are skipped."""
        check_pattern(pattern)
        tree = await self._tree(session_id)
        searchable = [path for path, node in sorted(tree.nodes.items()) if _searchable(node)]
        wanted = await wanted_paths(path_pattern, searchable)
        check_scan(sum(tree.nodes[path].size for path in wanted))
        texts: list[tuple[str, str]] = []
        for path in wanted:
            text = await self._content(session_id, tree.nodes[path])
            if text is not None:
                texts.append((path, text))
        return await search(pattern, texts)

    # --- writing

    async def write_file(self, session_id: SessionId, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Write a file atomically."""
        where = normal(path)
        size = weight_of(content)
        tree = await self._change(session_id, lambda tree, by: tree.writing(where, (content, encoding), by), size)
        return _written(tree, where, content)

    async def write_file_if_content_matches(
        self,
        session_id: SessionId,
        path: str,
        expected_content: str,
        expected_encoding: str,
        content: str,
        encoding: str = "text",
    ) -> SessionFile | None:
        """Write a file if its content matches, atomically under concurrent writes."""
        where = normal(path)
        try:
            expected = await offload(weight_of(expected_content), _digest, expected_content, expected_encoding)
        except Error:
            return None  # no file has such content

        def judged(tree: Tree, by: str) -> Change | None:
            node = tree.nodes.get(where)
            if node is None or (node.hash, node.encoding) != (expected, expected_encoding):
                return None
            return tree.writing(where, (content, encoding), by)

        changed = await self._change_if(session_id, judged, weight_of(content))
        return _written(changed, where, content) if changed is not None else None

    async def delete_file(self, session_id: SessionId, path: str, recursive: bool = False) -> bool:
        """Delete a file or a directory."""
        where = normal(path)
        changed = await self._change_if(session_id, lambda tree, by: tree.removing(where, by, recursive=recursive))
        return changed is not None

    async def create_directory(self, session_id: SessionId, path: str) -> FileInfo:
        """Create a directory and its parents."""
        where = normal(path)
        changed = await self._change_if(session_id, lambda tree, by: tree.making(where, by))
        info = (changed or await self._tree(session_id)).info(where)
        if info is None:  # another writer has deleted the directory meanwhile
            return await self.create_directory(session_id, path)
        return info

    async def seed_initial_file(self, session_id: SessionId, file: InitialFile) -> None:
        """Write an initial file of a session, optionally read-only."""
        await self._change(session_id, lambda tree, by: tree.seeding([file], by), weight_of(file.content))

    # --- the log

    async def _change(self, session_id: SessionId, judge: Callable[[Tree, str], Change], size: int) -> Tree:
        changed = await self._change_if(session_id, judge, size)
        assert changed is not None  # this judge always returns a change, or raises
        return changed

    async def _change_if(
        self, session_id: SessionId, judge: Callable[[Tree, str], Change | None], size: int = 0
    ) -> Tree | None:
        """Append the change that `judge` derives from the tree, and retry on conflict. Return the new tree, or None.

        `size` is the approximate size of the new content.
        """
        while True:
            before = await self._tree(session_id)
            change = await offload(size, judge, before, f"{self.signature}.{os.urandom(8).hex()}")
            if change is None:
                return None
            after = Tree(session_id, before.seq, dict(before.nodes))
            if await self._amended(before, after, change):
                return after

    async def _amended(self, before: Tree, after: Tree, change: Change) -> bool:
        seq, at = Seq(before.seq + 1), self.clock.wall_ms()
        after.fold(change.record, seq, at)
        fold = Snapshot(seq, CODE, after.snapshot()) if seq % SNAPSHOT_EVERY == 0 else None
        entry = _entry(change.record, seq, at)
        noted = await self.store.amend(
            Amendment(
                stream=files_stream(self.sessions.tenant, before.session),
                entry=entry,
                blobs=change.blobs,
                drops=before.let_go(change.record, after),
                snapshot=fold,
            )
        )
        return noted.new or noted.row.data == entry.data  # an equal record is this change; its reply was lost

    async def _tree(self, session_id: SessionId) -> Tree:
        stream = files_stream(self.sessions.tenant, session_id)
        loaded = await self.store.load(stream, code=CODE)
        if not loaded.rows and loaded.snapshot is None:
            await self._open(session_id)
            loaded = await self.store.load(stream, code=CODE)
        fold = loaded.snapshot
        return Tree.of(session_id, fold.data if fold else None, fold.seq if fold else Seq(0), loaded.rows)

    async def _open(self, session_id: SessionId) -> None:
        """Create the log with the session's initial files, atomically and once."""
        if await self.store.stream(session_stream(self.sessions.tenant, session_id)) is None:
            raise _unknown(session_id)
        seeds = await self.sessions.seeds(session_id)
        change = await offload(weight_of(seeds), Tree(session_id).seeding, seeds, os.urandom(8).hex())
        try:
            await self.store.create(beginning(self.sessions.tenant, session_id, change, self.clock.wall_ms()))
        except Error as problem:
            if problem.code is Code.SESSION_UNKNOWN:
                raise _unknown(session_id) from None
            if problem.code is not Code.SESSION_EXISTS:  # another writer was first
                raise


class StoredFilesFactory(SessionFileSystemFactory):
    """The default factory of a runtime. Needs its `Store`, its `Clock` and its `SessionFileAccess`."""

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        """Create a file system in the runtime's store.

        Raises:
            Error: `invalid_argument` without a store or a clock.
        """
        store: Store | None = context.get(Store)
        clock: Clock | None = context.get(Clock)
        if store is None or clock is None:
            raise Error(Code.INVALID_ARGUMENT, "files need a store and a clock", because="the host provides none")
        return StoredFiles(store, clock, context.get(SessionFileAccess) or SessionFileAccess())


def beginning(tenant: Tenant, session: SessionId, change: Change, at: int) -> NewStream:
    """Return the new stream of a session's files."""
    return NewStream(
        stream=files_stream(tenant, session),
        agent="",
        entries=(_entry(change.record, _FIRST, at),),
        at=at,
        blobs=change.blobs,
        beside=session_stream(tenant, session),
    )


def _entry(record: FilesChanged, seq: Seq, at: int) -> Entry:
    return Entry(KIND, encode(record), at, key=f"files:{seq}")


def _digest(content: str, encoding: str) -> str:
    return sha256(bytes_of(content, encoding)).hexdigest()


def _searchable(node: Node) -> bool:
    return not node.is_directory and node.encoding == "text" and node.size <= MAX_SEARCHED_FILE_BYTES


def _written(tree: Tree, path: str, content: str) -> SessionFile:
    info = tree.info(path)
    assert info is not None
    return _file(info, content, tree.nodes[path].encoding)


def _file(info: FileInfo, content: str | None, encoding: str) -> SessionFile:
    return SessionFile(
        id=info.id,
        session_id=info.session_id,
        path=info.path,
        name=info.name,
        content=content,
        encoding="text" if encoding == "text" else "base64",
        is_directory=info.is_directory,
        is_readonly=info.is_readonly,
        size_bytes=info.size_bytes,
        created_at=info.created_at,
        updated_at=info.updated_at,
    )


def _unknown(session_id: SessionId) -> Error:
    return Error(
        Code.SESSION_UNKNOWN,
        f"unknown session {session_id!r}",
        hint="a session begins with its first input",
    )
