#!/usr/bin/env python3
"""Makes keyhash_v1.json from the definition in src/key_hash.rs, with another XXH3 (PyPI: xxhash).

The vectors are a file format (K1): this script documents where they came from and is not run again.
"""
import json
import struct
import xxhash


def h(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data, seed=0)


def integer(v):
    return b"\x02" + (struct.pack("<q", v) if -(2**63) <= v < 2**63 else v.to_bytes(16, "little", signed=True))


def floating(v):
    if v != v:
        bits = 0x7FF8000000000000
    elif v == 0:
        bits = 0
    else:
        bits = struct.unpack("<Q", struct.pack("<d", v))[0]
    return b"\x03" + struct.pack("<Q", bits)


def decimal(unscaled, scale):
    if unscaled == 0:
        scale = 0
    while unscaled != 0 and unscaled % 10 == 0:
        unscaled //= 10
        scale -= 1
    return b"\x04" + unscaled.to_bytes(16, "little", signed=True) + struct.pack("<b", scale)


def text(v):
    return b"\x05" + v.encode()


def items(tag, encoded):
    out = bytes([tag]) + struct.pack("<I", len(encoded))
    for one in encoded:
        out += struct.pack("<I", len(one)) + one
    return out


NULL = b"\x00"
vectors = {
    "null": [["null", NULL]],
    "boolean": [["false", b"\x01\x00"], ["true", b"\x01\x01"]],
    "integer": [[str(v), integer(v)] for v in (0, 1, -1, 42, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1)],
    "float": [[repr(v), floating(v)] for v in (0.0, -0.0, 1.5, -1.5, 0.1, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"))],
    "decimal": [[f"{u}e-{s}", decimal(u, s)] for u, s in ((0, 2), (150, 2), (15, 1), (-150, 2), (10**37, 0), (10**38 - 1, 38), (1, 38), (1000, 0))],
    "text": [[v, text(v)] for v in ("", "a", "0", "é", "user-123456", "x" * 300)],
    "bytea": [[v, b"\x06" + bytes.fromhex(v)] for v in ("", "00", "ff00ff")],
    "date": [[str(v), b"\x07" + struct.pack("<q", v)] for v in (0, -1, 20000)],
    "timestamp": [[str(v), b"\x08" + struct.pack("<q", v)] for v in (0, -1, 1_700_000_000_123_456)],
    "list_of_integers": [["", items(9, [])], ["1,null,3", items(9, [integer(1), NULL, integer(3)])]],
    "struct_of_integer_and_text": [["7,b", items(10, [integer(7), text("b")])]],
}
out = {name: [[value, f"{h(data):016x}"] for value, data in rows] for name, rows in vectors.items()}


def fold(a, b):
    return h(struct.pack("<QQ", a, b))


out["key_of_no_column"] = [["", f"{h(b''):016x}"]]
out["key_of_integer_7_and_text_b"] = [["7,b", f"{fold(h(integer(7)), h(text('b'))):016x}"]]
out["key_of_text_b_and_null_and_true"] = [["b,null,true", f"{fold(fold(h(text('b')), h(NULL)), h(bytes([1, 1]))):016x}"]]
print(json.dumps(out, indent=1, ensure_ascii=False))
