/* public.c: invar.h's trainer: opening, facts, and the step. public_files.c has its files. */
#include "train/public.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/digest.h"
#include "base/size.h"
#include "engine/sized.h"
#include "engine/text_model.h"
#include "format/json.h"
#include "model/tensor_data.h"
#include "numerics/version.h"
#include "train/device.h"
#include "train/sync.h"

#include <math.h>
#include <stdlib.h>

enum { PASS_TOKENS = 4096, GPU_PASS_TOKENS = 32768 };

/* ---- options ---------------------------------------------------------------------------------------------------- */

static iv_trainer_options default_options(void) {
    return (iv_trainer_options){.load_format = "auto",
                                .dtype = "auto",
                                .arithmetic = "auto",
                                .virtual_ranks = 8,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .isa = "auto",
                                .data_parallel = 1,
                                .tensor_parallel = 1,
                                .recompute = "none",
                                .device = "cpu"};
}

void iv_trainer_options_init_sized(iv_trainer_options *o, size_t size) {
    iv_trainer_options defaults = default_options();
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

void iv_trainer_batch_init_sized(iv_trainer_batch *b, size_t size) {
    iv_trainer_batch defaults = {.temperature = 1.0f};
    iv_sized_init(b, size, &defaults, sizeof defaults);
}

/* names: NULL-terminated. */
static iv_status one_of(const char *what, const char *text, const char *const *names, int *out, iv_error *err) {
    char list[100] = "";
    size_t at = 0;
    for (int i = 0; names[i]; i++) {
        if (text && strcmp(text, names[i]) == 0) {
            *out = i;
            return IV_OK;
        }
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s",
                               i == 0         ? ""
                               : names[i + 1] ? ", "
                                              : " or ",
                               names[i]);
    }
    return iv_fail(err, IV_INVALID, "options: %s: wanted %s, found %s", what, list, text ? text : "NULL");
}

static iv_status check_number(const char *what, double x, double below, iv_error *err) {
    if (x >= 0 && x < below) return IV_OK;
    return iv_fail(err, IV_INVALID, "options: %s: wanted 0 or more%s, found %g", what,
                   below == 1.0 ? " and below 1" : ", finite", x);
}

static iv_status parse_names(const iv_trainer_options *o, iv_train_options *t, iv_error *err) {
    static const char *const formats[] = {"auto", "dummy", NULL},
                             *const arithmetics[] = {"auto", "fma32", "tc16", NULL},
                             *const devices[] = {"auto", "cpu", "cuda", NULL},
                             *const recomputes[] = {"none", "attention", "layer", NULL},
                             *const types[] = {"auto", "bfloat16", "float16", "float32", NULL};
    int format, arithmetic, recompute, type, device;
    iv_isa isa;
    IV_TRY(one_of("load_format", o->load_format, formats, &format, err));
    IV_TRY(one_of("dtype", o->dtype, types, &type, err));
    IV_TRY(one_of("arithmetic", o->arithmetic, arithmetics, &arithmetic, err));
    IV_TRY(one_of("device", o->device, devices, &device, err));
    IV_TRY(one_of("recompute", o->recompute, recomputes, &recompute, err));
    if (!o->isa) return iv_fail(err, IV_INVALID, "options: isa: wanted a name, found NULL");
    IV_TRY(iv_isa_parse(o->isa, &isa, err));
    t->dummy = format == 1, t->dummy_seed = o->dummy_seed;
    for (int i = IV_BF16; i <= IV_F32; i++)
        if (strcmp(types[type], iv_dtype_name((iv_dtype)i)) == 0) t->has_dtype = true, t->dtype = (iv_dtype)i;
    t->recompute = (iv_recompute)recompute, t->offload_optimizer = o->offload_optimizer;
    t->kernels = iv_kernels_select(isa);
    IV_TRY(iv_train_choose_device(o->device, o->arithmetic, IV_INVAR, 1, t, err));
    if (o->offload_optimizer && !t->cuda)
        return iv_fail(err, IV_INVALID, "options: offload_optimizer: wanted device cuda, found the CPU");
    t->pass_tokens = o->pass_tokens ? o->pass_tokens : t->cuda ? GPU_PASS_TOKENS : PASS_TOKENS;
    t->pass_tokens_least = o->pass_tokens ? o->pass_tokens : PASS_TOKENS;
    return IV_OK;
}

static iv_status parse_options(const iv_trainer_options *o, iv_train_options *t, iv_error *err) {
    if (!o->model || !*o->model) return iv_fail(err, IV_INVALID, "options: model: wanted a directory, found nothing");
    IV_TRY(check_number("beta1", o->beta1, 1.0, err));
    IV_TRY(check_number("beta2", o->beta2, 1.0, err));
    IV_TRY(check_number("eps", o->eps, INFINITY, err));
    IV_TRY(check_number("weight_decay", o->weight_decay, INFINITY, err));
    if (o->decay_all && o->weight_decay == 0)
        return iv_fail(err, IV_INVALID, "options: decay_all: wanted a weight_decay above 0, found 0");
    if (o->dummy_seed && o->load_format && strcmp(o->load_format, "dummy") != 0)
        return iv_fail(err, IV_INVALID, "options: dummy_seed: wanted load_format dummy, found %s", o->load_format);
    *t = (iv_train_options){.model_dir = o->model,
                            .threads = o->threads,
                            .world = o->data_parallel,
                            .tp = o->tensor_parallel,
                            .virtual_ranks = o->virtual_ranks,
                            .micro_batch = o->micro_batch,
                            .adamw = {o->beta1, o->beta2, o->eps, o->weight_decay},
                            .decay_all = o->decay_all,
                            .no_optimizer = o->no_optimizer};
    return parse_names(o, t, err);
}

/* ---- identity --------------------------------------------------------------------------------------------------- */

static iv_status make_hyperparameters(iv_trainer *t, const char *run, iv_error *err) {
    const iv_adamw_options *a = &t->o.adamw;
    json_t *mine = NULL;
    if (!run) run = "{}";
    IV_TRY(iv_json_parse("options: run", run, strlen(run), &mine, err));
    if (!json_is_object(mine)) {
        json_decref(mine);
        return iv_fail(err, IV_INVALID, "options: run: wanted a JSON object, found '%.100s'", run);
    }
    json_t *j = json_pack("{ss ss ss sI sf sf sf sf sb so}", "kind", "api", "dtype", iv_dtype_name(t->model->gemm_type),
                          "arithmetic", iv_arithmetic_name(t->o.arithmetic), "virtual_ranks",
                          (json_int_t)t->o.virtual_ranks, "beta1", a->beta1, "beta2", a->beta2, "eps", a->eps,
                          "weight_decay", a->weight_decay, "decay_all", (int)t->o.decay_all, "run", mine);
    t->public->hyperparameters = j ? json_dumps(j, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(j);
    return t->public->hyperparameters ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
}

static iv_status make_identity(iv_trainer *t, const char *run, iv_error *err) {
    iv_train_public *p = t->public;
    uint8_t digest[32];
    char hex[65], versions[64];
    IV_TRY(iv_model_digest(t->model, err));
    iv_digest_hex(t->model->weights_digest, hex);
    snprintf(p->initial, sizeof p->initial, "sha256:%s", hex);
    IV_TRY(make_hyperparameters(t, run, err));
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    snprintf(versions, sizeof versions, "forward %d training %d\n", IV_NUMERICS_VERSION, IV_TRAINING_VERSION);
    iv_digest_add(d, versions, strlen(versions));
    iv_digest_add(d, p->initial, strlen(p->initial) + 1);
    iv_digest_add(d, p->hyperparameters, strlen(p->hyperparameters));
    iv_digest_finish(d, digest);
    iv_digest_hex(digest, hex);
    snprintf(p->fingerprint, sizeof p->fingerprint, "ivt%d-%s-%s-%.16s", IV_TRAINING_VERSION,
             iv_arithmetic_name(t->o.arithmetic), iv_dtype_name(t->model->gemm_type), hex);
    return IV_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

iv_status iv_train_public_hash(iv_trainer *t, iv_error *err) {
    uint8_t hash[32];
    IV_TRY(iv_train_weights_hash(t, hash, err));
    iv_digest_hex(hash, t->public->metrics.weights_hash);
    return IV_OK;
}

static iv_status open_public(iv_trainer *t, const iv_trainer_options *o, iv_error *err) {
    iv_train_public *p = t->public = calloc(1, sizeof *t->public);
    if (!p || !(p->model = strdup(o->model))) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    t->o.model_dir = p->model;
    IV_TRY(make_identity(t, o->run, err));
    return iv_train_public_hash(t, err);
}

iv_status iv_trainer_open(const iv_trainer_options *given, iv_trainer **out, iv_error *err) {
    iv_trainer_options o = default_options();
    iv_train_options internal;
    iv_trainer *t;
    if (!given || !out) return iv_fail(err, IV_INVALID, "iv_trainer_open: wanted options and a place, found NULL");
    IV_TRY(iv_sized_read("options", given, offsetof(iv_trainer_options, load_format), &o, sizeof o, err));
    IV_TRY(parse_options(&o, &internal, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_train_open(&internal, &t, err);
    if (status == IV_OK && (status = open_public(t, &o, err)) != IV_OK) iv_trainer_close(t);
    iv_fp_env_leave(mode);
    if (status == IV_OK) *out = t;
    return status;
}

void iv_trainer_close(iv_trainer *t) {
    if (!t) return;
    iv_train_public *p = t->public;
    if (p)
        iv_token_ids_close(&p->drawable), free(p->model), free(p->hyperparameters), free(p->sequences), free(p->memory);
    free(p);
    iv_train_close(t);
}

void iv_trainer_get_info(const iv_trainer *t, iv_trainer_info *info) {
    const iv_model_config *c = &t->model->config;
    *info = (iv_trainer_info){.fingerprint = t->public->fingerprint,
                              .initial_weights = t->public->initial,
                              .hyperparameters = t->public->hyperparameters,
                              .model_type = c->model_type,
                              .dtype = iv_dtype_name(t->model->gemm_type),
                              .device = t->o.cuda ? "cuda" : "cpu",
                              .arithmetic = iv_arithmetic_name(t->o.arithmetic),
                              .isa = iv_isa_name(t->o.kernels->isa),
                              .numerics_version = IV_NUMERICS_VERSION,
                              .training_version = IV_TRAINING_VERSION,
                              .elements = t->elements,
                              .memory_bytes = iv_train_bytes(t) + t->public->memory_max * sizeof(float),
                              .threads = iv_pool_threads(t->pool),
                              .data_parallel = t->o.world,
                              .tensor_parallel = t->o.tp,
                              .virtual_ranks = t->o.virtual_ranks,
                              .pass_tokens = t->o.pass_tokens,
                              .vocab_size = (size_t)c->vocab_size,
                              .max_positions = t->model->rope_positions};
}

void iv_trainer_get_metrics(const iv_trainer *t, iv_trainer_metrics *m) {
    *m = t->public->metrics;
    m->steps = t->steps;
}

iv_status iv_train_public_check(const iv_trainer *t, iv_error *err) {
    if (!t) return iv_fail(err, IV_INVALID, "trainer: wanted an open one, found NULL");
    if (t->public->broken)
        return iv_fail(err, IV_BUSY, "trainer: a restore failed midway: wanted iv_trainer_restore first");
    return IV_OK;
}

/* ---- batches ---------------------------------------------------------------------------------------------------- */

static iv_status check_sequence(const iv_trainer_sequence *s, size_t i, bool weighed, iv_error *err) {
    if (!s->ids || !s->mask)
        return iv_fail(err, IV_INVALID, "sequence %zu of the batch: wanted ids and mask, found NULL", i);
    if (weighed && (!s->logprobs || !s->coefficients))
        return iv_fail(err, IV_INVALID,
                       "sequence %zu of the batch: wanted logprobs and coefficients for weigh, found NULL", i);
    for (size_t k = 0; k < s->count; k++) {
        if (!(s->mask[k] >= 0 && s->mask[k] < INFINITY) || (k == 0 && s->mask[0] != 0))
            return iv_fail(err, IV_INVALID, "sequence %zu of the batch, token %zu: mask: wanted %s, found %g", i, k,
                           k ? "0 or more" : "0, as nothing predicts the first", (double)s->mask[k]);
        if (!weighed && s->coefficients && s->mask[k] != 0 && !isfinite(s->coefficients[k]))
            return iv_fail(err, IV_NOT_FINITE,
                           "sequence %zu of the batch, token %zu: coefficient: wanted a finite number, found %g", i, k,
                           (double)s->coefficients[k]);
    }
    return IV_OK;
}

static iv_status reserve(iv_train_public *p, size_t n, size_t floats, iv_error *err) {
    if (n > p->sequence_max) {
        free(p->sequences);
        p->sequence_max = 0, p->sequences = calloc(n, sizeof *p->sequences);
        if (!p->sequences) return iv_fail(err, IV_NO_MEMORY, "no memory for a batch of %zu sequences", n);
        p->sequence_max = n;
    }
    if (floats > p->memory_max) {
        free(p->memory);
        p->memory_max = 0, p->memory = calloc(floats, sizeof *p->memory);
        if (!p->memory) return iv_fail(err, IV_NO_MEMORY, "no memory for a batch of %zu tokens", floats);
        p->memory_max = floats;
    }
    return IV_OK;
}

/* The ids that an engine of this model draws. */
static iv_status read_drawable(iv_trainer *t, iv_error *err) {
    iv_train_public *p = t->public;
    iv_text_model *text = NULL;
    iv_generation_config g;
    if (p->has_drawable) return IV_OK;
    IV_TRY(iv_generation_config_read(p->model, &g, err));
    IV_TRY(iv_text_model_open(p->model, &text, err));
    iv_status status = iv_token_ids_open(text->tokenizer, &t->model->config, &g, &p->drawable, err);
    iv_text_model_close(text);
    p->has_drawable = status == IV_OK;
    return status;
}

/* Checks the caller's batch and makes the internal one. */
static iv_status take_batch(iv_trainer *t, const iv_trainer_batch *given, iv_train_batch *out, iv_error *err) {
    iv_trainer_batch b;
    iv_train_public *p = t->public;
    size_t floats = 0;
    iv_trainer_batch_init(&b);
    if (!given) return iv_fail(err, IV_INVALID, "batch: wanted one, found NULL");
    IV_TRY(iv_sized_read("batch", given, offsetof(iv_trainer_batch, temperature), &b, sizeof b, err));
    if (!b.sequences || b.count == 0) return iv_fail(err, IV_INVALID, "batch: wanted sequences, found none");
    if (!(b.temperature > 0 && b.temperature < INFINITY))
        return iv_fail(err, IV_INVALID, "batch: temperature: wanted above 0, found %g", (double)b.temperature);
    for (size_t i = 0; i < b.count; i++) {
        const iv_trainer_sequence *s = &b.sequences[i];
        IV_TRY(check_sequence(s, i, b.weigh != NULL, err));
        if (!s->logprobs && !iv_size_add(floats, s->count, &floats))
            return iv_fail(err, IV_LIMIT, "batch: too many tokens");
    }
    IV_TRY(reserve(p, b.count, floats, err));
    float *at = p->memory;
    for (size_t i = 0; i < b.count; i++) {
        const iv_trainer_sequence *s = &b.sequences[i];
        p->sequences[i] =
            (iv_train_sequence){s->ids, s->mask, s->count, s->logprobs ? s->logprobs : at, s->coefficients};
        if (!s->logprobs) at += s->count;
    }
    if (b.policy) IV_TRY(read_drawable(t, err));
    *out = (iv_train_batch){p->sequences, b.count, b.temperature, b.weigh, b.user, b.policy ? p->drawable.bits : NULL};
    return IV_OK;
}

static double weight_of(const iv_train_batch *b) {
    double sum = 0;
    for (size_t i = 0; i < b->count; i++)
        for (size_t k = 0; k < b->sequences[i].count; k++) sum += (double)b->sequences[i].mask[k];
    return sum;
}

static void measure(iv_trainer_metrics *m, const iv_train_batch *b, const iv_train_result *r) {
    double loss = 0;
    m->sequences = b->count, m->tokens = 0, m->tokens_learned = 0;
    for (size_t i = 0; i < b->count; i++) {
        const iv_train_sequence *s = &b->sequences[i];
        m->tokens += s->count;
        for (size_t k = 1; k < s->count; k++) {
            m->tokens_learned += s->mask[k] != 0.0f;
            loss -= (double)s->mask[k] * (double)s->logprobs[k];
        }
    }
    m->loss = m->tokens_learned ? loss / weight_of(b) : 0;
    m->gradient_norm = r->norm, m->passes = r->passes;
    m->gradient_seconds = r->seconds[0], m->reduce_seconds = r->seconds[1];
    m->optimizer_seconds = m->write_seconds = 0;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

iv_status iv_trainer_score(iv_trainer *t, const iv_trainer_batch *batch, iv_error *err) {
    iv_train_batch b;
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(take_batch(t, batch, &b, err));
    b.weigh = NULL;
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_train_score(t, &b, err);
    iv_fp_env_leave(mode);
    return status;
}

static iv_status gradients(iv_trainer *t, const iv_train_batch *b, double denominator, iv_error *err) {
    iv_train_result r;
    if (!(denominator > 0 && denominator < INFINITY))
        return iv_fail(err, IV_INVALID, "denominator: wanted above 0, found %g", denominator);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_train_gradients(t, b, denominator, &r, err);
    iv_fp_env_leave(mode);
    if (status != IV_OK) return status;
    t->public->denominator = denominator;
    measure(&t->public->metrics, b, &r);
    return IV_OK;
}

iv_status iv_trainer_gradients(iv_trainer *t, const iv_trainer_batch *batch, double denominator, iv_error *err) {
    iv_train_batch b;
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(take_batch(t, batch, &b, err));
    return gradients(t, &b, denominator, err);
}

iv_status iv_trainer_get_gradient(const iv_trainer *t, const char *tensor, float *out, size_t elements, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    if (!tensor || !out)
        return iv_fail(err, IV_INVALID, "iv_trainer_get_gradient: wanted a name and a place, found NULL");
    if (!t->ready) return iv_fail(err, IV_INVALID, "%s: no gradients wait: wanted iv_trainer_gradients first", tensor);
    const iv_tensor *x = iv_model_tensor(t->model, tensor);
    if (!x || !iv_parameter_is_trained(x))
        return iv_fail(err, IV_NOT_FOUND, "%s: the model trains no such tensor", tensor);
    if (elements != x->rows * x->columns)
        return iv_fail(err, IV_INVALID, "%s: wanted %zu elements, found %zu", tensor, x->rows * x->columns, elements);
    IV_TRY(iv_train_read((iv_trainer *)(uintptr_t)t, IV_TRAIN_GRADIENT, x->offset, elements, out, err));
    for (size_t i = 0; i < elements; i++) out[i] = (float)((double)out[i] / t->public->denominator);
    return IV_OK;
}

static iv_status check_apply(const iv_trainer *t, double learning_rate, double max_norm, iv_error *err) {
    if (t->o.no_optimizer)
        return iv_fail(err, IV_INVALID, "trainer: was opened with no_optimizer: its weights do not change");
    if (!(learning_rate >= 0 && learning_rate < INFINITY))
        return iv_fail(err, IV_INVALID, "learning_rate: wanted 0 or more, found %g", learning_rate);
    if (!(max_norm >= 0 && max_norm < INFINITY))
        return iv_fail(err, IV_INVALID, "max_norm: wanted 0 or more, found %g", max_norm);
    return IV_OK;
}

iv_status iv_trainer_apply(iv_trainer *t, double learning_rate, double max_norm, iv_error *err) {
    iv_train_result r = {0};
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_apply(t, learning_rate, max_norm, err));
    if (!t->ready) return iv_fail(err, IV_INVALID, "apply: no gradients wait: wanted iv_trainer_gradients first");
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_train_apply(t, &(iv_train_update){t->public->denominator, learning_rate, max_norm}, &r, err);
    iv_fp_env_leave(mode);
    if (status != IV_OK) {
        t->public->broken = !t->ready; /* the weights have changed */
        return status;
    }
    iv_trainer_metrics *m = &t->public->metrics;
    iv_digest_hex(r.weights_hash, m->weights_hash);
    m->gradient_norm = r.norm, m->learning_rate = learning_rate;
    m->optimizer_seconds = r.seconds[2], m->write_seconds = r.seconds[3] + r.seconds[4];
    return IV_OK;
}

iv_status iv_trainer_step(iv_trainer *t, const iv_trainer_batch *batch, double learning_rate, double max_norm,
                          iv_error *err) {
    iv_train_batch b;
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_apply(t, learning_rate, max_norm, err));
    IV_TRY(take_batch(t, batch, &b, err));
    if (b.weigh) return iv_fail(err, IV_INVALID, "step: wanted a batch without weigh, whose coefficients are the mask");
    for (size_t i = 0; i < b.count; i++)
        if (b.sequences[i].coefficients)
            return iv_fail(err, IV_INVALID, "step: sequence %zu: wanted no coefficients, which are the mask", i);
    double weight = weight_of(&b);
    if (weight == 0) return iv_fail(err, IV_INVALID, "step: no token of the batch has a mask");
    IV_TRY(gradients(t, &b, weight, err));
    return iv_trainer_apply(t, learning_rate, max_norm, err);
}

iv_status iv_trainer_sync_engine(iv_trainer *t, iv_engine *engine, bool digest, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    if (!engine) return iv_fail(err, IV_INVALID, "sync: wanted an open engine, found NULL");
    return iv_train_sync(t, engine, digest, err);
}
