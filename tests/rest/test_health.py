"""`GET /health`: the checks of `/readyz`, for administrators, and one run of them for all who ask at once."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from broker.concurrency.tasks import cancel_and_wait
from broker.errors import Unavailable
from broker.operations.health import ProductHealth
from tests.product import Product, app_of

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


class HeldChecks:
    """Checks that end when the test lets them."""

    def __init__(self) -> None:
        self.runs = 0
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def check(self) -> Mapping[str, str]:
        self.runs += 1
        self.begun.set()
        await self.may_end.wait()
        return {"database": "ok", "owners": f"run {self.runs}"}


def with_checks(product: Product, checks: HeldChecks) -> Product:
    services = product.services
    health = ProductHealth(services.settings, services.clock, services.maintenance, checks.check)
    services = replace(services, health=health)
    return replace(product, services=services, app=app_of(services))


async def test_an_administrator_reads_what_is_wrong_with_a_part(product: Product) -> None:
    product.health["owners"] = "broker-owner-0 does not answer"
    try:
        async with product.door() as door, product.door(None) as operator:
            answer = await door.get("/health")
            ready = await operator.get("http://localhost/readyz")
    finally:
        product.health["owners"] = "ok"
    assert answer.status_code == 200
    assert answer.json()["status"] == "unavailable"
    assert answer.json()["parts"]["owners"] == "broker-owner-0 does not answer"
    assert answer.json() == ready.json()


async def test_all_is_well(product: Product) -> None:
    async with product.door() as door:
        answer = (await door.get("/health")).json()
    assert answer["status"] == "ok"
    assert answer["parts"] == {"database": "ok", "owners": "ok", "gateways": "ok"}


@pytest.mark.parametrize(("role", "status"), [("producer", 403), ("user", 403), ("client", 403), (None, 401)])
async def test_nobody_else_reads_it(product: Product, role: str | None, status: int) -> None:
    async with product.door(role) as door:
        answer = await door.get("/health")
    assert answer.status_code == status
    assert "parts" not in answer.text


async def test_who_asks_meanwhile_shares_the_run(product: Product) -> None:
    checks = HeldChecks()
    held = with_checks(product, checks)
    async with held.door() as door:
        first = asyncio.create_task(door.get("/health"))
        await checks.begun.wait()
        others = asyncio.gather(*(held.services.health.check() for _ in range(20)))
        checks.may_end.set()
        shared = await others
        assert (await first).json()["parts"]["owners"] == "run 1"
        assert {parts["owners"] for parts in shared} == {"run 1"}
        # Nothing is kept: who asks later has a run of its own.
        assert (await door.get("/health")).json()["parts"]["owners"] == "run 2"


async def test_who_gives_up_leaves_the_run_to_the_others() -> None:
    checks = HeldChecks()
    health = ProductHealth(None, None, None, checks.check)  # type: ignore[arg-type]  # `check` needs none
    first = asyncio.create_task(health.check())
    await checks.begun.wait()
    second = asyncio.create_task(health.check())
    await cancel_and_wait(first)
    checks.may_end.set()
    assert (await second)["owners"] == "run 1"
    await health.close()
    with pytest.raises(Unavailable):
        await health.check()
