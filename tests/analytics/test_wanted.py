"""`broker.analytics.wanted`: the set-up file."""

from pathlib import Path

import pytest

from broker.analytics.wanted import WantedError, load_wanted, parse_wanted


def test_the_shipped_file_can_be_used() -> None:
    wanted = load_wanted()
    assert wanted.version == 1
    assert {entry.key for entry in wanted.reports} >= {"programs"}


def test_another_file_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "set-up.yaml"
    path.write_text("version: 7\ndimensions: [{name: Is it on-air, scope: visit}]\n")
    assert [(entry.key, entry.scope) for entry in load_wanted(path).dimensions] == [("isItOnAir", "visit")]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "f: "),
        ("- [", "f: is not valid YAML"),
        ("version: 0", "f: version"),
        ("version: 1\nmore: 2", "f: more"),
        (
            "version: 1\ndimensions: [{name: A&B, scope: visit}]",
            "f: dimensions.0.name: must be 1 to 255 letters",
        ),
        ("version: 1\ndimensions: [{name: '-', scope: visit}]", "f: dimensions.0.name"),
        ("version: 1\ndimensions: [{name: A, scope: conversion}]", "f: dimensions.0.scope"),
        (
            "version: 1\ndimensions: [{name: A b, scope: visit}, {name: a B, scope: visit}]",
            "f: dimensions: visit.aB must not be repeated",
        ),
        (
            "version: 1\ndimensions: [{name: A, scope: visit, extractions: [{dimension: url, pattern: x}]}]",
            "f: dimensions: A: only dimensions of the scope action can have extractions",
        ),
        ("version: 1\nreports: [{name: A, metrics: []}]", "f: reports.0.metrics"),
        ("version: 1\nreports: [{name: A, metrics: [x], type: pie}]", "f: reports.0.type"),
        (
            "version: 1\nreports: [{name: A, metrics: [x], dimensions: [visit.x]}]",
            "f: reports: A: there is no dimension visit.x",
        ),
        (
            "version: 1\nreports: [{name: A, metrics: [x], dimensions: [country]}]",
            "f: reports.0.dimensions.0",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, what: str) -> None:
    with pytest.raises(WantedError) as refused:
        parse_wanted(text.encode(), "f")
    assert str(refused.value).startswith(what)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(WantedError, match=r"nowhere\.yaml"):
        load_wanted(Path("nowhere.yaml"))
