/* Experts are whole on a rank, and all ranks divide them: what a caller may ask of that, and what each rank has. */
#include "client.h"
#include "invar_model.h"

#include "engine/state.h"

static iv_status open_over(const char *dir, size_t ranks, size_t experts, iv_engine **out, iv_error *err) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = source_path(dir), o.device = "cpu", o.threads = 2, o.tensor_parallel_size = ranks;
    o.expert_parallel_size = experts, o.max_model_len = 64;
    return iv_engine_open(&o, out, err);
}

static void digest_over(size_t ranks, size_t experts, char digest[80]) {
    iv_engine *e;
    iv_error err;
    int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    ASSERT_OK(open_over("tests/data/hf/qwen3_moe", ranks, experts, &e, &err), &err);
    answer *a = answers_new(1);
    iv_request r = ask_ids(e, ids, sizeof ids / sizeof *ids, 12);
    r.temperature = 0.8f, r.seed = 3, r.ignore_eos = true;
    submit(e, &r, a);
    run_all(e, a, 1);
    snprintf(digest, 80, "%s", a->digest);
    answers_free(a, 1);
    iv_engine_close(e);
}

static void it_never_changes_a_bit(void **state) {
    (void)state;
    char want[80], got[80];
    digest_over(1, 0, want);
    for (size_t ranks = 1; ranks <= 4; ranks *= 2) {
        digest_over(ranks, IV_EXPERT_PARALLEL, got), assert_string_equal(got, want);
        digest_over(ranks, ranks, got), assert_string_equal(got, want);
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        size_t ranks, experts;
        const char *says;
    } cases[] = {
        {"tests/data/hf/qwen3", 1, IV_EXPERT_PARALLEL,
         "enable_expert_parallel: model_type qwen3: wanted a mixture of experts, found dense layers alone"},
        {"tests/data/hf/qwen3", 2, 2, "wanted a mixture of experts"},
        {"tests/data/hf/qwen3_moe", 2, 1,
         "expert_parallel_size: all ranks divide the experts: wanted 2 (tensor_parallel_size), found 1"},
        {"tests/data/hf/qwen3_moe", 1, 4, "wanted 1 (tensor_parallel_size), found 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_engine *e;
        iv_error err;
        assert_int_equal(open_over(cases[i].dir, cases[i].ranks, cases[i].experts, &e, &err), IV_UNSUPPORTED);
        if (!strstr(err.message, cases[i].says)) fail_msg("wanted '%s', found '%s'", cases[i].says, err.message);
    }
}

/* Ranks by themselves have whole experts, and all of them once. */
static void ranks_have_whole_experts(void **state) {
    (void)state;
    const char *dir = source_path("tests/data/hf/qwen3_moe");
    iv_ranks_info one, info;
    iv_model_info model;
    iv_error err;
    ASSERT_OK(iv_inspect(dir, "auto", &model, &err), &err);
    ASSERT_OK(iv_inspect_ranks(dir, "auto", 1, &one, &err), &err);
    assert_true(one.rank[0].weight_bytes == model.weight_bytes && one.rank[0].experts == (size_t)model.experts);
    assert_true(one.rank[0].kv_bytes_per_token == model.kv_bytes_per_token);
    for (size_t ranks = 2; ranks <= 4; ranks++) {
        size_t experts = 0, heads = 0;
        ASSERT_OK(iv_inspect_ranks(dir, "auto", ranks, &info, &err), &err);
        for (size_t r = 0; r < ranks; r++) {
            experts += info.rank[r].experts, heads += info.rank[r].heads;
            assert_true(info.rank[r].experts > 0 && info.rank[r].weight_bytes < one.rank[0].weight_bytes);
        }
        assert_int_equal(experts, model.experts);
        assert_true(heads >= (size_t)model.heads); /* a head divided by a leaf boundary is on two ranks */
    }
    assert_int_equal(iv_inspect_ranks(dir, "auto", 9, &info, &err), IV_INVALID);
    assert_int_equal(iv_inspect_ranks(dir, "auto", 0, &info, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "tensor_parallel_size: wanted 1 to 8, found 0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_never_changes_a_bit),
                                       cmocka_unit_test(what_cannot_be_is_refused),
                                       cmocka_unit_test(ranks_have_whole_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
