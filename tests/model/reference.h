/* reference.h: float64 logits of a checkpoint, and the error of ours. */
#ifndef IV_TESTS_REFERENCE_H
#define IV_TESTS_REFERENCE_H

#include "runner.h"
#include "numerics/rope.h"

typedef struct reference {
    iv_checkpoint *file;
    size_t sequences, tokens, vocab, greedy_count;
    int32_t *ids, *greedy;
    double *logits;
} reference;

static inline void *read_tensor(iv_checkpoint *c, const char *name, const iv_tensor_info **info) {
    iv_error err;
    *info = iv_checkpoint_find(c, name);
    assert_non_null(*info);
    void *p = malloc((*info)->bytes);
    ASSERT_OK(iv_checkpoint_read(c, *info, p, 0, (*info)->bytes, &err), &err);
    return p;
}

/* Opens a file as a one-file checkpoint, through a link in a new directory. */
static inline void reference_open(reference *r, const char *file) {
    char dir[] = "/tmp/invar-reference-XXXXXX", link_path[64];
    iv_error err;
    const iv_tensor_info *t;
    assert_non_null(mkdtemp(dir));
    snprintf(link_path, sizeof link_path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(file, link_path), 0);
    ASSERT_OK(iv_checkpoint_open(dir, &r->file, &err), &err);
    unlink(link_path), rmdir(dir);
    r->logits = read_tensor(r->file, "logits_f64", &t);
    r->vocab = (size_t)t->shape[t->ndim - 1], r->tokens = (size_t)t->shape[t->ndim - 2];
    r->sequences = t->ndim == 3 ? (size_t)t->shape[0] : 1;
    r->ids = read_tensor(r->file, "input_ids", &t);
    r->greedy = read_tensor(r->file, "greedy_ids", &t);
    r->greedy_count = (size_t)t->shape[0];
}

static inline void reference_close(reference *r) {
    iv_checkpoint_close(r->file);
    free(r->ids), free(r->greedy), free(r->logits);
}

/* Relative error: root mean square of the difference over that of the reference. */
static inline double relative_error(const float *got, const double *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) d += (got[i] - want[i]) * (got[i] - want[i]), w += want[i] * want[i];
    return sqrt(d / w);
}

/* The float64 references of tests/data/hf come from models cast entirely to bf16, including the table of inverse
 * frequencies, before they were widened. invar keeps frequencies in double (as do the references of tiny-math and
 * stories15m), so this installs the rounded table to compare everything else. */
static inline void round_frequencies_to_bf16(iv_model *m) {
    const iv_model_config *c = &m->config;
    double f[IV_HEAD_DIM_MAX / 2];
    size_t pairs = (size_t)c->head_dim / 2;
    iv_rope_rule rule = {.theta = c->ropes[0].theta,
                         .factor = c->ropes[0].factor,
                         .low_freq = c->ropes[0].low_freq_factor,
                         .high_freq = c->ropes[0].high_freq_factor,
                         .original_positions = (double)c->ropes[0].original_positions};
    iv_rope_frequencies(&rule, (size_t)c->head_dim, f);
    for (size_t i = 0; i < pairs; i++) f[i] = iv_bf16_to_f32(iv_bf16_from_f32((float)f[i]));
    for (size_t p = 0; p < m->rope_positions; p++)
        iv_rope_row(f, pairs, (int64_t)p, 1, m->ropes[0].cosine + p * pairs, m->ropes[0].sine + p * pairs);
}

#endif
