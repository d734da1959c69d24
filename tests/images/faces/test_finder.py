"""`broker.images.faces.finder`: a `FaceFinder` in this process."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from broker.images.errors import FacesUnavailable
from broker.images.faces.finder import FacesConfig, LocalFaceFinder
from broker.images.faces.resampling import Pixels
from broker.images.geometry import Face, Size
from broker.images.service import FaceFinder

TINY = FacesConfig(detector="tiny", threads=1, timeout_s=60)


def size_of(image: Pixels) -> Size:
    return Size(image.shape[1], image.shape[0])


def test_many_at_once_get_their_own_faces(astronaut: Pixels, friends: Pixels) -> None:
    async def main() -> None:
        finder: FaceFinder = LocalFaceFinder(TINY)
        assert isinstance(finder, LocalFaceFinder)
        images = [astronaut, friends, astronaut[:100, :100], friends]
        found = await asyncio.gather(*(finder.find(size_of(image), image.tobytes()) for image in images))
        await finder.close()
        assert [len(faces) for faces in found] == [1, len(found[1]), 0, len(found[1])]
        assert len(found[1]) >= 4
        assert abs(found[0][0].nose.x - 223) < 8

    asyncio.run(main())


def test_faces_can_be_stored(astronaut: Pixels) -> None:
    async def main() -> None:
        finder = LocalFaceFinder(TINY)
        faces = await finder.find(size_of(astronaut), astronaut.tobytes())
        await finder.close()
        # Numbers of numpy are no numbers for a codec.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(faces), type=tuple[Face, ...]) == faces

    asyncio.run(main())


def test_starting_tells_what_computes() -> None:
    async def main() -> None:
        finder = LocalFaceFinder(TINY)
        assert await finder.start() == "CPUExecutionProvider"
        await finder.close()

    asyncio.run(main())


def test_no_answer_in_time_is_unavailable(astronaut: Pixels) -> None:
    async def main() -> None:
        finder = LocalFaceFinder(FacesConfig(detector="tiny", timeout_s=0.0001))
        with pytest.raises(FacesUnavailable, match="no reply within"):
            await finder.find(size_of(astronaut), astronaut.tobytes())
        await finder.close()

    asyncio.run(main())


def test_without_models_every_call_says_so(tmp_path: Path, astronaut: Pixels) -> None:
    async def main() -> None:
        finder = LocalFaceFinder(FacesConfig(models=tmp_path))
        for _ in range(2):
            with pytest.raises(FacesUnavailable, match="has no models"):
                await finder.find(size_of(astronaut), astronaut.tobytes())
        await finder.close()

    asyncio.run(main())


def test_what_is_closed_finds_nothing(astronaut: Pixels) -> None:
    async def main() -> None:
        finder = LocalFaceFinder(TINY)
        await finder.start()
        await finder.close()
        with pytest.raises(FacesUnavailable, match="stops"):
            await finder.find(size_of(astronaut), astronaut.tobytes())

    asyncio.run(main())


def test_a_finder_that_was_never_used_closes() -> None:
    asyncio.run(LocalFaceFinder(TINY).close())
