"""What the AsyncAPI document says of a message, as something to hold messages against."""

from functools import cache, reduce
from operator import getitem
from typing import Any

from jsonschema import Draft202012Validator

from broker.resources.catalogue import build_registry
from broker.resources.notifications import STREAM_REFUSALS
from broker.rest.asyncapi import CHANNEL, asyncapi_document
from broker.rest.asyncapi_messages import PROTOCOL_ERRORS, key_of
from broker.rest.asyncapi_stream import STREAM
from broker.settings import Settings

REGISTRY = build_registry()
DOCUMENT = asyncapi_document(REGISTRY, Settings())
MESSAGES = DOCUMENT["channels"][CHANNEL]["messages"]
STREAM_MESSAGES = DOCUMENT["channels"][STREAM]["messages"]
_PROTOCOL = {message: "error." + message.title().replace(" ", "") for _, message, _ in PROTOCOL_ERRORS}


def faults_of_notification(message: dict[str, Any]) -> list[str]:
    """What is wrong with a notification; empty where it is as described."""
    method = str(message.get("method"))
    if f"notify.{method}" not in DOCUMENT["operations"]:
        return [f"no notification is named {method}"]
    return _faults(method, message)


def faults_of_answer(method: str, message: dict[str, Any]) -> list[str]:
    """The same of what a call was answered, which its operation must name."""
    operation = REGISTRY.find(method)
    name = key_of(operation.name if operation is not None else method)
    described = DOCUMENT["operations"].get(name)
    replies = [] if described is None else [reference["$ref"] for reference in described["reply"]["messages"]]
    if "result" in message:
        answer = f"{name}.result"
    else:
        told = message["error"]["message"]
        answer = _PROTOCOL.get(told) or f"error.{key_of(told)}"
    if answer not in _PROTOCOL.values() and not any(reply.endswith(f"/{answer}") for reply in replies):
        return [f"{method} is not said to answer {answer}: {message}"]
    return _faults(answer, message)


def faults_of_call(message: dict[str, Any]) -> list[str]:
    """The same of a call."""
    operation = REGISTRY.find(message["method"])
    return _faults(key_of(operation.name if operation is not None else message["method"]), message)


def faults_of_stream_event(lines: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """The same of an event of a stream: of its lines, `retry` as a number, and of its data."""
    name = str(lines.get("event"))
    if name not in STREAM_MESSAGES:
        return [f"no event of a stream is named {name}"]
    return _faults(name, lines, STREAM, "headers") + _faults(name, data, STREAM)


def faults_of_stream_head(headers: dict[str, str]) -> list[str]:
    """The same of the head of a stream; the names of the headers are in lower case."""
    described = STREAM_MESSAGES["subscribed"]["bindings"]["http"]["headers"]["properties"]
    came = {name: headers[name.lower()] for name in described if name.lower() in headers}
    return _faults("subscribed", came, STREAM, "bindings", "http", "headers")


def faults_of_stream_refusal(headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    """The same of an answer in place of a stream."""
    found = [each for each in STREAM_REFUSALS if (each.status, each.error) == (body["status"], body["error"])]
    if not found:
        return [f"a stream is not said to be refused by {body}"]
    return [f"{body} has no {name}" for name in found[0].headers if name.lower() not in headers]


def _faults(name: str, value: dict[str, Any], channel: str = CHANNEL, *part: str) -> list[str]:
    errors = _validator(channel, name, *(part or ("payload",))).iter_errors(value)
    return [f"{name} at {error.json_path}: {error.message[:300]}" for error in errors]


@cache
def _validator(channel: str, name: str, *part: str) -> Draft202012Validator:
    """Of one part of a message: its payload, or what stands below `part`."""
    schema = reduce(getitem, part, DOCUMENT["channels"][channel]["messages"][name])
    return Draft202012Validator(schema | {"components": DOCUMENT["components"]})
