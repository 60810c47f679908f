"""Compressed GPU code: LZ4 blocks and zstd frames, as fat binaries hold them."""

from __future__ import annotations


class CubinError(ValueError):
    """A library or cubin is not what it should be: one sentence, with a fix where there is one."""


def unpack_zstd(packed: bytes, size: int) -> bytes:
    """Decode a zstd frame of `size` bytes. Raises CubinError."""
    try:
        import zstandard
    except ImportError as error:
        raise CubinError(
            "this library's GPU code is compressed with zstd; fix: pip install zstandard"
        ) from error
    return bytes(zstandard.ZstdDecompressor().decompress(packed, max_output_size=size))


def unpack_lz4(packed: bytes, size: int) -> bytes:
    """Decode an LZ4 block of `size` bytes, by `lz4` where it is installed. Raises CubinError."""
    try:
        import lz4.block
    except ImportError:
        return decode_lz4(packed, size)
    try:
        return bytes(lz4.block.decompress(packed, uncompressed_size=size))
    except lz4.block.LZ4BlockError as error:
        raise CubinError(f"a compressed cubin is damaged: {error}") from error


def decode_lz4(packed: bytes, size: int) -> bytes:
    """Decode one LZ4 block of `size` bytes in plain Python (about 100 times slower than `lz4`).

    Raises CubinError when the block is damaged.
    """
    out = bytearray()
    at = 0
    try:
        while True:
            token = packed[at]
            literals, at = _lz4_length(packed, at + 1, token >> 4)
            out += packed[at : at + literals]
            at += literals
            if at >= len(packed):
                break  # the last sequence has no match
            back = packed[at] | packed[at + 1] << 8
            match, at = _lz4_length(packed, at + 2, token & 15)
            match += 4
            start = len(out) - back
            if back == 0 or start < 0:
                raise CubinError("a compressed cubin is damaged: it refers to before its start")
            if back >= match:
                out += out[start : start + match]
            else:  # the match overlaps what it writes: the last `back` bytes repeat
                piece = bytes(out[start:])
                out += (piece * (match // back + 1))[:match]
            if len(out) > size:
                raise CubinError("a compressed cubin is damaged: it is longer than it says")
    except IndexError as error:
        raise CubinError("a compressed cubin is damaged: it is cut short") from error
    return bytes(out)


def _lz4_length(packed: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = packed[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at
