#!/usr/bin/env python3
"""Compares fastgen's dequantisation of every type, and its half and bfloat16 conversions, with the gguf package.

    pip install gguf
    python tests/check_quant.py            # prints a line for each type; exits with 1 where a bit differs
    python tests/check_quant.py --write    # also writes tests/quant_golden.h, what tests/test_quant.c expects

The blocks are random, with special values (zeros, denormals, largest, infinities, NaN) forced into their scales. NaN
equals NaN: which one comes out of, say, 0 * infinity is the processor's choice. CC names the compiler, cc otherwise.
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
BRIDGE = """
#define FASTGEN_IMPLEMENTATION
#include "fastgen.h"
int bridge_dequantize(int type, const void *from, float *to, int64_t n) {
    return (int)fg_dequantize((fg_type)type, from, to, n);
}
int64_t bridge_bytes(int type, int64_t n) { return fg_type_bytes((fg_type)type, n); }
const char *bridge_name(int type) { return fg_type_name((fg_type)type); }
void bridge_to_f16(const float *from, uint16_t *to, int n) { while (n-- > 0) to[n] = fg__f32_to_f16(from[n]); }
void bridge_to_bf16(const float *from, uint16_t *to, int n) { while (n-- > 0) to[n] = fg__f32_to_bf16(from[n]); }
"""
# Where the half-precision scales of a block are.
SCALES = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01,
                  0xFE00]
GOLDEN_ELEMENTS = 16384
GOLDEN_HEAD = """\
/* Written by check_quant.py from the results of the gguf package: FNV-1a hashes of the bits (little-endian, every NaN
   7FC00000 or 7FFF) that random input gives. The input comes from test_random, started with `seed`. */
typedef struct quant_golden {
    const char *name;
    int type, seed; /* type -1: floats to F16; -2: floats to BF16 */
    uint64_t hash;
} quant_golden;

#define QUANT_GOLDEN_ELEMENTS %d
static const quant_golden quant_goldens[] = {
"""


def build(include, folder):
    source = pathlib.Path(folder) / "bridge.c"
    library = pathlib.Path(folder) / "bridge.so"
    source.write_text(BRIDGE)
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(compiler + ["-O2", "-w", "-shared", "-fPIC", "-DFG_NO_SIMD", "-I", str(include), "-o", str(library), str(source),
                               "-lm", "-lpthread"], check=True)
    bridge = ctypes.CDLL(str(library))
    bridge.bridge_bytes.restype = ctypes.c_int64
    bridge.bridge_bytes.argtypes = [ctypes.c_int, ctypes.c_int64]
    bridge.bridge_name.restype = ctypes.c_char_p
    bridge.bridge_dequantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    bridge.bridge_to_f16.argtypes = bridge.bridge_to_bf16.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    return bridge


def our_dequantize(bridge, qtype, data, n):
    shifted = np.zeros(data.size + 1, np.uint8)  # an odd address: reads must not assume alignment
    shifted[1:] = data
    out = np.empty(n, np.float32)
    result = bridge.bridge_dequantize(int(qtype), shifted.ctypes.data + 1, out.ctypes.data, n)
    assert result == 0, f"fg_dequantize returned {result}"
    return out


def their_dequantize(qtype, data):
    with np.errstate(all="ignore"):
        return gguf.dequantize(data.reshape(1, -1), qtype).astype(np.float32).ravel()


def bits_of(floats):
    """The floats' bits, with every NaN as the same one."""
    return np.where(np.isnan(floats), np.uint32(0x7FC00000), np.ascontiguousarray(floats).view(np.uint32))


def hard_blocks(name, block_bytes, random):
    """Random blocks, then such with each special scale beside random, empty and full quants."""
    blocks = [random.integers(0, 256, (4096, block_bytes), np.uint8)]
    offsets = SCALES.get(name, [])
    for fill in (None, 0x00, 0xFF, 0x55, 0xAA):
        for first in SPECIAL_HALVES if offsets else []:
            for second in SPECIAL_HALVES if len(offsets) > 1 else [0]:
                block = random.integers(0, 256, block_bytes, np.uint8)
                if fill is not None:
                    block[:] = fill
                for offset, half in zip(offsets, (first, second)):
                    block[offset:offset + 2] = half & 255, half >> 8
                blocks.append(block[None])
    if name == "MXFP4":
        block = random.integers(0, 256, (256, block_bytes), np.uint8)
        block[:, 0] = np.arange(256)
        blocks.append(block)
    if name in ("F16", "BF16"):
        blocks.append(np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2))
    return np.concatenate(blocks).ravel()


def splitmix64(state, count):
    """The generator of tests/test.h: `count` numbers after `state`."""
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_bytes(seed, count):
    return splitmix64(seed, (count + 7) // 8).astype("<u8").view(np.uint8)[:count]


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data.tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def check_type(bridge, qtype):
    name = bridge.bridge_name(int(qtype)).decode()
    elements, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    our_bytes = bridge.bridge_bytes(int(qtype), elements)
    if name != qtype.name or our_bytes != block_bytes:
        print(f"{qtype.name:7} is called {name}, its blocks have {our_bytes} bytes, not {block_bytes}")
        return False
    data = hard_blocks(name, block_bytes, np.random.default_rng(int(qtype)))
    n = data.size // block_bytes * elements
    ours, theirs = bits_of(our_dequantize(bridge, qtype, data, n)), bits_of(their_dequantize(qtype, data))
    return report(name, data.size // block_bytes, "blocks", ours, theirs)


def report(name, count, unit, ours, theirs):
    wrong = np.flatnonzero(ours != theirs)
    detail = "equal"
    if wrong.size:
        detail = f"{wrong.size} DIFFER, first at {wrong[0]}: {ours[wrong[0]]:#x} instead of {theirs[wrong[0]]:#x}"
    print(f"{name:7} {count:8} {unit}: {detail}")
    return wrong.size == 0


def their_halves(floats):
    with np.errstate(all="ignore"):
        return floats.astype(np.float16).view(np.uint16)


def their_bfloats(floats):
    return gguf.quantize(floats.reshape(1, -1), gguf.GGMLQuantizationType.BF16).view(np.uint16).ravel()


def our_16bit(function, floats):
    out = np.empty(floats.size, np.uint16)
    function(floats.ctypes.data, out.ctypes.data, floats.size)
    return out


def one_nan(bits, infinity):
    return np.where((bits & 0x7FFF) > infinity, 0x7FFF, bits)


def check_roundings(bridge):
    random = np.random.default_rng(1)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)  # exact
    edges = np.concatenate([np.nextafter(middles, np.float32(0)), middles, np.nextafter(middles, np.float32(np.inf)),
                            np.float32([65519.996, 65520, 65536, np.inf, np.nan])])
    floats = np.concatenate([random.integers(0, 2**32, 1 << 21, np.uint64).astype(np.uint32).view(np.float32),
                             edges, -edges, (np.arange(1 << 18, dtype=np.uint32) << 14).view(np.float32)])
    good = report("to F16", floats.size, "floats", one_nan(our_16bit(bridge.bridge_to_f16, floats), 0x7C00),
                  one_nan(their_halves(floats), 0x7C00))
    return report("to BF16", floats.size, "floats", one_nan(our_16bit(bridge.bridge_to_bf16, floats), 0x7F80),
                  one_nan(their_bfloats(floats), 0x7F80)) and good


def write_golden(path, types):
    rows = []
    for qtype in types:
        elements, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
        data = random_bytes(int(qtype), GOLDEN_ELEMENTS // elements * block_bytes)
        rows.append((qtype.name, int(qtype), int(qtype), fnv1a(bits_of(their_dequantize(qtype, data)).astype("<u4"))))
    floats = random_bytes(100, GOLDEN_ELEMENTS * 4).view(np.float32)
    rows.append(("to F16", -1, 100, fnv1a(one_nan(their_halves(floats), 0x7C00).astype("<u2"))))
    rows.append(("to BF16", -2, 100, fnv1a(one_nan(their_bfloats(floats), 0x7F80).astype("<u2"))))
    lines = [f'    {{"{name}", {number}, {seed}, 0x{value:016X}ull}}' for name, number, seed, value in rows]
    path.write_text(GOLDEN_HEAD % GOLDEN_ELEMENTS + ",\n".join(lines) + "\n};\n")
    print(f"wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", default=HERE.parent, help="the folder of fastgen.h")
    parser.add_argument("--write", action="store_true", help="write tests/quant_golden.h")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bridge = build(arguments.include, folder)
        types = [t for t in gguf.GGMLQuantizationType if bridge.bridge_bytes(int(t), 256)]
        results = [check_type(bridge, t) for t in types] + [check_roundings(bridge)]
    print(f"{len(types)} types, {results.count(False)} with differences")
    if arguments.write:
        write_golden(HERE / "quant_golden.h", types)
    return 0 if all(results) and types else 1


if __name__ == "__main__":
    sys.exit(main())
