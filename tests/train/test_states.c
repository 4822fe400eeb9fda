/* Training of layers with a state over tensor-parallel and data-parallel ranks, which the recorded models are too small
 * for: seeded weights, documents of several blocks, one hash of the weights. */
#include "train/state_models.h"

static void run_layouts(const char *dir, size_t m, const state_documents *d) {
    char want[65], got[65];
    iv_trainer_options o = state_options(dir, m);
    iv_trainer *t = NULL;
    iv_error err;
    state_hash(&o, d, want);
    for (size_t tp = 1; tp < state_models[m].refused; tp *= 2)
        for (size_t way = 0; way < 2; way++) {
            o = state_options(dir, m);
            o.tensor_parallel = tp, o.data_parallel = 1 + way, o.recompute = way ? state_models[m].recompute : "none";
            o.micro_batch = way, o.threads = 1 + way, o.isa = way ? "auto" : "avx2";
            state_hash(&o, d, got);
            if (strcmp(want, got) != 0) fail_msg("%s, tp %zu, way %zu: other weights", state_models[m].name, tp, way);
        }
    o = state_options(dir, m);
    o.tensor_parallel = state_models[m].refused;
    expect_error(state_models[m].name, iv_trainer_open(&o, &t, &err), &err, IV_UNSUPPORTED, state_models[m].why);
    o = state_options(dir, m); /* the control */
    o.virtual_ranks = 2;
    state_hash(&o, d, got);
    assert_string_not_equal(want, got);
}

static void one_hash_over_ranks(void **state) {
    (void)state;
    static state_documents d;
    rng r = rng_start("states over ranks");
    state_documents_random(&r, &d);
    for (size_t m = 0; m < STATE_MODELS; m++) {
        char dir[32];
        state_folder(m, dir);
        run_layouts(dir, m, &d);
        state_folder_remove(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_hash_over_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
