/* Gradients of latent attention beyond the recorded ones: one set of bits for passes, threads, instruction sets and
 * recomputation; and queries without a low rank, whose gradients are differences of losses. */
#include "golden_gradients.h"
#include "../engine/made_model.h"

static void random_examples(rng *r, size_t count, size_t longest, examples *x) {
    *x = (examples){.count = count};
    for (size_t i = 0; i < count; i++) {
        example *e = &x->of[i];
        e->count = 2 + rng_below(r, i ? longest / 3 : longest);
        e->ids = malloc(e->count * sizeof *e->ids), e->mask = malloc(e->count * sizeof *e->mask);
        for (size_t t = 0; t < e->count; t++)
            e->ids[t] = (int32_t)rng_below(r, 320), e->mask[t] = t && rng_below(r, 4) ? 1.0f : 0.0f;
        e->mask[1] = 1.0f;
    }
}

static void one_set_of_bits(void **state) {
    (void)state;
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
    } kinds[] = {{IV_FMA32, IV_BF16}, {IV_TC16, IV_BF16}, {IV_FMA32, IV_F32}, {IV_TC16, IV_F16}};
    const char *dir = source_path("tests/data/families/deepseek_v3_a");
    rng r = rng_start("gradients of latent attention");
    examples x;
    random_examples(&r, 7, 150, &x);
    for (size_t kind = 0; kind < 4; kind++) {
        gradient_options o = {.arithmetic = kinds[kind].arithmetic,
                              .dtype = kinds[kind].dtype,
                              .isa = iv_isa_detect(),
                              .threads = 1,
                              .pass = 64,
                              .virtual_ranks = 4};
        gradients want, got;
        gradients_of(dir, &x, &o, &want);
        for (int way = 0; way < 5; way++) {
            gradient_options w = o;
            w.threads = 1 + rng_below(&r, 3), w.recompute = (iv_recompute)rng_below(&r, 3),
            w.pass = 1 + rng_below(&r, 7);
            if (way == 0) w.isa = IV_ISA_SCALAR;
            if (way == 1) w.isa = IV_ISA_AVX2 < iv_isa_detect() ? IV_ISA_AVX2 : iv_isa_detect();
            if (way == 2) w.recompute = IV_RECOMPUTE_LAYER, w.pass = 64;
            if (way == 3) w.recompute = IV_RECOMPUTE_ATTENTION, w.pass = 64;
            gradients_of(dir, &x, &w, &got);
            for (size_t i = 0; i < want.all; i++)
                if (iv_bits(want.sum[i]) != iv_bits(got.sum[i]))
                    fail_msg("kind %zu, isa %d, %zu threads, passes of %zu, recompute %d: %s differs", kind, (int)w.isa,
                             w.threads, w.pass, (int)w.recompute, iv_parameter_at(want.model, i)->info.name);
            gradients_close(&got);
        }
        o.virtual_ranks = 2; /* the control: another order of sums */
        gradients_of(dir, &x, &o, &got);
        assert_memory_not_equal(want.sum, got.sum, want.all * sizeof *want.sum);
        gradients_close(&got), gradients_close(&want);
    }
    examples_free(&x);
}

static void drop(made_model *m, const char *part) {
    for (size_t i = m->count; i-- > 0;) {
        if (!strstr(m->names[i], part)) continue;
        free(m->names[i]), free(m->data[i]), m->count--;
        m->names[i] = m->names[m->count], m->data[i] = m->data[m->count], m->tensors[i] = m->tensors[m->count];
    }
}

/* deepseek_v3_a in float32 with q_proj in place of both factors. All experts serve each token: the choice of some would
 * make the loss jump. */
static void without_low_rank(made_model *m, rng *r) {
    made_open(m, "tests/data/families/deepseek_v3_a");
    made_config(m, "\"q_lora_rank\": 16", "\"q_lora_rank\": null");
    made_config(m, "\"dtype\": \"bfloat16\"", "\"dtype\": \"float32\"");
    made_config(m, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 8");
    made_config(m, "\"topk_group\": 2", "\"topk_group\": 4");
    drop(m, "q_a_"), drop(m, "q_b_");
    made_convert(m, IV_F32);
    for (int layer = 0; layer < 3; layer++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_proj.weight", layer);
        size_t i = m->count++;
        float *x = random_values(r, NORMAL, IV_F32, 48 * 32);
        m->names[i] = strdup(name), m->data[i] = x;
        m->tensors[i] = (iv_tensor_data){.name = m->names[i], .dtype = IV_F32, .ndim = 2, .shape = {48, 32}, .data = x};
    }
}

static double loss_of(made_model *m, const examples *x, const gradient_options *o) {
    gradients g;
    gradients_of(made_write(m), x, o, &g);
    double loss = g.loss;
    gradients_close(&g);
    return loss;
}

static void queries_of_one_factor(void **state) {
    (void)state;
    static const char *const names[] = {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "kv_a_layernorm", "o_proj"};
    gradient_options o = {.dtype = IV_F32, .isa = iv_isa_detect(), .threads = 2, .pass = 64, .virtual_ranks = 1};
    rng r = rng_start("queries of one factor");
    made_model m;
    examples x;
    gradients g;
    iv_error err;
    random_examples(&r, 3, 90, &x);
    without_low_rank(&m, &r);
    gradients_of(made_write(&m), &x, &o, &g);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.2.self_attn.%s.weight", names[n]);
        const iv_stored *s = iv_model_stored(g.model, name);
        size_t i = made_find(&m, name), count = made_elements(&m, i);
        float *slope = malloc(count * sizeof *slope), *w = m.data[i], *kept = malloc(count * sizeof *kept);
        double size = 0, loss[2];
        assert_non_null(s);
        ASSERT_OK(iv_stored_read_from(s, 0, s->rows, IV_F32, read_sum, &g, slope, &err), &err);
        memcpy(kept, w, count * sizeof *kept);
        for (size_t k = 0; k < count; k++) size += (double)slope[k] * (double)slope[k];
        size = sqrt(size);
        double step = 0.01 / size; /* the loss changes by 0.02 */
        for (int side = 0; side < 2; side++) {
            for (size_t k = 0; k < count; k++)
                w[k] = (float)((double)kept[k] + (side ? step : -step) * (double)slope[k] / size);
            loss[side] = loss_of(&m, &x, &o);
        }
        double found = (loss[1] - loss[0]) / (2 * step);
        printf("%s: slope %.5g, by losses %.5g\n", names[n], size, found);
        assert_true(fabs(found / size - 1) < 0.02);
        memcpy(w, kept, count * sizeof *kept);
        free(slope), free(kept);
    }
    gradients_close(&g), examples_free(&x), made_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_bits), cmocka_unit_test(queries_of_one_factor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
