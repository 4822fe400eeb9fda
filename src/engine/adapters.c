/* adapters.c: names, slots and users of adapters, and the calls of invar.h about them. */
#include "engine/adapters.h"
#include "base/cpu.h"
#include "base/digest.h"
#include "base/utf8.h"
#include "engine/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 255 };

/* ---- opening ----------------------------------------------------------------------------------------------- */

static iv_status check_options(const iv_engine *e, const iv_engine_options *o, iv_error *err) {
    if (o->max_loras > IV_ADAPTERS_MAX)
        return iv_fail(err, IV_INVALID, "max_loras: wanted 0 to %d, found %zu", IV_ADAPTERS_MAX, o->max_loras);
    if (o->max_lora_rank < 1 || o->max_lora_rank > IV_ADAPTER_RANK_MAX)
        return iv_fail(err, IV_INVALID, "max_lora_rank: wanted 1 to %d, found %zu", IV_ADAPTER_RANK_MAX,
                       o->max_lora_rank);
    if (e->numerics != IV_INVAR)
        return iv_fail(err, IV_UNSUPPORTED, "max_loras: wanted numerics invar, found the baseline %s",
                       iv_numerics_name(e->numerics));
    if (o->trainable)
        return iv_fail(err, IV_UNSUPPORTED, "max_loras: an engine whose weights are trained has no adapters");
    return IV_OK;
}

iv_status iv_adapters_open(iv_engine *e, const iv_engine_options *o, iv_error *err) {
    if (o->max_loras == 0) return IV_OK;
    IV_TRY(check_options(e, o, err));
    e->max_loras = o->max_loras;
    e->adapters.rank_max = o->max_lora_rank, e->adapters.count = iv_adapters_slots(o->max_loras);
    e->adapters.slot = calloc(e->adapters.count, sizeof *e->adapters.slot);
    e->loaded = calloc(e->adapters.count, sizeof *e->loaded);
    e->adapter_roots = calloc(IV_ADAPTER_ROOTS, sizeof *e->adapter_roots);
    e->row_adapters = calloc(e->max_num_batched_tokens, sizeof *e->row_adapters);
    if (e->adapters.slot && e->loaded && e->adapter_roots && e->row_adapters) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "adapters: no memory for %zu", o->max_loras);
}

static void free_loaded(iv_loaded_adapter *a) {
    if (!a) return;
    iv_adapter_free(a->weights);
    free(a->name), free(a->path), free(a);
}

void iv_adapters_close(iv_engine *e) {
    for (size_t i = 0; e->loaded && i < e->adapters.count; i++) free_loaded(e->loaded[i]);
    /* a process of mpirun other than the first has weights alone */
    for (size_t i = 0; e->loaded && e->adapters.slot && i < e->adapters.count; i++)
        if (!e->loaded[i]) iv_adapter_free((iv_adapter *)(uintptr_t)e->adapters.slot[i]);
    free(e->adapters.slot), free(e->loaded), free(e->adapter_roots), free(e->row_adapters);
}

/* ---- finding ----------------------------------------------------------------------------------------------- */

static iv_loaded_adapter *by_name(const iv_engine *e, const char *name) {
    for (size_t i = 0; i < e->adapters.count; i++) {
        iv_loaded_adapter *a = e->loaded[i];
        if (a && !a->retired && strcmp(a->name, name) == 0) return a;
    }
    return NULL;
}

static iv_loaded_adapter *by_digest(const iv_engine *e, const char *digest) {
    for (size_t i = 0; i < e->adapters.count; i++) {
        iv_loaded_adapter *a = e->loaded[i];
        if (a && !a->retired && strcmp(a->digest, digest) == 0) return a;
    }
    return NULL;
}

static void list_names(const iv_engine *e, char *out, size_t bytes) {
    size_t n = 0;
    iv_adapter_info info = {.size = sizeof info};
    *out = 0;
    for (size_t i = 0; n < bytes && iv_engine_adapter_at(e, i, &info); i++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%.60s", i ? ", " : "", info.name);
}

iv_status iv_adapters_find(const iv_engine *e, const char *name, iv_loaded_adapter **out, iv_error *err) {
    static const char mark[] = "sha256:";
    char names[300];
    *out = NULL;
    if (!name || !*name) return IV_OK;
    if ((*out = by_name(e, name)) != NULL) return IV_OK;
    if (strncmp(name, mark, sizeof mark - 1) == 0 && (*out = by_digest(e, name + sizeof mark - 1)) != NULL)
        return IV_OK;
    if (!e->max_loras)
        return iv_fail(err, IV_NOT_FOUND, "adapter: '%.255s': the engine has no room for adapters (max_loras 0)", name);
    list_names(e, names, sizeof names);
    return iv_fail(err, IV_NOT_FOUND, "adapter: wanted one that is loaded (%s), found '%.255s'",
                   *names ? names : "none is", name);
}

void iv_adapters_use(iv_loaded_adapter *a, iv_sequence *s) {
    if (!a) return;
    a->users++, s->adapter = a;
    iv_kv_table_use_root(&s->table, a->root);
}

/* ---- loading ----------------------------------------------------------------------------------------------- */

static iv_status check_name(const iv_engine *e, const char *name, iv_error *err) {
    size_t n = name ? strlen(name) : 0, bad;
    if (!e->max_loras)
        return iv_fail(err, IV_INVALID,
                       "adapters: the engine has no room for any: wanted max_loras 1 or more, found 0");
    if (n == 0 || n > NAME_BYTES_MAX)
        return iv_fail(err, IV_INVALID, "adapter: wanted a name of 1 to %d bytes, found %zu", NAME_BYTES_MAX, n);
    if (!iv_utf8_valid((const uint8_t *)name, n, &bad))
        return iv_fail(err, IV_INVALID, "adapter: wanted a name in UTF-8, found a stray byte at %zu", bad);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127)
            return iv_fail(err, IV_INVALID, "adapter: wanted a name without control characters, found byte %d at %zu",
                           name[i], i);
    return IV_OK;
}

/* A free slot. replaced: its name becomes that of the new one; may be NULL. */
static iv_status find_slot(const iv_engine *e, const iv_loaded_adapter *replaced, size_t *slot, iv_error *err) {
    size_t named = 0;
    *slot = SIZE_MAX;
    for (size_t i = 0; i < e->adapters.count; i++) {
        const iv_loaded_adapter *a = e->loaded[i];
        named += a && !a->retired && a != replaced;
        if (!a && *slot == SIZE_MAX) *slot = i;
    }
    if (named >= e->max_loras)
        return iv_fail(err, IV_BUSY, "adapters: %zu are loaded, as many as max_loras: unload one first", named);
    if (*slot == SIZE_MAX)
        return iv_fail(err, IV_BUSY, "adapters: %d that were unloaded are in use: wait until their requests end",
                       IV_ADAPTERS_RETIRED_MAX);
    return IV_OK;
}

/* The root of an adapter's prefixes: that of an earlier one with this digest, as long as it is remembered; else a new
 * one, which no page in the index has. */
static uint32_t root_of(iv_engine *e, const uint8_t digest[32]) {
    size_t known = e->adapter_root_count < IV_ADAPTER_ROOTS ? e->adapter_root_count : IV_ADAPTER_ROOTS;
    for (size_t i = 0; i < known; i++)
        if (memcmp(e->adapter_roots[i].digest, digest, 32) == 0) return e->adapter_roots[i].root;
    iv_adapter_root *r = &e->adapter_roots[e->adapter_root_count % IV_ADAPTER_ROOTS];
    memcpy(r->digest, digest, 32);
    r->root = IV_FIRST_ROOT + (uint32_t)e->adapter_root_count++;
    IV_ASSERT(r->root < IV_NO_NODE);
    return r->root;
}

/* In its slot, instead of the replaced one, which may be NULL. */
static iv_status enter(iv_engine *e, iv_loaded_adapter *a, iv_loaded_adapter *replaced, iv_error *err) {
    iv_digest_hex(a->weights->digest, a->digest);
    a->root = root_of(e, a->weights->digest), a->order = e->adapter_loads++;
    e->loaded[a->slot - 1] = a, e->adapters.slot[a->slot - 1] = a->weights;
    if (!replaced) return IV_OK;
    replaced->retired = true;
    return iv_adapters_sweep(e, err);
}

/* replaced: NULL, or the one that has the name so far. */
static iv_status load(iv_engine *e, const char *name, const char *dir, iv_loaded_adapter *replaced,
                      iv_loaded_adapter *a, iv_error *err) {
    size_t slot;
    IV_TRY(iv_adapters_sweep(e, err));
    IV_TRY(find_slot(e, replaced, &slot, err));
    a->name = strdup(name), a->path = strdup(dir), a->slot = (uint32_t)slot + 1;
    if (!a->name || !a->path) return iv_fail(err, IV_NO_MEMORY, "adapter: no memory");
    IV_TRY(iv_adapter_load(e->model, dir, e->adapters.rank_max, &a->weights, err));
    if (e->gpu_model) IV_TRY(iv_gpu_model_load_adapter(e->gpu_model, slot, a->weights, err));
    iv_status status = iv_ranks_load_adapter(e, slot, dir, a->weights->digest, err);
    if (status != IV_OK && e->gpu_model) iv_gpu_model_free_adapter(e->gpu_model, slot);
    IV_TRY(status);
    return enter(e, a, replaced, err);
}

static iv_status load_named(iv_engine *e, const char *name, const char *dir, iv_loaded_adapter *replaced,
                            iv_error *err) {
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "adapter: '%s': wanted a directory, found nothing", name);
    iv_loaded_adapter *a = calloc(1, sizeof *a);
    if (!a) return iv_fail(err, IV_NO_MEMORY, "adapter: no memory");
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = load(e, name, dir, replaced, a, err);
    bool in_use = a->slot && e->loaded[a->slot - 1] == a;
    iv_fp_env_leave(mode);
    if (!in_use) free_loaded(a);
    return status;
}

iv_status iv_engine_load_adapter(iv_engine *e, const char *name, const char *dir, iv_error *err) {
    IV_TRY(check_name(e, name, err));
    if (by_name(e, name))
        return iv_fail(err, IV_INVALID, "adapter: '%s' is loaded already: unload it first, or choose another name",
                       name);
    return load_named(e, name, dir, NULL, err);
}

iv_status iv_engine_replace_adapter(iv_engine *e, const char *name, const char *dir, iv_error *err) {
    IV_TRY(check_name(e, name, err));
    return load_named(e, name, dir, by_name(e, name), err);
}

static iv_status put(iv_engine *e, iv_loaded_adapter *a, iv_error *err) {
    size_t slot;
    iv_loaded_adapter *replaced = by_name(e, a->name);
    IV_TRY(iv_adapters_sweep(e, err));
    IV_TRY(find_slot(e, replaced, &slot, err));
    if (e->gpu_model) IV_TRY(iv_gpu_model_load_adapter(e->gpu_model, slot, a->weights, err));
    a->slot = (uint32_t)slot + 1;
    return enter(e, a, replaced, err);
}

iv_status iv_adapters_put(iv_engine *e, const char *name, const char *path, iv_adapter *weights, iv_error *err) {
    IV_TRY(check_name(e, name, err));
    IV_TRY(iv_ranks_check_update(e->ranks, err));
    if (weights->rank_max > e->adapters.rank_max)
        return iv_fail(err, IV_LIMIT, "adapter: '%s': wanted a rank of at most %zu (max_lora_rank), found %zu", name,
                       e->adapters.rank_max, weights->rank_max);
    iv_loaded_adapter *a = calloc(1, sizeof *a);
    if (a) a->name = strdup(name), a->path = strdup(path);
    iv_status status = a && a->name && a->path ? IV_OK : iv_fail(err, IV_NO_MEMORY, "adapter: no memory");
    if (status == IV_OK) a->weights = weights, status = put(e, a, err);
    if (!a || (a->slot && e->loaded[a->slot - 1] == a)) return status;
    a->weights = NULL; /* the caller's */
    free_loaded(a);
    return status;
}

/* ---- unloading --------------------------------------------------------------------------------------------- */

iv_status iv_adapters_sweep(iv_engine *e, iv_error *err) {
    for (size_t i = 0; i < e->adapters.count; i++) {
        iv_loaded_adapter *a = e->loaded[i];
        if (!a || !a->retired || a->users) continue;
        IV_TRY(iv_ranks_free_adapter(e, i, err));
        if (e->gpu_model) iv_gpu_model_free_adapter(e->gpu_model, i);
        e->loaded[i] = NULL, e->adapters.slot[i] = NULL;
        free_loaded(a);
    }
    return IV_OK;
}

iv_status iv_engine_unload_adapter(iv_engine *e, const char *name, iv_error *err) {
    iv_loaded_adapter *a;
    if (!name || !*name) return iv_fail(err, IV_INVALID, "adapter: wanted a name, found nothing");
    IV_TRY(iv_adapters_find(e, name, &a, err));
    a->retired = true;
    return iv_adapters_sweep(e, err);
}

/* ---- facts ------------------------------------------------------------------------------------------------- */

void iv_adapters_fingerprint(const char *fingerprint, const char *digest, char out[IV_ADAPTED_FINGERPRINT_BYTES]) {
    snprintf(out, IV_ADAPTED_FINGERPRINT_BYTES, "%.96s+lora-%.16s", fingerprint, digest);
}

/* The index-th of those that are not unloaded, by order of loading. */
static iv_loaded_adapter *at(const iv_engine *e, size_t index) {
    for (size_t i = 0; i < e->adapters.count; i++) {
        iv_loaded_adapter *a = e->loaded[i];
        size_t before = 0;
        if (!a || a->retired) continue;
        for (size_t k = 0; k < e->adapters.count; k++)
            before += e->loaded[k] && !e->loaded[k]->retired && e->loaded[k]->order < a->order;
        if (before == index) return a;
    }
    return NULL;
}

static bool describe(const iv_engine *e, iv_loaded_adapter *a, iv_adapter_info *out) {
    size_t size = out->size;
    if (!a) return false;
    iv_adapters_fingerprint(e->fingerprint, a->digest, a->fingerprint);
    iv_adapter_info info = {.size = size,
                            .name = a->name,
                            .path = a->path,
                            .digest = a->digest,
                            .fingerprint = a->fingerprint,
                            .rank = a->weights->rank_max,
                            .modules = a->weights->modules,
                            .bytes = a->weights->bytes,
                            .requests = a->users};
    memcpy(out, &info, size < sizeof info ? size : sizeof info);
    return true;
}

bool iv_engine_adapter_at(const iv_engine *e, size_t index, iv_adapter_info *out) {
    return describe(e, at(e, index), out);
}

bool iv_adapters_info(const iv_engine *e, const char *name, iv_adapter_info *out) {
    return describe(e, by_name(e, name), out);
}
