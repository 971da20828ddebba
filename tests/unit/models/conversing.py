"""A conversation with a model, as a turn would hold it."""

from dataclasses import dataclass, field

from perdure.codec import Json
from perdure.ids import TurnId
from perdure.models.protocol import Model, ModelError, ModelReply, ModelRequest, TextPiece, adopt
from perdure.vocab.messages import Message, Reply, Text, ToolCall, ToolResultPart
from perdure.vocab.tools import ToolDefinition


def tools(*names: str) -> tuple[ToolDefinition, ...]:
    return tuple(ToolDefinition(name=name, description="", parameters={}) for name in names)


@dataclass
class Talk:
    offered: tuple[ToolDefinition, ...] = ()
    messages: list[Message] = field(default_factory=list[Message])
    deltas: list[str] = field(default_factory=list[str])

    def user(self, text: str, *, note: str = "") -> None:
        notes = (Text(text=note),) if note else ()
        self.messages.append(Message(role="user", parts=(*notes, Text(text=text))))

    def result(self, call: ToolCall, output: Json, *, is_error: bool = False) -> None:
        part = ToolResultPart(
            call=call.id, name=call.name, output=output, is_error=is_error, provider_id=call.provider_id
        )
        self.messages.append(Message(role="tool", parts=(part,)))

    def request(self) -> ModelRequest:
        return ModelRequest(model="m", instructions="Be brief.", messages=tuple(self.messages), tools=self.offered)

    async def sample(self, model: Model) -> ModelReply:
        """Ask without remembering the answer."""
        self.deltas = []
        replies: list[ModelReply] = []
        async for event in model.stream(self.request()):
            assert not replies, "the reply is the last item"
            if isinstance(event, TextPiece):
                self.deltas.append(event.text)
            elif isinstance(event, ModelReply):
                replies.append(event)
        (reply,) = replies
        return reply

    async def ask(self, model: Model) -> Reply:
        """Ask, and remember the answer."""
        reply = adopt(await self.sample(model), turn=TurnId("t1"), iteration=1)
        self.messages.append(Message(role="assistant", parts=reply.parts))
        return reply

    async def fails(self, model: Model) -> ModelError:
        try:
            await self.sample(model)
        except ModelError as error:
            return error
        raise AssertionError("the model answered")
