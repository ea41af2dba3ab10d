"""The OpenAPI document, made from the request structs so that it cannot drift from them. seam/openapi.json is a copy."""

from __future__ import annotations

from typing import Any

import msgspec

import homestretch
from homestretch.engine.server.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

Json = dict[str, Any]

BODIES = {
    "/v1/chat/completions": (ChatRequest, "A reply to a conversation, whole or as server-sent events."),
    "/v1/completions": (CompletionRequest, "What follows a text or token ids, whole or as server-sent events."),
    "/tokenize": (TokenizeRequest, "Token ids of a text or a conversation."),
    "/detokenize": (DetokenizeRequest, "The text of token ids."),
}
LOOKUPS = {
    "/health": "Whether the engine lives.",
    "/metrics": "Counters in Prometheus' text format.",
    "/openapi.json": "This document.",
    "/v1/models": "The one model that is served, with its window as max_model_len.",
    "/v1/models/{name}": "The same by name.",
}


def document() -> Json:
    """The whole document (OpenAPI 3.1)."""
    _, components = msgspec.json.schema_components(
        [kind for kind, _ in BODIES.values()], ref_template="#/components/schemas/{name}"
    )
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
    refused = {
        "description": "Refused, with the reason.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    paths: Json = {}
    for path, (kind, text) in BODIES.items():
        body = {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}}
        paths[path] = {
            "post": {"summary": text, "requestBody": body, "responses": {"200": {"description": "Done."}, "default": refused}}
        }
    for path, text in LOOKUPS.items():
        paths[path] = {"get": {"summary": text, "responses": {"200": {"description": "Done."}, "default": refused}}}
        if "{name}" in path:
            paths[path]["get"]["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Homestretch",
            "version": homestretch.__version__,
            "summary": "Serve a language model on your own machine.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
