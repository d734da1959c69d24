"""`GET /programs/filter`: what it selects and how it is ordered."""

import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

# id, name, start, end, project; live at the time of the tests are `c` and `d`.
PROGRAMS = [
    ("a", "Alpha Final", "2020-01-01", "2020-01-02", None),
    ("b", "beta final", "2998-01-01", "2998-01-02", "own"),
    ("c", "Ünïcode", "2020-01-01", "2998-01-01", "own"),
    ("d", "delta 100%", "2020-06-01", "2998-06-01", "foreign"),
    ("e", "echo", None, None, None),
    ("f", "foxtrot", "2020-06-01", None, None),
    ("g", "golf_x", None, "2020-06-01", "foreign"),
]


@pytest.fixture(scope="module", autouse=True)
async def programs(product: Product) -> None:
    for id_, name, start, end, project in PROGRAMS:
        await product.make_program(
            id_, name=name, scheduledStartTime=start, scheduledEndTime=end, projectId=project
        )
        product.clock.forward_ms += 10


async def ids(product: Product, query: str, role: str = "admin") -> str:
    async with product.door(role) as door:
        answer = await door.get(f"/programs/filter?{query}")
    assert answer.status_code == 200, answer.text
    return "".join(item["id"] for item in answer.json()["items"])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "gfedcba"),
        ("order=asc", "abcdefg"),
        ("sort=id", "abcdefg"),
        ("sort=id&order=desc", "gfedcba"),
        ("sort=scheduledStartTime", "acdfbeg"),
        ("sort=scheduledEndTime&order=desc", "dbcgafe"),
        ("sort=live&order=desc", "dcgfeba"),
        ("sort=projectId", "dgbcaef"),
        ("sort=id&limit=2", "ab"),
        ("sort=id&limit=2&skip=2", "cd"),
        ("sort=id&skip=6", "g"),
        ("sort=id&skip=7", ""),
        ("sort=id&search=FINAL", "ab"),
        ("sort=id&search=%C3%BCN%C3%8F", "c"),
        ("sort=id&search=0%25", "d"),
        ("sort=id&search=_", "g"),
        ("sort=id&search=nothing", ""),
        ("sort=id&ids=a,c,zz", "ac"),
        ("sort=id&status=live", "cd"),
        ("sort=id&status=ended", "a"),
        ("sort=id&status=scheduled", "befg"),
        ("sort=id&status=live,ended", "acd"),
        ("sort=id&live=true", "cd"),
        ("sort=id&live=false", "abefg"),
        ("sort=id&projectId=own", "bc"),
        ("sort=id&projectId=undefiend", "aef"),
        ("sort=id&projectId=undefined", "aef"),
        ("sort=id&from=2020-01-02&to=2020-01-03", "acg"),
        ("sort=id&from=2020-01-02T00:00:00.001Z", "bcdfg"),
        ("sort=id&to=2020-01-01", "acg"),
        ("sort=id&to=2019-12-31", "g"),
        ("sort=id&from=2999-01-01", "f"),
        ("sort=id&live=true&projectId=own&search=%C3%9C", "c"),
    ],
)
async def test_selection(product: Product, query: str, expected: str) -> None:
    assert await ids(product, query) == expected


async def test_the_envelope(product: Product) -> None:
    async with product.door() as door:
        body = (await door.get("/programs/filter?limit=2&skip=3")).json()
        past = (await door.get("/programs/filter?skip=50")).json()
        plain = (await door.get("/programs/filter")).json()
    assert (body["total"], body["limit"], body["skip"], len(body["items"])) == (7, 2, 3, 2)
    assert past == {"items": [], "total": 7, "limit": 100, "skip": 50}
    assert (plain["limit"], plain["skip"]) == (100, 0)


async def test_producers_see_what_they_may_publish_to(product: Product) -> None:
    assert await ids(product, "sort=id", "producer") == "abcef"
    assert await ids(product, "sort=id&projectId=foreign", "producer") == ""
    async with product.door("producer") as door:
        listed = (await door.get("/programs")).json()
    assert "".join(program["id"] for program in listed) == "fecb"


@pytest.mark.parametrize("role", ["user", "client"])
async def test_lists_need_publishing_rights(product: Product, role: str) -> None:
    async with product.door(role) as door:
        for path in ("/programs", "/programs/filter"):
            answer = await door.get(path)
            assert answer.status_code == 403
            assert answer.json()["error"] == "insufficient_scope"
