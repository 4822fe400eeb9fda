/* made_model.h: model directories made from those of tests/data by changing a word of the configuration or a
 * tensor of the checkpoint. */
#ifndef IV_TESTS_ENGINE_MADE_MODEL_H
#define IV_TESTS_ENGINE_MADE_MODEL_H

#include "client.h"
#include "base/file.h"
#include "format/checkpoint.h"
#include "format/safetensors_write.h"
#include "format/scratch.h"

enum { MADE_TENSORS_MAX = 256 };

typedef struct made_model {
    scratch s;
    iv_tensor_data tensors[MADE_TENSORS_MAX];
    char *names[MADE_TENSORS_MAX];
    void *data[MADE_TENSORS_MAX];
    size_t count;
    iv_buf config;
} made_model;

/* Reads tests/data/hf/NAME, or another directory of the source tree when it has a slash. */
static inline void made_open(made_model *m, const char *name) {
    char dir[4200], file[4300];
    iv_checkpoint *c;
    iv_error err;
    *m = (made_model){0};
    scratch_open(&m->s);
    snprintf(dir, sizeof dir, "%s/%s", source_path(strchr(name, '/') ? "." : "tests/data/hf"), name);
    snprintf(file, sizeof file, "%s/config.json", dir);
    ASSERT_OK(iv_file_read(file, 1 << 16, &m->config, &err), &err);
    ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
    m->count = iv_checkpoint_count(c);
    assert_true(m->count < MADE_TENSORS_MAX);
    for (size_t i = 0; i < m->count; i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        m->names[i] = strdup(t->name), m->data[i] = malloc(t->bytes);
        ASSERT_OK(iv_checkpoint_read(c, t, m->data[i], 0, t->bytes, &err), &err);
        m->tensors[i] = (iv_tensor_data){.name = m->names[i], .dtype = t->dtype, .ndim = t->ndim, .data = m->data[i]};
        memcpy(m->tensors[i].shape, t->shape, sizeof t->shape);
    }
    iv_checkpoint_close(c);
}

static inline size_t made_find(const made_model *m, const char *name) {
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->names[i], name) == 0) return i;
    fail_msg("no tensor %s", name);
    return 0;
}

static inline size_t made_elements(const made_model *m, size_t i) {
    size_t n = 1;
    for (int d = 0; d < m->tensors[i].ndim; d++) n *= (size_t)m->tensors[i].shape[d];
    return n;
}

/* Replaces the first `from` of config.json. */
static inline void made_config(made_model *m, const char *from, const char *to) {
    char *at = strstr(m->config.data, from);
    assert_non_null(at);
    iv_buf changed = {0};
    assert_true(iv_buf_append(&changed, m->config.data, (size_t)(at - m->config.data)) && iv_buf_puts(&changed, to) &&
                iv_buf_puts(&changed, at + strlen(from)));
    iv_buf_free(&m->config);
    m->config = changed;
}

/* All tensors in another type: widening is exact, narrowing rounds. */
static inline void made_convert(made_model *m, iv_dtype type) {
    for (size_t i = 0; i < m->count; i++) {
        size_t n = made_elements(m, i);
        void *out = malloc(n * iv_dtype_bytes(type));
        for (size_t k = 0; k < n; k++) {
            const void *p = m->data[i];
            float x = m->tensors[i].dtype == IV_F32   ? ((const float *)p)[k]
                      : m->tensors[i].dtype == IV_F16 ? iv_f16_to_f32(((const uint16_t *)p)[k])
                                                      : iv_bf16_to_f32(((const uint16_t *)p)[k]);
            put_type(type, out, k, x);
        }
        free(m->data[i]);
        m->data[i] = out, m->tensors[i].data = out, m->tensors[i].dtype = type;
    }
}

/* tests/data/hf/llama31 with one head of 16: attention's output has one leaf, so that all ranks but one have no head.
 */
static inline void made_one_head(made_model *m) {
    static const char *const names[] = {"q", "k", "v", "o"};
    made_open(m, "llama31");
    made_config(m, "\"num_attention_heads\": 8", "\"num_attention_heads\": 1");
    made_config(m, "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 1");
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < 4; i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s_proj.weight", layer, names[i]);
            m->tensors[made_find(m, name)].shape[names[i][0] == 'o'] = 16;
        }
}

/* Writes the model; returns its directory. */
static inline const char *made_write(made_model *m) {
    iv_error err;
    scratch_write(&m->s, "config.json", m->config.data, m->config.len);
    ASSERT_OK(iv_safetensors_write(scratch_path(&m->s, "model.safetensors"), m->tensors, m->count, &err), &err);
    return m->s.dir;
}

static inline void made_close(made_model *m) {
    for (size_t i = 0; i < m->count; i++) free(m->names[i]), free(m->data[i]);
    iv_buf_free(&m->config);
    scratch_close(&m->s);
}

static inline iv_engine_options made_options(const char *dir) {
    iv_engine_options o = small_options();
    o.model = dir;
    return o;
}

static inline void made_logits(const iv_engine_options *o, const int32_t *ids, size_t n, float *out) {
    iv_error err;
    iv_engine *e = open_with(o);
    ASSERT_OK(iv_engine_logits(e, ids, n, out, &err), &err);
    iv_engine_close(e);
}

#endif
