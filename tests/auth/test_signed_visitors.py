"""Which tokens are visitors of an account, and which are not."""

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.auth.signed_visitors import NotSigned, read_key, verify
from tests.auth.visitor_tokens import SECRET, pem, signed

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1_000
RSA = rsa.generate_private_key(65_537, 2048)
P256 = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
KEYS = [(RSA, "RS256"), (P256, "ES256"), (ED25519, "EdDSA")]


def visitor(token: str, *keys: str, program: str = "final") -> str:
    return verify(token, [read_key(key) for key in keys or (SECRET,)], "demo", program, NOW_MS)


def plain(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_whom_the_secret_signed_is_a_visitor() -> None:
    assert visitor(signed("ada")) == "ada"
    assert visitor(signed("Zoë", programId="final", nbf=NOW_S, iat=NOW_S, aud=["x", "votes:demo"])) == "Zoë"
    assert visitor(signed("ada", "b" * 32), SECRET, "b" * 32) == "ada", "of two keys either is taken"


@pytest.mark.parametrize(("private", "algorithm"), KEYS)
def test_whom_a_private_key_signed_is_a_visitor(private: Any, algorithm: str) -> None:
    token = signed("ada", private, algorithm)
    assert visitor(token, pem(private)) == "ada"
    with pytest.raises(NotSigned):
        visitor(token)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - 31}, {"exp": None}, {"exp": "4000000000"}, {"exp": True}, {"exp": float("nan")},
        {"exp": float("inf")}, {"nbf": NOW_S + 31}, {"nbf": "x"},
        {"aud": "votes:other"}, {"aud": "demo"}, {"aud": None}, {"aud": 5}, {"programId": "other"},
        {"programId": ["final"]},
        {"subject": ""}, {"subject": None}, {"subject": 5}, {"subject": "x" * 129}, {"subject": "a\0"},
        {"subject": "\ud800"}, {"subject": ["ada"]},
    ],
)  # fmt: skip
def test_what_is_for_something_else_or_over_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(NotSigned):
        visitor(signed(**claims))


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "HS512", "RS256", "", None, 5])
def test_no_signature_is_no_visitor(algorithm: Any) -> None:
    payload = {"sub": "ada", "aud": "votes:demo", "exp": 4_000_000_000}
    for keys in ((SECRET,), tuple(pem(private) for private, _ in KEYS)):
        with pytest.raises(NotSigned):
            visitor(plain({"alg": algorithm, "typ": "JWT"}, payload), *keys)


@pytest.mark.parametrize(("private", "algorithm"), KEYS)
def test_a_public_key_is_no_secret(private: Any, algorithm: str) -> None:
    """Who knows the public key signs with it as if it were a secret: RFC 8725, section 2.1."""
    body = plain({"alg": "HS256"}, {"sub": "ada", "aud": "votes:demo", "exp": 4_000_000_000}).rstrip(".")
    for key in (pem(private), pem(private) + "\n"):
        digest = hmac.new(key.encode(), body.encode(), hashlib.sha256).digest()
        forged = f"{body}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        with pytest.raises(NotSigned):
            visitor(forged, pem(private))


def test_another_key_a_change_and_garbage_are_refused() -> None:
    token = signed("ada")
    head, body, signature = token.split(".")
    other = signed("eve").split(".")[1]
    for wrong in (
        signed("ada", "x" * 32), signed("ada", SECRET * 2, "HS512"),
        f"{head}.{other}.{signature}", f"{head}.{body}",
        f"{head}.{body}.", f"{token}.x", "a", "...", "", "x" * 1_024, "\ud800", "é.é.é", "eyJ" * 300,
    ):  # fmt: skip
        with pytest.raises(NotSigned):
            visitor(wrong)
    with pytest.raises(NotSigned):
        verify(token, [], "demo", "final", NOW_MS)
    with pytest.raises(NotSigned):
        verify(token, [read_key(SECRET)], "other", "final", NOW_MS)


def test_what_a_token_may_demand_is_nothing() -> None:
    """A critical header is one that must be understood, RFC 7515, section 4.1.11."""
    payload = json.dumps({"sub": "ada", "aud": "votes:demo", "exp": 4_000_000_000}).encode()
    token = jwt.PyJWS().encode(payload, SECRET, "HS256", headers={"crit": ["exp"], "exp": 1})
    with pytest.raises(NotSigned):
        visitor(token)


def test_other_keys_are_not_accepted() -> None:
    secret_half = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    small = rsa.generate_private_key(65_537, 1024)
    for text in ("short", "é" * 40, "a\n" * 40, secret_half, pem(small), "-----BEGIN PUBLIC KEY-----",
                 pem(ec.generate_private_key(ec.SECP384R1()))):  # fmt: skip
        with pytest.raises(ValueError, match="must be") as refused:
            read_key(text)
        assert text not in str(refused.value)
    assert SECRET not in repr(read_key(SECRET))


def test_twice_the_token_is_no_more_than_twice_the_work() -> None:
    """What hostile tokens cost is bounded by their length, which the door bounds."""

    def spent_s(token: str) -> float:
        started = time.process_time()
        for _ in range(300):
            with pytest.raises(NotSigned):
                visitor(token)
        return time.process_time() - started

    head = signed("ada").split(".")[0]
    for shape in (lambda n: "." * n, lambda n: f"{head}.{'A' * n}.{'A' * 43}", lambda n: f"{'W' * n}.e30.AA"):
        short, long = min(spent_s(shape(512)) for _ in range(3)), min(spent_s(shape(1_024)) for _ in range(3))
        assert long < 4 * short + 0.05
