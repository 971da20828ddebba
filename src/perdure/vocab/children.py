"""Records and references that link a session to its child sessions."""

from __future__ import annotations

from perdure.ids import SessionId, StreamId, TurnId
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value


class Parent(Value, frozen=True):
    """The parent of a session: a call of the stream `stream`, in the tree with the root stream `root`.

    `turn` is the child's turn that the parent requested. In the foreground the parent waits for the child. In the
    `background` the end of that turn is delivered to the parent as an input.
    """

    stream: StreamId
    root: StreamId
    handle: str
    turn: TurnId
    depth: int
    background: bool = False


class ChildClaimed(Value, frozen=True, tag="child_claimed"):
    """A call reserved a number among the descendants of this stream. Admitted; numbers have no gaps.

    The writer of a number has read all lower ones; `live` are those whose descendants had not ended. `task` is a digest
    of the task and its agent, `turn` the parent's turn.
    """

    number: int
    handle: str
    token: str
    task: str
    parent: StreamId
    turn: TurnId
    live: tuple[int, ...] = ()


class ChildRegistered(Value, frozen=True, tag="child_registered"):
    """The child session of a call was created. `asked` is the child's turn that answers the call."""

    handle: str
    token: str
    child: SessionId
    asked: TurnId = TurnId("")


class ChildEnded(Value, frozen=True, tag="child_ended"):
    """A turn of a descendant ended, with its usage. The descendant sends it in the append that ends the turn.

    With a `source`, it is one model call of a process of the session, which is the `child`. Then `turn` is the effect.
    """

    child: SessionId
    turn: TurnId
    status: str
    result: str = ""
    usage: Usage = Usage()
    source: str = ""
    model: str = ""
