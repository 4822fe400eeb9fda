/* foreign.c: file names of other formats, and advice for each. */
#include "format/foreign.h"
#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { FOUND_BYTES = 512, NAME_BYTES = 256 };
static _Thread_local char found[FOUND_BYTES];

typedef struct foreign {
    const char *file, *hint;
} foreign;

#define PICKLED ": only safetensors are read (transformers' save_pretrained writes them)"
#define MISTRAL ", Mistral's own format: only that of transformers is read"

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static bool exists(const char *dir, const char *name) {
    iv_buf path = {0};
    iv_error ignored;
    bool there = iv_path_join(dir, name, &path, &ignored) == IV_OK && iv_file_exists(path.data);
    iv_buf_free(&path);
    return there;
}

static bool is_gguf(const char *dir, const char *name) {
    (void)dir;
    return ends_with(name, ".gguf");
}

/* A checkpoint of a training run: its model is a folder in it. */
static bool is_checkpoint(const char *dir, const char *name) {
    char inside[NAME_BYTES + 40];
    if (strncmp(name, "checkpoint-", 11) != 0) return false;
    snprintf(inside, sizeof inside, "%s/model/config.json", name);
    return exists(dir, inside);
}

/* The last wanted name in the order of bytes; false: none. */
static bool last_of(const char *dir, bool (*wanted)(const char *dir, const char *name), char out[NAME_BYTES]) {
    DIR *d = opendir(dir);
    out[0] = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strlen(e->d_name) < NAME_BYTES && strcmp(e->d_name, out) > 0 && wanted(dir, e->d_name))
            strcpy(out, e->d_name);
    if (d) closedir(d);
    return out[0] != 0;
}

static const char *gguf_in(const char *dir, const char *before, const char *after) {
    char name[NAME_BYTES];
    if (!last_of(dir, is_gguf, name)) return "";
    snprintf(found, FOUND_BYTES, "%s%s: of GGUF files a model, or the first of its shards, is read%s", before, name,
             after);
    return found;
}

static const char *deeper(const char *dir, const char *checkpoint, const char *folder) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    bool long_path = n > 200;
    snprintf(found, FOUND_BYTES, " (found the output of a training run: its model is %.*s%s%s%s)",
             long_path ? 3 : (int)n, long_path ? "..." : dir, "/", checkpoint, folder);
    return found;
}

const char *iv_foreign_path(const char *path) {
    if (ends_with(path, ".gguf")) return "a file that does not begin as GGUF does (cut short?)";
    if (ends_with(path, ".safetensors") || ends_with(path, ".json")) return "a file: give the directory that it is in";
    return "a file";
}

static const char *first_of(const char *dir, const foreign *files, size_t count) {
    const char *hint = "";
    iv_buf path = {0};
    iv_error ignored;
    for (size_t i = 0; i < count && !*hint; i++)
        if (iv_path_join(dir, files[i].file, &path, &ignored) == IV_OK && iv_file_exists(path.data))
            hint = files[i].hint;
    iv_buf_free(&path);
    return hint;
}

const char *iv_foreign_weights(const char *dir) {
    static const foreign files[] = {
        {"pytorch_model.bin", ", but pytorch_model.bin" PICKLED},
        {"pytorch_model.bin.index.json", ", but pytorch_model.bin.index.json" PICKLED},
        {"adapter_model.safetensors",
         ", but adapter_model.safetensors: an adapter is given next to its base model (--lora)"},
        {"adapter_model.bin", ", but adapter_model.bin: an adapter is given next to its base model (--lora)"},
        {"consolidated.safetensors", ", but consolidated.safetensors" MISTRAL},
    };
    const char *hint = first_of(dir, files, sizeof files / sizeof *files);
    return *hint ? hint : gguf_in(dir, ", but ", "");
}

const char *iv_foreign_config(const char *dir) {
    static const foreign files[] = {
        {"adapter_config.json", " (found adapter_config.json: an adapter is given next to its base model (--lora))"},
        {"params.json", " (found params.json" MISTRAL ")"},
        {"snapshots", " (found snapshots, as in the hub's cache: the model is a folder in it)"},
    };
    const char *hint = first_of(dir, files, sizeof files / sizeof *files);
    char name[NAME_BYTES];
    if (*hint) return hint;
    if (exists(dir, "model/config.json")) return deeper(dir, "", "model");
    if (last_of(dir, is_checkpoint, name)) return deeper(dir, name, "/model");
    return gguf_in(dir, " (found ", ")");
}

const char *iv_foreign_tokenizer(const char *dir) {
    static const foreign files[] = {
        {"tekken.json", ", but tekken.json" MISTRAL},
        {"tokenizer.model", ", but tokenizer.model, which transformers can turn into it"},
        {"vocab.json", ", but vocab.json, which transformers can turn into it"},
    };
    return first_of(dir, files, sizeof files / sizeof *files);
}
