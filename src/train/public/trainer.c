/* trainer.c: invar.h's trainer: opening, facts, and the step. files.c has its files. */
#include "train/public/public.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/digest.h"
#include "base/size.h"
#include "engine/sized.h"
#include "engine/text_model.h"
#include "engine/replace.h"
#include "format/config_fields.h"
#include "format/json.h"
#include "model/stored.h"
#include "numerics/version.h"
#include "train/trainer/options.h"
#include "train/rollout/sync.h"

#include <math.h>
#include <stdlib.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

void iv_trainer_options_init_sized(iv_trainer_options *o, size_t size) {
    iv_trainer_options defaults = iv_train_defaults();
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

void iv_trainer_batch_init_sized(iv_trainer_batch *b, size_t size) {
    iv_trainer_batch defaults = {.temperature = 1.0f};
    iv_sized_init(b, size, &defaults, sizeof defaults);
}

/* The caller's object joins the hyperparameters. */
static iv_status make_identity(iv_trainer *t, const char *run, iv_error *err) {
    json_t *theirs;
    if (!run) run = "{}";
    IV_TRY(iv_json_parse("options: run", run, strlen(run), &theirs, err));
    if (!json_is_object(theirs)) {
        json_decref(theirs);
        return iv_fail(err, IV_INVALID, "options: run: wanted a JSON object, found '%.100s'", run);
    }
    json_t *h = iv_train_hyperparameters(t, "api");
    if (h) json_object_set(h, "run", theirs);
    json_decref(theirs);
    return iv_train_identify(t, h, NULL, &t->public->identity, err);
}

iv_status iv_train_public_hash(iv_trainer *t, iv_error *err) {
    uint8_t hash[32];
    IV_TRY(iv_train_weights_hash(t, hash, err));
    iv_digest_hex(hash, t->public->metrics.weights_hash);
    return IV_OK;
}

static bool copy_text(const char *text, char **out) {
    *out = text ? strdup(text) : NULL;
    return *out || !text;
}

/* An engine's weights instead of a copy of them. */
static iv_status use_base(const iv_trainer_options *o, iv_train_options *t, iv_error *err) {
    const iv_engine *e = o->base;
    iv_model_config *config = malloc(sizeof *config);
    if (!config) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    iv_status status = iv_model_config_read(o->model, config, err);
    if (status == IV_OK) status = iv_config_check_same("base", config, &e->model->config, err);
    free(config);
    IV_TRY(status);
    if (e->model->next || e->model->tp.ranks > 1 || e->numerics != IV_INVAR)
        return iv_fail(err, IV_UNSUPPORTED, "base: wanted an engine of one rank and numerics invar, found %s",
                       e->numerics != IV_INVAR ? iv_numerics_name(e->numerics) : "one of several ranks");
    if (t->world > 1 && e->gpu_model)
        return iv_fail(err, IV_UNSUPPORTED, "data_parallel: wanted 1 with a base on a GPU, found %zu", t->world);
    if (t->has_dtype && t->dtype != e->model->gemm_type)
        return iv_fail(err, IV_INVALID, "base: wanted an engine of dtype %s, found %s", iv_dtype_name(t->dtype),
                       iv_dtype_name(e->model->gemm_type));
    if (t->tp > 1) return iv_fail(err, IV_INVALID, "tensor_parallel: wanted 1 with a base, found %zu", t->tp);
    IV_TRY(iv_replace_check_whole(e, err));
    t->model = e->model, t->gpu = e->gpu_model ? e->gpus[0] : NULL;
    return IV_OK;
}

/* A trainer computes where its base is. */
static iv_status place_with_base(iv_trainer_options *o, iv_error *err) {
    const iv_engine *e = o->base;
    if (!e) return IV_OK;
    if (!e->gpu_model && strcmp(o->device, "cuda") == 0)
        return iv_fail(err, IV_INVALID, "device: wanted cpu, where the base is, found cuda");
    o->device = e->gpu_model ? "cuda" : "cpu";
    return IV_OK;
}

static iv_status open_public(iv_trainer *t, const iv_trainer_options *o, iv_error *err) {
    iv_train_public *p = t->public = calloc(1, sizeof *t->public);
    if (!p || !(p->model = strdup(o->model)) || !copy_text(o->lora_targets, &p->targets) ||
        !copy_text(o->lora, &p->from))
        return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    t->o.model_dir = t->o.adapter.base = p->model, t->o.adapter.targets = p->targets, t->o.adapter.from = p->from;
    if (o->base) p->base = o->base, p->base->borrowers++;
    IV_TRY(make_identity(t, o->run, err));
    return iv_train_public_hash(t, err);
}

iv_status iv_trainer_open(const iv_trainer_options *given, iv_trainer **out, iv_error *err) {
    iv_trainer_options o = iv_train_defaults();
    iv_train_options internal;
    iv_train_setup setup = {.options = &o, .gpus = 1};
    iv_numerics numerics;
    iv_trainer *t;
    if (!given || !out) return iv_fail(err, IV_INVALID, "iv_trainer_open: wanted options and a place, found NULL");
    IV_TRY(iv_sized_read("options", given, offsetof(iv_trainer_options, load_format), &o, sizeof o, err));
    if (iv_train_options_check(&setup, err) != IV_OK) return iv_error_prefix(err, "options");
    IV_TRY(place_with_base(&o, err));
    IV_TRY(iv_train_options_parse(&setup, &internal, &numerics, err));
    if (o.base) IV_TRY(use_base(&o, &internal, err));
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
        iv_token_ids_close(&p->drawable), free(p->model), free(p->targets), free(p->from),
            iv_train_identity_free(&p->identity), free(p->sequences), free(p->memory);
    iv_engine *base = p ? p->base : NULL;
    free(p);
    iv_train_close(t);
    if (base) base->borrowers--;
}

void iv_trainer_get_info(const iv_trainer *t, iv_trainer_info *info) {
    const iv_model_config *c = &t->model->config;
    *info = (iv_trainer_info){.fingerprint = t->public->identity.fingerprint,
                              .initial_weights = t->public->identity.initial,
                              .hyperparameters = t->public->identity.hyperparameters,
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
        p->sequences[i] = (iv_train_sequence){s->ids,          s->mask,
                                              s->count,        s->logprobs ? s->logprobs : at,
                                              s->coefficients, b.targets ? b.targets[i] : NULL};
        if (!s->logprobs) at += s->count;
    }
    if (b.policy) IV_TRY(read_drawable(t, err));
    *out = (iv_train_batch){p->sequences, b.count, b.temperature, b.weigh, b.user, b.policy ? p->drawable.bits : NULL};
    return IV_OK;
}

static void measure(iv_trainer_metrics *m, const iv_train_batch *b, const iv_train_result *r) {
    iv_train_sums sums = {0};
    iv_train_add_masks(&sums, b->sequences, b->count);
    iv_train_add_losses(&sums, b->sequences, b->count);
    m->sequences = b->count, m->tokens = sums.tokens, m->tokens_learned = sums.masked;
    m->loss = sums.masked ? sums.loss / sums.weight : 0;
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

static iv_status read_gradient(void *user, const iv_tensor *x, size_t first, size_t rows, iv_dtype dtype, void *out,
                               iv_error *err) {
    (void)dtype; /* float32 */
    return iv_train_read(user, IV_FLAT_GRADIENT, x->offset + first * x->columns, rows * x->columns, out, err);
}

static void divide(const iv_trainer *t, float *out, size_t elements) {
    for (size_t i = 0; i < elements; i++) out[i] = (float)((double)out[i] / t->public->denominator);
}

static iv_status get_adapter_gradient(const iv_trainer *t, const char *tensor, float *out, size_t elements,
                                      iv_error *err) {
    const iv_tensor *x = iv_model_tensor(t->learned->table, tensor);
    if (!x)
        return iv_fail(err, IV_NOT_FOUND, "%s: the adapter has no such tensor: wanted a name such as %s", tensor,
                       t->learned->table->tensors[0].info.name);
    if (elements != x->rows * x->columns)
        return iv_fail(err, IV_INVALID, "%s: wanted %zu elements, found %zu", tensor, x->rows * x->columns, elements);
    const iv_learned_adapter *a = t->learned;
    size_t module = 0;
    while (module < a->parts.count && a->b[module] != x) module++;
    bool turns = module < a->parts.count && a->order[module];
    float *own = turns ? malloc(elements * sizeof *own) : out;
    if (!own) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", tensor);
    iv_status status = read_gradient((void *)(uintptr_t)t, x, 0, x->rows, IV_F32, own, err);
    if (status == IV_OK && turns) iv_learned_adapter_turn(a, module, own, out);
    if (turns) free(own);
    if (status == IV_OK) divide(t, out, elements);
    return status;
}

iv_status iv_trainer_get_gradient(const iv_trainer *t, const char *tensor, float *out, size_t elements, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    if (!tensor || !out)
        return iv_fail(err, IV_INVALID, "iv_trainer_get_gradient: wanted a name and a place, found NULL");
    if (!t->ready) return iv_fail(err, IV_INVALID, "%s: no gradients wait: wanted iv_trainer_gradients first", tensor);
    if (t->learned) return get_adapter_gradient(t, tensor, out, elements, err);
    const iv_stored *x = iv_model_stored(t->model, tensor);
    if (!x || !iv_stored_is_held(x)) return iv_fail(err, IV_NOT_FOUND, "%s: the model trains no such tensor", tensor);
    if (elements != x->rows * x->columns)
        return iv_fail(err, IV_INVALID, "%s: wanted %zu elements, found %zu", tensor, x->rows * x->columns, elements);
    IV_TRY(iv_stored_read_from(x, 0, x->rows, IV_F32, read_gradient, (void *)(uintptr_t)t, out, err));
    divide(t, out, elements);
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

iv_status iv_trainer_set_adamw(iv_trainer *t, double beta1, double beta2, double eps, double weight_decay,
                               iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_apply(t, 0, 0, err));
    const struct {
        const char *name;
        double value, end;
    } numbers[] = {
        {"beta1", beta1, 1}, {"beta2", beta2, 1}, {"eps", eps, INFINITY}, {"weight_decay", weight_decay, INFINITY}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= 0 && numbers[i].value < numbers[i].end))
            return iv_fail(err, IV_INVALID, "%s: wanted 0 or more%s, found %g", numbers[i].name,
                           numbers[i].end == 1 ? " and below 1" : "", numbers[i].value);
    t->o.adamw = (iv_adamw_options){beta1, beta2, eps, weight_decay};
    return IV_OK;
}

iv_status iv_trainer_forget(iv_trainer *t, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_apply(t, 0, 0, err));
    t->public->broken = true;
    IV_TRY(iv_train_forget(t, err));
    t->public->broken = false;
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
    iv_train_sums sums = {0};
    iv_train_add_masks(&sums, b.sequences, b.count);
    if (sums.weight == 0) return iv_fail(err, IV_INVALID, "step: no token of the batch has a mask");
    IV_TRY(gradients(t, &b, sums.weight, err));
    return iv_trainer_apply(t, learning_rate, max_norm, err);
}

iv_status iv_trainer_sync_engine(iv_trainer *t, iv_engine *engine, bool digest, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    if (!engine) return iv_fail(err, IV_INVALID, "sync: wanted an open engine, found NULL");
    return iv_train_sync(t, engine, digest, err);
}

iv_status iv_trainer_sync_adapter(iv_trainer *t, iv_engine *engine, const char *name, iv_adapter_info *info,
                                  iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    if (!engine) return iv_fail(err, IV_INVALID, "sync_adapter: wanted an open engine, found NULL");
    return iv_train_sync_adapter(t, engine, name, info, err);
}
