"""What a session knows of the sessions that its calls started, and they of it."""

from __future__ import annotations

from perdure.ids import SessionId, StreamId, TurnId
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value


class Parent(Value, frozen=True):
    """Who started a session: a call of the stream `stream`, in the line that begins with `root`.

    `turn` is the turn of the new session that the parent asked for. A parent that waits for it has a child in the
    foreground; else the end of that turn is told to it as an input.
    """

    stream: StreamId
    root: StreamId
    handle: str
    turn: TurnId
    depth: int
    background: bool = False


class ChildClaimed(Value, frozen=True, tag="child_claimed"):
    """A call takes a place among the descendants of this stream. Admitted, under its number: there are no gaps, so who
    writes a number knows all before it. `live` are those of them that were not over at that moment.

    `task` is a digest of what is asked of whom, `turn` the parent's turn.
    """

    number: int
    handle: str
    token: str
    task: str
    parent: StreamId
    turn: TurnId
    live: tuple[int, ...] = ()


class ChildRegistered(Value, frozen=True, tag="child_registered"):
    """The child of a call is there. `asked` is the turn in which it answers."""

    handle: str
    token: str
    child: SessionId
    asked: TurnId = TurnId("")


class ChildEnded(Value, frozen=True, tag="child_ended"):
    """A turn of a descendant is over, and what it used. Told by the descendant, with its own record of that."""

    child: SessionId
    turn: TurnId
    status: str
    result: str = ""
    usage: Usage = Usage()
