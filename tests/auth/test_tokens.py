import base64
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.api_jws import PyJWS

from broker.auth import tokens
from broker.auth.tokens import Claims
from broker.domain.users import Role
from broker.errors import Unauthenticated

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
ISSUER = "https://localhost"
NOW_S = 1_800_000_000
CLAIMS = Claims("demo", "u1", "kim", Role.PRODUCER, "t1", NOW_S, NOW_S + 3600, 1_799_999_000_123)


def forge(changes: dict[str, Any] | None = None, without: str = "", **header: Any) -> str:
    """A token that is signed with our key and says something else."""
    payload = jwt.decode(token(), options={"verify_signature": False})
    payload.update(changes or {})
    payload.pop(without, None)
    return PyJWS().encode(json.dumps(payload).encode(), KEY, "EdDSA", headers={"kid": "k", **header})


def token() -> str:
    return tokens.sign(CLAIMS, ISSUER, "k", KEY)


def encode(part: bytes | dict[str, Any]) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def verify(text: str) -> Claims:
    tokens.read_kid(text)
    return tokens.verify(text, KEY.public_key(), ISSUER)


def test_claims_survive_the_way_through_a_token() -> None:
    assert verify(token()) == CLAIMS
    assert tokens.read_kid(token()) == "k"


def test_token_says_what_the_contract_lists() -> None:
    assert jwt.get_unverified_header(token()) == {"alg": "EdDSA", "kid": "k", "typ": "JWT"}
    assert jwt.decode(token(), options={"verify_signature": False}) == {
        "iss": "https://localhost",
        "sub": "u1",
        "acc": "demo",
        "role": "producer",
        "name": "kim",
        "iat": 1_800_000_000,
        "exp": 1_800_003_600,
        "jti": "t1",
        "gen": 1_799_999_000_123,
    }


def test_algorithm_none_is_refused() -> None:
    payload = jwt.decode(token(), options={"verify_signature": False})
    bare = f"{encode({'alg': 'none', 'kid': 'k', 'typ': 'JWT'})}.{encode(payload)}."
    with pytest.raises(Unauthenticated):
        verify(bare)
    with pytest.raises(Unauthenticated):
        tokens.verify(bare, KEY.public_key(), ISSUER)


@pytest.mark.parametrize("encoding", [Encoding.Raw, Encoding.PEM])
def test_hmac_with_the_public_key_is_refused(encoding: Encoding) -> None:
    form = PublicFormat.Raw if encoding is Encoding.Raw else PublicFormat.SubjectPublicKeyInfo
    public = KEY.public_key().public_bytes(encoding, form)
    payload = jwt.decode(token(), options={"verify_signature": False})
    content = f"{encode({'alg': 'HS256', 'kid': 'k', 'typ': 'JWT'})}.{encode(payload)}"
    forged = f"{content}.{encode(hmac.digest(public, content.encode(), hashlib.sha256))}"
    with pytest.raises(Unauthenticated):
        verify(forged)
    with pytest.raises(Unauthenticated):
        tokens.verify(forged, KEY.public_key(), ISSUER)


def test_signature_of_another_key_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        verify(tokens.sign(CLAIMS, ISSUER, "k", Ed25519PrivateKey.generate()))


def test_foreign_issuer_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        verify(tokens.sign(CLAIMS, "https://localhost.evil", "k", KEY))


@pytest.mark.parametrize("index", [5, 60, -5])
def test_tampered_token_is_refused(index: int) -> None:
    text = token()
    changed = "A" if text[index] != "A" else "B"
    position = index % len(text)
    with pytest.raises(Unauthenticated):
        verify(text[:position] + changed + text[position + 1 :])


@pytest.mark.parametrize("name", ["iss", "sub", "acc", "role", "name", "iat", "exp", "jti", "gen"])
def test_missing_claim_is_refused(name: str) -> None:
    with pytest.raises(Unauthenticated):
        verify(forge(without=name))


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": 7},
        {"sub": ""},
        {"acc": ["demo"]},
        {"role": "owner"},
        {"iat": True},
        {"iat": 1.5},
        {"exp": "9999999999"},
        {"gen": None},
        {"iss": ["https://localhost"]},
        {"nbf": 0},
    ],
)
def test_signed_token_that_we_would_not_write_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        verify(forge(changes))


@pytest.mark.parametrize(
    "header",
    [{"kid": ""}, {"crit": ["exp"]}, {"jku": "https://evil"}, {"jwk": {}}, {"b64": False}],
)
def test_header_fields_of_others_are_refused(header: dict[str, Any]) -> None:
    if header == {"kid": ""}:
        assert tokens.read_kid(forge(**header)) == ""  # an id that no key has
        return
    with pytest.raises(Unauthenticated):
        tokens.read_kid(forge(**header))


def test_kid_must_be_there_as_text() -> None:
    with pytest.raises(Unauthenticated):
        tokens.read_kid(f"{encode({'alg': 'EdDSA', 'typ': 'JWT'})}.{encode({})}.{encode(b'x')}")
    with pytest.raises(Unauthenticated):
        tokens.read_kid(f"{encode({'alg': 'EdDSA', 'kid': 1})}.{encode({})}.{encode(b'x')}")


@pytest.mark.parametrize(("length", "message"), [(8192, "malformed"), (8193, "too long")])
def test_length_is_bounded(length: int, message: str) -> None:
    with pytest.raises(Unauthenticated, match=message):
        tokens.read_kid("a" * length)


def test_deeply_nested_header_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        tokens.read_kid(f"{encode(b'[' * 5000)}.{encode({})}.{encode(b'x')}")


@given(
    st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True)
)
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        verify(text)


@pytest.mark.parametrize(
    ("after_ms", "good"), [(0, True), (3_599_999, True), (3_600_000, False), (3_629_000, False)]
)
def test_token_ends_on_time(after_ms: int, good: bool) -> None:
    check(CLAIMS, NOW_S * 1000 + after_ms, good)


@pytest.mark.parametrize(("ahead_s", "good"), [(29, True), (30, True), (31, False), (86_400, False)])
def test_issue_in_the_future_is_borne_by_half_a_minute(ahead_s: int, good: bool) -> None:
    check(replace(CLAIMS, issued_s=NOW_S + ahead_s, expires_s=NOW_S + ahead_s + 3600), NOW_S * 1000, good)


@pytest.mark.parametrize(("lifetime_s", "good"), [(3600, True), (3630, True), (3631, False), (10**9, False)])
def test_longer_life_than_ours_is_refused(lifetime_s: int, good: bool) -> None:
    check(replace(CLAIMS, expires_s=NOW_S + lifetime_s), NOW_S * 1000, good)


def test_end_before_issue_is_refused() -> None:
    check(replace(CLAIMS, issued_s=NOW_S + 20, expires_s=NOW_S + 20), NOW_S * 1000, False)


def check(claims: Claims, now_ms: int, good: bool) -> None:
    if good:
        tokens.check_times(claims, now_ms, 3600)
        return
    with pytest.raises(Unauthenticated):
        tokens.check_times(claims, now_ms, 3600)
