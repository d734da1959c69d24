"""JSON Patch and JSON Merge Patch: the RFCs' own examples, what may not change, and what is too much."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.patches import MAX_OPERATIONS, apply_json_patch, apply_merge_patch, merge
from broker.domain.strict_json import require_depth
from broker.errors import BrokerError, Conflict, InvalidRequest, PayloadTooLarge

LIMIT = 10_000
ALL = frozenset({"foo", "baz", "child", "hello", "/", "~1", "title", "content"})
A4: dict[str, Any] = {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}

# RFC 6902, appendix A; A.13 is about a member that is there twice, which no parsed JSON has.
RFC_6902: list[tuple[str, Any, list[Any], Any]] = [
    ("A.1", {"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    (
        "A.2",
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ("A.3", {"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ("A.4", {"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    (
        "A.5",
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "baz": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/baz/thud"}],
        {"foo": {"bar": "baz"}, "baz": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ("A.9", {"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "bar"}], Conflict),
    (
        "A.10",
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        "A.11",
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    ("A.12", {"foo": "bar"}, [{"op": "add", "path": "/baz/bat", "value": "qux"}], Conflict),
    ("A.14", {"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ("A.15", {"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": "10"}], Conflict),
    (
        "A.16",
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
]

# RFC 7396, appendix A: original, patch, result
RFC_7396: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


def patched(document: Any, patch: list[Any], writable: frozenset[str] = ALL) -> Any:
    return apply_json_patch(copy.deepcopy(document), patch, writable, LIMIT)


@pytest.mark.parametrize(("document", "patch", "expected"), [row[1:] for row in RFC_6902], ids=lambda _: "")
def test_examples_of_rfc_6902(document: Any, patch: list[Any], expected: Any) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            patched(document, patch)
    else:
        assert patched(document, patch) == expected


@pytest.mark.parametrize(("original", "patch", "expected"), RFC_7396)
def test_examples_of_rfc_7396(original: Any, patch: Any, expected: Any) -> None:
    assert merge(copy.deepcopy(original), patch) == expected


@pytest.mark.parametrize(
    "patch",
    [
        {"op": "replace", "path": "/id", "value": "x"},
        {"op": "remove", "path": "/id"},
        {"op": "add", "path": "", "value": {}},
        {"op": "replace", "path": "", "value": {}},
        {"op": "add", "path": "/", "value": 1},
        {"op": "move", "from": "/id", "path": "/title"},
        {"op": "move", "from": "/title", "path": "/id"},
        {"op": "copy", "from": "/title", "path": "/id"},
        {"op": "move", "from": "", "path": "/content/x"},
        {"op": "add", "path": "/titles", "value": 1},
        {"op": "add", "path": "/Title", "value": 1},
        {"op": "add", "path": "/content~1x", "value": 1},
    ],
)
def test_what_is_not_writable_cannot_change(patch: dict[str, Any]) -> None:
    document = {"id": "a", "title": "t", "content": {}}
    with pytest.raises(InvalidRequest):
        patched(document, [patch], frozenset({"title", "content"}))
    # Told before a test that would fail.
    with pytest.raises(InvalidRequest):
        patched(
            document,
            [{"op": "test", "path": "/title", "value": 0}, patch],
            frozenset({"title", "content"}),
        )


def test_reading_is_free() -> None:
    document = {"id": "a", "title": "t", "content": {}}
    patch = [{"op": "test", "path": "/id", "value": "a"}, {"op": "copy", "from": "/id", "path": "/title"}]
    assert patched(document, patch, frozenset({"title"}))["title"] == "a"


@pytest.mark.parametrize(
    "operation",
    [
        5,
        None,
        [],
        {},
        {"op": "add"},
        {"op": "spam", "path": "/title", "value": 1},
        {"op": "append", "path": "/title", "value": "x"},
        {"op": ["add"], "path": "/title", "value": 1},
        {"op": "add", "path": "/title"},
        {"op": "test", "path": "/title"},
        {"op": "add", "path": 5, "value": 1},
        {"op": "add", "path": None, "value": 1},
        {"op": "add", "path": "title", "value": 1},
        {"op": "add", "path": "/title~2", "value": 1},
        {"op": "copy", "path": "/title"},
        {"op": "move", "path": "/title", "from": {}},
        {"op": "copy", "from": "/content/-", "path": "/title"},
        {"op": "replace", "path": "/content/-", "value": 1},
        {"op": "add", "path": "/content" + "/a" * 65, "value": 1},
    ],
)
def test_what_is_no_patch_is_refused(operation: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        patched({"title": "t", "content": [1]}, [operation])
    assert refused.value.faults[0].field.startswith("patch[0]")


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/content/9"},
        {"op": "remove", "path": "/content/-1"},
        {"op": "remove", "path": "/content/00"},
        {"op": "remove", "path": "/content/" + "9" * 5_000},
        {"op": "replace", "path": "/content/x", "value": 1},
        {"op": "add", "path": "/content/2", "value": 1},
        {"op": "add", "path": "/title/0", "value": 1},
        {"op": "copy", "from": "/foo", "path": "/title"},
        {"op": "move", "from": "/content", "path": "/content/0"},
        {"op": "test", "path": "/content/0", "value": True},
        {"op": "test", "path": "/content/7", "value": 1},
    ],
)
def test_what_does_not_fit_is_a_conflict(operation: dict[str, Any]) -> None:
    with pytest.raises(Conflict):
        patched({"title": "t", "content": [1]}, [operation])


def test_a_patch_has_its_most_operations() -> None:
    operation = {"op": "add", "path": "/title", "value": "x"}
    assert patched({}, [operation] * MAX_OPERATIONS) == {"title": "x"}
    with pytest.raises(PayloadTooLarge):
        patched({}, [operation] * (MAX_OPERATIONS + 1))


def test_copies_cannot_double_without_end() -> None:
    bomb = [{"op": "copy", "from": "/content", "path": "/content/-"}] * 40
    with pytest.raises(PayloadTooLarge):
        patched({"content": ["x" * 10]}, bomb)


def test_copies_have_their_limit() -> None:
    copies = [{"op": "copy", "from": "/foo", "path": "/baz"}]
    assert patched({"foo": "x" * (LIMIT - 2)}, copies)["baz"] == "x" * (LIMIT - 2)
    with pytest.raises(PayloadTooLarge):
        patched({"foo": "x" * (LIMIT - 1)}, copies)


def test_a_patch_that_nests_itself_is_bounded() -> None:
    patch = []
    for _ in range(MAX_OPERATIONS // 2):
        patch += [
            {"op": "add", "path": "/foo", "value": {}},
            {"op": "move", "from": "/content", "path": "/foo/content"},
            {"op": "move", "from": "/foo", "path": "/content"},
        ]
    with pytest.raises(BrokerError):
        require_depth(patched({"content": {}}, patch[:999]), "content")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [70, 5_000])
def test_deep_patches_are_refused(depth: int) -> None:
    with pytest.raises(InvalidRequest):
        patched({}, [{"op": "add", "path": "/content", "value": nested(depth)}])
    with pytest.raises(InvalidRequest):
        apply_merge_patch({}, {"content": nested(depth)}, ALL)


def test_depth_at_its_edge() -> None:
    require_depth(nested(64), "content")
    with pytest.raises(InvalidRequest):
        require_depth(nested(65), "content")


def test_a_merge_patch_changes_what_is_writable_only() -> None:
    assert apply_merge_patch({"title": "t", "id": 1}, {"title": None}, ALL) == {"id": 1}
    with pytest.raises(InvalidRequest) as refused:
        apply_merge_patch({"id": 1}, {"id": None}, ALL)
    assert refused.value.faults[0].field == "patch.id"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)
POINTERS = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "", "~0", "~2"]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in ["content", *parts])
)
OPERATIONS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"]), "path": POINTERS},
    optional={"from": POINTERS, "value": JSON},
)


@given(JSON, st.lists(OPERATIONS, max_size=5))
def test_any_patch_ends_in_a_document_or_an_error_of_ours(content: Any, patch: list[Any]) -> None:
    with contextlib.suppress(InvalidRequest, Conflict, PayloadTooLarge):
        assert patched({"content": content, "id": 1}, patch)["id"] == 1


@given(JSON, JSON)
def test_a_merge_patch_twice_is_a_merge_patch_once(target: Any, patch: Any) -> None:
    once = merge(copy.deepcopy(target), copy.deepcopy(patch))
    assert merge(copy.deepcopy(once), copy.deepcopy(patch)) == once
