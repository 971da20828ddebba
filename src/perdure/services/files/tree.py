"""The files of a session as a fold of their log, and what may be changed in it. Pure: nothing is read or written here.

Law: every record says exactly what it changes (directories that had to be made included), so that folding needs no
rule, and whoever judges a change has judged it on the tree that stood before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from perdure.codec import decode, encode
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Seq, SessionId, join
from perdure.services.files.paths import ROOT, below, name_of, normal, parent_of, parents_of, shown
from perdure.services.files.shapes import (
    MAX_FILE_BYTES,
    MAX_SESSION_BYTES,
    Encoding,
    FileInfo,
    FileStat,
    InitialFile,
    bytes_of,
)
from perdure.vocab.blobs import Blob
from perdure.vocab.records import Row

KIND = "files_changed"
CODE = "files-1"
"""The version of this fold: snapshots of another one are passed over."""
MAX_ENTRIES = 10_000


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A file or directory. `hash` is the sha256 of the bytes of a file, blank for a directory."""

    born: str
    created_at: int
    updated_at: int
    hash: str = ""
    size: int = 0
    encoding: Encoding = "text"
    readonly: bool = False

    @property
    def is_directory(self) -> bool:
        """Whether it holds others, and no bytes."""
        return not self.hash


class Put(msgspec.Struct, frozen=True, gc=False):
    """A file has this content now."""

    path: str
    hash: str
    size: int
    encoding: Encoding = "text"
    readonly: bool = False


class FilesChanged(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change: what was removed, then made, then put. `by` tells two equal changes apart."""

    by: str
    removed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    put: tuple[Put, ...] = ()


class _Snapshot(msgspec.Struct, frozen=True):
    nodes: dict[str, Node]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is allowed: the record, and the bytes that come with it."""

    record: FilesChanged
    blobs: tuple[Blob, ...] = ()


@dataclass(slots=True)
class Tree:
    """All files of a session at some seq."""

    session: SessionId
    seq: Seq = Seq(0)
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])

    # --- folding

    @staticmethod
    def of(session: SessionId, snapshot: bytes | None, seq: Seq, rows: Iterable[Row]) -> Tree:
        """The tree as a snapshot at `seq` and the records after it say."""
        nodes = decode(snapshot, _Snapshot).nodes if snapshot is not None else {}
        tree = Tree(session, seq, nodes)
        for row in rows:
            tree.fold(decode(row.data, FilesChanged), row.seq, row.at)
        return tree

    def fold(self, record: FilesChanged, seq: Seq, at: int) -> None:
        """Take one more record in."""
        for path in record.removed:
            for gone in [known for known in self.nodes if known == path or known.startswith(below(path))]:
                del self.nodes[gone]
        for path in record.made:
            self.nodes[path] = Node(self._born(seq, path), at, at)
        for put in record.put:
            old = self.nodes.get(put.path)
            born, created_at = (old.born, old.created_at) if old else (self._born(seq, put.path), at)
            self.nodes[put.path] = Node(born, created_at, at, put.hash, put.size, put.encoding, put.readonly)
        self.seq = seq

    def _born(self, seq: Seq, path: str) -> str:
        return "fil_" + sha256(join(self.session, str(seq), path).encode()).hexdigest()[:24]

    def snapshot(self) -> bytes:
        """This tree, for `of`."""
        return encode(_Snapshot(self.nodes))

    # --- looking

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""
        return path == ROOT or (path in self.nodes and self.nodes[path].is_directory)

    def children(self, path: str) -> list[str]:
        """What stands in a directory, by name."""
        return sorted(known for known in self.nodes if parent_of(known) == path)

    def info(self, path: str) -> FileInfo | None:
        """What is known of a path; the root is always there."""
        node = Node("fil_root", 0, 0) if path == ROOT else self.nodes.get(path)
        if node is None:
            return None
        return FileInfo(
            id=node.born,
            session_id=self.session,
            path=path,
            name=name_of(path),
            is_directory=node.is_directory,
            is_readonly=node.readonly,
            size_bytes=node.size,
            created_at=node.created_at,
            updated_at=node.updated_at,
        )

    def stat(self, path: str) -> FileStat | None:
        """The same, without who it is."""
        info = self.info(path)
        if info is None:
            return None
        return FileStat(
            path=info.path,
            name=info.name,
            is_directory=info.is_directory,
            is_readonly=info.is_readonly,
            size_bytes=info.size_bytes,
            created_at=info.created_at,
            updated_at=info.updated_at,
        )

    # --- judging

    def writing(self, path: str, content: tuple[str, str], by: str) -> Change:
        """Write a file: `content` and its encoding.

        Raises:
            Error: `file_kind_conflict`, `file_readonly`, `file_limit_exceeded`, `file_content_invalid`.
        """
        old = self.nodes.get(path)
        if old is not None and old.readonly:
            raise _readonly(path)
        return self._puts([InitialFile(path, content[0], _encoding(content[1]))], by)

    def seeding(self, seeds: Sequence[InitialFile], by: str) -> Change:
        """Lay files down, read-only ones too; what stands there is replaced, whoever may change it.

        Raises:
            Error: as `writing`, except `file_readonly`; `file_path_invalid`.
        """
        return self._puts([msgspec.structs.replace(seed, path=normal(seed.path)) for seed in seeds], by)

    def _puts(self, files: Sequence[InitialFile], by: str) -> Change:
        made: dict[str, None] = {}
        puts: dict[str, Put] = {}
        blobs: list[Blob] = []
        for file in files:
            if self.is_directory(file.path) or file.path in made:
                raise _kind(file.path, "it is a directory")
            for parent in parents_of(file.path):
                if parent in puts or (parent in self.nodes and not self.is_directory(parent)):
                    raise _kind(parent, "it is a file, and nothing can stand below it")
                if parent not in self.nodes:
                    made[parent] = None
            data = bytes_of(file.content, file.encoding)
            blob = file_blob(data, file.encoding)
            puts[file.path] = Put(file.path, sha256(data).hexdigest(), len(data), file.encoding, file.is_readonly)
            blobs.append(blob)
        self._check_limits(made, puts)
        return Change(FilesChanged(by, made=tuple(made), put=tuple(puts.values())), tuple(blobs))

    def making(self, path: str, by: str) -> Change | None:
        """Make a directory, and those above it; None if it is there.

        Raises:
            Error: `file_kind_conflict`, `file_limit_exceeded`.
        """
        missing = [one for one in (*parents_of(path), path) if not self.is_directory(one)]
        for one in missing:
            if one in self.nodes:
                raise _kind(one, "it is a file")
        if not missing:
            return None
        self._check_limits(dict.fromkeys(missing), {})
        return Change(FilesChanged(by, made=tuple(missing)))

    def removing(self, path: str, by: str, *, recursive: bool) -> Change | None:
        """Remove a file, or a directory: one that is not empty only with all that is in it. None if nothing is to do.

        Raises:
            Error: `file_path_invalid` for the root, `file_readonly` for what is, or holds, a read-only file.
        """
        if path == ROOT:
            raise Error(Code.FILE_PATH_INVALID, "the root cannot be deleted", hint="delete what is in it")
        if path not in self.nodes:
            return None
        inside = [known for known in self.nodes if known.startswith(below(path))]
        if inside and not recursive:
            return None
        for one in (path, *inside):
            if self.nodes[one].readonly:
                raise _readonly(one)
        return Change(FilesChanged(by, removed=(path,)))

    def _check_limits(self, made: Iterable[str], puts: dict[str, Put]) -> None:
        for put in puts.values():
            if put.size > MAX_FILE_BYTES:
                raise _limit(f"{shown(put.path)} would have {put.size} bytes", f"a file has at most {MAX_FILE_BYTES}")
        sizes = {path: node.size for path, node in self.nodes.items()} | {path: put.size for path, put in puts.items()}
        total, entries = sum(sizes.values()), len({*sizes, *made})
        if total > MAX_SESSION_BYTES:
            raise _limit(f"the files would have {total} bytes", f"those of a session have at most {MAX_SESSION_BYTES}")
        if entries > MAX_ENTRIES:
            raise _limit(f"there would be {entries} files", f"a session has at most {MAX_ENTRIES}")

    def let_go(self, record: FilesChanged, after: Tree) -> tuple[BlobHash, ...]:
        """The bytes that nobody refers to once this record is folded, which leads to the tree `after`."""
        kept = {node.hash for node in after.nodes.values()}
        touched = (*record.removed, *(put.path for put in record.put))
        old = {
            node.hash
            for path, node in self.nodes.items()
            if any(path == one or path.startswith(below(one)) for one in touched)
        }
        return tuple(blob_name(hash) for hash in sorted(old - kept) if hash)


def blob_name(hash: str) -> BlobHash:
    """Under which name the bytes of a file are stored: never that of bytes that a log refers to, which are let go by
    other rules."""
    return BlobHash(sha256(f"file:{hash}".encode()).hexdigest())


def file_blob(data: bytes, encoding: Encoding) -> Blob:
    """The bytes of a file."""
    media_type = "text/plain" if encoding == "text" else "application/octet-stream"
    return Blob(blob_name(sha256(data).hexdigest()), media_type, data)


def _encoding(encoding: str) -> Encoding:
    if encoding not in ("text", "base64"):
        bytes_of("", encoding)
    return "text" if encoding == "text" else "base64"


def _kind(path: str, because: str) -> Error:
    return Error(Code.FILE_KIND_CONFLICT, f"{shown(path)} cannot be that", because=because, path=path)


def _readonly(path: str) -> Error:
    return Error(Code.FILE_READONLY, f"{shown(path)} is read-only", hint="write another file", path=path)


def _limit(what: str, because: str) -> Error:
    return Error(Code.FILE_LIMIT_EXCEEDED, what, because=because, hint="delete what is not needed")
