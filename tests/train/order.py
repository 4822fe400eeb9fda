#!/usr/bin/env python3
"""The order of examples and the packing of a step, from the text of src/train/data/order.h alone; prints test_order.c's vectors."""


def philox(counter, key):
    (a, b, c, d), (k0, k1), low = counter, key, 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & low, (p >> 32) ^ d ^ k1, p & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return a, b, c, d


def draw(i, seed, epoch):
    attempt = 0
    while True:
        w = philox((i, attempt, epoch, 0x4F524452), (seed % 2**32, seed >> 32))
        x = w[0] + 2**32 * w[1]
        if x < 2**64 - 2**64 % (i + 1):
            return x % (i + 1)
        attempt += 1


def permutation(n, seed, epoch):
    out = list(range(n))
    for i in range(n - 1, 0, -1):
        j = draw(i, seed, epoch)
        out[i], out[j] = out[j], out[i]
    return out


def pack(lengths, ranks):
    loads, lists = [0] * ranks, [[] for _ in range(ranks)]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        r = min(range(ranks), key=lambda r: (loads[r], r))
        loads[r] += -(-lengths[i] // 16) * 16
        lists[r].append(i)
    return [sorted(x) for x in lists]


if __name__ == "__main__":
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)  # Random123's known answer
    for args in [(16, 0, 0), (16, 0, 1), (16, 0xFEDCBA9876543210, 7)]:
        print(args, permutation(*args))
    for n in (1000, 70000):
        s = 0
        for v in permutation(n, 42, 3):
            s = (s * 1000003 + v) % 2**64
        print("digest", n, hex(s))
    lengths = [5, 100, 33, 33, 17, 16, 1, 48, 64, 100, 2, 31]
    print(lengths, pack(lengths, 4))
