"""Geometry of images: sizes, crops and margins, computed from numbers alone.

Pixels are counted from the top left corner of the image as it is seen, so after its EXIF orientation.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from broker.images.options import DEFAULT_PADDING, Fit, Options, Position

MAX_SIDE_PX = 4_000  # of a result whose one side is left to the aspect


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels, at least 1."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of whole pixels."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Point:
    """A place in pixels, with fractions."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Face:
    """A detected face in pixels of the source.

    Attributes:
        left, top, width, height: the detector's box, with fractions; it may reach past the image.
        score: how sure the detector is, 0 to 1.
        landmarks: 68 points in iBUG order (https://ibug.doc.ic.ac.uk/resources/300-W/), from 0; or none.
    """

    left: float
    top: float
    width: float
    height: float
    score: float
    landmarks: tuple[Point, ...] = ()

    @property
    def center(self) -> Point:
        """The middle of the box."""
        return Point(self.left + self.width / 2, self.top + self.height / 2)

    @property
    def nose(self) -> Point:
        """The tip of the nose, or the box's centre where the landmark lies outside, as in profiles."""
        if len(self.landmarks) <= _NOSE_TIP:
            return self.center
        tip = self.landmarks[_NOSE_TIP]
        is_inside = (
            self.left <= tip.x <= self.left + self.width and self.top <= tip.y <= self.top + self.height
        )
        return tip if is_inside else self.center

    def scaled(self, factor: float) -> "Face":
        """The face in an image that is `factor` times as large."""
        return Face(
            self.left * factor,
            self.top * factor,
            self.width * factor,
            self.height * factor,
            self.score,
            tuple(Point(point.x * factor, point.y * factor) for point in self.landmarks),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """What to do to an image, in this order.

    Cutting comes before resizing, so that an image of one pixel by ten thousand is never enlarged whole.

    Attributes:
        cut: the part of the source that is kept.
        scaled: the size that it is resized to.
        canvas: the size of the result where the image is padded, else None.
        offset: of the image on the canvas, left and top.
    """

    cut: Box
    scaled: Size
    canvas: Size | None = None
    offset: tuple[int, int] = (0, 0)

    @property
    def result(self) -> Size:
        """The size of what comes out."""
        return self.canvas or self.scaled


_NOSE_TIP = 30
_PORTRAIT_FACE = 0.225  # height of a face that fills a portrait at least so far, of the shorter side
_ACROSS = {
    Position.TOP_LEFT: 0.0,
    Position.LEFT: 0.0,
    Position.BOTTOM_LEFT: 0.0,
    Position.TOP: 0.5,
    Position.CENTER: 0.5,
    Position.BOTTOM: 0.5,
    Position.TOP_RIGHT: 1.0,
    Position.RIGHT: 1.0,
    Position.BOTTOM_RIGHT: 1.0,
}
_DOWN = {
    Position.TOP_LEFT: 0.0,
    Position.TOP: 0.0,
    Position.TOP_RIGHT: 0.0,
    Position.LEFT: 0.5,
    Position.CENTER: 0.5,
    Position.RIGHT: 0.5,
    Position.BOTTOM_LEFT: 1.0,
    Position.BOTTOM: 1.0,
    Position.BOTTOM_RIGHT: 1.0,
}


def lay_out(source: Size, options: Options) -> Layout:
    """The layout of any mode but the face modes, which look at the image."""
    whole = Box(0, 0, source.width, source.height)
    match options.fit:
        case Fit.SCALE_DOWN:
            return Layout(whole, _fitted(source, options, may_enlarge=False))
        case Fit.SCALE:
            return Layout(whole, _fitted(source, options, may_enlarge=True))
        case Fit.FILL:
            target = target_size(options)
            return Layout(_anchored(source, largest_of_aspect(source, target), options.position), target)
        case Fit.FIT:
            target, scaled = target_size(options), _fitted(source, options, may_enlarge=True)
            room = _anchored(target, scaled, options.position)
            return Layout(whole, scaled, canvas=target, offset=(room.left, room.top))
        case Fit.CROP:
            target = target_size(options)
            kept = Size(min(source.width, target.width), min(source.height, target.height))
            return Layout(_anchored(source, kept, Position.CENTER), kept)
        case Fit.FACE | Fit.FACE_AND_SHOULDERS:
            raise AssertionError("face modes crop by `crop_around` or by attention")


def target_size(options: Options) -> Size:
    """The target size of a mode that requires both sides."""
    assert options.width is not None, "the parser demands both sides for these modes"
    assert options.height is not None, "the parser demands both sides for these modes"
    return Size(options.width, options.height)


def largest_of_aspect(source: Size, target: Size) -> Size:
    """The largest part of an image that has the aspect of `target`."""
    factor = min(source.width / target.width, source.height / target.height)
    width, height = max(1, round(target.width * factor)), max(1, round(target.height * factor))
    return Size(min(source.width, width), min(source.height, height))


def choose_face(faces: Iterable[Face], source: Size) -> Face | None:
    """The face whose box's centre is closest to the image's centre; the surer one of two as close."""

    def rank(face: Face) -> tuple[float, float]:
        dx, dy = face.center.x - source.width / 2, face.center.y - source.height / 2
        return dx * dx + dy * dy, -face.score

    return min(faces, key=rank, default=None)


def crop_around(face: Face, source: Size, options: Options) -> Box:
    """The part of the source that a face mode keeps; it has the aspect of `w` and `h`.

    The square of the rule, `padding` heights of the face, is the smallest that the crop contains; the other
    side grows to the aspect. Centred on the nose, it shifts to stay inside the image. Only where no shift
    does it, face-and-shoulders falls back to the size of face, and that shrinks to what fits.
    """
    target = target_size(options)
    padding = options.padding or DEFAULT_PADDING[options.fit]
    width, height = _around_square(face.height * padding, target)
    if width > source.width or height > source.height:
        if options.fit is Fit.FACE_AND_SHOULDERS:
            width, height = _around_square(face.height * min(padding, DEFAULT_PADDING[Fit.FACE]), target)
        shrink = min(1.0, source.width / width, source.height / height)
        width, height = width * shrink, height * shrink
    return _inside(face.nose, width, height, source)


def least_face_shrink(source: Size, options: Options) -> float:
    """By how much a crop around a face is shrunk, if the face is no smaller than faces in portraits are."""
    target = target_size(options)
    face_height = min(source.width, source.height) * _PORTRAIT_FACE
    side = face_height * (options.padding or DEFAULT_PADDING[options.fit])
    return side / min(target.width, target.height)


def _around_square(side: float, target: Size) -> tuple[float, float]:
    side = max(side, 1.0)
    if target.width >= target.height:
        return side * target.width / target.height, side
    return side, side * target.height / target.width


def _inside(center: Point, width: float, height: float, source: Size) -> Box:
    whole = Size(
        min(source.width, max(1, round(width))),
        min(source.height, max(1, round(height))),
    )
    left = min(max(0, round(center.x - whole.width / 2)), source.width - whole.width)
    top = min(max(0, round(center.y - whole.height / 2)), source.height - whole.height)
    return Box(left, top, whole.width, whole.height)


def _fitted(source: Size, options: Options, *, may_enlarge: bool) -> Size:
    factors = []
    if options.width is not None:
        factors.append(options.width / source.width)
    if options.height is not None:
        factors.append(options.height / source.height)
    if not may_enlarge or not factors:
        factor = min([1.0, *factors])
    else:
        factor = min(*factors, MAX_SIDE_PX / source.width, MAX_SIDE_PX / source.height)
    return Size(max(1, round(source.width * factor)), max(1, round(source.height * factor)))


def _anchored(outer: Size, inner: Size, position: Position) -> Box:
    left = round((outer.width - inner.width) * _ACROSS[position])
    top = round((outer.height - inner.height) * _DOWN[position])
    return Box(left, top, inner.width, inner.height)
