"""URLs of images and their signatures; shared by the server and the SDK.

The signature is HMAC-SHA256 (RFC 2104) of four lines, joined by a line feed: the account, the options as they
stand in the path after percent-decoding, the source's URL after percent-decoding, and the expiry in Unix
seconds. It is written in base64url without padding (RFC 4648, section 5). The key is the text that the
account was given, as UTF-8.
"""

import base64
import hashlib
import hmac
from urllib.parse import quote, urlencode

PREFIX = "/api/v2/imgproxy"


def sign_url(key: str, account: str, options: str, url: str, expires: str) -> str:
    """The signature of an image."""
    text = "\n".join((account, options, url, expires))
    digest = hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def image_path(
    account: str, options: str, url: str, *, signing_key: str | None = None, expires: int | None = None
) -> str:
    """Path and query of an image.

    Args:
        expires: Unix seconds; goes with `signing_key`.

    Raises:
        ValueError: one of both is missing.
    """
    query = {"url": url}
    if (signing_key is None) != (expires is None):
        raise ValueError("signing_key and expires go together")
    if signing_key is not None:
        query["expires"] = str(expires)
        query["signature"] = sign_url(signing_key, account, options, url, str(expires))
    return f"{PREFIX}/{quote(account, safe='')}/{quote(options, safe='=,:')}?{urlencode(query)}"
