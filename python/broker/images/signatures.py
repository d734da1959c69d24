"""Signed URLs with an expiry, for accounts that do not serve images to everyone."""

import hmac
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from broker.fetching.errors import ForbiddenUrl
from broker.image_urls import sign_url

_EXPIRES = re.compile(r"[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a signed URL says beside the image, as it was written."""

    expires: str
    signature: str


def left_s(given: Signature | None, now_s: float) -> int | None:
    """Whole seconds until a signed URL expires, not negative; None for one that does not say when."""
    if given is None or not _EXPIRES.fullmatch(given.expires):
        return None
    return max(0, math.floor(int(given.expires) - now_s))


def check_signature(
    keys: Iterable[str], account: str, options: str, url: str, given: Signature | None, now_s: float
) -> None:
    """Raises ForbiddenUrl unless the image is signed with one of the keys and not expired.

    The time that it takes does not tell how much of a wrong signature is right.
    """
    if given is None:
        raise ForbiddenUrl("the account accepts signed URLs only; `expires` and `signature` are missing")
    matches = [
        hmac.compare_digest(
            sign_url(key, account, options, url, given.expires).encode(), given.signature.encode()
        )
        for key in keys
    ]
    if not _EXPIRES.fullmatch(given.expires) or not any(matches):
        raise ForbiddenUrl("the signature does not match the account, the options, the URL and the expiry")
    if int(given.expires) <= now_s:
        raise ForbiddenUrl("the signed URL has expired")
