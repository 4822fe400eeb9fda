/* dummy.c: groups of 64 elements from 16 Philox blocks in parallel, which the compiler vectorizes. */
#include "format/dummy.h"
#include "base/digest.h"
#include "base/size.h"
#include "numerics/floats.h"

enum { LANES = 16, GROUP = 4 * LANES, ROUNDS = 10 };

static void make_key(uint64_t seed, const char *name, uint32_t key[2]) {
    uint8_t bytes[8], hash[32];
    char text[24 + IV_TENSOR_NAME_BYTES_MAX + 1];
    size_t n = strlen(name), at = 14;
    IV_ASSERT(n <= IV_TENSOR_NAME_BYTES_MAX);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(seed >> (8 * i));
    memcpy(text, "invar dummy 1\n", at);
    memcpy(text + at, bytes, sizeof bytes);
    memcpy(text + at + sizeof bytes, name, n);
    iv_digest_of(text, at + sizeof bytes + n, hash);
    for (int k = 0; k < 2; k++) {
        key[k] = 0;
        for (int i = 0; i < 4; i++) key[k] |= (uint32_t)hash[4 * k + i] << (8 * i);
    }
}

/* iv_philox4x32 of 16 consecutive counters: out[word][lane]. */
static void philox_lanes(const uint32_t key[2], uint64_t first, uint32_t out[4][LANES]) {
    uint32_t x0[LANES], x1[LANES], x2[LANES] = {0}, x3[LANES] = {0}, k0 = key[0], k1 = key[1];
    for (uint32_t l = 0; l < LANES; l++) x0[l] = (uint32_t)first + l, x1[l] = (uint32_t)(first >> 32);
    for (int round = 0; round < ROUNDS; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * x0[l], p1 = (uint64_t)0xCD9E8D57u * x2[l];
            uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1[l] ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3[l] ^ k1;
            x1[l] = (uint32_t)p1, x3[l] = (uint32_t)p0, x0[l] = y0, x2[l] = y2;
        }
    memcpy(out[0], x0, sizeof x0), memcpy(out[1], x1, sizeof x1);
    memcpy(out[2], x2, sizeof x2), memcpy(out[3], x3, sizeof x3);
}

/* Every step is exact in float32. */
static void make_group(const uint32_t key[2], uint64_t group, float base, float out[GROUP]) {
    uint32_t word[4][LANES];
    philox_lanes(key, group * LANES, word);
    for (int i = 0; i < GROUP; i++) {
        uint32_t u = word[i / LANES][i % LANES];
        uint32_t pairs = (u & 0x00ff00ffu) + (u >> 8 & 0x00ff00ffu);
        int32_t sum = (int32_t)((pairs & 0xffffu) + (pairs >> 16)) - 510;
        out[i] = (float)sum * (9.0f / 65536) + base;
    }
}

static void round_group(iv_dtype type, const float x[GROUP], void *out) {
    if (type == IV_F32) memcpy(out, x, GROUP * sizeof *x);
    for (int i = 0; type == IV_F16 && i < GROUP; i++) ((uint16_t *)out)[i] = iv_f16_from_f32(x[i]);
    for (int i = 0; type == IV_BF16 && i < GROUP; i++) { /* none is a NaN */
        uint32_t u = iv_bits(x[i]);
        ((uint16_t *)out)[i] = (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
}

static bool is_bias(const char *name) {
    size_t n = strlen(name);
    return n >= 5 && (strcmp(name + n - 5, ".bias") == 0 || strcmp(name + n - 5, "_bias") == 0);
}

void iv_dummy_fill(uint64_t seed, const iv_tensor_info *t, void *dst, size_t offset, size_t n) {
    IV_ASSERT(t->dtype == IV_BF16 || t->dtype == IV_F16 || t->dtype == IV_F32);
    IV_ASSERT(offset <= t->bytes && n <= t->bytes - offset);
    size_t group_bytes = GROUP * iv_dtype_bytes(t->dtype);
    float base = t->ndim == 1 && !is_bias(t->name) ? 1.0f : 0.0f, x[GROUP];
    uint32_t key[2], rounded[GROUP];
    unsigned char *to = dst;
    make_key(seed, t->name, key);
    while (n > 0) {
        size_t skip = offset % group_bytes, some = iv_size_min(n, group_bytes - skip);
        make_group(key, offset / group_bytes, base, x);
        round_group(t->dtype, x, rounded);
        memcpy(to, (unsigned char *)rounded + skip, some);
        to += some, offset += some, n -= some;
    }
}
