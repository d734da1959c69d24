"""What end users see of a revision, and what of a published one may change."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from broker.domain.revisions import (
    Revision,
    RevisionStatus,
    VersionField,
    is_credential,
    live_content,
    require_change,
)
from broker.errors import Conflict


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWORD",
        "pass-word",
        "p a s s w o r d",
        "secret",
        "clientSecret",
        "token",
        "access_token",
        "accessToken",
        "tokens",
        "apiKey",
        "api_key",
        "API-KEY",
        "x-api-key",
        "ApiKeys",
        "authorization",
        "Proxy-Authorization",
        "credentials",
        "dbCredential",
        "\uff50assword",
        "secretKey",
        "SECRETKEY",
        "secret_access_key",
        "passwordHash",
        "password-hash-2",
        "dbPasswd",
        "tokenValue",
        "refreshTokens",
        "access_tokens",
        "authorizationHeader",
        "privateKey",
        "private_key_pem",
        "apiKeyProduction",
        "passwordHintSecret",
        "smtp.credentials.json",
        "pwd",
        "db_pwd",
        "bearer",
        "jwt",
        "basicAuth",
        "connectionString",
        "Ocp-Apim-Subscription-Key",
        "accountKey",
        "licenseKey",
        "auth",
        "cookie",
        "dsn",
        "sessionId",
    ],
)
def test_credentials_are_known_by_their_names(key: str) -> None:
    assert is_credential(key)


@pytest.mark.parametrize(
    "key",
    [
        "title",
        "tokenCount",
        "designTokens",
        "maxTokens",
        "tokenColors",
        "tokenizer",
        "secretary",
        "secretariat",
        "passwordHint",
        "passwordHints",
        "passwordless",
        "passwordRequired",
        "authorizationEndpoint",
        "key",
        "keyboard",
        "primaryKey",
        "author",
        "cookieBanner",
        "bearerTokenUrl",
        "authors",
        "",
    ],
)
def test_other_names_are_kept(key: str) -> None:
    assert not is_credential(key)


def test_credentials_go_at_any_depth() -> None:
    content = {
        "a": [{"b": {"Api_Key": 1, "c": [[{"secret": {"x": 1}, "d": 2}]]}}],
        "token": "t",
        "kept": "password",
    }
    assert live_content(content) == {"a": [{"b": {"c": [[{"d": 2}]]}}], "kept": "password"}


def test_data_sources_keep_three_fields() -> None:
    source = {"id": "s", "name": "S", "type": "api", "url": "https://example.com", "headers": {"X": "y"}}
    assert live_content({"dataSources": [source, {"id": "t", "name": {"url": "u"}}]}) == {
        "dataSources": [{"id": "s", "name": "S", "type": "api"}, {"id": "t"}]
    }


@pytest.mark.parametrize(
    "sources", [None, 5, "https://example.com", {"url": "u"}, ["https://example.com"], [[{"url": 1}]]]
)
def test_data_sources_of_another_shape_show_nothing(sources: Any) -> None:
    assert live_content({"dataSources": sources}) == {"dataSources": []}


def test_the_content_itself_is_untouched() -> None:
    content = {"token": 1, "dataSources": [{"url": "u"}]}
    live_content(content)
    assert content == {"token": 1, "dataSources": [{"url": "u"}]}


def revision(status: str, content: Any) -> Revision:
    return Revision.model_construct(status=RevisionStatus(status), content=content)


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [
        (("draft", {"a": 1}), ("draft", {"a": 2}), True),
        (("draft", {"a": 1}), ("published", {"a": 2}), True),
        (("published", {"a": 1, "b": 2}), ("published", {"b": 2, "a": 1}), True),
        (("published", {"a": 1}), ("published", {"a": True}), False),
        (("published", {"a": 1}), ("published", {}), False),
        (("published", {"a": 1}), ("draft", {"a": 1}), False),
    ],
)
def test_what_may_change(before: tuple[str, Any], after: tuple[str, Any], is_allowed: bool) -> None:
    if is_allowed:
        require_change(revision(*before), revision(*after))
    else:
        with pytest.raises(Conflict):
            require_change(revision(*before), revision(*after))


VERSION: TypeAdapter[str] = TypeAdapter(VersionField)


@pytest.mark.parametrize("version", ["1", "1.0.0-rc.1+build.5", "x" * 128])
def test_versions(version: str) -> None:
    assert VERSION.validate_python(version) == version


@pytest.mark.parametrize("version", ["", "x" * 129, "latest", "..", "a/b", "a b", "é"])
def test_no_versions(version: str) -> None:
    with pytest.raises(ValidationError):
        VERSION.validate_python(version)
