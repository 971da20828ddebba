"""The in-memory store of one process: the reference implementation of the store laws."""

from perdure.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
