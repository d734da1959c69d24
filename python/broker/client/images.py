"""URLs of pictures, reached as `client.images`."""

import httpx

from broker.image_urls import image_path


class Images:
    """Makes URLs that a browser or an overlay can show; asks nobody itself."""

    def __init__(self, base_url: httpx.URL, account: str) -> None:
        self._base_url = base_url
        self._account = account

    def url(
        self, source: str, options: str = "-", *, signing_key: str | None = None, expires: int | None = None
    ) -> str:
        """The URL of a picture.

        Args:
            source: the URL of the original.
            options: such as `w=400,h=300,fit=face,f=webp`; `-` only re-encodes.
            signing_key: of the account, where it demands signed URLs; goes with `expires`, in Unix seconds.

        Raises:
            ValueError: one of both is missing.
        """
        target = image_path(self._account, options, source, signing_key=signing_key, expires=expires)
        return str(self._base_url.join(target))
