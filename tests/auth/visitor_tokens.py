"""Tokens for visitors, as a customer's server signs them."""

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECRET = "a-secret-of-the-account-of-32-characters"


def signed(subject: Any = "ada", key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token for demo's votes that does not expire soon."""
    payload = {"sub": subject, "aud": "votes:demo", "exp": 4_000_000_000} | claims
    kept = {name: value for name, value in payload.items() if value is not None}
    return jwt.PyJWS().encode(json.dumps(kept).encode(), key, algorithm=algorithm)


def pem(private: Any) -> str:
    """The public half of a key, as the command line takes it."""
    encoded: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded.decode().strip()
