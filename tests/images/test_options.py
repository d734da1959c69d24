"""The grammar of processing options, and that each image has one spelling."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.images.errors import InvalidOptions
from broker.images.options import Fit, Format, Options, Position, parse_options, parse_preset


def test_a_full_text_is_read() -> None:
    options = parse_options("w=400,h=300,fit=fill:top,q=80,f=webp")
    assert options == Options(400, 300, Fit.FILL, Position.TOP, 80, Format.WEBP)


def test_a_hyphen_means_no_options() -> None:
    assert parse_options("-") == Options()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("w=400,h=300", "h=300,w=400"),
        ("w=400,fit=scaledown", "w=400"),
        ("f=jpeg", "f=jpg"),
        ("w=50,h=50,fit=fill:center", "w=50,h=50,fit=fill"),
        ("w=50,h=50,fit=face,padding=1.8", "w=50,h=50,fit=face"),
        ("w=50,h=50,fit=face-and-shoulders,padding=2.8", "w=50,h=50,fit=face-and-shoulders"),
        ("w=50,h=50,fit=face,padding=2.0", "padding=2,w=50,h=50,fit=face"),
    ],
)
def test_texts_that_mean_the_same_are_equal(one: str, other: str) -> None:
    assert parse_options(one) == parse_options(other)
    assert parse_options(one).text() == parse_options(other).text()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "options"),
        ("w", "w"),
        ("w=", "w"),
        ("w=0", "w"),
        ("w=51", "w"),
        ("w=050", "w"),
        ("w=150", "w"),
        ("w=2100", "w"),
        ("w=1e2", "w"),
        ("w=+100", "w"),
        ("w=\u0661\u0660\u0660", "w"),
        ("w= 100", "w"),
        ("h=99", "h"),
        ("w=100,w=100", "w"),
        ("W=100", "W"),
        ("w=100,", "options"),
        ("w=100,,h=100", "options"),
        ("fit=cover", "fit"),
        ("fit=fill", "fit"),
        ("fit=crop,w=100", "fit"),
        ("fit=face,h=100", "fit"),
        ("w=100,h=100,fit=fill:", "fillPosition"),
        ("w=100,h=100,fit=fill:middle", "fillPosition"),
        ("w=100,h=100,fit=crop:top", "fillPosition"),
        ("w=100,fit=scale:top", "fillPosition"),
        ("fillPosition=top", "fillPosition"),
        ("q=85", "q"),
        ("q=0", "q"),
        ("q=110", "q"),
        ("f=avif", "f"),
        ("f=JPG", "f"),
        ("padding=2", "padding"),
        ("w=100,h=100,fit=face,padding=0.9", "padding"),
        ("w=100,h=100,fit=face,padding=5.1", "padding"),
        ("w=100,h=100,fit=face,padding=1.55", "padding"),
        ("w=100,h=100,fit=face,padding=2.", "padding"),
        ("f=json,w=100", "w"),
        ("preset=card", "preset"),
        ("preset=card,preset=card", "preset"),
        ("x=1", "x"),
        ("-,w=100", "-"),
        ("w=100," + "h" * 300, "options"),
    ],
)
def test_an_option_at_fault_is_named(text: str, name: str) -> None:
    with pytest.raises(InvalidOptions) as raised:
        parse_options(text)
    assert raised.value.faults[0].field == name


def test_a_preset_stands_for_its_options_and_others_win() -> None:
    presets = {"card": parse_preset("card", "h=300,w=400,fit=face,f=webp")}
    assert parse_options("preset=card", presets) == parse_options("w=400,h=300,fit=face,f=webp")
    assert parse_options("preset=card,f=png,w=50", presets) == parse_options("w=50,h=300,fit=face,f=png")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Card", "w=50"),
        ("-card", "w=50"),
        ("", "w=50"),
        ("a" * 65, "w=50"),
        ("card", "preset=other"),
        ("card", "w=1"),
    ],
)
def test_a_preset_is_valid_by_itself(name: str, text: str) -> None:
    with pytest.raises(InvalidOptions):
        parse_preset(name, text)


SIDES = st.one_of(st.none(), st.sampled_from([50, *range(100, 2001, 100)]))


@st.composite
def some_options(draw: st.DrawFn) -> Options:
    fit = draw(st.sampled_from(list(Fit)))
    needs_both = fit not in (Fit.SCALE, Fit.SCALE_DOWN)
    sides = SIDES.filter(lambda side: side is not None) if needs_both else SIDES
    position = draw(st.sampled_from(list(Position))) if fit in (Fit.FILL, Fit.FIT) else Position.CENTER
    padding = draw(st.integers(10, 50)) / 10 if fit.is_face else None
    formats = [None, *(format_ for format_ in Format if format_ is not Format.JSON)]
    quality = draw(st.sampled_from([85, *range(10, 101, 10)]))
    return Options(draw(sides), draw(sides), fit, position, quality, draw(st.sampled_from(formats)), padding)


@given(some_options())
def test_the_one_spelling_means_the_same_options(options: Options) -> None:
    assert parse_options(options.text()) == options


@given(st.text(max_size=300))
def test_any_text_is_options_or_a_named_fault(text: str) -> None:
    with suppress(InvalidOptions):
        parse_options(text)
