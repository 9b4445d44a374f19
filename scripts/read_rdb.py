#!/usr/bin/env python3
"""Prints character vectors out of an R package's lazy-load database, one element a line, without R.

    read_rdb.py PREFIX NAME...      reads PREFIX.rdx and PREFIX.rdb

PREFIX.rdx is a compressed R object: the index, a list whose element `variables` gives (offset, length) of each object in
PREFIX.rdb. There, an object is its uncompressed length (4 bytes, big-endian) and a zlib stream. Objects are in R's
serialization format, versions 2 and 3, XDR (big-endian); only the types that texts and indices need are read.
"""
import struct
import sys
import zlib

NIL, REFERENCE = 254, 255
SYMBOL, PAIRLIST, STRING, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
HAS_ATTRIBUTES, HAS_TAG, LATIN1 = 1 << 9, 1 << 10, 1 << 14


class Reader:
    """Reads one serialized object; a vector with names becomes a dict, NA in a character vector None."""

    def __init__(self, data):
        self.data, self.at, self.symbols = data, 0, []
        if self.take(2) != b"X\n":
            raise ValueError("not an R object in XDR format")
        version, _, _ = self.integers(3)
        if version not in (2, 3):
            raise ValueError(f"R serialization version {version}; expected 2 or 3")
        if version == 3:
            self.take(self.integer())  # the name of the native encoding

    def take(self, size):
        self.at += size
        if self.at > len(self.data):
            raise ValueError("an R object is cut short")
        return self.data[self.at - size:self.at]

    def integers(self, count):
        return list(struct.unpack(f">{count}i", self.take(4 * count)))

    def integer(self):
        return self.integers(1)[0]

    def string(self, flags):
        size = self.integer()
        return None if size < 0 else self.take(size).decode("latin-1" if flags & LATIN1 else "utf-8")

    def object(self):
        flags = self.integer()
        kind = flags & 255
        if kind == NIL:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8 or self.integer()) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.object())
            return self.symbols[-1]
        if kind == STRING:
            return self.string(flags)
        if kind == PAIRLIST:
            return self.pairlist(flags)
        return self.vector(kind, flags)

    def pairlist(self, flags):
        if flags & HAS_ATTRIBUTES:
            self.object()
        tag = self.object() if flags & HAS_TAG else None
        first = {tag: self.object()}
        return {**first, **(self.object() or {})}

    def vector(self, kind, flags):
        count = self.integer()
        if kind in (LOGICAL, INTEGER):
            values = self.integers(count)
        elif kind == REAL:
            values = list(struct.unpack(f">{count}d", self.take(8 * count)))
        elif kind in (STRINGS, LIST):
            values = [self.object() for _ in range(count)]
        else:
            raise ValueError(f"R objects of type {kind} are not read here")
        names = (self.object() or {}).get("names") if flags & HAS_ATTRIBUTES else None
        return dict(zip(names, values)) if names else values


def read_objects(prefix, names):
    """Yields the named objects of a database."""
    with open(prefix + ".rdx", "rb") as file:
        index = Reader(zlib.decompress(file.read(), wbits=47)).object()["variables"]  # 47: zlib or gzip
    with open(prefix + ".rdb", "rb") as file:
        for name in names:
            if name not in index:
                raise ValueError(f"{prefix}.rdb has no {name}; it has {', '.join(index)}")
            offset, length = index[name]
            file.seek(offset + 4)
            yield Reader(zlib.decompress(file.read(length - 4))).object()


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: read_rdb.py PREFIX NAME...")
    try:
        for lines in read_objects(sys.argv[1], sys.argv[2:]):
            text = "".join((line or "") + "\n" for line in lines)
            sys.stdout.buffer.write(text.encode("utf-8"))
    except (OSError, ValueError, zlib.error) as problem:
        sys.exit(f"read_rdb.py: {problem}")


if __name__ == "__main__":
    main()
