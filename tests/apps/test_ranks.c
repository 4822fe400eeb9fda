/* What the program says of ranks: what each has of a model, and that experts are whole there. */
#include "program.h"

static size_t number_of(const json_t *object, const char *name) {
    return (size_t)json_integer_value(json_object_get(object, name));
}

/* Experts are whole on a rank, and all ranks divide them. */
static void inspects_ranks(void **state) {
    (void)state;
    const char *mixture = source_path("tests/data/hf/qwen3_moe");
    size_t experts = 0;
    RUN("inspect", mixture, "--tp", "4");
    expect_ok();
    expect_out("Over 4 ranks");
    expect_out("2 heads, 2 whole experts");
    RUN("inspect", mixture, "--tp", "3", "--json");
    expect_ok();
    json_t *info = expect_json(), *ranks = json_object_get(info, "ranks");
    assert_int_equal(json_array_size(ranks), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *rank = json_array_get(ranks, i);
        experts += number_of(rank, "experts");
        assert_true(number_of(rank, "weight_bytes") < number_of(info, "weight_bytes"));
    }
    assert_int_equal(experts, number_of(info, "experts"));
    json_decref(info);
}

static void experts_are_never_cut(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "--prompt", "x", "--enable-expert-parallel");
    expect_error(1, "enable_expert_parallel: model_type qwen3: wanted a mixture of experts");
    RUN("generate", source_path("tests/data/families/qwen2_moe_a"), "--prompt", "x", "--ep-size", "2");
    expect_error(1, "expert_parallel_size: all ranks divide the experts: wanted 1 (tensor_parallel_size), found 2");
    RUN("generate", source_path("tests/data/families/qwen2_moe_a"), "--prompt", "x", "--max-tokens", "2",
        "--enable-expert-parallel", "--ep-size", "1");
    expect_ok();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(inspects_ranks), cmocka_unit_test(experts_are_never_cut)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
