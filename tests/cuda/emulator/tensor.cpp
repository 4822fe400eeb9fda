// tensor.cpp: the emulated tensor cores. wgmma computes at some moment between its issue and the wait for it: late and
// early ones both reveal missing waits. A step's operands are unpacked once for all its results;
// test_emulated_tensor.c compares the results with the law's scalar step (numerics/tc16.h).
#include "machine.h"

#include <algorithm>

extern "C" {
#include "numerics/tc16.h"
}

// The loops over 16 products become vector instructions.
#if defined(__x86_64__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define VECTORIZED
#endif

namespace emu {

// ---- a step: 16 products and the accumulator ----

enum { K = 16, EXPONENT_FLOOR = -133, KEPT_BITS = 25, NO_EXPONENT = -1000 };

// 16 numbers: value = mantissa * 2^(exponent - fraction bits).
struct Operand {
    int32_t mantissa[K], exponent[K];
    uint16_t bits[K];
    bool finite, zero; // all of them
};

VECTORIZED static void unpack(matrix_type type, const uint16_t *bits, Operand *o) {
    int fraction = type == BF16 ? 7 : 10, fields = type == BF16 ? 255 : 31, specials = 0, mantissas = 0;
    int32_t x[K], mantissa[K], exponent[K]; // not the operand's, which may be where the bits are
    for (int i = 0; i < K; i++) x[i] = bits[i];
    for (int i = 0; i < K; i++) {
        int field = x[i] >> fraction & fields, sign = -(x[i] >> 15), normal = field != 0;
        int m = (x[i] & ((1 << fraction) - 1)) | normal << fraction;
        specials |= field == fields, mantissas |= m;
        mantissa[i] = (m ^ sign) - sign;
        exponent[i] = m ? field + 1 - normal - (fields >> 1) : NO_EXPONENT;
    }
    memcpy(o->bits, bits, sizeof o->bits);
    memcpy(o->mantissa, mantissa, sizeof mantissa), memcpy(o->exponent, exponent, sizeof exponent);
    o->finite = !specials, o->zero = !mantissas;
}

// The sum of the products at the scale 2^(*most - KEPT_BITS), each truncated; *most comes as the accumulator's exponent
// and leaves as the largest. A product shifted by `room` has less than 27 bits.
VECTORIZED static int32_t sum_of_products(const Operand *a, const Operand *b, int room, int *most) {
    int32_t e[K], sum = 0, top = *most;
    for (int i = 0; i < K; i++) e[i] = a->exponent[i] + b->exponent[i];
    for (int i = 0; i < K; i++) top = e[i] > top ? e[i] : top;
    for (int i = 0; i < K; i++) {
        int32_t product = a->mantissa[i] * b->mantissa[i], drop = top - e[i];
        int32_t size = (product < 0 ? -product : product) << room;
        size >>= drop > 31 ? 31 : drop;
        sum += product < 0 ? -size : size;
    }
    *most = top;
    return sum;
}

static float step_of_law(matrix_type type, const Operand *a, const Operand *b, float c) {
    return type == BF16 ? iv_tc16_step_bf16(a->bits, b->bits, c) : iv_tc16_step_f16(a->bits, b->bits, c);
}

// Infinities, NaN, and results that are not normal numbers are the law's.
static float step_of(matrix_type type, const Operand *a, const Operand *b, float c) {
    uint32_t bits = cast<uint32_t>(c);
    int field = (int)(bits >> 23 & 255), m = (int)(bits & 0x7fffff);
    if (!a->finite || !b->finite || field == 255) return step_of_law(type, a, b, c);
    if ((a->zero || b->zero) && (field || !m)) return field ? c : 0.0f; // rows of a tile that hold no token
    if (field) m |= 1 << 23;
    int exponent = m ? (field ? field : 1) - 127 : NO_EXPONENT, most = std::max<int>(exponent, EXPONENT_FLOOR);
    int64_t sum = sum_of_products(a, b, KEPT_BITS - (type == BF16 ? 14 : 20), &most);
    int drop = most - exponent;
    int64_t size = (int64_t)m << (KEPT_BITS - 23) >> (drop > 62 ? 62 : drop);
    sum += bits >> 31 ? -size : size;
    if (sum == 0) return 0.0f;
    uint64_t n = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int top = 63 - __builtin_clzll(n), scale = top + most - KEPT_BITS;
    if (scale > 127 || scale < -126) return step_of_law(type, a, b, c);
    n = top > 23 ? n >> (top - 23) : n << (23 - top);
    return cast<float>((sum < 0 ? 0x80000000u : 0) | (uint32_t)(scale + 127) << 23 | ((uint32_t)n & 0x7fffff));
}

static float step(matrix_type type, const Operand *a, const Operand *b, float c) {
    float y = step_of(type, a, b, c);
    if (fault_strikes(EMU_FLIP_BIT, 64)) y = cast<float>(cast<uint32_t>(y) ^ 1u);
    return y;
}

static bool same_bits(const Operand *a, const Operand *b) { return memcmp(a->bits, b->bits, sizeof a->bits) == 0; }

// ---- instructions ----

void load_matrices(uint32_t (&r)[4], uint32_t address, bool turned) {
    uint32_t in[2] = {address, turned};
    const uint32_t *out = together(turned ? "ldmatrix.trans" : "ldmatrix", in, 2, [](Meeting &m) {
        Warp &warp = my_warp();
        warp.read.resize(SHARED_BYTES / 16), warp.reads++;
        for (uint32_t l = 0; l < LANES; l++) warp.read[(m.in[l][0] & OFFSET) / 16] = warp.reads;
        for (uint32_t l = 0; l < LANES; l++)
            for (uint32_t k = 0; k < 4; k++) {
                if (!m.in[l][1]) {
                    memcpy(&m.out[l][k], memory(m.in[k * 8 + l / 4][0], 16, 16) + l % 4 * 4, 4);
                    continue;
                }
                for (uint32_t h = 0; h < 2; h++) {
                    uint16_t v;
                    memcpy(&v, memory(m.in[k * 8 + l % 4 * 2 + h][0], 16, 16) + l / 4 * 2, 2);
                    m.out[l][k] = (h ? m.out[l][k] & 0xffff : 0) | (uint32_t)v << 16 * h;
                }
            }
    });
    for (int i = 0; i < 4; i++) r[i] = out[i];
}

void store_matrices(const uint32_t (&r)[4], uint32_t address) {
    uint32_t in[5] = {address, r[0], r[1], r[2], r[3]};
    together("stmatrix", in, 5, [](Meeting &m) {
        for (uint32_t l = 0; l < LANES; l++)
            for (uint32_t k = 0; k < 4; k++)
                memcpy(memory(m.in[k * 8 + l / 4][0], 16, 16) + l % 4 * 4, &m.in[l][k + 1], 4);
    });
}

uint32_t transpose_matrix(uint32_t pair) {
    return *together("movmatrix.trans", &pair, 1, [](Meeting &m) {
        for (uint32_t l = 0; l < LANES; l++)
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t from = m.in[l % 4 * 8 + h * 4 + l / 8][0], v = from >> l / 4 % 2 * 16 & 0xffff;
                m.out[l][0] = (h ? m.out[l][0] : 0) | v << 16 * h;
            }
    });
}

// Row `row` of the 16 x 16 fragment that lanes hold as words[lane][0..4).
static void fragment_row(const uint32_t *const (&words)[LANES], int row, uint16_t *x) {
    for (int k = 0; k < 16; k++) x[k] = (uint16_t)(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16);
}

void multiply(matrix_type type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    uint32_t in[11] = {a[0], a[1], a[2], a[3], b[0], b[1], (uint32_t)type};
    memcpy(in + 7, c, sizeof c);
    const uint32_t *out = together("mma", in, 11, [](Meeting &m) {
        const uint32_t *words[LANES];
        for (int l = 0; l < LANES; l++) words[l] = m.in[l];
        matrix_type type = (matrix_type)m.in[0][6];
        Operand x, y[8];
        uint16_t bits[16];
        for (int col = 0; col < 8; col++) {
            for (int k = 0; k < 16; k++) bits[k] = (uint16_t)(m.in[col * 4 + k % 8 / 2][4 + k / 8] >> k % 2 * 16);
            unpack(type, bits, &y[col]);
        }
        for (int row = 0; row < 16; row++) {
            fragment_row(words, row, bits);
            unpack(type, bits, &x);
            for (int col = 0; col < 8; col++) {
                int l = row % 8 * 4 + col / 2, at = row / 8 * 2 + col % 2, before = row % 8 * 4 + (col - 1) / 2;
                bool same = col && m.in[l][7 + at] == m.in[before][7 + row / 8 * 2 + (col - 1) % 2] &&
                            same_bits(&y[col], &y[col - 1]);
                if (same) // columns that are copies of one row of x: computed once
                    m.out[l][at] = m.out[before][row / 8 * 2 + (col - 1) % 2];
                else
                    m.out[l][at] = cast<uint32_t>(step(type, &x, &y[col], cast<float>(m.in[l][7 + at])));
            }
        }
    });
    memcpy(d, out, sizeof d);
}

static int32_t sum_of_int8(const int8_t *a, const int8_t *b, int k, int32_t c) {
    uint32_t sum = (uint32_t)c;
    for (int i = 0; i < k; i++) sum += (uint32_t)(a[i] * b[i]);
    if (fault_strikes(EMU_FLIP_BIT, 64)) sum ^= 1u;
    return (int32_t)sum;
}

// A lane's word i of A is of row lane / 4 + 8 (i % 2), k 4 (lane % 4) + 16 (i / 2); of B and of results as for floats.
void multiply_int8(int rows, int32_t *d, const uint32_t *a, const uint32_t *b, const int32_t *c) {
    int halves = rows / 8;
    uint32_t in[11] = {(uint32_t)rows};
    memcpy(in + 1, a, (size_t)(halves * halves) * 4), memcpy(in + 5, b, (size_t)halves * 4);
    memcpy(in + 7, c, (size_t)(halves * 2) * 4);
    const uint32_t *out = together("mma of int8", in, 11, [](Meeting &m) {
        int halves = (int)m.in[0][0] / 8;
        int8_t x[16][32] = {}, y[8][32] = {};
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < halves; i++) {
                memcpy(&y[l / 4][l % 4 * 4 + 16 * i], &m.in[l][5 + i], 4);
                for (int h = 0; h < halves; h++)
                    memcpy(&x[l / 4 + 8 * h][l % 4 * 4 + 16 * i], &m.in[l][1 + i * halves + h], 4);
            }
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < 2 * halves; i++)
                m.out[l][i] = (uint32_t)sum_of_int8(x[l / 4 + i / 2 * 8], y[l % 4 * 2 + i % 2], 16 * halves,
                                                    (int32_t)m.in[l][7 + i]);
    });
    memcpy(d, out, (size_t)(halves * 2) * 4);
}

// Rows [row, row + 8), a multiple of 8, of the operand of a descriptor: 128-byte swizzle, rows of 64 k; or transposed,
// rows of 64 rows.
static void operand_rows(Cta *cta, uint64_t desc, uint32_t row, bool turned, uint16_t (&x)[8][16]) {
    uint32_t start = (uint32_t)(desc & 0x3fff) << 4, lead = (uint32_t)(desc >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    if (turned) {
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t at = start + row / 64 * lead + k / 8 * stride + k % 8 * 128 + row % 64 * 2;
            uint16_t v[8];
            memcpy(v, memory_of(cta, swizzled(at), 16, 16), 16);
            for (int r = 0; r < 8; r++) x[r][k] = v[r];
        }
    } else {
        for (uint32_t r = 0; r < 8; r++)
            for (uint32_t k = 0; k < 16; k += 8)
                memcpy(&x[r][k], memory_of(cta, swizzled(start + row / 8 * stride + r * 128 + k * 2), 16, 16), 16);
    }
}

// Of int8: a step has 32 k, as many bytes as 16 of 16 bits.
static void run_int8_step(Cta *cta, unsigned warp, const Warpgroup_step &s) {
    const wgmma_step &one = s.lane[0];
    uint32_t n = (uint32_t)one.count * 2;
    static thread_local std::vector<uint16_t> columns;
    uint16_t rows[8][16];
    columns.resize(n * 16);
    for (uint32_t c = 0; c < n; c += 8) {
        operand_rows(cta, one.b, c, false, rows);
        memcpy(&columns[c * 16], rows, sizeof rows);
    }
    for (uint32_t row = 0; row < 16; row++) {
        if (row % 8 == 0) operand_rows(cta, one.a, warp % 4 * 16 + row, false, rows);
        for (uint32_t c = 0; c < n; c++) {
            float *d = &s.lane[row % 8 * 4 + c % 8 / 2].d[c / 8 * 4 + row / 8 * 2 + c % 2];
            int32_t sum = sum_of_int8((const int8_t *)rows[row % 8], (const int8_t *)&columns[c * 16], 32,
                                      one.add ? cast<int32_t>(*d) : 0);
            memcpy(d, &sum, sizeof sum);
        }
    }
}

static void run_step(Cta *cta, unsigned warp, const Warpgroup_step &s) {
    const wgmma_step &one = s.lane[0];
    uint32_t n = (uint32_t)one.count * 2;
    // memcheck's view of an operand: contiguous from its first byte.
    memory_of(cta, (uint32_t)(one.b & 0x3fff) << 4, n * 32, 16);
    if (one.a_is_shared) memory_of(cta, (uint32_t)(one.a & 0x3fff) << 4, 64 * 32, 16);
    if (one.type == S8) return run_int8_step(cta, warp, s);
    static thread_local std::vector<Operand> b;
    uint16_t bits[16], rows[8][16];
    Operand a;
    b.resize(n);
    for (uint32_t c = 0; c < n; c++) {
        if (c % 8 == 0) operand_rows(cta, one.b, c, one.b_turned, rows);
        unpack(one.type, rows[c % 8], &b[c]);
    }
    const uint32_t *words[LANES];
    for (int l = 0; l < LANES; l++) words[l] = s.lane[l].a_words;
    for (int row = 0; row < 16; row++) { // of the warp
        if (!one.a_is_shared)
            fragment_row(words, row, bits);
        else if (row % 8 == 0)
            operand_rows(cta, one.a, warp % 4 * 16 + (uint32_t)row, one.a_turned, rows);
        unpack(one.type, one.a_is_shared ? rows[row % 8] : bits, &a);
        float sum = 0.0f, result = 0.0f;
        for (uint32_t c = 0; c < n; c++) {
            float *d = &s.lane[row % 8 * 4 + (int)(c % 8 / 2)].d[c / 8 * 4 + (uint32_t)row / 8 * 2 + c % 2];
            float before = one.add ? *d : 0.0f;
            bool same = c && cast<uint32_t>(before) == cast<uint32_t>(sum) && same_bits(&b[c], &b[c - 1]);
            if (!same) result = step(one.type, &a, &b[c], before); // columns that are copies: computed once
            sum = before, *d = result;
        }
    }
}

// Recorded when all lanes have arrived.
void wgmma(const wgmma_step &s) {
    Warp &w = my_warp();
    uint32_t in[16];
    const void *p = &s;
    memcpy(in, &p, sizeof p); // valid until all have arrived
    together("wgmma", in, 2, [&w](Meeting &m) {
        auto all = std::make_shared<Warpgroup_step>();
        for (int l = 0; l < LANES; l++) {
            const wgmma_step *one;
            memcpy(&one, m.in[l], sizeof one);
            all->lane[l] = *one;
            const wgmma_step &first = all->lane[0];
            if (one->a != first.a || one->b != first.b || one->add != first.add || one->count != first.count)
                fail("lanes of a warp disagree about a wgmma");
        }
        w.issued.push_back(all);
    });
}

static void run_front(Warp &w) {
    for (auto &s : w.committed.front()) run_step(me->cta, me->where.thread.x / LANES, *s);
    w.committed.pop_front();
}

void wgmma_commit() {
    Warp &w = my_warp();
    together("wgmma.commit_group", nullptr, 0, [&w](Meeting &) {
        w.committed.push_back(std::move(w.issued));
        w.issued.clear();
        while (!w.committed.empty() && random_below(3) == 0) run_front(w);
    });
}

void wgmma_wait(int pending) {
    Warp &w = my_warp();
    uint32_t in = (uint32_t)pending;
    together("wgmma.wait_group", &in, 1, [&w](Meeting &m) {
        while (w.committed.size() > m.in[0][0]) run_front(w);
    });
}

} // namespace emu

float emu_tensor_step(int is_f16, const uint16_t *a, const uint16_t *b, float c) {
    emu::Operand x, y;
    emu::matrix_type type = is_f16 ? emu::F16 : emu::BF16;
    emu::unpack(type, a, &x), emu::unpack(type, b, &y);
    return emu::step_of(type, &x, &y, c);
}
