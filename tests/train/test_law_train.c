/* The learner against tests/data/law_train.json: bits from a second implementation of NUMERICS.md 15,
 * python/law_train.py. INVAR_LAW_TRAIN=1 runs that again and compares it with the file. */
#include "model/learning.h"
#include "base/digest.h"
#include "comm/comm.h"
#include "numerics/optimizer.h"
#include "numerics/version.h"
#include "train/flat/optimizer.h"
#include "train/data/order.h"

#include <pthread.h>
#include <unistd.h>

static const char *text(const json_t *c, const char *key) {
    const char *s = json_string_value(json_object_get(c, key));
    if (!s) fail_msg("law_train.json: no text %s", key);
    return s;
}

static double number(const json_t *c, const char *key) { return json_number_value(json_object_get(c, key)); }

/* ---- a training run -------------------------------------------------------------------------------------- */

typedef struct trainer {
    gradient_options o;
    size_t ranks; /* tensor-parallel, one thread each */
    iv_pool *pool[IV_RANKS_MAX];
    iv_comm *comm[IV_RANKS_MAX];
    iv_model *model; /* of rank 0 */
    iv_learner *learner[IV_RANKS_MAX];
    float temperature, *w, *m, *v, *sum;
    size_t elements, all, levels;
} trainer;

static void trainer_open(trainer *t, const char *dir, const gradient_options *o, size_t ranks, float temperature) {
    iv_error err;
    iv_model_options mo = {.has_dtype = true, .dtype = o->dtype, .widen = true, .ranks = ranks, .rank_count = ranks};
    *t = (trainer){.o = *o, .ranks = ranks, .temperature = temperature};
    for (size_t i = 0; i < ranks; i++) ASSERT_OK(iv_pool_open(o->threads, &t->pool[i], &err), &err);
    ASSERT_OK(iv_model_open(dir, &mo, t->pool[0], &t->model, &err), &err);
    ASSERT_OK(iv_comm_threads_open(ranks, t->comm, &err), &err);
    t->elements = iv_parameters_layout(t->model), t->all = t->elements + iv_parameters_tied_elements(t->model);
    while ((size_t)1 << t->levels < o->virtual_ranks) t->levels++;
    t->w = calloc(t->elements, sizeof *t->w), t->m = calloc(t->elements, sizeof *t->m);
    t->v = calloc(t->elements, sizeof *t->v), t->sum = calloc(t->all * (1 + t->levels), sizeof *t->sum);
    ASSERT_OK(iv_parameters_read(t->model, t->pool[0], t->w, 0, t->elements, &err), &err);
    const iv_model *m = t->model;
    for (size_t i = 0; i < ranks; i++, m = m->next) {
        iv_cpu_learner_options lo = {.kernels = iv_kernels_select(o->isa),
                                     .arithmetic = o->arithmetic,
                                     .pool = t->pool[i],
                                     .comm = ranks > 1 ? t->comm[i] : NULL,
                                     .rows_max = 256,
                                     .recompute = o->recompute,
                                     .tensor_owner = t->model,
                                     .weights = t->w,
                                     .elements = t->elements};
        ASSERT_OK(iv_cpu_learner_open(m, &lo, &t->learner[i], &err), &err);
    }
}

static void trainer_close(trainer *t) {
    for (size_t i = 0; i < t->ranks; i++) iv_learner_close(t->learner[i]), iv_comm_close(t->comm[i]);
    iv_model_close(t->model);
    for (size_t i = 0; i < t->ranks; i++) iv_pool_close(t->pool[i]);
    free(t->w), free(t->m), free(t->v), free(t->sum);
}

typedef struct rank_pass {
    iv_learner *learner;
    const iv_learner_step *step;
    size_t from, to;
    iv_status status;
    iv_error err;
    pthread_t thread;
} rank_pass;

static void *run_rank(void *context) {
    rank_pass *p = context;
    p->status = p->learner->ops->pass(p->learner, p->step, p->from, p->to, &p->err);
    return NULL;
}

static void run_pass(trainer *t, const iv_learner_step *step, size_t from, size_t to) {
    rank_pass p[IV_RANKS_MAX];
    for (size_t i = 0; i < t->ranks; i++)
        p[i] = (rank_pass){.learner = t->learner[i], .step = step, .from = from, .to = to};
    for (size_t i = 1; i < t->ranks; i++) assert_int_equal(pthread_create(&p[i].thread, NULL, run_rank, &p[i]), 0);
    run_rank(&p[0]);
    for (size_t i = 1; i < t->ranks; i++) pthread_join(p[i].thread, NULL);
    for (size_t i = 0; i < t->ranks; i++) ASSERT_OK(p[i].status, &p[i].err);
}

/* Sequences of a step in the order of virtual ranks; at[i] is where the batch has the i-th. */
static void arrange(const examples *x, size_t ranks, float *logprobs[], iv_learner_sequence *out) {
    size_t lengths[EXAMPLES_MAX], begin[IV_VIRTUAL_RANKS_MAX + 1];
    uint32_t index[EXAMPLES_MAX];
    iv_error err;
    for (size_t i = 0; i < x->count; i++) lengths[i] = x->of[i].count;
    ASSERT_OK(iv_train_pack(lengths, x->count, ranks, index, begin, &err), &err);
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = begin[r]; i < begin[r + 1]; i++) {
            const example *e = &x->of[index[i]];
            out[i] = (iv_learner_sequence){e->ids, e->mask, e->count, r, logprobs[index[i]], e->mask, NULL};
        }
}

/* Log-probabilities of the batch, in its order, and t->sum: the gradient. */
static void trainer_gradient(trainer *t, const examples *x, float *logprobs) {
    iv_learner_sequence s[EXAMPLES_MAX];
    float *parts[EXAMPLES_MAX];
    for (size_t i = 0, at = 0; i < x->count; at += x->of[i++].count) parts[i] = logprobs + at;
    arrange(x, t->o.virtual_ranks, parts, s);
    iv_learner_step step = {.sequences = s,
                            .count = x->count,
                            .ranks = t->o.virtual_ranks,
                            .temperature = t->temperature,
                            .sums = {.sum = t->sum}};
    for (size_t i = 0; i < t->levels; i++) step.sums.level[i] = t->sum + t->all * (1 + i);
    for (size_t at = 0, n; at < x->count; at += n) {
        n = iv_learner_fit(t->learner[0], &step, at, t->o.pass);
        assert_true(n > 0);
        run_pass(t, &step, at, at + n);
    }
    float *tied = t->sum + (t->model->embedding_tensor ? t->model->embedding_tensor->offset : 0);
    for (size_t i = 0; i < t->all - t->elements; i++) tied[i] = tied[i] + t->sum[t->elements + i];
}

/* One step of the optimizer; returns the norm. */
static double trainer_update(trainer *t, const json_t *o, uint64_t step, double denominator) {
    iv_error err;
    double total = 0, norm;
    float scale;
    for (size_t i = 0; i < t->elements; i += IV_PARAMETER_BLOCK)
        total = total + iv_ref_sum_squares(t->sum + i, IV_PARAMETER_BLOCK);
    assert_true(iv_gradient_scale(total, denominator, number(o, "max_norm"), &norm, &scale));
    iv_adamw_options a = {number(o, "beta1"), number(o, "beta2"), number(o, "eps"), number(o, "weight_decay")};
    iv_adamw_step c = iv_adamw_constants(&a, number(o, "learning_rate"), step, scale);
    for (size_t i = 0; i < t->elements; i += IV_PARAMETER_BLOCK)
        iv_ref_adamw(&c, iv_parameter_at(t->model, i)->info.ndim > 1, t->sum + i, t->w + i, t->m + i, t->v + i,
                     IV_PARAMETER_BLOCK);
    ASSERT_OK(iv_parameters_write(t->model, t->pool[0], t->w, 0, t->elements, &err), &err);
    return norm;
}

/* ---- hashes ---------------------------------------------------------------------------------------------- */

static void sha_text(const void *data, size_t bytes, char out[65]) {
    uint8_t digest[32];
    iv_digest_of(data, bytes, digest);
    iv_digest_hex(digest, out);
}

static void weight_hash(const trainer *t, char out[65]) {
    size_t groups = iv_weight_groups(t->elements);
    uint8_t(*of)[32] = malloc(groups * sizeof *of), hash[32];
    iv_weight_digests(t->pool[0], t->w, t->elements, of);
    iv_weight_hash((const uint8_t(*)[32])of, groups, hash);
    iv_digest_hex(hash, out);
    free(of);
}

static size_t compare(const char *what, const char *name, const char *got, const char *want) {
    if (strncmp(got, want, strlen(want)) == 0) return 0;
    printf("%s: %s is %.16s, python/law_train.py has %.16s\n", what, name, got, want);
    return 1;
}

static size_t compare_tensors(const trainer *t, const char *what, json_t *tensors) {
    const char *name;
    json_t *value;
    size_t wrong = 0;
    json_object_foreach(tensors, name, value) {
        const iv_tensor *of = iv_model_tensor(t->model, name);
        char hash[65];
        assert_non_null(of);
        sha_text(t->sum + of->offset, of->rows * of->columns * sizeof *t->sum, hash);
        wrong += compare(what, name, hash, json_string_value(value));
    }
    return wrong;
}

/* ---- the recorded runs ----------------------------------------------------------------------------------- */

static void read_batch(const json_t *step, examples *x) {
    json_t *list = json_object_get(step, "sequences");
    *x = (examples){.count = json_array_size(list)};
    assert_in_range(x->count, 1, EXAMPLES_MAX);
    for (size_t i = 0; i < x->count; i++) {
        json_t *s = json_array_get(list, i), *ids = json_object_get(s, "ids"), *mask = json_object_get(s, "mask");
        example *e = &x->of[i];
        e->count = json_array_size(ids);
        assert_int_equal(json_array_size(mask), e->count);
        e->ids = malloc(e->count * sizeof *e->ids), e->mask = malloc(e->count * sizeof *e->mask);
        for (size_t t = 0; t < e->count; t++) {
            e->ids[t] = (int32_t)json_integer_value(json_array_get(ids, t));
            e->mask[t] = (float)json_number_value(json_array_get(mask, t));
        }
    }
}

/* A step against its record; returns the number of differences. */
static size_t run_step(trainer *t, const char *what, const json_t *optimizer, const json_t *step, uint64_t number_of) {
    examples x;
    read_batch(step, &x);
    size_t tokens = 0, wrong = 0;
    char hash[65], norm[65];
    for (size_t i = 0; i < x.count; i++) tokens += x.of[i].count;
    float *logprobs = calloc(tokens, sizeof *logprobs);
    trainer_gradient(t, &x, logprobs);
    sha_text(logprobs, tokens * sizeof *logprobs, hash);
    wrong += compare(what, "log-probabilities", hash, text(step, "logprobs"));
    wrong += compare_tensors(t, what, json_object_get(step, "tensors"));
    sha_text(t->sum, t->elements * sizeof *t->sum, hash);
    wrong += compare(what, "gradient", hash, text(step, "gradient"));
    double got = trainer_update(t, optimizer, number_of, number(step, "denominator"));
    snprintf(norm, sizeof norm, "%a", got);
    if (got != strtod(text(step, "norm"), NULL)) wrong += compare(what, "norm", norm, text(step, "norm"));
    weight_hash(t, hash);
    wrong += compare(what, "weight hash", hash, text(step, "weights"));
    free(logprobs), examples_free(&x);
    return wrong;
}

static const char *const model_files[] = {"model.safetensors",
                                          "model.safetensors.index.json",
                                          "model-00001-of-00003.safetensors",
                                          "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors",
                                          "generation_config.json"};
enum { MODEL_FILES = sizeof model_files / sizeof *model_files };

/* A directory like a model's with some changed values in its configuration. */
static void changed_model(const char *from, json_t *changes, char *dir) {
    char path[4300], target[4300];
    json_t *config;
    iv_error err;
    snprintf(path, sizeof path, "%s/config.json", from);
    ASSERT_OK(iv_json_read(path, 1 << 20, &config, &err), &err);
    assert_int_equal(json_object_update(config, changes), 0);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    for (size_t i = 0; i < MODEL_FILES; i++) {
        snprintf(target, sizeof target, "%s/%s", from, model_files[i]),
            snprintf(path, sizeof path, "%s/%s", dir, model_files[i]);
        if (access(target, R_OK) == 0) assert_int_equal(symlink(target, path), 0);
    }
}

static void remove_model(const char *dir) {
    char path[4300];
    for (size_t i = 0; i < MODEL_FILES; i++) snprintf(path, sizeof path, "%s/%s", dir, model_files[i]), unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path), rmdir(dir);
}

static iv_dtype dtype_of(const char *name) {
    static const iv_dtype all[] = {IV_F32, IV_BF16, IV_F16};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(name, iv_dtype_name(all[i])) == 0) return all[i];
    fail_msg("law_train.json: dtype %s", name);
    return IV_F32;
}

/* The two steps of a run, with other virtual ranks than recorded if `other_ranks` is not 0. */
static size_t run_record(const json_t *optimizer, json_t *r, rng *random, size_t other_ranks) {
    char from[4200], dir[] = "/tmp/invar-law-train-XXXXXX", what[200];
    json_t *changes = json_object_get(r, "config"), *step;
    gradient_options o = {.arithmetic = strcmp(text(r, "arithmetic"), "tc16") == 0 ? IV_TC16 : IV_FMA32,
                          .dtype = dtype_of(text(r, "dtype")),
                          .isa = rng_below(random, 3) ? iv_isa_detect() : IV_ISA_SCALAR,
                          .threads = 1 + rng_below(random, 3),
                          .pass = 1 + rng_below(random, 6),
                          .virtual_ranks = other_ranks ? other_ranks : (size_t)number(r, "virtual_ranks"),
                          .recompute = (iv_recompute)rng_below(random, 3)};
    snprintf(from, sizeof from, "%s/tests/data/hf/%s", INVAR_SOURCE_DIR, text(r, "model"));
    if (changes) changed_model(from, changes, dir);
    trainer t;
    size_t ranks = (size_t)1 << rng_below(random, 3);
    printf("%s %s %s: %zu ranks, %zu threads, passes of %zu sequences, isa %d, recompute %d\n", text(r, "model"),
           text(r, "arithmetic"), text(r, "dtype"), ranks, o.threads, o.pass, (int)o.isa, (int)o.recompute);
    trainer_open(&t, changes ? dir : from, &o, ranks, (float)number(r, "temperature"));
    size_t i, wrong = 0;
    json_array_foreach(json_object_get(r, "steps"), i, step) {
        snprintf(what, sizeof what, "%s %s %s, step %zu", text(r, "model"), text(r, "arithmetic"), text(r, "dtype"),
                 i + 1);
        wrong += run_step(&t, what, optimizer, step, i + 1);
    }
    trainer_close(&t);
    if (changes) remove_model(dir);
    return wrong;
}

static json_t *record_read(void) {
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/law_train.json"), 1 << 21, &root, &err), &err);
    assert_int_equal(json_integer_value(json_object_get(root, "training_version")), IV_TRAINING_VERSION);
    return root;
}

static void same_bits_as_the_text(void **state) {
    (void)state;
    json_t *root = record_read(), *optimizer = json_object_get(root, "optimizer"), *r;
    rng random = rng_start("law_train");
    size_t i, wrong = 0;
    json_array_foreach(json_object_get(root, "runs"), i, r) wrong += run_record(optimizer, r, &random, 0);
    assert_true(i >= 5);
    assert_int_equal(wrong, 0);
    json_decref(root);
}

/* Control: other virtual ranks are noticed. */
static void other_order_differs(void **state) {
    (void)state;
    json_t *root = record_read(), *r = json_array_get(json_object_get(root, "runs"), 0);
    rng random = rng_start("law_train control");
    size_t ranks = (size_t)number(r, "virtual_ranks");
    assert_true(run_record(json_object_get(root, "optimizer"), r, &random, ranks == 1 ? 2 : ranks / 2) > 0);
    json_decref(root);
}

static void python_again(void **state) {
    (void)state;
    char command[9000];
    if (!getenv("INVAR_LAW_TRAIN")) skip();
    snprintf(command, sizeof command, "python3 '%s/python/law_train.py' --check '%s/tests/data/law_train.json'",
             INVAR_SOURCE_DIR, INVAR_SOURCE_DIR);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_as_the_text), cmocka_unit_test(other_order_differs),
                                       cmocka_unit_test(python_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
