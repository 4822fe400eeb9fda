/* options.c: a trainer's options: defaults, checks, and where it computes. */
#include "train/trainer/options.h"
#include "comm/mpi.h"
#include "format/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PASS_TOKENS = 4096, GPU_PASS_TOKENS = 32768 };

iv_trainer_options iv_train_defaults(void) {
    return (iv_trainer_options){.size = sizeof(iv_trainer_options),
                                .load_format = "auto",
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

/* ---- checks ------------------------------------------------------------------------------------------------------ */

iv_status iv_train_one_of(const char *what, const char *text, const char *const *names, int count, int *out,
                          iv_error *err) {
    for (int i = 0; i < count; i++)
        if (text && strcmp(text, names[i]) == 0) {
            *out = i;
            return IV_OK;
        }
    char list[200] = "", *at = list;
    for (int i = 0; i < count; i++)
        at +=
            snprintf(at, sizeof list - (size_t)(at - list), "%s%s", i ? i + 1 == count ? " or " : ", " : "", names[i]);
    return iv_fail(err, IV_INVALID, "%s: wanted %s, found '%s'", what, list, text ? text : "NULL");
}

enum { CHOICES_MAX = 3 };
#define AT(member) #member, offsetof(iv_trainer_options, member)

/* Options that are texts. Without names here: parsed by arithmetic.h and kernels.h. */
static const struct {
    const char *name;
    size_t at;
    const char *choices[CHOICES_MAX];
} texts[] = {{AT(load_format), {"auto", "dummy"}},
             {AT(dtype), {NULL}},
             {AT(arithmetic), {NULL}},
             {AT(isa), {NULL}},
             {AT(recompute), {"none", "attention", "layer"}}, /* iv_recompute */
             {AT(device), {"auto", "cpu", "cuda"}}};

/* Options that are numbers from 0 to below `below`, and their flags' names. */
static const struct {
    const char *name;
    size_t at;
    const char *flag;
    double below;
} numbers[] = {{AT(beta1), "--adam-beta1", 1.0},
               {AT(beta2), "--adam-beta2", 1.0},
               {AT(eps), "--adam-eps", INFINITY},
               {AT(weight_decay), "--weight-decay", INFINITY}};

static const char *text_of(const iv_trainer_options *o, size_t at) {
    const char *text;
    memcpy(&text, (const char *)o + at, sizeof text);
    return text;
}

/* Which of its choices a text is. */
static int choice_of(const iv_trainer_options *o, size_t row) {
    int i = 0;
    const char *text = text_of(o, texts[row].at);
    while (i < CHOICES_MAX && texts[row].choices[i] && strcmp(text, texts[row].choices[i]) != 0) i++;
    return i;
}
enum { LOAD_FORMAT = 0, RECOMPUTE = 4, DEVICE = 5, DUMMY = 1, CPU = 1, CUDA = 2 };

static iv_status check_texts(const iv_trainer_options *o, iv_error *err) {
    bool given;
    iv_dtype type;
    iv_arithmetic arithmetic;
    iv_isa isa;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = text_of(o, texts[i].at);
        int count = 0, ignored;
        if (!text) return iv_fail(err, IV_INVALID, "%s: wanted a name, found NULL", texts[i].name);
        while (count < CHOICES_MAX && texts[i].choices[count]) count++;
        if (count) IV_TRY(iv_train_one_of(texts[i].name, text, texts[i].choices, count, &ignored, err));
    }
    IV_TRY(iv_gemm_type_parse(o->dtype, &given, &type, err));
    IV_TRY(iv_arithmetic_parse(o->arithmetic, &given, &arithmetic, err));
    return iv_isa_parse(o->isa, &isa, err);
}

static iv_status check_numbers(const iv_train_setup *s, iv_error *err) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double x;
        memcpy(&x, (const char *)s->options + numbers[i].at, sizeof x);
        if (!(x >= 0 && x < numbers[i].below))
            return iv_fail(err, IV_INVALID, "%s: wanted 0 or more%s, found %g",
                           s->flags ? numbers[i].flag : numbers[i].name,
                           numbers[i].below == 1.0 ? " and below 1" : ", finite", x);
    }
    if (s->options->no_optimizer || s->options->eps > 0) return IV_OK;
    /* A weight whose gradient was always zero would become 0 / 0. */
    return iv_fail(err, IV_INVALID, "%s: wanted more than 0, found 0", s->flags ? "--adam-eps" : "eps");
}

/* An option as an error names it. */
typedef struct called {
    char text[32];
} called;
static called call(const iv_train_setup *s, const char *name) {
    called out;
    snprintf(out.text, sizeof out.text, "%s%s", s->flags ? "--" : "", name);
    for (char *at = out.text; s->flags && *at; at++)
        if (*at == '_') *at = '-';
    return out;
}

static iv_status excludes(const iv_train_setup *s, const char *name, const char *other, const char *wanted,
                          const char *found, iv_error *err) {
    return iv_fail(err, IV_INVALID, "%s: wanted %s %s, found %s", call(s, name).text, call(s, other).text, wanted,
                   found);
}

/* Numbers of an adapter go with its rank, and a file has its own. */
static iv_status check_adapter(const iv_train_setup *s, iv_error *err) {
    const iv_trainer_options *o = s->options;
    const struct {
        const char *name;
        bool given;
    } numbers_of[] = {{"lora_alpha", o->lora_alpha != 0},
                      {"lora_targets", o->lora_targets != NULL},
                      {"lora_rslora", o->lora_rslora},
                      {"lora_seed", o->lora_seed != 0}};
    if (o->lora_rank > IV_ADAPTER_RANK_MAX)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %d, found %zu", call(s, "lora_rank").text,
                       IV_ADAPTER_RANK_MAX, o->lora_rank);
    if (!(fabs(o->lora_alpha) < 1 << 24))
        return iv_fail(err, IV_INVALID, "%s: wanted a number below 2^24, found %g", call(s, "lora_alpha").text,
                       o->lora_alpha);
    if (o->lora && o->lora_rank) return excludes(s, "lora_rank", "lora", "to be left out", o->lora, err);
    for (size_t i = 0; !o->lora_rank && i < sizeof numbers_of / sizeof *numbers_of; i++)
        if (numbers_of[i].given) return excludes(s, numbers_of[i].name, "lora_rank", "of 1 or more", "0", err);
    if (!o->lora_rank && !o->lora)
        return o->base ? iv_fail(err, IV_INVALID, "base: wanted an adapter that learns (lora_rank or lora), found none")
                       : IV_OK;
    if (o->lora_targets && !*o->lora_targets)
        return iv_fail(err, IV_INVALID, "%s: wanted names of modules, found nothing", call(s, "lora_targets").text);
    if (o->decay_all) return excludes(s, "decay_all", "weights", "with norms or biases", "an adapter", err);
    return o->base && choice_of(o, LOAD_FORMAT) == DUMMY
               ? excludes(s, "load_format", "base", "to be left out, which has the weights", "an engine", err)
               : IV_OK;
}

iv_status iv_train_options_check(const iv_train_setup *s, iv_error *err) {
    static const char *const shards[] = {"optimizer", "parameters"}, *const transports[] = {"auto", "nccl", "host"};
    const iv_trainer_options *o = s->options;
    int ignored;
    if (!o->model || !*o->model) return iv_fail(err, IV_INVALID, "model: wanted a directory, found nothing");
    IV_TRY(check_texts(o, err));
    IV_TRY(check_numbers(s, err));
    if (s->shard) IV_TRY(iv_train_one_of("shard", s->shard, shards, 2, &ignored, err));
    if (s->rank_transport) IV_TRY(iv_train_one_of("rank transport", s->rank_transport, transports, 3, &ignored, err));
    if (o->decay_all && o->weight_decay == 0) return excludes(s, "decay_all", "weight_decay", "above 0", "0", err);
    if (o->dummy_seed && choice_of(o, LOAD_FORMAT) != DUMMY)
        return excludes(s, "dummy_seed", "load_format", "dummy", o->load_format, err);
    return check_adapter(s, err);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* With the arithmetic that such a GPU has, does each rank find one? */
static bool prefers_gpu(const iv_train_options *t, iv_numerics numerics, size_t gpus, bool given) {
    iv_gpu *gpu;
    iv_error unused;
    size_t count;
    if (numerics != IV_INVAR || (given && t->arithmetic == IV_FMA32)) return false;
    if (iv_mpi_processes() > 1 || iv_gpu_count(&count, &unused) != IV_OK || gpus > count) return false;
    if (t->ordinal + t->world * t->tp > count) return false;
    if (iv_gpu_open(t->ordinal, true, &gpu, &unused) != IV_OK) return false;
    iv_gpu_close(gpu);
    return true;
}

static iv_status check_gpu(const iv_train_options *t, iv_numerics numerics, iv_dtype gemm, iv_error *err) {
    if (numerics != IV_INVAR)
        return iv_fail(err, IV_UNSUPPORTED, "numerics: wanted invar for training on device cuda, found %s",
                       iv_numerics_name(numerics));
    return iv_arithmetic_check(t->arithmetic, gemm, err);
}

/* Where it computes, and how it sums: the choice is the engine's (engine/device.c). */
static iv_status choose_device(const iv_train_setup *s, iv_numerics numerics, iv_train_options *t, iv_error *err) {
    bool given, automatic = choice_of(s->options, DEVICE) < CPU;
    iv_dtype type = IV_BF16; /* unused on a CPU */
    t->cuda = choice_of(s->options, DEVICE) == CUDA;
    IV_TRY(iv_arithmetic_parse(s->options->arithmetic, &given, &t->arithmetic, err));
    if (automatic || t->cuda) {
        iv_model_options m = {
            .has_dtype = t->has_dtype, .dtype = t->dtype, .dummy = t->dummy, .dummy_seed = t->dummy_seed};
        IV_TRY(iv_model_dtype(t->model_dir, &m, &type, err));
    }
    if (automatic && type != IV_F32) t->cuda = prefers_gpu(t, numerics, s->gpus, given);
    if (!given) t->arithmetic = iv_arithmetic_auto(t->cuda, type);
    if (t->cuda) return check_gpu(t, numerics, type, err);
    return t->offload_optimizer ? excludes(s, "offload_optimizer", "device", "cuda", "the CPU", err) : IV_OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Without a number of data-parallel ranks: each process of mpirun is one rank. */
static iv_status spread_ranks(const iv_train_setup *s, iv_train_options *t, iv_error *err) {
    size_t n = s->processes->size;
    if (t->tp == 0 || n % t->tp)
        return iv_fail(
            err, IV_UNSUPPORTED,
            "tensor-parallel ranks: wanted a divisor of the %zu processes of mpirun, found %zu (with a number "
            "of data-parallel ranks that the processes divide, tensor-parallel ranks are threads)",
            n, t->tp);
    t->world = n / t->tp;
    return IV_OK;
}

static iv_status parse_numerics(const iv_train_setup *s, iv_numerics *numerics, iv_error *err) {
    IV_TRY(iv_numerics_parse(s->numerics ? s->numerics : "invar", numerics, err));
    if (*numerics != IV_VANILLA_BLAS) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "numerics: wanted invar, bio or vanilla for training, found vanilla-blas");
}

iv_status iv_train_options_parse(const iv_train_setup *s, iv_train_options *t, iv_numerics *numerics, iv_error *err) {
    const iv_trainer_options *o = s->options;
    iv_isa isa;
    IV_TRY(iv_train_options_check(s, err));
    *t = (iv_train_options){.model_dir = o->model,
                            .dummy = choice_of(o, LOAD_FORMAT) == DUMMY,
                            .dummy_seed = o->dummy_seed,
                            .threads = o->threads,
                            .world = o->data_parallel,
                            .tp = o->tensor_parallel,
                            .virtual_ranks = o->virtual_ranks,
                            .processes = s->processes,
                            .micro_batch = o->micro_batch,
                            .recompute = (iv_recompute)choice_of(o, RECOMPUTE),
                            .separate = s->separate,
                            .deferred_loss = s->deferred_loss,
                            .adamw = {o->beta1, o->beta2, o->eps, o->weight_decay},
                            .decay_all = o->decay_all,
                            .shard_parameters = s->shard && strcmp(s->shard, "parameters") == 0,
                            .offload_optimizer = o->offload_optimizer,
                            .rank_transport = s->rank_transport,
                            .no_optimizer = o->no_optimizer};
    IV_TRY(iv_gemm_type_parse(o->dtype, &t->has_dtype, &t->dtype, err));
    IV_TRY(iv_isa_parse(o->isa, &isa, err));
    t->kernels = iv_kernels_select(isa);
    IV_TRY(parse_numerics(s, numerics, err));
    if (s->processes && t->world == 0) IV_TRY(spread_ranks(s, t, err));
    t->has_adapter = o->lora_rank || o->lora, t->packed = *numerics == IV_INVAR;
    t->adapter = (iv_adapter_wish){.rank = o->lora_rank,
                                   .alpha = o->lora_alpha,
                                   .targets = o->lora_targets,
                                   .root_scale = o->lora_rslora,
                                   .seed = o->lora_seed,
                                   .from = o->lora,
                                   .base = o->model};
    IV_TRY(choose_device(s, *numerics, t, err));
    if (s->rank_transport && strcmp(s->rank_transport, "nccl") == 0 && !(t->cuda && s->processes))
        return iv_fail(err, IV_INVALID, "%s nccl: wanted processes of mpirun with a GPU each, found %s",
                       call(s, "rank_transport").text, t->cuda ? "one process" : "the CPU");
    t->pass_tokens = o->pass_tokens ? o->pass_tokens : t->cuda ? GPU_PASS_TOKENS : PASS_TOKENS;
    t->pass_tokens_least = o->pass_tokens ? o->pass_tokens : PASS_TOKENS;
    return IV_OK;
}
