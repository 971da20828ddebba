"""`ctx.attachments`: bytes that belong to the session."""

from __future__ import annotations

from typing import Protocol

from perdure.vocab.messages import AttachmentRef


class Attachments(Protocol):
    """Bytes in, references out. The bytes become durable in the append that records how the call ended."""

    async def put(self, data: bytes, media_type: str, *, name: str = "") -> AttachmentRef:
        """Keep bytes and refer to them.

        Raises:
            ToolError: `runtime_effect_attachment_missing_reference` for no bytes,
                `runtime_effect_attachment_media_type` for a type that cannot be kept,
                `runtime_effect_attachment_store` for more than can be kept.
        """
        ...

    async def get(self, ref: AttachmentRef) -> bytes:
        """The bytes of a reference this session holds.

        Raises:
            ToolError: `attachment_not_found` for any other, whether the bytes exist or not.
        """
        ...
