"""libvips called directly, by pyvips, with the worker's options: strict decoding, one thread, no cache."""

import pyvips

from bench.images.contenders.command import HEIGHT, QUALITY, WIDTH, own_cpu_s, serve_commands


def transform(source: bytes, format_: str) -> bytes:
    """One image."""
    image = pyvips.Image.thumbnail_buffer(
        source, WIDTH, height=HEIGHT, size="force", option_string="[fail_on=truncated]"
    )
    if format_ == "jpg":
        return bytes(image.jpegsave_buffer(Q=QUALITY, optimize_coding=True, keep="icc"))
    return bytes(image.webpsave_buffer(Q=QUALITY, keep="icc"))


if __name__ == "__main__":
    pyvips.cache_set_max(0)
    pyvips.voperation.vips_lib.vips_concurrency_set(1)
    version = ".".join(str(pyvips.version(part)) for part in range(3))
    serve_commands(version, transform, own_cpu_s)
