/* Every checkpoint of tests/data/families against its float64 reference: logits in float32 and bfloat16, and greedy
 * tokens; its export, and dummy weights. A new family is a new folder. */
#include "client.h"
#include "exported.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "format/scratch.h"
#include "model/stored.h"

#include <dirent.h>
#include <math.h>

enum { PROMPTS = 3, IDS_MAX = 128, VOCAB_MAX = 512, ROWS_MAX = PROMPTS * IDS_MAX };

typedef struct golden {
    char dir[4400];
    json_t *reference;
    float *logits[PROMPTS];
    size_t counts[PROMPTS], vocab;
    int32_t ids[PROMPTS][IDS_MAX];
} golden;

static size_t read_ids(const json_t *list, int32_t *ids) {
    size_t n = json_array_size(list);
    assert_true(n > 0 && n <= IDS_MAX);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void family_open(golden *f, const char *name) {
    char path[4500], temporary[] = "/tmp/invar-family-XXXXXX", link[100];
    iv_checkpoint *c;
    iv_error err;
    snprintf(f->dir, sizeof f->dir, "%s/%s", source_path("tests/data/families"), name);
    snprintf(path, sizeof path, "%s/reference.json", f->dir);
    ASSERT_OK(iv_json_read(path, 1 << 20, &f->reference, &err), &err);
    snprintf(path, sizeof path, "%s/reference.safetensors", f->dir);
    assert_non_null(mkdtemp(temporary));
    snprintf(link, sizeof link, "%s/model.safetensors", temporary);
    assert_int_equal(symlink(path, link), 0);
    ASSERT_OK(iv_checkpoint_open(temporary, &c, &err), &err);
    unlink(link), rmdir(temporary);
    for (size_t i = 0; i < PROMPTS; i++) {
        char of_prompt[32];
        snprintf(of_prompt, sizeof of_prompt, "logits_%zu", i);
        const iv_tensor_info *t = iv_checkpoint_find(c, of_prompt);
        assert_non_null(t);
        f->counts[i] = read_ids(json_array_get(json_object_get(f->reference, "prompts"), i), f->ids[i]);
        f->vocab = (size_t)t->shape[1];
        assert_int_equal(t->shape[0], f->counts[i]);
        f->logits[i] = malloc(t->bytes);
        ASSERT_OK(iv_checkpoint_read(c, t, f->logits[i], 0, t->bytes, &err), &err);
    }
    iv_checkpoint_close(c);
}

static void family_close(golden *f) {
    for (size_t i = 0; i < PROMPTS; i++) free(f->logits[i]);
    json_decref(f->reference);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double row_error(const float *got, const float *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++)
        d += pow((double)got[i] - (double)want[i], 2), w += (double)want[i] * (double)want[i];
    return sqrt(d / w);
}

/* The median of the rows' errors. `shift`: each row against the reference of the next one. */
static double median_error(const golden *f, iv_engine *e, bool shift) {
    double errors[ROWS_MAX];
    size_t n = 0;
    iv_error err;
    for (size_t p = 0; p < PROMPTS; p++) {
        float *got = malloc(f->counts[p] * f->vocab * sizeof *got);
        ASSERT_OK(iv_engine_logits(e, f->ids[p], f->counts[p], got, &err), &err);
        for (size_t i = 0; i + shift < f->counts[p]; i++)
            errors[n++] = row_error(got + i * f->vocab, f->logits[p] + (i + shift) * f->vocab, f->vocab);
        free(got);
    }
    qsort(errors, n, sizeof *errors, by_size);
    return errors[n / 2];
}

/* Each token that the reference's greedy decoding adds, unless its first two logits are nearly equal. */
static void check_greedy(const golden *f, iv_engine *e) {
    const json_t *greedy = json_object_get(f->reference, "greedy_ids"),
                 *gaps = json_object_get(f->reference, "greedy_gaps");
    size_t prompt = (size_t)json_integer_value(json_object_get(f->reference, "greedy_from_prompt"));
    size_t before = f->counts[prompt], added = json_array_size(greedy);
    int32_t ids[2 * IDS_MAX];
    iv_error err;
    memcpy(ids, f->ids[prompt], before * sizeof *ids);
    for (size_t i = 0; i < added; i++) ids[before + i] = (int32_t)json_integer_value(json_array_get(greedy, i));
    float *logits = malloc((before + added) * f->vocab * sizeof *logits);
    ASSERT_OK(iv_engine_logits(e, ids, before + added, logits, &err), &err);
    for (size_t i = 0; i < added; i++) {
        const float *row = logits + (before + i - 1) * f->vocab;
        size_t best = 0;
        for (size_t v = 1; v < f->vocab; v++)
            if (row[v] > row[best]) best = v;
        if (json_number_value(json_array_get(gaps, i)) >= 1e-3) assert_int_equal(best, ids[before + i]);
    }
    free(logits);
}

static void check_dtype(const golden *f, const char *name, const char *dtype) {
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = f->dir, o.device = "cpu", o.dtype = dtype, o.threads = 2;
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    bool exact = strcmp(dtype, "float32") == 0;
    double torch = json_number_value(
        json_object_get(json_object_get(json_object_get(f->reference, "errors_of_transformers"), dtype), "median"));
    double limit = exact ? fmax(5 * torch, 1e-6) : torch, found = median_error(f, e, false);
    printf("%s %s: %.3g (at most %.3g)\n", name, dtype, found, limit);
    assert_true(found <= limit);
    assert_true(median_error(f, e, true) > 10 * limit || !exact); /* control: rows of other tokens differ */
    if (exact) check_greedy(f, e);
    iv_engine_close(e);
}

static float *logits_on(const golden *f, const char *dtype, size_t ranks, size_t prompt) {
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = f->dir, o.device = "cpu", o.dtype = dtype, o.threads = 2, o.tensor_parallel_size = ranks;
    iv_status status = iv_engine_open(&o, &e, &err);
    if (status == IV_UNSUPPORTED && ranks > 1) return NULL;
    ASSERT_OK(status, &err);
    float *got = malloc(f->counts[prompt] * f->vocab * sizeof *got);
    ASSERT_OK(iv_engine_logits(e, f->ids[prompt], f->counts[prompt], got, &err), &err);
    iv_engine_close(e);
    return got;
}

/* Tensor-parallel ranks change no bit, where sizes allow them. Returns whether they do. */
static bool check_ranks(const golden *f) {
    bool any = false;
    float *want = logits_on(f, "bfloat16", 1, 2);
    for (size_t ranks = 2; ranks <= 4; ranks *= 2) {
        float *got = logits_on(f, "bfloat16", ranks, 2);
        if (got) assert_memory_equal(got, want, f->counts[2] * f->vocab * sizeof *got);
        any |= got != NULL;
        free(got);
    }
    free(want);
    return any;
}

/* Seeded weights have the names and shapes of the published files, without towers. */
static void check_dummy(const golden *f) {
    iv_checkpoint *real, *dummy;
    iv_model_config config;
    iv_error err;
    ASSERT_OK(iv_model_config_read(f->dir, &config, &err), &err);
    ASSERT_OK(iv_checkpoint_open(f->dir, &real, &err), &err);
    ASSERT_OK(iv_tensors_dummy(&config, IV_BF16, 3, &dummy, &err), &err);
    size_t towers = 0;
    for (size_t i = 0; i < iv_checkpoint_count(real); i++) {
        const iv_tensor_info *want = iv_checkpoint_at(real, i), *got = iv_checkpoint_find(dummy, want->name);
        if (!got && iv_tensor_is_ignored(&config, want->name)) {
            towers++;
            continue;
        }
        if (!got) fail_msg("%s: dummy weights have no %s", f->dir, want->name);
        assert_int_equal(got->ndim, want->ndim);
        assert_memory_equal(got->shape, want->shape, (size_t)got->ndim * sizeof *got->shape);
    }
    assert_int_equal(iv_checkpoint_count(dummy) + towers, iv_checkpoint_count(real));
    iv_checkpoint_close(real), iv_checkpoint_close(dummy);
}

static void logits_are_those_of_float64(void **state) {
    (void)state;
    DIR *d = opendir(source_path("tests/data/families"));
    assert_non_null(d);
    size_t count = 0, divided = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (*entry->d_name == '.') continue;
        golden f;
        family_open(&f, entry->d_name);
        check_dtype(&f, entry->d_name, "float32");
        check_dtype(&f, entry->d_name, "bfloat16");
        export_has_the_same_form(f.dir);
        check_dummy(&f);
        divided += check_ranks(&f);
        family_close(&f);
        count++;
    }
    closedir(d);
    assert_true(count >= 2 && divided >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_float64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
