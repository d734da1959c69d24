"""URLs of pictures as the SDK makes them."""

import pytest

from broker.client import Client
from broker.image_urls import sign

SOURCE = "https://cdn.example.com/a b.png?x=1&y=2"


def test_a_url_names_the_account_the_options_and_the_source() -> None:
    with Client("http://arena.localhost:8000") as client:
        assert client.images.url(SOURCE, "w=400,h=300,fit=fill:top") == (
            "http://arena.localhost:8000/api/v2/imgproxy/arena/w=400,h=300,fit=fill:top"
            "?url=https%3A%2F%2Fcdn.example.com%2Fa+b.png%3Fx%3D1%26y%3D2"
        )


def test_a_signed_url_has_its_expiry() -> None:
    with Client("http://localhost:8000", account="arena") as client:
        made = client.images.url(SOURCE, signing_key="secret", expires=1_893_456_000)
        signature = sign("secret", "arena", "-", SOURCE, "1893456000")
        assert made.endswith(f"&expires=1893456000&signature={signature}")
        with pytest.raises(ValueError, match="go together"):
            client.images.url(SOURCE, signing_key="secret")
