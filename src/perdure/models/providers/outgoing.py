"""Conversion of a model request to the messages of Pydantic AI.

Laws: the same conversation gives the same bytes, and a longer one begins with those of the shorter. Provider state
(signatures, ids, details) returns only to the route that issued it; on other routes it is left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from perdure.codec import Json, encode
from perdure.ids import CallId
from perdure.models.protocol import ModelError, ModelRequest
from perdure.models.providers.incoming import RESPONSE, opaque_parts
from perdure.vocab.messages import (
    Citation,
    File,
    ImagePart,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResultPart,
)
from perdure.vocab.outcomes import LlmError

if TYPE_CHECKING:
    from pydantic_ai import messages as m
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

log = logging.getLogger("perdure.models")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The constant timestamp of all messages, so that equal messages stay equal. Providers never see it."""

_WIRE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_OURS = frozenset({"stream"})
_FIXED = {"max_retries": "the runtime controls the attempts"}


class Outgoing:
    """One request to one model over one route."""

    def __init__(self, request: ModelRequest, model: Model[Any], route: str) -> None:
        self._request = request
        self._model = model
        self._route = route
        self._wire_ids: dict[CallId, str] = {}
        self._used: set[str] = set()

    # --- settings and parameters

    def settings(self) -> ModelSettings:
        """Return the settings, with the SDK's retries off.

        Raises:
            ModelError: `invalid` for an unknown setting.
        """
        from pydantic_ai.settings import ModelSettings

        given = settings_of(self._request.settings)
        known = ModelSettings.__annotations__.keys()
        for name in given:
            if name in _FIXED or (name not in known and name not in _OURS and "_" not in name):
                raise _refused(f"the setting {name!r} cannot be used: {_FIXED.get(name, 'it is unknown')}")
        settings = {name: value for name, value in given.items() if name not in _OURS}
        if self._request.tools and (self._request.tool_choice != "auto" or "tool_choice" not in settings):
            settings["tool_choice"] = self._request.tool_choice
        once = {} if self._model.system == "bedrock" else {"max_retries": 0}  # Bedrock's client has retries off
        return cast("ModelSettings", {**settings, **once})

    def parameters(self) -> ModelRequestParameters:
        """Return tools, instructions and the form of the answer."""
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        tools = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
            for tool in self._request.tools
        ]
        said = self._request.instructions
        parts = [InstructionPart(content=said)] if said.strip() else []
        parameters = ModelRequestParameters(function_tools=tools, instruction_parts=parts)
        return self._with_output(parameters) if self._request.output_spec is not None else parameters

    def _with_output(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        """Add the required form of the answer: enforced by the provider if supported, else as a prompt."""
        from dataclasses import replace

        from pydantic_ai.output import OutputObjectDefinition

        spec = self._request.output_spec
        wanted = OutputObjectDefinition(json_schema=spec["schema"], name=spec.get("name"))
        profile = self._model.profile
        native = profile.get("supports_json_schema_output", False)
        if native and self._request.tools and self._model.system.startswith("google"):
            native = bool(profile.get("google_supports_tool_combination", False))
        if native:
            return replace(parameters, output_mode="native", output_object=wanted)
        template = profile.get("prompted_output_template")
        return replace(parameters, output_mode="prompted", output_object=wanted, prompted_output_template=template)

    # --- messages

    def messages(self) -> list[m.ModelMessage]:
        """Return the conversation. Adjacent requests are merged: results first, then user content."""
        from pydantic_ai.messages import ModelRequest as TheirRequest
        from pydantic_ai.messages import ModelResponse

        out: list[m.ModelMessage] = []
        for message in self._request.messages:
            if message.role == "assistant":
                if parts := [part for one in self._known(message.parts) for part in self._reply_parts(one)]:
                    model = self._model
                    name, url = model.system, model.base_url
                    response = ModelResponse(parts, provider_name=name, provider_url=url, timestamp=EPOCH)
                    response.model_name = model.model_name
                    response.provider_details = self._details(message.parts)
                    out.append(response)
                continue
            asked = self._asked(message)
            last = out[-1] if out else None
            if isinstance(last, TheirRequest):
                last.parts = [*last.parts, *asked]
            elif asked:
                out.append(TheirRequest(asked, timestamp=EPOCH))
        return out

    def _asked(self, message: Message) -> list[m.ModelRequestPart]:
        from pydantic_ai.messages import SystemPromptPart, UserPromptPart

        if message.role == "system":
            text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
            return [SystemPromptPart(text, timestamp=EPOCH)]
        if message.role == "tool":
            return [*self._results(message.parts)]
        content = [item for part in message.parts for item in self._shown(part)]
        if not content:
            return []
        only_text = all(isinstance(item, str) for item in content)  # joined: some servers accept only one string
        said = "\n\n".join(cast("list[str]", content)) if only_text else content
        return [UserPromptPart(said, timestamp=EPOCH)]

    def _shown(self, part: Part) -> Iterable[m.UserContent]:
        match part:
            case Text(text=text):
                yield text
            case ImagePart() | File():
                yield self._bytes(part)
            case _:
                return

    def _bytes(self, part: ImagePart | File) -> m.BinaryContent:
        from pydantic_ai.messages import BinaryContent

        data, media_type = self._request.attachments[part.ref.hash], part.ref.media_type
        return BinaryContent.narrow_type(BinaryContent(data, media_type=_known_to_all(data, media_type)))

    def _results(self, parts: tuple[Part, ...]) -> Iterable[m.ModelRequestPart]:
        """Yield results in order, each with the images that directly follow it."""
        from pydantic_ai.messages import ToolReturnPart

        result: ToolResultPart | None = None
        files: list[m.BinaryContent] = []
        for part in (*parts, None):
            if isinstance(part, ToolResultPart) or part is None:
                if result is not None:
                    yield ToolReturnPart(
                        tool_name=result.name or "unknown",
                        content=_tool_output(result.output, files),
                        tool_call_id=self._wire_id(result.call, result.provider_id),
                        outcome="failed" if result.is_error else "success",
                        timestamp=EPOCH,
                    )
                result, files = part, []
            elif isinstance(part, ImagePart | File):
                files.append(self._bytes(part))

    def _known(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return the parts of a reply, without all opaque ones if any of them is unreadable.

        They belong together, and the conversation must continue without them.
        """
        try:
            for part in parts:
                if isinstance(part, Opaque) and part.route == self._route and part.kind != RESPONSE:
                    _restored(part)
        except ValueError:
            log.warning("unreadable provider state dropped provider=%s", self._model.system)
            return tuple(part for part in parts if not isinstance(part, Opaque))
        return parts

    def _reply_parts(self, part: Part) -> Iterable[m.ModelResponsePart]:
        from pydantic_ai.messages import FilePart, TextPart, ThinkingPart, ToolCallPart

        match part:
            case Text(text=text):
                state = self._state(part)
                if text.strip() or state:
                    yield TextPart(text, citations=_cited(part.citations), **state)
            case Thinking() if part.route == self._route:
                yield ThinkingPart(part.text, signature=part.signature or None, **self._state(part, always=True))
            case ToolCall():
                wire_id = self._wire_id(part.id, part.provider_id, part.route)
                args = encode(part.args).decode()
                yield ToolCallPart(part.name or "unknown", args, wire_id, **self._state(part))
            case ImagePart() | File():
                own: dict[str, Any] = {"provider_name": self._model.system}
                yield FilePart(self._bytes(part), **(own | self._state(part)))
            case Opaque() if part.route == self._route and part.kind != RESPONSE:
                yield _restored(part)
            case _:
                return

    def _details(self, parts: tuple[Part, ...]) -> dict[str, Any] | None:
        """Return the provider state of a whole reply."""
        kept = [p.state for p in parts if isinstance(p, Opaque) and (p.kind, p.route) == (RESPONSE, self._route)]
        return cast("dict[str, Any]", kept[0]) if kept else None

    def _state(self, part: Text | Thinking | ToolCall | ImagePart | File, *, always: bool = False) -> dict[str, Any]:
        """Return the provider state of a part, if it came from this route."""
        if part.route != self._route or not (part.state or always):
            return {}
        kept = cast("dict[str, Any]", part.state or {})
        return {
            "id": kept.get("id"),
            "provider_details": kept.get("details"),
            "provider_name": self._model.system,
        }

    def _wire_id(self, call: CallId, provider_id: str, route: str | None = None) -> str:
        """Return the provider's own id if it is valid and unused, else a derived id that every provider accepts."""
        if (known := self._wire_ids.get(call)) is not None:
            return known
        own = provider_id and provider_id not in self._used and route in (self._route, None, "")
        if not (own and _WIRE_ID.fullmatch(provider_id)):
            provider_id = f"call_{sha256(call.encode()).hexdigest()[:24]}"
        self._used.add(provider_id)
        self._wire_ids[call] = provider_id
        return provider_id


def settings_of(settings: Json) -> dict[str, Any]:
    """Return settings as a dict.

    Raises:
        ModelError: `invalid` for any other type.
    """
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise _refused("settings must be a mapping of names to values, such as temperature and max_tokens")
    return cast("dict[str, Any]", settings)


def _refused(message: str) -> ModelError:
    return ModelError(LlmError(kind="invalid", message=message))


def _known_to_all(data: bytes, media_type: str) -> str:
    """Return text/plain for all UTF-8 text types, since few providers accept others."""
    kind = media_type.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXTUAL):
        return media_type
    try:
        data.decode()
    except UnicodeDecodeError:
        return media_type
    return "text/plain"


def _tool_output(output: Json, files: list[m.BinaryContent]) -> Any:  # noqa: ANN401 - as the library types it
    return output if not files else [output, *files]


def _cited(citations: tuple[Citation, ...]) -> list[m.Citation] | None:
    from pydantic_ai.messages import (
        Citation as Theirs,
    )
    from pydantic_ai.messages import (
        ContentCitationAnchor,
        DocumentCitationSource,
        MarkerCitationAnchor,
        WebCitationSource,
    )

    found: list[m.Citation] = []
    for one in citations:
        excerpts = list(one.excerpts)
        source = (
            WebCitationSource(one.url, title=one.title or None, excerpts=excerpts)
            if one.url
            else DocumentCitationSource(document_id=one.document or None, title=one.title or None, excerpts=excerpts)
        )
        anchor = None
        if one.start is not None and one.end is not None:
            anchor = (MarkerCitationAnchor if one.marker else ContentCitationAnchor)(start=one.start, end=one.end)
        found.append(Theirs([source], anchor=anchor))
    return found or None


def _restored(part: Opaque) -> m.ModelResponsePart:
    return opaque_parts().validate_python(part.state)
