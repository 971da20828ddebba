"""The process that evaluates other people's patterns and schemas, within limits of CPU time and memory.

It reads requests from its standard input and writes answers to its standard output, each as a length and JSON. A
request names a function of this package. The process has no environment and opens nothing by itself.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, cast

LENGTH = struct.Struct(">I")


def serve() -> None:
    """Answer requests until the input ends."""
    import resource
    import signal

    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = cast("dict[str, Any]", _read(asked))
    sys.path[:] = limits["path"]
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    while (request := _read(asked)) is not None:
        module = import_module(request["module"])
        for name in getattr(module, "PRELOADED", ()):
            import_module(name)  # loading costs more than most evaluations, and is not charged to one
        # The default action of SIGPROF ends the process, also inside an extension that never returns to Python.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        answer = _answer(getattr(module, request["function"]), request["args"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _answer(function: Callable[..., object], args: list[object]) -> bytes:
    try:
        return json.dumps({"value": function(*args)}).encode()
    except MemoryError:
        return b'{"failed": "memory"}'
    except Exception as problem:  # noqa: BLE001 - any fault of an evaluation is an answer
        return json.dumps({"failed": "error", "problem": f"{type(problem).__name__}: {problem}"[:500]}).encode()


def _read(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message, or None at the end of the input."""
    head = stream.read(LENGTH.size)
    return json.loads(stream.read(LENGTH.unpack(head)[0])) if len(head) == LENGTH.size else None


if __name__ == "__main__":
    serve()
