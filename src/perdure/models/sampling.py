"""Sample values for a JSON schema: the structured answers of simulated models."""

from __future__ import annotations

from typing import cast

from perdure.codec import Json

_DEPTH = 8


def sample(schema: Json, text: str) -> Json:
    """Return the smallest value that matches the schema, with `text` as every free text."""
    return _sample(schema, schema.get("$defs", {}), text, _DEPTH)


def _sample(schema: Json, definitions: Json, text: str, depth: int) -> Json:
    if "$ref" in schema:
        return _sample(definitions[schema["$ref"].rpartition("/")[2]], definitions, text, depth - 1)
    for chosen in ("const", "default"):
        if chosen in schema:
            return schema[chosen]
    if "enum" in schema:
        return schema["enum"][0]
    for options in ("anyOf", "oneOf", "allOf"):
        if options in schema:
            # The simplest option ends a recursion.
            return _sample(min(schema[options], key=_weight), definitions, text, depth - 1)
    return _of_type(schema, definitions, text, depth)


def _weight(option: Json) -> int:
    if option.get("type") == "null":
        return 2
    return 1 if "$ref" in option or option.get("type") in ("object", "array") else 0


def _of_type(schema: Json, definitions: Json, text: str, depth: int) -> Json:
    named = schema.get("type", "object" if "properties" in schema else "string")
    match cast("list[str]", named)[0] if isinstance(named, list) else named:
        case "object":
            properties = schema.get("properties", {})
            wanted = [name for name in properties if name in schema.get("required", ()) or depth > _DEPTH - 3]
            return {name: _sample(properties[name], definitions, text, depth - 1) for name in wanted}
        case "array":
            count = max(schema.get("minItems", 1 if depth > 0 else 0), 0)
            return [_sample(schema.get("items", {}), definitions, text, depth - 1) for _ in range(count)]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            longest = schema.get("maxLength", len(text))
            return text[:longest].ljust(schema.get("minLength", 0), ".")


def _number(schema: Json) -> Json:
    if "minimum" in schema:
        return schema["minimum"]
    if "exclusiveMinimum" in schema:
        return schema["exclusiveMinimum"] + 1
    return min(0, schema.get("maximum", 0), schema.get("exclusiveMaximum", 1) - 1)
