"""Pulsar's admin API for the schemas of a topic: get, test, set, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from onewriter_broker.connection.schemas import kept_of, schemas_of
from onewriter_broker.http.pulsar.topics import checked, existing
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Refusal, Site, creator_of, flag, object_body
from onewriter_broker.topic.schemas.rules import KeptSchema, Schema, parts
from onewriter_broker.topic.schemas.topic_schemas import TopicSchemas, find
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused
from onewriter_core.ids import TopicName
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

_PATH: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic:[^/]+}"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Schemas"."""
    _add_reads(router, site)
    _add_writes(router, site)


def _add_reads(router: Routes, site: Site) -> None:
    async def kept(request: web.Request) -> list[KeptSchema]:
        try:
            return await kept_of(site.clients, checked(site, request).base)
        except ValueError as error:
            raise Refusal(500, str(error)) from error

    async def latest(request: web.Request) -> web.Response:
        return _shown(find(await kept(request), None))

    async def one(request: web.Request) -> web.Response:
        text = request.match_info["version"]
        if not (text.isascii() and text.isdecimal()) or len(text) > 16:
            raise Refusal(412, "a schema version is a whole number")
        return _shown(find(await kept(request), int(text)))

    async def every(request: web.Request) -> web.Response:
        found = [_object(each) for each in await kept(request) if not each.is_deleted]
        return web.json_response({"getSchemaResponses": found})

    router.add_get(_PATH + "/schema", latest, on_topic(Action.READ_SCHEMA))
    router.add_get(_PATH + "/schema/{version}", one, on_topic(Action.READ_SCHEMA))
    router.add_get(_PATH + "/schemas", every, on_topic(Action.READ_SCHEMA))


def _add_writes(router: Routes, site: Site) -> None:
    async def served(request: web.Request) -> TopicSchemas:
        name, _ = await existing(site, request)
        await site.require_owned(request, name)
        topic = await site.topics.serve_existing(name.base)
        return schemas_of(site.clients, topic, creator_of(request))

    async def served_or_made(request: web.Request) -> TopicSchemas:
        """As in Pulsar, a schema may exist before its topic."""
        name: TopicName = checked(site, request)
        await site.require_owned(request, name)
        creator = creator_of(request)
        return schemas_of(site.clients, await site.topics.serve(name, creator), creator)

    async def set_(request: web.Request) -> web.Response:
        schema = _posted(await object_body(request))
        schemas = await served_or_made(request)
        version = await schemas.add(schema, by_administrator=True)
        return web.json_response({"version": {"version": version}})

    async def delete(request: web.Request) -> web.Response:
        schemas = await served(request)
        version = await schemas.delete(for_good=flag(request, "force"))
        # A bare number, unlike in the response to a new schema.
        return web.json_response({"version": version})

    async def try_(request: web.Request) -> web.Response:
        schemas, schema = await served(request), _posted(await object_body(request))
        is_compatible = True
        try:
            await schemas.check(schema)
        except Refused:
            is_compatible = False
        return web.json_response(
            {
                "compatibility": is_compatible,
                "schemaCompatibilityStrategy": schemas.strategy.value,
            }
        )

    async def version(request: web.Request) -> web.Response:
        found = (await served(request)).version_of(_posted(await object_body(request)))
        if found is None:
            raise Refusal(404, "Schema not found")
        return web.json_response({"version": found})

    router.add_post(_PATH + "/schema", set_, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(_PATH + "/schema", delete, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(_PATH + "/compatibility", try_, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(_PATH + "/version", version, on_topic(Action.ADMINISTER_TOPIC))


def _posted(body: Mapping[str, object]) -> Schema:
    """Pulsar's PostSchemaPayload; raises Refusal."""
    kind, text, properties = body.get("type"), body.get("schema", ""), body.get("properties") or {}
    if not isinstance(kind, str) or kind not in pb.Schema.Type.keys():  # noqa: SIM118 - no mapping
        raise Refusal(422, f"unknown schema type {kind}")
    if kind == "KEY_VALUE":
        raise Refusal(422, "a schema of key and value is brought by a client, not over HTTP")
    if not isinstance(text, str) or not isinstance(properties, dict):
        raise Refusal(422, "a schema is a text, and its properties are a JSON object of texts")
    if not all(isinstance(value, str) for value in properties.values()):
        raise Refusal(422, "a schema's properties are a JSON object of texts")
    return Schema.from_wire(
        pb.Schema(
            name="",
            schema_data=text.encode(),
            type=pb.Schema.Type.Value(kind),
            properties=[pb.KeyValue(key=key, value=value) for key, value in properties.items()],
        )
    )


def _shown(kept: KeptSchema | None) -> web.Response:
    if kept is None:
        raise Refusal(404, "Schema not found")
    return web.json_response(_object(kept))


def _object(kept: KeptSchema) -> dict[str, object]:
    """Pulsar's GetSchemaResponse."""
    return {
        "version": kept.version,
        "type": kept.schema.type_name,
        "timestamp": kept.time_ms,
        "data": _text(kept.schema),
        "properties": dict(kept.schema.properties),
    }


def _text(schema: Schema) -> str:
    if schema.kind != pb.Schema.KEY_VALUE:
        return schema.data.decode(errors="replace")
    key, value = parts(schema)
    return json.dumps({"key": _definition(key), "value": _definition(value)})


def _definition(schema: Schema) -> object:
    try:
        return json.loads(schema.data) if schema.data else ""
    except ValueError:
        return schema.data.decode(errors="replace")
