"""What the AsyncAPI document says of a message, as something to hold messages against."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from broker.operations.catalogue import build_registry
from broker.rest.asyncapi import CHANNEL, asyncapi_document
from broker.rest.asyncapi_messages import PROTOCOL_ERRORS, key_of
from broker.settings import Settings

REGISTRY = build_registry()
DOCUMENT = asyncapi_document(REGISTRY, Settings())
MESSAGES = DOCUMENT["channels"][CHANNEL]["messages"]
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


def _faults(name: str, message: dict[str, Any]) -> list[str]:
    return [
        f"{name} at {error.json_path}: {error.message[:300]}"
        for error in _validator(name).iter_errors(message)
    ]


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(MESSAGES[name]["payload"] | {"components": DOCUMENT["components"]})
