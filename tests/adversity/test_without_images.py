"""An image proxy that cannot be started holds up nothing else."""

import asyncio
from pathlib import Path

import httpx
import pytest

from broker.image_urls import PREFIX
from tests.adversity.faults import TITLES, kill
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

_WHOLE_S = 120.0
_ENTRY = "def build_images("
_BROKEN = '''def build_images(settings: Settings, dsn: str) -> serve.RunTarget:
    """Fail as long as the test wants it."""
    if Path("{marker}").exists():
        raise RuntimeError("images are broken")
    return _build_images(settings, dsn)


def _build_images('''


async def test_the_api_starts_without_the_image_proxy_which_comes_later(
    instance: Instance, package: Path, tmp_path: Path
) -> None:
    marker, module = tmp_path / "broken", package / "deployments" / "images.py"
    whole = module.read_text()
    marker.touch()
    module.write_text(whole.replace(_ENTRY, _BROKEN.format(marker=marker)))
    image_url = f"{instance.url}{PREFIX}/demo/w=400?url=http://127.0.0.1/a.png"
    try:
        assert kill(instance, TITLES["Ray with everything on it"])
        async with httpx.AsyncClient(timeout=20) as client:
            assert "not made" in await until_images(client, instance, "not made")
            reply = await client.get(image_url)
            assert (reply.status_code, reply.json()["error"]) == (503, "unavailable")
            assert (await client.get(f"{instance.url}/api/v1/version")).status_code == 200
            marker.unlink()
            await until_images(client, instance, "ok")
            # A connection that was kept is answered once more by the ingress as it was, which closes it then.
            last = await client.get(image_url)
            assert last.json()["error"] in ("forbidden_url", "unavailable")
            assert last.json()["error"] == "forbidden_url" or last.headers["connection"] == "close"
            assert (await client.get(image_url)).json()["error"] == "forbidden_url"
    finally:
        marker.unlink(missing_ok=True)
        module.write_text(whole)


async def until_images(client: httpx.AsyncClient, instance: Instance, wanted: str) -> str:
    """What `/readyz`, which answers 200, tells of the image proxy, once that begins with `wanted`."""
    async with asyncio.timeout(_WHOLE_S):
        while True:
            try:
                reply = await client.get(f"{instance.ops_url}/readyz")
                if reply.status_code == 200 and reply.json()["images"].startswith(wanted):
                    return str(reply.json()["images"])
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
