"""The fetcher is tested on both event loops: tests of other rooms use asyncio's, and replicas uvloop's."""

import pytest


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}
