/* adapter.c: names of PEFT's tensors, their shapes, their digest. */
#include "format/adapter.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char prefix[] = "base_model.model.";

/* ---- names ------------------------------------------------------------------------------------------------- */

typedef enum role { ROLE_A, ROLE_B, ROLE_BASE } role;

typedef struct named {
    const iv_tensor_info *info;
    const char *module;
    role role;
    bool embedding;
} named;

/* "MODULE" + mark + rest, where rest is ".weight" or ".NAME.weight", of an embedding "" or ".NAME"; NAME of the
 * adapter. False: another form. */
static bool cut(iv_arena *arena, const char *name, const char *mark, const char *tail, const char **module) {
    const char *at = strstr(name, mark);
    for (const char *next; at && (next = strstr(at + 1, mark));) at = next; /* the last one */
    if (!at || at == name) return false;
    const char *rest = at + strlen(mark);
    size_t n = strlen(rest), t = strlen(tail);
    if (n < t || strcmp(rest + n - t, tail) != 0 || (n > t && (*rest != '.' || n == t + 1))) return false;
    *module = iv_arena_strndup(arena, name, (size_t)(at - name));
    return true;
}

static iv_status no_name(const char *file, const iv_tensor_info *t, iv_error *err) {
    return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted %sMODULE.lora_A.weight or .lora_B.weight, found another name",
                   file, t->name, prefix);
}

static iv_status name_of(const char *file, iv_arena *arena, const iv_tensor_info *t, named *out, iv_error *err) {
    const char *name = t->name;
    *out = (named){.info = t};
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return no_name(file, t, err);
    name += sizeof prefix - 1;
    if (strstr(name, ".lora_magnitude_vector"))
        return iv_fail(err, IV_UNSUPPORTED, "%s: '%.200s': DoRA is not read: wanted lora_A and lora_B alone", file,
                       t->name);
    if (cut(arena, name, ".lora_A", ".weight", &out->module)) return IV_OK;
    if (cut(arena, name, ".lora_B", ".weight", &out->module)) return out->role = ROLE_B, IV_OK;
    out->embedding = true;
    if (cut(arena, name, ".lora_embedding_A", "", &out->module)) return IV_OK;
    if (cut(arena, name, ".lora_embedding_B", "", &out->module)) return out->role = ROLE_B, IV_OK;
    if (strstr(name, ".lora_") || strstr(name, ".modules_to_save.") || strstr(name, ".token_adapter."))
        return iv_fail(err, IV_UNSUPPORTED, "%s: '%.200s': wanted lora_A.weight and lora_B.weight of a module alone",
                       file, t->name);
    size_t n = strlen(name), tail = sizeof ".weight" - 1;
    if (n <= tail || strcmp(name + n - tail, ".weight") != 0) return no_name(file, t, err);
    if (!cut(arena, name, ".base_layer", ".weight", &out->module))
        out->module = iv_arena_strndup(arena, name, n - tail);
    out->role = ROLE_BASE;
    return IV_OK;
}

static int by_module(const void *a, const void *b) {
    const named *x = a, *y = b;
    int order = strcmp(x->module, y->module);
    if (order) return order;
    return x->role != y->role ? (x->role < y->role ? -1 : 1) : strcmp(x->info->name, y->info->name);
}

/* ---- pairs ------------------------------------------------------------------------------------------------- */

static iv_status check_tensor(const char *file, const iv_tensor_info *t, iv_error *err) {
    if (t->dtype != IV_BF16 && t->dtype != IV_F16 && t->dtype != IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "%s: '%.200s': wanted BF16, F16 or F32, found %s", file, t->name,
                       iv_dtype_name(t->dtype));
    if (t->ndim != 2)
        return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted a matrix, found %d dimensions", file, t->name, t->ndim);
    if (t->elements == 0) return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted elements, found none", file, t->name);
    return IV_OK;
}

static iv_status check_rank(const char *file, const iv_tensor_info *t, int64_t found, int64_t rank, iv_error *err) {
    if (found == rank) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted rank %lld, as %s has it, found %lld in shape [%lld, %lld]",
                   file, t->name, (long long)rank, IV_ADAPTER_CONFIG_NAME, (long long)found, (long long)t->shape[0],
                   (long long)t->shape[1]);
}

static iv_status pair(const char *file, const iv_adapter_config *c, const named *a, const named *b,
                      iv_adapter_part *out, iv_error *err) {
    int64_t rank;
    bool selected;
    if (a->role != ROLE_A || !b || b->role != ROLE_B || strcmp(a->module, b->module) != 0)
        return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted one A and one B of each module, found %s", file,
                       a->info->name, a->role == ROLE_B ? "no A" : "no B");
    if (a->embedding != b->embedding)
        return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted a B of the same kind, found '%.200s'", file, a->info->name,
                       b->info->name);
    IV_TRY(check_tensor(file, a->info, err));
    IV_TRY(check_tensor(file, b->info, err));
    IV_TRY(iv_adapter_config_selects(c, a->module, &selected, err));
    if (!selected)
        return iv_fail(err, IV_FORMAT,
                       "%s: '%.200s': wanted a module that target_modules, exclude_modules and layers_to_transform of "
                       "%s select, found %.200s",
                       file, a->info->name, IV_ADAPTER_CONFIG_NAME, a->module);
    *out = (iv_adapter_part){.module = a->module, .embedding = a->embedding, .a = *a->info, .b = *b->info};
    IV_TRY(iv_adapter_config_numbers(c, a->module, &rank, &out->scale, err));
    IV_TRY(check_rank(file, a->info, a->info->shape[0], rank, err));
    IV_TRY(check_rank(file, b->info, b->info->shape[1], rank, err));
    out->rank = (size_t)rank, out->inputs = (size_t)a->info->shape[1], out->outputs = (size_t)b->info->shape[0];
    return IV_OK;
}

iv_status iv_adapter_parts_make(const char *file, const iv_adapter_config *config, const iv_tensor_info *tensors,
                                size_t count, iv_arena *arena, iv_adapter_parts *out, iv_error *err) {
    *out = (iv_adapter_parts){0};
    named *all = IV_ARENA_NEW(arena, count + 1, named);
    out->part = IV_ARENA_NEW(arena, count + 1, iv_adapter_part);
    out->base = IV_ARENA_NEW(arena, count + 1, iv_tensor_info);
    if (!all || !out->part || !out->base) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its names", file);
    for (size_t i = 0; i < count; i++) {
        IV_TRY(name_of(file, arena, &tensors[i], &all[i], err));
        if (!all[i].module) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its names", file);
    }
    if (count) qsort(all, count, sizeof *all, by_module);
    for (size_t i = 0; i < count; i++) {
        if (all[i].role == ROLE_BASE) {
            out->base[out->base_count] = *all[i].info;
            size_t n = strlen(all[i].module);
            char *name = iv_arena_alloc(arena, n + sizeof ".weight", 1);
            if (!name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its names", file);
            memcpy(name, all[i].module, n), memcpy(name + n, ".weight", sizeof ".weight");
            out->base[out->base_count++].name = name;
            continue;
        }
        iv_adapter_part *p = &out->part[out->count];
        IV_TRY(pair(file, config, &all[i], i + 1 < count ? &all[i + 1] : NULL, p, err));
        if (out->count && strcmp(p[-1].module, p->module) == 0)
            return iv_fail(err, IV_FORMAT, "%s: '%.200s': wanted one adapter in a file, found a second", file,
                           p->a.name);
        out->rank_max = iv_size_max(out->rank_max, p->rank);
        out->count++, i++;
    }
    if (out->count == 0) return iv_fail(err, IV_FORMAT, "%s: wanted tensors of an adapter, found none", file);
    return IV_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------- */

iv_status iv_adapter_read(const iv_adapter_files *f, const iv_tensor_info *t, void *out, size_t offset, size_t n,
                          iv_error *err) {
    if (f->data) {
        memcpy(out, f->data + t->offset + offset, n);
        return IV_OK;
    }
    return iv_file_read_at(f->fd, f->path, out, n, t->offset + offset, err);
}

enum { CHUNK_BYTES = 1 << 20 };

static iv_status check_finite(const iv_adapter_files *f, const iv_tensor_info *t, const void *chunk, size_t first,
                              size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++)
        if ((iv_bits(iv_element(t->dtype, chunk, i)) & 0x7f800000u) == 0x7f800000u)
            return iv_fail(err, IV_FORMAT, "%s: '%.200s': element %zu is not a finite number", f->path, t->name,
                           first + i);
    return IV_OK;
}

static void add_number(iv_digest *d, uint64_t n) { iv_digest_add(d, &n, sizeof n); }

static void add_text(iv_digest *d, const char *text) {
    add_number(d, strlen(text));
    iv_digest_add(d, text, strlen(text));
}

static iv_status hash_tensor(const iv_adapter_files *f, const iv_tensor_info *t, void *chunk, iv_digest *d,
                             iv_error *err) {
    iv_digest *data = iv_digest_new();
    uint8_t hash[32];
    iv_status status = data ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", f->path);
    for (size_t at = 0, n; status == IV_OK && at < t->bytes; at += n) {
        n = iv_size_min(CHUNK_BYTES, t->bytes - at);
        status = iv_adapter_read(f, t, chunk, at, n, err);
        size_t width = iv_dtype_bytes(t->dtype);
        if (status == IV_OK) status = check_finite(f, t, chunk, at / width, n / width, err);
        if (status == IV_OK) iv_digest_add(data, chunk, n);
    }
    if (!data) return status;
    iv_digest_finish(data, hash);
    add_text(d, iv_safetensors_dtype_name(t->dtype));
    add_number(d, (uint64_t)t->shape[0]), add_number(d, (uint64_t)t->shape[1]);
    iv_digest_add(d, hash, sizeof hash);
    return status;
}

iv_status iv_adapter_hash(iv_adapter_files *f, iv_error *err) {
    static const char head[] = "invar adapter 1\n";
    iv_digest *d = iv_digest_new();
    void *chunk = malloc(CHUNK_BYTES);
    iv_status status = d && chunk ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", f->path);
    if (status == IV_OK) iv_digest_add(d, head, sizeof head - 1), add_number(d, f->parts.count);
    for (size_t i = 0; status == IV_OK && i < f->parts.count; i++) {
        const iv_adapter_part *p = &f->parts.part[i];
        uint32_t scale = iv_bits(p->scale);
        add_text(d, p->module);
        iv_digest_add(d, &scale, sizeof scale);
        status = hash_tensor(f, &p->a, chunk, d, err);
        if (status == IV_OK) status = hash_tensor(f, &p->b, chunk, d, err);
    }
    if (d) iv_digest_finish(d, f->digest);
    free(chunk);
    return status;
}

static iv_status join(const char *dir, const char *name, char **out, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(dir, name, &path, err);
    *out = status == IV_OK ? strdup(path.data) : NULL;
    iv_buf_free(&path);
    if (status == IV_OK && !*out) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    return status;
}

/* A directory without the tensors often has them in a form that runs code when it is read. */
static iv_status check_files(const iv_adapter_files *f, const char *dir, iv_error *err) {
    if (!iv_file_exists(f->config_path))
        return iv_fail(err, IV_NOT_FOUND, "%s: wanted a directory that PEFT has saved, found no %s", dir,
                       IV_ADAPTER_CONFIG_NAME);
    if (!iv_file_exists(f->path))
        return iv_fail(err, IV_NOT_FOUND,
                       "%s: wanted %s, found none (adapter_model.bin is not read: save with "
                       "safe_serialization=True)",
                       dir, IV_ADAPTER_WEIGHTS_NAME);
    return IV_OK;
}

static iv_status open_all(iv_adapter_files *f, const char *dir, iv_error *err) {
    iv_buf text = {0};
    size_t size, count;
    iv_tensor_info *tensors;
    IV_TRY(join(dir, IV_ADAPTER_CONFIG_NAME, &f->config_path, err));
    IV_TRY(join(dir, IV_ADAPTER_WEIGHTS_NAME, &f->path, err));
    IV_TRY(check_files(f, dir, err));
    iv_status status = iv_file_read(f->config_path, IV_ADAPTER_CONFIG_BYTES_MAX, &text, err);
    if (status == IV_OK) status = iv_adapter_config_parse(f->config_path, text.data, text.len, &f->config, err);
    iv_buf_free(&text);
    IV_TRY(status);
    IV_TRY(iv_file_open(f->path, &f->fd, &size, err));
    IV_TRY(iv_safetensors_read(f->path, f->fd, size, &f->arena, &tensors, &count, err));
    IV_TRY(iv_adapter_parts_make(f->path, &f->config, tensors, count, &f->arena, &f->parts, err));
    return iv_adapter_hash(f, err);
}

iv_status iv_adapter_open(const char *dir, iv_adapter_files **out, iv_error *err) {
    iv_adapter_files *f = calloc(1, sizeof *f);
    if (!f) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    f->fd = -1;
    iv_status status = open_all(f, dir, err);
    if (status == IV_OK)
        *out = f;
    else
        iv_adapter_close(f);
    return status;
}

void iv_adapter_close(iv_adapter_files *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    iv_adapter_config_close(&f->config);
    free(f->config_path), free(f->path);
    iv_arena_free(&f->arena);
    free(f);
}
