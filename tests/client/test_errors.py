"""Errors of the wire become the errors of the SDK."""

import pytest

from broker.client import errors


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "invalid_request", errors.InvalidRequest),
        (400, "invalid_client", errors.InvalidRequest),
        (401, "invalid_token", errors.Unauthenticated),
        (401, "bad_credentials", errors.BadCredentials),
        (403, "insufficient_scope", errors.InsufficientScope),
        (404, "not_found", errors.NotFound),
        (409, "conflict", errors.Conflict),
        (412, "precondition_failed", errors.PreconditionFailed),
        (413, "payload_too_large", errors.PayloadTooLarge),
        (418, "teapot", errors.ApiError),
        (429, "slow_down", errors.SlowDown),
        (500, "internal_error", errors.ServerError),
        (502, "bad_gateway", errors.ServerError),
        (503, "unavailable", errors.Unavailable),
        (503, "maintenance", errors.Unavailable),
        (503, "outcome_unknown", errors.OutcomeUnknown),
    ],
)
def test_status_and_name_choose_the_class(status: int, name: str, kind: type) -> None:
    error = errors.parse_api_error(status, {"error": name, "error_description": "why"})
    assert type(error) is kind
    assert str(error) == f"{status} {name}: why"


def test_fields_and_request_id_are_kept() -> None:
    body = {"error": "invalid_request", "errors": [{"field": "events[3].event", "message": "bad"}, "odd"]}
    error = errors.parse_api_error(400, body, request_id="r1", retry_after="3")
    assert error.fields == (errors.FieldFault("events[3].event", "bad"),)
    assert (error.request_id, error.retry_after_s) == ("r1", 3.0)


@pytest.mark.parametrize("body", [None, [], "page", {"error": 5, "errors": "x"}])
def test_foreign_body_is_still_an_error(body: object) -> None:
    error = errors.parse_api_error(502, body)
    assert (type(error), error.name, error.fields) == (errors.ServerError, "http_502", ())


@pytest.mark.parametrize(
    "body", [None, [], "page", {"error": "x"}, {"error": "x", "status": 404}, {"status": 502}]
)
def test_what_the_broker_does_not_write_is_not_the_brokers(body: object) -> None:
    assert not errors.is_brokers(502, body)
    assert errors.is_brokers(502, {"error": "bad_gateway", "status": 502})


@pytest.mark.parametrize("text", [None, "", "soon", "-1", "inf", "nan"])
def test_unreadable_retry_after_counts_as_absent(text: str | None) -> None:
    assert errors.parse_api_error(503, None, retry_after=text).retry_after_s is None


def test_rpc_error_carries_the_rest_error() -> None:
    data = {"error": "invalid_request", "status": 400, "error_description": "x", "errors": []}
    error = errors.parse_rpc_error({"code": -32602, "message": "invalid_request", "data": data})
    assert isinstance(error, errors.InvalidRequest)


@pytest.mark.parametrize(("told", "expected"), [(2, 2.0), (0.5, 0.5), ("x", None), ([], None), (-1, None)])
def test_rpc_error_says_how_long_to_wait(told: object, expected: float | None) -> None:
    data = {"error": "slow_down", "status": 429, "error_description": "x", "retryAfter": told}
    error = errors.parse_rpc_error({"code": 429, "message": "slow_down", "data": data})
    assert isinstance(error, errors.SlowDown)
    assert error.retry_after_s == expected


def test_rpc_error_without_data_goes_by_its_code() -> None:
    assert isinstance(errors.parse_rpc_error({"code": 404, "message": "not_found"}), errors.NotFound)
    unknown = errors.parse_rpc_error({"code": -32601, "message": "Method not found"})
    assert isinstance(unknown, errors.RpcError)
    assert unknown.code == -32601


@pytest.mark.parametrize("error", [None, {}, {"code": "x"}])
def test_rpc_error_without_a_code_breaks_the_protocol(error: object) -> None:
    assert isinstance(errors.parse_rpc_error(error), errors.ProtocolError)
