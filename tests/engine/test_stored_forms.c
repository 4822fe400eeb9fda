/* One model in the forms that files have: prefixes, other names, matrices in one tensor. Every form has the bits of the
 * plain one, and an export has the form that was read. */
#include "exported.h"
#include "made_model.h"

enum { IDS = 12, VOCAB_MAX = 1024 };

static void logits_of(const char *dir, float *out) {
    int32_t ids[IDS];
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    for (int i = 0; i < IDS; i++) ids[i] = 7 * i + 3;
    iv_engine_options_init(&o);
    o.model = dir, o.device = "cpu", o.threads = 2;
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    ASSERT_OK(iv_engine_logits(e, ids, IDS, out, &err), &err);
    iv_engine_close(e);
}

static void remove_tensor(made_model *m, size_t i) {
    free(m->names[i]), free(m->data[i]);
    m->count--;
    for (; i < m->count; i++)
        m->names[i] = m->names[i + 1], m->data[i] = m->data[i + 1], m->tensors[i] = m->tensors[i + 1];
}

static void add_tensor(made_model *m, const char *name, const iv_tensor_data *like, int ndim, const int64_t *shape,
                       void *data) {
    size_t i = m->count++;
    assert_true(i < MADE_TENSORS_MAX);
    m->names[i] = strdup(name), m->data[i] = data;
    m->tensors[i] = (iv_tensor_data){.name = m->names[i], .dtype = like->dtype, .ndim = ndim, .data = data};
    memcpy(m->tensors[i].shape, shape, (size_t)ndim * sizeof *shape);
}

/* Renames what begins with `from`; at: the text may be inside. */
static void rename_all(made_model *m, const char *from, const char *to, bool inside) {
    for (size_t i = 0; i < m->count; i++) {
        char name[300], *at = strstr(m->names[i], from);
        if (!at || (!inside && at != m->names[i])) continue;
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - m->names[i]), m->names[i], to, at + strlen(from));
        free(m->names[i]);
        m->names[i] = strdup(name), m->tensors[i].name = m->names[i];
    }
}

/* Rows of tensors, one behind another, as one tensor. */
static void stack(made_model *m, const char *const *names, size_t count, const char *as) {
    iv_tensor_data like = {0};
    size_t bytes = 0;
    char *data = NULL;
    int64_t shape[3] = {0};
    for (size_t k = 0; k < count; k++) {
        size_t i = made_find(m, names[k]), n = made_elements(m, i) * iv_dtype_bytes(m->tensors[i].dtype);
        like = m->tensors[i];
        data = realloc(data, bytes + n);
        memcpy(data + bytes, m->data[i], n);
        bytes += n, shape[0] += like.shape[0], shape[1] = like.shape[1];
        remove_tensor(m, i);
    }
    add_tensor(m, as, &like, like.ndim, shape, data);
}

static void stack_layers(made_model *m, const char *parts, const char *format, const char *as, const char *suffix) {
    for (int layer = 0; layer < 2; layer++) {
        char names[3][200], whole[200];
        const char *list[3];
        size_t n = 0;
        for (const char *at = parts; *at; at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' ')) {
            char part[20];
            snprintf(part, sizeof part, "%.*s", (int)strcspn(at, " "), at);
            snprintf(names[n], sizeof names[n], "model.layers.%d.%s.%s_proj.%s", layer, format, part, suffix);
            list[n] = names[n], n++;
        }
        snprintf(whole, sizeof whole, "model.layers.%d.%s.%s.%s", layer, format, as, suffix);
        stack(m, list, n, whole);
    }
}

/* All experts of a layer in two tensors. */
static void fuse_experts(made_model *m, int experts) {
    static const char *const parts[2][2] = {{"gate_proj", "up_proj"}, {"down_proj", NULL}};
    for (int layer = 0; layer < 2; layer++)
        for (int w = 0; w < 2; w++) {
            char name[200];
            iv_tensor_data like = {0};
            int64_t rows = 0, columns = 0;
            char *data = NULL;
            size_t width = 0;
            for (int e = 0; e < experts; e++)
                for (int k = 0; k < 2 && parts[w][k]; k++) {
                    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e, parts[w][k]);
                    size_t i = made_find(m, name);
                    like = m->tensors[i], width = iv_dtype_bytes(like.dtype);
                    int64_t all = w ? like.shape[0] : 2 * like.shape[0], n = like.shape[0];
                    rows = all, columns = like.shape[1];
                    if (!data) data = malloc((size_t)(experts * all * columns) * width);
                    size_t part = (size_t)(n * columns) * width, at = (size_t)((e * all + k * n) * columns) * width;
                    memcpy(data + at, m->data[i], part);
                    remove_tensor(m, i);
                }
            int64_t shape[3] = {experts, rows, columns};
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer, w ? "down_proj" : "gate_up_proj");
            add_tensor(m, name, &like, 3, shape, data);
        }
}

typedef enum form { BARE, INSIDE, OUTSIDE, MIXTRAL, FUSED, QKV, GATE_UP, FORMS } form;

static void change(made_model *m, form f) {
    switch (f) {
    case BARE: rename_all(m, "model.", "", false); break;
    case INSIDE: rename_all(m, "model.", "model.language_model.", false); break;
    case OUTSIDE:
        rename_all(m, "model.", "language_model.model.", false);
        rename_all(m, "lm_head.", "language_model.lm_head.", false);
        break;
    case MIXTRAL:
        rename_all(m, "mlp.gate.", "block_sparse_moe.gate.", true);
        rename_all(m, "mlp.experts.", "block_sparse_moe.experts.", true);
        rename_all(m, "gate_proj", "w1", true), rename_all(m, "down_proj", "w2", true);
        rename_all(m, "up_proj", "w3", true);
        break;
    case FUSED: fuse_experts(m, 8); break;
    case QKV:
        stack_layers(m, "q k v", "self_attn", "qkv_proj", "weight");
        stack_layers(m, "q k v", "self_attn", "qkv_proj", "bias");
        break;
    case GATE_UP: stack_layers(m, "gate up", "mlp", "gate_up_proj", "weight"); break;
    case FORMS: break;
    }
}

static void every_form_has_the_same_bits(void **state) {
    (void)state;
    for (form f = BARE; f < FORMS; f++) {
        static float want[IDS * VOCAB_MAX], got[IDS * VOCAB_MAX];
        made_model m;
        memset(want, 0, sizeof want), memset(got, 0, sizeof got);
        made_open(&m, f == QKV || f == GATE_UP ? "qwen2" : "qwen3_moe");
        logits_of(made_write(&m), want);
        change(&m, f);
        logits_of(made_write(&m), got);
        if (memcmp(want, got, sizeof want) != 0) fail_msg("form %d: other logits", (int)f);
        export_has_the_same_form(m.s.dir);
        made_close(&m);
    }
}

static iv_status read_bytes(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    (void)err;
    memcpy(out, (const char *)user + offset, n);
    return IV_OK;
}

static void digest_of(const char *dir, char out[65]) {
    iv_checkpoint *c;
    uint8_t digest[32];
    iv_error err;
    ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
    ASSERT_OK(iv_checkpoint_digest(c, NULL, NULL, digest, &err), &err);
    iv_digest_hex(digest, out);
    iv_checkpoint_close(c);
}

static iv_status put_tensor(iv_weights_stage *s, const made_model *m, size_t i, iv_error *err) {
    const iv_tensor_data *t = &m->tensors[i];
    return iv_weights_stage_put(s, t->name, iv_dtype_name(t->dtype), t->shape, (size_t)t->ndim, read_bytes, m->data[i],
                                err);
}

/* All tensors of `from`, whose form is another, into a copy of the model `to`, some of which is filled by the copy. */
static void stage_all(const made_model *to, const made_model *from, size_t left_out) {
    scratch s;
    iv_weights_stage *stage;
    const char *first;
    char want[65], got[65];
    iv_error err;
    scratch_open(&s);
    ASSERT_OK(iv_weights_stage_open(to->s.dir, NULL, 0, s.dir, &stage, &err), &err);
    for (size_t i = 0; i < from->count; i++)
        if (i != left_out) ASSERT_OK(put_tensor(stage, from, i, &err), &err);
    assert_int_equal(iv_weights_stage_missing(stage, &first) > 0, left_out < from->count);
    if (left_out < from->count) {
        expect_error("missing", iv_weights_stage_finish(stage, got, &err), &err, IV_INVALID, "are missing");
        ASSERT_OK(iv_weights_stage_fill(stage, &err), &err);
    }
    ASSERT_OK(iv_weights_stage_finish(stage, got, &err), &err);
    digest_of(to->s.dir, want);
    assert_string_equal(got, want);
    digest_of(s.dir, got);
    assert_string_equal(got, want);
    iv_weights_stage_close(stage);
    scratch_close(&s);
}

/* A trainer may hold another form than the file: transformers 5 has all experts in one tensor and a wrapper's prefix.
 */
static void updates_come_in_any_form(void **state) {
    (void)state;
    for (form f = BARE; f < FORMS; f++) {
        made_model plain, other;
        made_open(&plain, f == QKV || f == GATE_UP ? "qwen2" : "qwen3_moe");
        made_open(&other, f == QKV || f == GATE_UP ? "qwen2" : "qwen3_moe");
        change(&other, f);
        made_write(&plain), made_write(&other);
        stage_all(&plain, &other, SIZE_MAX), stage_all(&other, &plain, SIZE_MAX);
        stage_all(&plain, &other, other.count - 1), stage_all(&other, &plain, 7);
        made_close(&plain), made_close(&other);
    }
    made_model m;
    iv_weights_stage *stage;
    scratch s;
    iv_error err;
    made_open(&m, "qwen3_moe");
    scratch_open(&s);
    ASSERT_OK(iv_weights_stage_open(made_write(&m), NULL, 0, s.dir, &stage, &err), &err);
    change(&m, FUSED);
    size_t i = made_find(&m, "model.layers.1.mlp.experts.down_proj");
    m.tensors[i].shape[0] = 7;
    expect_error("shape", put_tensor(stage, &m, i, &err), &err, IV_INVALID, "have no tensor of this name");
    m.tensors[i].shape[0] = 8, m.tensors[i].dtype = m.tensors[i].dtype == IV_F16 ? IV_BF16 : IV_F16;
    expect_error("type", put_tensor(stage, &m, i, &err), &err, IV_INVALID, "down_proj: dtype: wanted");
    iv_weights_stage_close(stage);
    scratch_close(&s), made_close(&m);
}

/* Projections of which each head has its rows one behind another, and convolutions, with a wrapper's prefix. */
static void layers_with_a_state(void **state) {
    (void)state;
    static const char *const models[] = {"tests/data/families/qwen3_next_a", "tests/data/families/qwen3_5_text_a",
                                         "tests/data/families/lfm2_a"};
    static float want[IDS * VOCAB_MAX], got[IDS * VOCAB_MAX];
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        made_model plain, other;
        made_open(&plain, models[k]), made_open(&other, models[k]);
        rename_all(&other, "model.", "model.language_model.", false);
        logits_of(made_write(&plain), want), logits_of(made_write(&other), got);
        assert_memory_equal(want, got, sizeof want);
        export_has_the_same_form(other.s.dir);
        stage_all(&plain, &other, SIZE_MAX), stage_all(&other, &plain, SIZE_MAX);
        for (size_t i = 0; i < plain.count; i += 5) stage_all(&plain, &other, i);
        made_close(&plain), made_close(&other);
    }
}

static void refused(made_model *m, const char *message) {
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = made_write(m), o.device = "cpu";
    assert_int_not_equal(iv_engine_open(&o, &e, &err), IV_OK);
    if (!strstr(err.message, message)) fail_msg("wanted '%s' in '%s'", message, err.message);
    made_close(m);
}

/* Layers behind the last one draft further tokens: they are passed over as the configuration says, and exported. */
static void predicting_layers_are_passed_over(void **state) {
    (void)state;
    static float want[IDS * VOCAB_MAX], got[IDS * VOCAB_MAX];
    int64_t shape[1] = {3};
    made_model m;
    made_open(&m, "qwen3_moe");
    logits_of(made_write(&m), want);
    made_config(&m, "{", "{\"num_nextn_predict_layers\": 1,");
    add_tensor(&m, "model.layers.2.enorm.weight", &m.tensors[0], 1, shape, calloc(3, 4));
    logits_of(made_write(&m), got);
    assert_memory_equal(want, got, sizeof want);
    export_has_the_same_form(m.s.dir);
    add_tensor(&m, "model.layers.3.enorm.weight", &m.tensors[0], 1, shape, calloc(3, 4));
    refused(&m, "model.layers.3.enorm.weight: surplus tensor");
}

/* Nothing is passed over that the family does not have. */
static void others_are_refused(void **state) {
    (void)state;
    made_model m;
    made_open(&m, "qwen3_moe");
    int64_t shape[1] = {1};
    add_tensor(&m, "visual.merger.bias", &m.tensors[0], 1, shape, calloc(1, 4));
    refused(&m, "visual.merger.bias: surplus tensor");
    made_open(&m, "qwen3_moe");
    change(&m, FUSED);
    m.tensors[made_find(&m, "model.layers.1.mlp.experts.down_proj")].shape[0] = 7;
    refused(&m, "model.layers.1.mlp.experts.down_proj: wanted shape [8, ");
    made_open(&m, "qwen2");
    change(&m, QKV);
    remove_tensor(&m, made_find(&m, "model.layers.1.self_attn.qkv_proj.bias"));
    refused(&m, "model.layers.1.self_attn.q_proj.bias: wanted by qwen2, not in the checkpoint");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_has_the_same_bits), cmocka_unit_test(updates_come_in_any_form),
        cmocka_unit_test(layers_with_a_state), cmocka_unit_test(predicting_layers_are_passed_over),
        cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
