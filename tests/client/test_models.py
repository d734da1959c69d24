"""What the SDK reads is what the OpenAPI document promises."""

import json
from typing import Any

import msgspec
import pytest

from broker.client import answers, audit, images, models, statistics
from broker.client.wire import Model
from broker.resources.catalogue import build_registry
from broker.rest.openapi import openapi_document
from broker.settings import Settings

SCHEMAS = openapi_document(build_registry(), Settings())["components"]["schemas"]
NAMES: dict[str, type[Model]] = {
    "ApiToken": models.ApiToken,
    "AuditResource": audit.AuditEntry,
    "Connect": models.GatewayChoice,
    "ConnectServer": models.GatewayLoad,
    "Counted": answers.Counted,
    "Dashboard": statistics.Dashboard,
    "Event": models.Event,
    "ImageSeriesPoint": statistics.ImagesPoint,
    "ImportResult": models.Imported,
    "IntegrityEntry": answers.IntegrityEntry,
    "IntegrityMinute": answers.IntegrityMinute,
    "LastUpdate": models.LastUpdate,
    "Health": models.Health,
    "LiveResults": answers.LiveResults,
    "LiveRevision": models.LiveRevision,
    "MaintenanceState": models.MaintenanceState,
    "OnlineProducerResource": statistics.OnlineProducer,
    "ProgramResource": models.Program,
    "Project": models.Project,
    "ReportEntry": answers.ReportEntry,
    "ReportImpressions": answers.ReportImpressions,
    "ReportOption": answers.ReportOption,
    "Revision": models.Revision,
    "SeriesPoint": statistics.StatisticsPoint,
    "ServerTime": models.ServerTime,
    "StoredValue": models.StoredValue,
    "TokenResponse": models.Token,
    "TopProgramResource": statistics.TopProgram,
    "User": models.User,
    "Version": models.Version,
    "Visitor": answers.Visitor,
    "WarmedImage": images.WarmedImage,
}
OWN = {"etag"}  # a header's
SECRET = ("ApiToken", "token")  # of `NewApiToken` alone


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_read_as_it_is_documented(name: str) -> None:
    schema: dict[str, Any] = SCHEMAS[name]
    for field in msgspec.structs.fields(NAMES[name]):
        wire = field.encode_name
        if wire in OWN or (name, wire) == SECRET:
            continue
        assert wire in schema["properties"], f"the broker documents no {wire}"
        assert not field.required or wire in schema["required"], f"{wire} may be absent, and is required here"
        is_nullable = '"null"' in json.dumps(schema["properties"][wire])
        assert not is_nullable or "None" in str(field.type), f"{wire} may be null, and may not be None here"


def test_values_are_equal_with_a_tag_and_without() -> None:
    raw = {"id": "p", "name": "P", "description": None, "metadata": {}}
    raw |= {"createdTime": "2026-07-19T19:00:00Z", "updatedTime": "2026-07-19T19:00:00Z"}
    project = models.Project.parse(raw)
    assert project == msgspec.structs.replace(project, etag="t")
    assert project != msgspec.structs.replace(project, name="Q")
