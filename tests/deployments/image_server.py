"""A server on loopback that has images, and files that are none."""

import functools
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import pyvips
import skimage.data

from tests.images.samples import gradient, photograph


def portrait() -> bytes:
    """A photograph of one face, above and left of the middle (NASA, in scikit-image)."""
    pixels = skimage.data.astronaut()
    image = pyvips.Image.new_from_memory(pixels.tobytes(), pixels.shape[1], pixels.shape[0], 3, "uchar")
    return bytes(image.copy(interpretation="srgb").jpegsave_buffer(Q=90))


@functools.cache
def costly() -> bytes:
    """A photograph that keeps a decoder for about a second when it is to become a GIF."""
    return bytes(photograph(400, 300).jpegsave_buffer(Q=85))


def bomb(side: int) -> bytes:
    """A PNG of some bytes that would be a square of `side` pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def long_animation(width: int, height: int, frames: int) -> bytes:
    """A GIF of which each frame has the inverse colours of the one before, so that none is cheap to encode.

    Written out of one frame: libvips takes most of a second to encode each. See the GIF89a specification.
    """
    one = bytes(gradient(width, height).gifsave_buffer())
    # The header, the table of colours, extensions in blocks, and the descriptor of the image.
    table = one[13 : 13 + (3 << (one[10] & 7) + 1)]
    start = at = 13 + len(table)
    while one[at] == ord("!"):
        at += 2
        while one[at]:
            at += 1 + one[at]
        at += 1
    own_table = bytes([0x80 | one[10] & 7]) + bytes(255 - value for value in table)
    inverse = one[start : at + 9] + own_table + one[at + 10 : -1]
    return one[:start] + (one[start:-1] + inverse) * (frames // 2) + one[-1:]


def tiny_frames(count: int) -> bytes:
    """A GIF of so many frames of one pixel."""
    frame = b"\x21\xf9\x04\x00\x02\x00\x00\x00,\0\0\0\0\1\0\1\0\0\2\2\x4c\1\0"
    return b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + frame * count + b";"


LARGE_BYTES = 17 << 20  # of which the memory for sources holds fifteen, and one address five
VECTOR = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'


class ImageServer:
    """Runs in a thread; `seen` are the paths that were asked for."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_closing = threading.Event()
        self._bodies = {
            "/a.png": bytes(gradient(320, 240).pngsave_buffer()),
            "/b.png": bytes(gradient(240, 320).pngsave_buffer()),
            "/long.gif": long_animation(1_000, 800, 60),
            "/bomb.png": bomb(60_000),
            "/packed.png": bomb(7_100),  # just over 50 megapixels
            "/frames.gif": tiny_frames(501),
            "/vector.png": VECTOR,
            "/vector.svg": VECTOR,
            "/document.png": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj<</Type/Catalog>>endobj",
            "/face.jpg": portrait(),
            "/large.jpg": portrait() + bytes(LARGE_BYTES),  # decoders ignore what follows its end
            "/page.png": b"<!doctype html><script>alert(1)</script>",
        }
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.seen.append(self.path)
                if self.path == "/slow.png":
                    server.is_closing.wait(30)
                    return
                path, _, query = self.path.partition("?")
                if path in ("/redirect", "/redirect-again"):
                    self.send_response(302)
                    self.send_header("Location", unquote(query) or path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = server._bodies.get(path)
                if path.startswith("/costly"):
                    body = costly() + self.path.encode()  # behind its end; of each path it is another one
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        return Handler
