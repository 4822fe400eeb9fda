/* gguf_set.c: finding and opening the files. */
#include "format/gguf_set.h"
#include "base/file.h"
#include "base/size.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARD_SUFFIX = 20 /* -00001-of-00003.gguf */ };

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* Number and count of a shard's name; false: it is none. */
static bool shard_of(const char *name, unsigned *index, unsigned *count) {
    size_t n = strlen(name);
    int end = 0;
    if (n <= SHARD_SUFFIX) return false;
    return sscanf(name + n - SHARD_SUFFIX, "-%5u-of-%5u.gguf%n", index, count, &end) == 2 && end == SHARD_SUFFIX;
}

static bool has_magic(const char *path) {
    char magic[4] = "";
    FILE *f = fopen(path, "rbe");
    bool is = f && fread(magic, 1, sizeof magic, f) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    if (f) fclose(f);
    return is;
}

/* A name that stands for a model in a directory. */
static bool stands_for_model(const char *name) {
    unsigned index, count;
    return ends_with(name, ".gguf") && strncmp(name, "mmproj", 6) != 0 &&
           (!shard_of(name, &index, &count) || index == 1);
}

static iv_status search(const char *dir, iv_buf *path, bool *found, iv_error *err) {
    char names[2][256] = {"", ""};
    DIR *d = opendir(dir);
    size_t count = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!stands_for_model(e->d_name) || strlen(e->d_name) >= sizeof names[0]) continue;
        if (count < 2) strcpy(names[count], e->d_name);
        count++;
    }
    if (d) closedir(d);
    *found = count > 0;
    if (count > 1) {
        bool swap = strcmp(names[0], names[1]) > 0;
        return iv_fail(err, IV_INVALID, "%s: holds %zu GGUF models (%s, %s%s): give the path of one", dir, count,
                       names[swap], names[!swap], count > 2 ? ", ..." : "");
    }
    return count ? iv_path_join(dir, names[0], path, err) : IV_OK;
}

static bool has_file(const char *dir, const char *name) {
    iv_buf path = {0};
    iv_error unused;
    bool there = iv_path_join(dir, name, &path, &unused) == IV_OK && iv_file_exists(path.data);
    iv_buf_free(&path);
    return there;
}

iv_status iv_gguf_locate(const char *model, iv_buf *path, bool *found, iv_error *err) {
    struct stat st;
    *found = false;
    if (stat(model, &st) != 0) return IV_OK;
    if (S_ISDIR(st.st_mode)) {
        if (has_file(model, "model.safetensors") || has_file(model, "model.safetensors.index.json")) return IV_OK;
        return search(model, path, found, err);
    }
    *found = S_ISREG(st.st_mode) && has_magic(model);
    iv_buf_clear(path);
    if (*found && !iv_buf_puts(path, model)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", model);
    return IV_OK;
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static iv_status name_shards(const char *path, iv_gguf_set *s, iv_error *err) {
    unsigned index = 1, count = 1;
    bool sharded = shard_of(path, &index, &count);
    if (sharded && (index != 1 || count == 0 || count > IV_GGUF_SHARDS_MAX))
        return iv_fail(err, IV_INVALID, "%s: wanted the first of at most %d shards, found number %u of %u", path,
                       IV_GGUF_SHARDS_MAX, index, count);
    s->count = sharded ? count : 1;
    s->paths = IV_ARENA_NEW(&s->arena, s->count, const char *);
    s->fds = IV_ARENA_NEW(&s->arena, s->count, int);
    if (!s->paths || !s->fds) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < s->count; i++) {
        size_t n = strlen(path);
        char *name = iv_arena_strndup(&s->arena, path, n);
        if (!name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
        char suffix[SHARD_SUFFIX + 8];
        snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", (unsigned)(i + 1) % 100000, count % 100000);
        if (sharded) memcpy(name + n - SHARD_SUFFIX, suffix, SHARD_SUFFIX);
        s->paths[i] = name, s->fds[i] = -1;
    }
    return IV_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const iv_gguf_tensor *)a)->info.name, ((const iv_gguf_tensor *)b)->info.name);
}

void iv_gguf_sort(iv_gguf *g) {
    if (g->tensor_count > 1) qsort(g->tensors, g->tensor_count, sizeof *g->tensors, by_name);
}

static iv_status join(iv_gguf_set *s, const iv_gguf *of, iv_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < s->count; i++) total += of[i].tensor_count;
    if (total > IV_SAFETENSORS_TENSORS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu tensors, at most %zu are read", s->paths[0], total,
                       IV_SAFETENSORS_TENSORS_MAX);
    s->g = of[0], s->g.tensor_count = 0;
    s->g.tensors = IV_ARENA_NEW(&s->arena, total + 1, iv_gguf_tensor);
    if (!s->g.tensors) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", s->paths[0], total);
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < of[i].tensor_count; k++) {
            s->g.tensors[s->g.tensor_count] = of[i].tensors[k];
            s->g.tensors[s->g.tensor_count++].info.shard = (int)i;
        }
    iv_gguf_sort(&s->g);
    for (size_t i = 1; i < total; i++)
        if (by_name(&s->g.tensors[i - 1], &s->g.tensors[i]) == 0)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' is there twice", s->paths[0],
                           s->g.tensors[i].info.name);
    return IV_OK;
}

static iv_status open_all(const char *path, iv_gguf_set *s, iv_error *err) {
    IV_TRY(name_shards(path, s, err));
    iv_gguf *of = IV_ARENA_NEW(&s->arena, s->count, iv_gguf);
    if (!of) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < s->count; i++) {
        size_t size;
        IV_TRY(iv_file_open(s->paths[i], &s->fds[i], &size, err));
        IV_TRY(iv_gguf_read(s->paths[i], s->fds[i], size, &s->arena, &of[i], err));
    }
    const iv_gguf_value *split = iv_gguf_find(&of[0], "split.count");
    if (split && split->integer > 1 && (size_t)split->integer != s->count)
        return iv_fail(err, IV_FORMAT, "%s: split.count says %lld files, the name %zu", path, (long long)split->integer,
                       s->count);
    return join(s, of, err);
}

iv_status iv_gguf_set_open(const char *path, iv_gguf_set *out, iv_error *err) {
    *out = (iv_gguf_set){0};
    iv_status status = open_all(path, out, err);
    if (status != IV_OK) iv_gguf_set_close(out);
    return status;
}

void iv_gguf_set_close(iv_gguf_set *s) {
    for (size_t i = 0; s->fds && i < s->count; i++)
        if (s->fds[i] >= 0) close(s->fds[i]);
    iv_arena_free(&s->arena);
    *s = (iv_gguf_set){0};
}

const iv_gguf_tensor *iv_gguf_set_find(const iv_gguf_set *s, const char *name) {
    iv_gguf_tensor key = {.info = {.name = name}};
    return s->g.tensor_count ? bsearch(&key, s->g.tensors, s->g.tensor_count, sizeof key, by_name) : NULL;
}
