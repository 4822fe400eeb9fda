/* Norm, step and weight hash over slices: equal for every number of ranks, threads and instruction set. */
#include "random.h"
#include "base/digest.h"
#include "train/flat/optimizer.h"

enum { BLOCK = IV_OPTIMIZER_BLOCK };

typedef struct state {
    size_t n;
    float *g, *w, *m, *v;
    bool *decays;
} state;

static state random_state(rng *r) {
    state s = {.n = BLOCK * (1 + rng_below(r, 100))};
    s.g = random_values(r, NORMAL, IV_F32, s.n), s.w = random_values(r, NORMAL, IV_F32, s.n);
    s.m = random_values(r, NORMAL, IV_F32, s.n), s.v = random_values(r, NORMAL, IV_F32, s.n);
    s.decays = calloc(s.n / BLOCK, 1);
    for (size_t i = 0; i < s.n; i++) s.v[i] = fabsf(s.v[i]);
    for (size_t b = 0; b < s.n / BLOCK; b++) s.decays[b] = rng_below(r, 2);
    return s;
}

static void free_state(state *s) { free(s->g), free(s->w), free(s->m), free(s->v), free(s->decays); }

/* One step as `world` ranks make it, one after the other; the hash of the weights after it. */
static void step_of(const state *s, size_t world, size_t threads, iv_isa isa, uint8_t hash[32]) {
    const iv_kernels *k = iv_kernels_select(isa);
    iv_pool *pool;
    iv_error err;
    ASSERT_OK(iv_pool_open(threads, &pool, &err), &err);
    size_t bytes = s->n * sizeof(float), first, count, next = 0;
    float *w = malloc(bytes), *m = malloc(bytes), *v = malloc(bytes), scale;
    memcpy(w, s->w, bytes), memcpy(m, s->m, bytes), memcpy(v, s->v, bytes);
    double *sums = calloc(s->n / BLOCK, sizeof *sums), norm;
    uint8_t(*digests)[32] = calloc(iv_weight_groups(s->n), 32);
    for (size_t rank = 0; rank < world; rank++) {
        iv_flat_slice(s->n, rank, world, &first, &count);
        assert_true(first == next && first % IV_WEIGHT_GROUP == 0);
        next = first + count;
        iv_block_sums(k, pool, s->g + first, count, sums + first / BLOCK);
    }
    assert_int_equal(next, s->n);
    assert_true(iv_gradient_scale(iv_total_of_sums(sums, s->n / BLOCK), 7.0, 1.0, &norm, &scale));
    iv_adamw_step step = iv_adamw_constants(&(iv_adamw_options){0.9, 0.999, 1e-8, 0.1}, 1e-3, 3, scale);
    for (size_t rank = 0; rank < world; rank++) {
        iv_flat_slice(s->n, rank, world, &first, &count);
        iv_adamw_slice(k, pool, &step, s->decays + first / BLOCK, s->g + first, w + first, m + first, v + first, count);
        iv_weight_digests(pool, w + first, count, digests + first / IV_WEIGHT_GROUP);
    }
    iv_weight_hash(digests, iv_weight_groups(s->n), hash);
    free(w), free(m), free(v), free(sums), free(digests);
    iv_pool_close(pool);
}

static void ranks_threads_and_isas_share_one_hash(void **unused) {
    (void)unused;
    rng r = rng_start("optimizer");
    static const size_t worlds[] = {1, 2, 3, 4, 8, 64};
    for (size_t t = 0; t < trials(30, 200); t++) {
        state s = random_state(&r);
        uint8_t want[32], got[32];
        step_of(&s, 1, 1, IV_ISA_SCALAR, want);
        for (size_t i = 0; i < 6; i++) {
            step_of(&s, worlds[i], 1 + rng_below(&r, 3), (iv_isa)rng_below(&r, (size_t)iv_isa_detect() + 1), got);
            assert_memory_equal(want, got, 32);
        }
        s.m[rng_below(&r, s.n)] += 1000.0f; /* the hash sees one element */
        step_of(&s, 2, 2, iv_isa_detect(), got);
        assert_memory_not_equal(want, got, 32);
        free_state(&s);
    }
}

/* The definition, with the digest library alone; and the bytes of known weights. */
static void the_hash_is_its_definition(void **unused) {
    (void)unused;
    size_t n = IV_WEIGHT_GROUP + 3 * BLOCK;
    float *w = malloc(n * sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (float)i;
    uint8_t blocks[19][32], want[2][32], got[2][32], hash[2][32];
    for (size_t b = 0; b < 19; b++) iv_digest_of(w + b * BLOCK, BLOCK * 4, blocks[b]);
    iv_digest_of(blocks, 16 * 32, want[0]), iv_digest_of(blocks + 16, 3 * 32, want[1]);
    iv_digest_of(want, 64, hash[0]);
    iv_pool *pool;
    iv_error err;
    ASSERT_OK(iv_pool_open(2, &pool, &err), &err);
    iv_weight_digests(pool, w, n, got);
    iv_weight_hash((const uint8_t(*)[32])got, 2, hash[1]);
    assert_memory_equal(hash[0], hash[1], 32);
    char hex[65];
    iv_digest_hex(hash[1], hex);
    /* python3: a = struct.pack("<77824f", *range(77824)); h = lambda x: hashlib.sha256(x).digest()
     * b = [h(a[i : i + 16384]) for i in range(0, len(a), 16384)]; h(h(b"".join(b[:16])) + h(b"".join(b[16:]))) */
    assert_string_equal(hex, "dff544937a8a7b0129c5b0f009ff48d6ae839af26984a989c887d861484997fd");
    iv_pool_close(pool);
    free(w);
}

static void norms_do_not_decay(void **unused) {
    (void)unused;
    assert_true(iv_tensor_decays(2, false) && !iv_tensor_decays(1, false) && iv_tensor_decays(1, true));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_threads_and_isas_share_one_hash),
        cmocka_unit_test(the_hash_is_its_definition),
        cmocka_unit_test(norms_do_not_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
