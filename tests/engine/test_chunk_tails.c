/* Step sizes that are no multiple of any tile: chunks of every size up to 40 have the whole prefill's bits in both
 * arithmetics, all types and instruction sets, with steps that fill the buffers to the last row. */
#include "made_model.h"
#include "kernels/kernels.h"

enum { TOKENS = 41, VOCAB = 512 };

static void every_chunk(void **state) {
    (void)state;
    static const struct {
        const char *arithmetic, *dtype;
    } kinds[] = {
        {"fma32", "bfloat16"}, {"fma32", "float16"}, {"fma32", "float32"}, {"tc16", "bfloat16"}, {"tc16", "float16"}};
    static float want[TOKENS * VOCAB], got[TOKENS * VOCAB];
    int32_t ids[TOKENS];
    rng g = {11};
    for (size_t i = 0; i < TOKENS; i++) ids[i] = (int32_t)rng_below(&g, VOCAB);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        iv_engine_options o = made_options(INVAR_SOURCE_DIR "/tests/data/hf/llama31");
        o.arithmetic = kinds[k].arithmetic, o.dtype = kinds[k].dtype;
        made_logits(&o, ids, TOKENS, want);
        for (int isa = 0; isa <= (int)iv_isa_detect(); isa++)
            for (size_t chunk = 1; chunk <= 40;
                 chunk += (isa == 0 || SANITIZED) && !getenv("INVAR_TEST_LONG") ? 6 : 1) {
                char what[100];
                o.isa = iv_isa_name((iv_isa)isa), o.max_num_batched_tokens = chunk;
                made_logits(&o, ids, TOKENS, got);
                snprintf(what, sizeof what, "%s %s %s, chunks of %zu", kinds[k].arithmetic, kinds[k].dtype, o.isa,
                         chunk);
                assert_same_bits(what, want, got, TOKENS * VOCAB, 4, false);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_chunk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
