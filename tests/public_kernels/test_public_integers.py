"""Hashes, random numbers, modular arithmetic and searches: kernels made of integers, each against Python's own."""

# Shaders are written as they would be in a file of their own.
# ruff: noqa: E501
from __future__ import annotations

import base64
import hashlib
import zlib

import numpy as np
import pytest

import mpsgrad as mg

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_sha_256_of_many_short_messages() -> None:
    primes = [p for p in range(2, 312) if all(p % d for d in range(2, int(p**0.5) + 1))]
    words = [int((p ** (1 / 3) % 1) * 2**52) >> 20 for p in primes]
    starts = [int((p**0.5 % 1) * 2**52) >> 20 for p in primes[:8]]
    source = HEADER + f"""
    constant uint K[64] = {{{", ".join(f"{word}u" for word in words)}}};
    constant uint H[8] = {{{", ".join(f"{word}u" for word in starts)}}};
    #define ROTR(x, n) rotate((uint)(x), (uint)(32 - (n)))
    #define CH(x, y, z) (z ^ (x & (y ^ z)))
    #define MAJ(x, y, z) ((x & y) | (z & (x | y)))
    kernel void sha256(device const uint* messages, device uint* digests, uint id [[thread_position_in_grid]]) {{
        uint w[64];
        for (int i = 0; i < 16; i++) w[i] = messages[16 * id + i];
        for (int i = 16; i < 64; i++) {{
            uint a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (ROTR(a, 7) ^ ROTR(a, 18) ^ (a >> 3)) + (ROTR(b, 17) ^ ROTR(b, 19) ^ (b >> 10));
        }}
        uint s[8];
        for (int i = 0; i < 8; i++) s[i] = H[i];
        for (int i = 0; i < 64; i++) {{
            uint e = s[4], a = s[0];
            uint t1 = s[7] + (ROTR(e, 6) ^ ROTR(e, 11) ^ ROTR(e, 25)) + CH(e, s[5], s[6]) + K[i] + w[i];
            uint t2 = (ROTR(a, 2) ^ ROTR(a, 13) ^ ROTR(a, 22)) + MAJ(a, s[1], s[2]);
            for (int j = 7; j > 0; j--) s[j] = s[j - 1];
            s[4] += t1; s[0] = t1 + t2;
        }}
        for (int i = 0; i < 8; i++) digests[8 * id + i] = H[i] + s[i];
    }}"""
    messages = [b"nonce %d" % n for n in range(100)]
    padded = np.zeros((100, 64), np.uint8)
    for row, message in zip(padded, messages, strict=True):
        row[: len(message)] = list(message)
        row[len(message)] = 0x80
        row[56:] = list((8 * len(message)).to_bytes(8, "big"))
    digests = np.zeros((100, 8), np.uint32)
    mg.compile(source).function("sha256")(100, padded.view(">u4").astype(np.uint32), digests)
    assert [row.astype(">u4").tobytes() for row in digests] == [hashlib.sha256(message).digest() for message in messages]


def test_keccak_of_many_states() -> None:
    constants, register = [], 1
    for _ in range(24):
        value = 0
        for j in range(7):
            value |= (register & 1) << (2**j - 1)
            register = (register << 1) ^ (0x171 if register >> 7 else 0)
        constants.append(value)
    source = HEADER + f"""
    constant ulong rounds[24] = {{{", ".join(f"{value:#x}ul" for value in constants)}}};
    template <typename T> T turn(T x, uint n) {{ return n == 0 ? x : (x << n) | (x >> (8 * sizeof(T) - n)); }}
    kernel void keccak(device ulong* states, uint id [[thread_position_in_grid]]) {{
        ulong a[25], b[25], c[5];
        for (int i = 0; i < 25; i++) a[i] = states[25 * id + i];
        for (int r = 0; r < 24; r++) {{
            for (int x = 0; x < 5; x++) c[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
            for (int i = 0; i < 25; i++) a[i] ^= c[(i + 4) % 5] ^ turn(c[(i + 1) % 5], 1);
            int x = 1, y = 0;
            b[0] = a[0];
            for (int t = 0; t < 24; t++) {{
                int nx = y, ny = (2 * x + 3 * y) % 5;
                b[nx + 5 * ny] = turn(a[x + 5 * y], ((t + 1) * (t + 2) / 2) % 64);
                x = nx; y = ny;
            }}
            for (int i = 0; i < 25; i++) {{
                int row = i / 5 * 5;
                a[i] = b[i] ^ (~b[row + (i + 1) % 5] & b[row + (i + 2) % 5]);
            }}
            a[0] ^= rounds[r];
        }}
        for (int i = 0; i < 25; i++) states[25 * id + i] = a[i];
    }}"""
    messages = [b"message number %d" % n for n in range(40)]
    blocks = np.zeros((40, 200), np.uint8)
    for row, message in zip(blocks, messages, strict=True):
        row[: len(message)] = list(message)
        row[len(message)] = 6
        row[135] = 0x80
    states = blocks.view(np.uint64).copy()
    mg.compile(source).function("keccak")(40, states)
    assert [state.tobytes()[:32] for state in states] == [hashlib.sha3_256(message).digest() for message in messages]


def test_philox_random_numbers() -> None:
    source = HEADER + """
    kernel void philox(constant uint2& key, device uint4* out, uint i [[thread_position_in_grid]]) {
        uint4 c = uint4(i, 0, 7, 9);
        uint2 k = key;
        for (int r = 0; r < 10; r++) {
            uint2 m = uint2(0xD2511F53u, 0xCD9E8D57u), hi = mulhi(m, c.xz), lo = m * c.xz;
            c = uint4(hi.y ^ c.y ^ k.x, lo.y, hi.x ^ c.w ^ k.y, lo.x);
            k += uint2(0x9E3779B9u, 0xBB67AE85u);
        }
        out[i] = c;
    }"""
    out = np.zeros((50, 4), np.uint32)
    mg.compile(source).function("philox")(50, (12345, 678), out)
    for i, row in enumerate(out.tolist()):
        c, k = [i, 0, 7, 9], [12345, 678]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        assert row == c


def test_montgomery_products_of_256_bit_numbers() -> None:
    """Field arithmetic as zero-knowledge provers do it: eight 32-bit limbs, products of ulong, operator overloads."""
    source = HEADER + """
    #define LIMBS 8
    struct Field { uint limbs[LIMBS]; };
    constant Field modulus = {{MODULUS}};
    constant uint inverse = INVERSE;
    bool at_least(thread const uint* a, constant Field& b) {
        for (int i = LIMBS - 1; i >= 0; i--) if (a[i] != b.limbs[i]) return a[i] > b.limbs[i];
        return true;
    }
    Field operator*(const Field a, const Field b) {
        uint t[LIMBS + 2] = {};
        for (int i = 0; i < LIMBS; i++) {
            ulong carry = 0;
            for (int j = 0; j < LIMBS; j++) { carry += t[j] + ulong(a.limbs[j]) * b.limbs[i]; t[j] = uint(carry); carry >>= 32; }
            carry += t[LIMBS]; t[LIMBS] = uint(carry); t[LIMBS + 1] = uint(carry >> 32);
            uint m = t[0] * inverse;
            carry = (t[0] + ulong(m) * modulus.limbs[0]) >> 32;
            for (int j = 1; j < LIMBS; j++) { carry += t[j] + ulong(m) * modulus.limbs[j]; t[j - 1] = uint(carry); carry >>= 32; }
            carry += t[LIMBS]; t[LIMBS - 1] = uint(carry); t[LIMBS] = t[LIMBS + 1] + uint(carry >> 32);
        }
        if (t[LIMBS] || at_least(t, modulus)) {
            long borrow = 0;
            for (int j = 0; j < LIMBS; j++) { borrow += long(t[j]) - modulus.limbs[j]; t[j] = uint(borrow); borrow >>= 32; }
        }
        Field r;
        for (int j = 0; j < LIMBS; j++) r.limbs[j] = t[j];
        return r;
    }
    kernel void multiply(device const Field* a, device const Field* b, device Field* out, uint i [[thread_position_in_grid]]) {
        out[i] = a[i] * b[i];
    }"""
    p = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001
    limbs = ", ".join(f"{p >> 32 * i & 0xFFFFFFFF:#x}u" for i in range(8))
    source = source.replace("MODULUS", limbs).replace("INVERSE", f"{-pow(p, -1, 2**32) % 2**32:#x}u")
    generator = np.random.default_rng(4)
    numbers = [int.from_bytes(generator.bytes(32), "little") % p for _ in range(62)] + [0, p - 1]
    a = np.frombuffer(b"".join(n.to_bytes(32, "little") for n in numbers), np.uint32).reshape(64, 8)
    b = a[::-1].copy()
    out = np.zeros_like(a)
    mg.compile(source).function("multiply")(64, a, b, out)
    r = pow(2**256, -1, p)
    got = [int.from_bytes(row.tobytes(), "little") for row in out]
    assert got == [x * y * r % p for x, y in zip(numbers, numbers[::-1], strict=True)]


def test_smith_waterman_scores_of_pairs() -> None:
    source = HEADER + """
    constant int LONGEST = 64;
    kernel void scores(device const uchar* queries, device const uchar* targets, device const int* lengths,
                       device int* best, constant int3& costs, uint id [[thread_position_in_grid]]) {
        int row[LONGEST + 1];
        for (int j = 0; j <= LONGEST; j++) row[j] = 0;
        int top = 0;
        for (int i = 0; i < lengths[2 * id]; i++) {
            int diagonal = 0;
            for (int j = 0; j < lengths[2 * id + 1]; j++) {
                int match = queries[LONGEST * id + i] == targets[LONGEST * id + j] ? costs.x : costs.y;
                int here = max3(0, diagonal + match, max(row[j], row[j + 1]) + costs.z);
                diagonal = row[j + 1];
                row[j + 1] = here;
                top = max(top, here);
            }
        }
        best[id] = top;
    }"""
    generator = np.random.default_rng(5)
    queries, targets = generator.integers(0, 4, (2, 30, 64)).astype(np.uint8)
    lengths = generator.integers(1, 65, (30, 2)).astype(np.int32)
    best = np.zeros(30, np.int32)
    mg.compile(source).function("scores")(30, queries, targets, lengths, best, (3, -2, -4))
    for q, t, (n, m), found in zip(queries, targets, lengths, best, strict=True):
        table = np.zeros((n + 1, m + 1), int)
        for i in range(n):
            for j in range(m):
                step = 3 if q[i] == t[j] else -2
                table[i + 1, j + 1] = max(0, table[i, j] + step, table[i, j + 1] - 4, table[i + 1, j] - 4)
        assert found == table.max()


def test_trees_of_a_random_forest() -> None:
    source = HEADER + """
    struct Node { ushort feature; uint8_t threshold; uint8_t is_leaf; float value; };
    kernel void predict(device const Node* nodes [[buffer(0)]], device const uint8_t* samples [[buffer(1)]],
                        device float* out [[buffer(2)]], constant uint& trees [[buffer(3)]], constant uint& depth [[buffer(4)]],
                        constant uint& features [[buffer(5)]], uint id [[thread_position_in_grid]]) {
        float sum = 0;
        uint size = (1u << (depth + 1)) - 1;
        for (uint t = 0; t < trees; ++t) {
            uint at = 0;
            const device Node* tree = nodes + t * size;
            while (!tree[at].is_leaf) { at = 2 * at + 1 + (samples[id * features + tree[at].feature] > tree[at].threshold); }
            sum += tree[at].value;
        }
        out[id] = sum / trees;
    }"""
    generator = np.random.default_rng(6)
    trees, depth, features, count = 5, 4, 7, 60
    size = 2 ** (depth + 1) - 1
    nodes = np.zeros((trees, size), [("feature", "<u2"), ("threshold", "u1"), ("is_leaf", "u1"), ("value", "<f4")])
    nodes["feature"] = generator.integers(0, features, nodes.shape)
    nodes["threshold"] = generator.integers(0, 256, nodes.shape)
    nodes["value"] = generator.random(nodes.shape)
    nodes["is_leaf"] = (np.arange(size) >= 2**depth - 1) | (generator.random(nodes.shape) < 0.1)
    samples = generator.integers(0, 256, (count, features)).astype(np.uint8)
    out = np.zeros(count, np.float32)
    mg.compile(source).function("predict")(count, nodes, samples, out, trees, depth, features)
    for sample, found in zip(samples, out, strict=True):
        total = 0.0
        for tree in nodes:
            at = 0
            while not tree[at]["is_leaf"]:
                at = 2 * at + 1 + int(sample[tree[at]["feature"]] > tree[at]["threshold"])
            total += float(tree[at]["value"])
        assert found == pytest.approx(total / trees, rel=1e-6)


def test_connected_components_by_union_find() -> None:
    """Racing plain loads and an atomic minimum on memory that is cast to atomics, as component labelling does."""
    source = HEADER + """
    uint root(device uint* parent, uint x) { while (parent[x] != x) x = parent[x]; return x; }
    kernel void unite(device uint* parent, device const uint2* edges, uint i [[thread_position_in_grid]]) {
        uint a = edges[i].x, b = edges[i].y;
        while (true) {
            a = root(parent, a); b = root(parent, b);
            if (a == b) return;
            if (a < b) { uint t = a; a = b; b = t; }
            uint old = atomic_fetch_min_explicit((device atomic_uint*)&parent[a], b, memory_order_relaxed);
            if (old == a) return;
            a = old;
        }
    }
    kernel void flatten(device uint* parent, uint i [[thread_position_in_grid]]) { parent[i] = root(parent, i); }"""
    generator = np.random.default_rng(7)
    edges = generator.integers(0, 300, (220, 2)).astype(np.uint32)
    parent = np.arange(300, dtype=np.uint32)
    library = mg.compile(source)
    library.function("unite")(220, parent, edges)
    library.function("flatten")(300, parent)
    label = np.arange(300)
    for _ in range(300):
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    np.testing.assert_array_equal(parent, label)


def test_base64_and_a_cyclic_redundancy_check_by_a_table_that_is_computed() -> None:
    source = HEADER + """
    template <uint Polynomial> struct Crc {
        uint table[256];
        constexpr Crc() : table() {
            for (uint n = 0; n < 256; n++) {
                uint c = n;
                for (int k = 0; k < 8; k++) c = c & 1 ? Polynomial ^ (c >> 1) : c >> 1;
                table[n] = c;
            }
        }
    };
    constant constexpr Crc<0xEDB88320u> crc;
    static_assert(Crc<0xEDB88320u>().table[1] == 0x77073096u, "the first entry");
    constant char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" "abcdefghijklmnopqrstuvwxyz0123456789+/";
    kernel void encode(device const packed_uchar3* in, device char4* out, device uint* check, uint i [[thread_position_in_grid]]) {
        const uint bits = in[i].x << 16 | in[i].y << 8 | in[i].z;
        char4 c;
        for (int k = 0; k < 4; k++) c[k] = alphabet[bits >> (18 - 6 * k) & 0x3f];
        out[i] = c;
        uint r = ~0u;
        device const uchar *p = reinterpret_cast<device const uchar*>(in + i), *end = p + 3;
        do r = crc.table[(r ^ *p++) & 0xff] ^ r >> 8; while (p < end);
        check[i] = ~r;
    }"""
    data = np.random.default_rng(0).integers(0, 256, (32, 3)).astype(np.uint8)
    text, check = np.zeros(128, np.int8), np.zeros(32, np.uint32)
    mg.compile(source).function("encode")(32, data, text, check)
    assert text.tobytes() == base64.b64encode(data.tobytes())
    assert check.tolist() == [zlib.crc32(row.tobytes()) for row in data]
