"""Pillow: its decoder's own shrinking first, then Lanczos, as `Image.thumbnail` does it."""

import io

from PIL import Image, __version__

from bench.images.contenders.command import HEIGHT, QUALITY, WIDTH, own_cpu_s, serve_commands


def transform(source: bytes, format_: str) -> bytes:
    """One image."""
    with Image.open(io.BytesIO(source)) as image:
        image.thumbnail((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        made = io.BytesIO()
        if format_ == "jpg":
            image.save(made, "JPEG", quality=QUALITY, optimize=True)
        else:
            image.save(made, "WEBP", quality=QUALITY)
        return made.getvalue()


if __name__ == "__main__":
    serve_commands(__version__, transform, own_cpu_s)
