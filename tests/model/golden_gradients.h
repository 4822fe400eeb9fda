/* golden_gradients.h: a learner's gradients over a recorded batch against PyTorch's in float64 (tests/data/gradients,
 * which has every fifth element of a large tensor). */
#ifndef IV_TESTS_GOLDEN_GRADIENTS_H
#define IV_TESTS_GOLDEN_GRADIENTS_H

#include "learning.h"
#include "format/checkpoint.h"
#include "model/stored.h"

/* Relative errors of the tensors' gradients; the mean is over tensors that are not experts. */
typedef struct golden_errors {
    double loss, mean, worst;
} golden_errors;

enum { GOLDEN_STEP = 5 };

/* want[i] is the recorded got[i * step]. */
static inline double relative_error(const float *got, const float *want, size_t n, size_t step, double scale) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i * step] * scale - (double)want[i];
        error += d * d, size += (double)want[i] * (double)want[i];
    }
    return sqrt(error / size);
}

/* The folder of a model's recordings. Static buffer, as source_path. */
static inline const char *golden_folder(const char *name_of) {
    char relative[200];
    snprintf(relative, sizeof relative, "tests/data/gradients/%s", name_of);
    return source_path(relative);
}

static inline iv_status read_sum(void *user, const iv_tensor *t, size_t first, size_t rows, iv_dtype dtype, void *out,
                                 iv_error *err) {
    const gradients *g = user;
    (void)dtype, (void)err;
    memcpy(out, g->sum + t->offset + first * t->columns, rows * t->columns * sizeof(float));
    return IV_OK;
}

static inline void golden_sum_up(const char *golden, gradients *g, double weight, golden_errors *out) {
    char temporary[] = "/tmp/invar-gradients-XXXXXX", link[100], target[4300];
    iv_error err;
    iv_checkpoint *c;
    size_t counted = 0;
    assert_non_null(mkdtemp(temporary));
    snprintf(link, sizeof link, "%s/model.safetensors", temporary);
    snprintf(target, sizeof target, "%s/gradients.safetensors", golden);
    assert_int_equal(symlink(target, link), 0);
    ASSERT_OK(iv_checkpoint_open(temporary, &c, &err), &err);
    for (size_t i = 0; i < iv_checkpoint_count(c); i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        const iv_stored *mine = iv_model_stored(g->model, t->name);
        assert_non_null(mine);
        if (mine->pieces[0].tensor->constant) continue; /* the recording has its value */
        float *want = malloc(t->bytes), *got = malloc(mine->info.elements * sizeof *got);
        ASSERT_OK(iv_checkpoint_read(c, t, want, 0, t->bytes, &err), &err);
        ASSERT_OK(iv_stored_read_from(mine, 0, mine->rows, IV_F32, read_sum, g, got, &err), &err);
        size_t step = t->elements == mine->info.elements ? 1 : GOLDEN_STEP;
        assert_int_equal(t->elements, (mine->info.elements + step - 1) / step);
        if (mine->pieces[0].tensor == g->model->embedding_tensor && g->all > g->elements)
            for (size_t e = 0; e < mine->info.elements; e++) got[e] = got[e] + g->sum[g->elements + e];
        double e = relative_error(got, want, t->elements, step, 1 / weight);
        if (getenv("INVAR_SHOW")) printf("%s %.3g\n", t->name, e);
        out->worst = e > out->worst ? e : out->worst;
        if (!strstr(t->name, ".experts.")) out->mean += e, counted++;
        free(want), free(got);
    }
    out->mean /= (double)counted;
    iv_checkpoint_close(c);
    unlink(link), rmdir(temporary);
}

/* The model of `dir`; the recordings are in `golden`. */
static inline void golden_compare_at(const char *dir, const char *golden, const gradient_options *o,
                                     golden_errors *out) {
    char batch[4300];
    examples x;
    gradients g;
    *out = (golden_errors){0};
    snprintf(batch, sizeof batch, "%s/batch.jsonl", golden);
    examples_read(batch, &x);
    gradients_of(dir, &x, o, &g);
    double weight = 0;
    for (size_t i = 0; i < x.count; i++)
        for (size_t t = 0; t < x.of[i].count; t++) weight += (double)x.of[i].mask[t];
    golden_sum_up(golden, &g, weight, out);
    out->loss = g.loss / weight;
    gradients_close(&g), examples_free(&x);
}

static inline void golden_compare(const char *name_of, const gradient_options *o, golden_errors *out) {
    char dir[4200], golden[4200];
    snprintf(golden, sizeof golden, "%s", golden_folder(name_of));
    snprintf(dir, sizeof dir, "%s/tests/data/hf/%s", INVAR_SOURCE_DIR, name_of);
    golden_compare_at(dir, golden, o, out);
}

#endif
