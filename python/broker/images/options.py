"""Processing options: their grammar, and their canonical spelling.

`w=400,h=300,fit=fill:top,q=80,f=webp,padding=1.5` in any order, each at most once; `-` means none. `f=json`
asks for a description of the source instead of an image. `preset=NAME` stands for options that an account
has named; options beside it win.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from broker.images.errors import invalid_option

NO_OPTIONS = "-"
MAX_OPTIONS_CHARACTERS = 256  # all options written out in full take under 100
MAX_PRESET_CHARACTERS = 64
_SHOWN_CHARACTERS = 40  # of an unknown option's name


class Fit(StrEnum):
    """How an image is brought to the wanted size."""

    SCALE_DOWN = "scaledown"
    SCALE = "scale"
    FILL = "fill"
    FIT = "fit"
    CROP = "crop"
    FACE = "face"
    FACE_AND_SHOULDERS = "face-and-shoulders"

    @property
    def is_face(self) -> bool:
        """Whether the crop goes by a face."""
        return self in DEFAULT_PADDING


class Position(StrEnum):
    """Which part of the image `fill` keeps, and where `fit` puts it."""

    TOP_LEFT = "top-left"
    TOP = "top"
    TOP_RIGHT = "top-right"
    LEFT = "left"
    CENTER = "center"
    RIGHT = "right"
    BOTTOM_LEFT = "bottom-left"
    BOTTOM = "bottom"
    BOTTOM_RIGHT = "bottom-right"


class Format(StrEnum):
    """What comes out."""

    JPEG = "jpg"
    PNG = "png"
    GIF = "gif"
    WEBP = "webp"
    JSON = "json"


MEDIA_TYPES: Mapping[Format, str] = {
    Format.JPEG: "image/jpeg",
    Format.PNG: "image/png",
    Format.GIF: "image/gif",
    Format.WEBP: "image/webp",
    Format.JSON: "application/json",
}
DEFAULT_QUALITY = 85
DEFAULT_PADDING: Mapping[Fit, float] = {Fit.FACE: 1.8, Fit.FACE_AND_SHOULDERS: 2.8}

_POSITIONED = frozenset({Fit.FILL, Fit.FIT})
_NEEDS_BOTH_SIDES = frozenset({Fit.FILL, Fit.FIT, Fit.CROP, *DEFAULT_PADDING})
_SIDE = re.compile(r"50|[1-9]00|1[0-9]00|2000", re.ASCII)
_QUALITY = re.compile(r"[1-9]0|100", re.ASCII)
_PADDING = re.compile(r"[1-4](\.[0-9])?|5(\.0)?", re.ASCII)
_PRESET = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_SIDES = "50, or 100 to 2000 in multiples of 100"


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. Equal options are equal objects, however they were written.

    Attributes:
        width, height: of the output in pixels; None leaves the side to the image's aspect.
        quality: of JPEG and WebP, 10 to 100.
        format: None keeps the source's.
        padding: side of the crop's square in heights of the face, 1 to 5; None for modes without faces.
    """

    width: int | None = None
    height: int | None = None
    fit: Fit = Fit.SCALE_DOWN
    position: Position = Position.CENTER
    quality: int = DEFAULT_QUALITY
    format: Format | None = None
    padding: float | None = None

    def text(self) -> str:
        """The one spelling: known order, no defaults; `-` where all are defaults."""
        written = []
        if self.width is not None:
            written.append(f"w={self.width}")
        if self.height is not None:
            written.append(f"h={self.height}")
        if self.fit is not Fit.SCALE_DOWN:
            position = "" if self.position is Position.CENTER else f":{self.position}"
            written.append(f"fit={self.fit}{position}")
        if self.quality != DEFAULT_QUALITY:
            written.append(f"q={self.quality}")
        if self.format is not None:
            written.append(f"f={self.format}")
        if self.padding is not None and self.padding != DEFAULT_PADDING[self.fit]:
            written.append(f"padding={self.padding:g}")
        return ",".join(written) or NO_OPTIONS


def parse_options(text: str, presets: Mapping[str, str] | None = None) -> Options:
    """The options that a text asks for.

    Args:
        presets: the account's named options, as `parse_preset` takes them.

    Raises:
        InvalidOptions: names the option at fault and what is allowed for it.
    """
    pairs = _split(text)
    name = pairs.pop("preset", None)
    if name is not None:
        preset = (presets or {}).get(name)
        if preset is None:
            raise invalid_option("preset", "the account has no preset of this name")
        pairs = {**_split(preset), **pairs}
    return _build(pairs)


def parse_preset(name: str, text: str) -> str:
    """The options of a preset in their one spelling.

    Raises:
        InvalidOptions: the name has other characters than lower-case letters, digits and inner hyphens, or is
            too long; the options are not valid by themselves, or name a preset.
    """
    if len(name) > MAX_PRESET_CHARACTERS or not _PRESET.fullmatch(name):
        raise invalid_option(
            "preset", f"up to {MAX_PRESET_CHARACTERS} lower-case letters, digits and inner hyphens"
        )
    return parse_options(text).text()


def _split(text: str) -> dict[str, str]:
    if text == NO_OPTIONS:
        return {}
    if len(text) > MAX_OPTIONS_CHARACTERS:
        raise invalid_option("options", f"at most {MAX_OPTIONS_CHARACTERS} characters")
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, is_pair, value = part.partition("=")
        if not is_pair:
            raise invalid_option(name[:_SHOWN_CHARACTERS] or "options", "must be written key=value")
        if name not in _READERS and name != "preset":
            raise invalid_option(name[:_SHOWN_CHARACTERS], f"unknown option; known are {_KNOWN}")
        if name in pairs:
            raise invalid_option(name, "must not be repeated")
        pairs[name] = value
    return pairs


def _build(pairs: Mapping[str, str]) -> Options:
    options = Options()
    for name, value in pairs.items():
        options = _READERS[name](options, value)
    _check_together(options, pairs)
    if options.fit.is_face and options.padding is None:
        return replace(options, padding=DEFAULT_PADDING[options.fit])
    return options


def _check_together(options: Options, pairs: Mapping[str, str]) -> None:
    if options.format is Format.JSON and len(pairs) > 1:
        other = next(name for name in pairs if name != "f")
        raise invalid_option(other, "cannot be combined with f=json, which describes the source")
    if options.padding is not None and not options.fit.is_face:
        raise invalid_option("padding", "needs fit=face or fit=face-and-shoulders")
    if options.fit in _NEEDS_BOTH_SIDES and (options.width is None or options.height is None):
        raise invalid_option("fit", f"{options.fit} needs both w and h")


def _read_side(name: str, value: str) -> int:
    if not _SIDE.fullmatch(value):
        raise invalid_option(name, _SIDES)
    return int(value)


def _read_width(options: Options, value: str) -> Options:
    return replace(options, width=_read_side("w", value))


def _read_height(options: Options, value: str) -> Options:
    return replace(options, height=_read_side("h", value))


def _read_fit(options: Options, value: str) -> Options:
    mode, has_position, position = value.partition(":")
    if mode not in set(Fit):
        raise invalid_option("fit", f"one of {', '.join(Fit)}")
    fit = Fit(mode)
    if not has_position:
        return replace(options, fit=fit)
    if fit not in _POSITIONED:
        raise invalid_option("fillPosition", "only after fit=fill and fit=fit")
    if position not in set(Position):
        raise invalid_option("fillPosition", f"one of {', '.join(Position)}")
    return replace(options, fit=fit, position=Position(position))


def _read_quality(options: Options, value: str) -> Options:
    if not _QUALITY.fullmatch(value):
        raise invalid_option("q", "10 to 100 in multiples of 10")
    return replace(options, quality=int(value))


def _read_format(options: Options, value: str) -> Options:
    name = "jpg" if value == "jpeg" else value
    if name not in set(Format):
        raise invalid_option("f", "one of jpg, jpeg, png, gif, webp, json")
    return replace(options, format=Format(name))


def _read_padding(options: Options, value: str) -> Options:
    if not _PADDING.fullmatch(value):
        raise invalid_option("padding", "1 to 5 with at most one decimal place")
    return replace(options, padding=float(value))


_READERS: Mapping[str, Callable[[Options, str], Options]] = {
    "w": _read_width,
    "h": _read_height,
    "fit": _read_fit,
    "q": _read_quality,
    "f": _read_format,
    "padding": _read_padding,
}
_KNOWN = ", ".join([*_READERS, "preset"])
