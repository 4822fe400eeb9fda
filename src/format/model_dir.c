/* model_dir.c: files next to the weights are copied; config.json makes the directory a model and comes last. */
#include "format/model_dir.h"
#include "base/file.h"
#include "format/checkpoint_write.h"
#include "format/json.h"
#include "format/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_NAME "config.json"
#define COPIED_BYTES_MAX ((size_t)1 << 30)

static const char *const copied[] = {"generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "vocab.txt",
                                     "tokenizer.model",
                                     "tekken.json",
                                     "chat_template.jinja",
                                     "chat_template.json"};
enum { COPIED = sizeof copied / sizeof *copied };

/* ---- config.json ---------------------------------------------------------------------------------------- */

static size_t skip_space(const char *text, size_t n, size_t at) {
    while (at < n && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at;
}

/* Behind the string that begins at `at`. */
static size_t skip_string(const char *text, size_t n, size_t at) {
    for (at++; at < n && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at + 1;
}

static bool spells(const char *text, size_t begin, size_t end, const char *word) {
    return end - begin == strlen(word) + 2 && memcmp(text + begin + 1, word, strlen(word)) == 0;
}

/* The next value of torch_dtype or dtype in the outermost object, from *at on; depth is kept between calls. False:
 * there is none. */
static bool next_dtype(const char *text, size_t n, size_t *at, int *depth, size_t *begin, size_t *end) {
    while (*at < n) {
        char c = text[*at];
        if (c != '"') {
            *depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            ++*at;
            continue;
        }
        size_t name = *at, after = skip_string(text, n, name);
        *at = after;
        size_t colon = skip_space(text, n, after);
        if (*depth != 1 || colon >= n || text[colon] != ':') continue;
        if (!spells(text, name, after, "torch_dtype") && !spells(text, name, after, "dtype")) continue;
        *begin = skip_space(text, n, colon + 1);
        if (*begin < n && text[*begin] == '"')
            *end = skip_string(text, n, *begin);
        else
            for (*end = *begin; *end < n && !strchr(",} \t\r\n", text[*end]);) ++*end;
        *at = *end;
        return *end <= n;
    }
    return false;
}

iv_status iv_config_with_dtype(const char *name, const char *text, size_t n, iv_dtype dtype, iv_buf *out,
                               iv_error *err) {
    json_t *root;
    IV_TRY(iv_json_parse_python(name, text, n, &root, err)); /* so that what follows may trust the text */
    bool object = json_is_object(root), any = json_object_size(root) > 0;
    json_decref(root);
    if (!object) return iv_fail(err, IV_FORMAT, "%s: wanted an object", name);
    size_t at = 0, done = 0, found = 0, begin, end;
    int depth = 0;
    bool ok = true;
    iv_buf_clear(out);
    for (; ok && next_dtype(text, n, &at, &depth, &begin, &end); found++) {
        static const char torch[] = "torch.";
        size_t prefix = end - begin > sizeof torch && memcmp(text + begin + 1, torch, sizeof torch - 1) == 0 ? 6 : 0;
        ok = iv_buf_append(out, text + done, begin - done) &&
             iv_buf_printf(out, "\"%.*s%s\"", (int)prefix, torch, iv_dtype_name(dtype));
        done = end;
    }
    if (ok && found == 0) {
        done = skip_space(text, n, 0) + 1;
        ok = iv_buf_append(out, text, done) &&
             iv_buf_printf(out, "\n  \"torch_dtype\": \"%s\"%s", iv_dtype_name(dtype), any ? "," : "\n");
    }
    if (!ok || !iv_buf_append(out, text + done, n - done))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for another type", name);
    return IV_OK;
}

/* Behind the value that begins at `at`. */
static size_t skip_value(const char *text, size_t n, size_t at) {
    int depth = 0;
    do {
        char c = at < n ? text[at] : ',';
        if (c == '"') {
            at = skip_string(text, n, at);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}')) break;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        at++;
    } while (at < n);
    return at < n ? at : n;
}

/* The next member of the outermost object that describes packed weights, with one of its commas. */
static bool next_packed(const char *text, size_t n, size_t *at, size_t *begin, size_t *end) {
    size_t name, after, value;
    do {
        while (*at < n && text[*at] != '"') ++*at;
        if (*at >= n) return false;
        name = *at, after = skip_string(text, n, name), value = skip_space(text, n, after);
        *at = value = skip_value(text, n, skip_space(text, n, value + 1));
    } while (!spells(text, name, after, "quantization_config") && !spells(text, name, after, "compression_config"));
    *begin = name, *end = value;
    if (value < n && text[value] == ',') {
        *end = *at = skip_space(text, n, value + 1);
        return true;
    }
    while (*begin > 0 && strchr(" \t\r\n", text[*begin - 1])) --*begin;
    if (*begin > 0 && text[*begin - 1] == ',') --*begin;
    return true;
}

iv_status iv_config_unpacked(const char *name, const char *text, size_t n, iv_buf *out, iv_error *err) {
    size_t at = 0, done = 0, begin, end;
    bool ok = true;
    iv_buf_clear(out);
    for (; ok && next_packed(text, n, &at, &begin, &end); done = end)
        if (begin > done) ok = iv_buf_append(out, text + done, begin - done);
    if (!ok || !iv_buf_append(out, text + done, n - done))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its text", name);
    return IV_OK;
}

/* ---- the directory -------------------------------------------------------------------------------------- */

static iv_status read_from(const char *dir, const char *name, iv_buf *path, iv_buf *out, iv_error *err) {
    return iv_model_file_read(dir, name, COPIED_BYTES_MAX, path, out, err);
}

static bool is_empty(const char *path) {
    DIR *d = opendir(path);
    size_t entries = 0;
    if (!d) return false;
    for (struct dirent *e; (e = readdir(d));) entries += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return entries == 0;
}

static iv_status check_there(iv_model_dir *d, bool overwrite, iv_error *err) {
    struct stat target, source;
    if (stat(d->path, &target) != 0)
        return iv_fail(err, IV_IO, "%s: cannot make the directory: %s", d->path, strerror(errno));
    if (!S_ISDIR(target.st_mode)) return iv_fail(err, IV_INVALID, "%s: wanted a directory, found a file", d->path);
    if (stat(d->source, &source) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        return iv_fail(err, IV_INVALID, "%s: is the model itself", d->path);
    d->was_empty = is_empty(d->path);
    if (!d->was_empty && !overwrite)
        return iv_fail(err, IV_INVALID, "%s: the directory is not empty (--overwrite replaces a model there)", d->path);
    return IV_OK;
}

static iv_status make_config(iv_model_dir *d, bool has_dtype, iv_dtype dtype, iv_error *err) {
    iv_buf path = {0}, text = {0}, typed = {0};
    iv_status status = read_from(d->source, CONFIG_NAME, &path, &text, err);
    if (status == IV_OK) status = iv_config_with_dtype(path.data, text.data, text.len, dtype, &typed, err);
    const iv_buf *from = has_dtype ? &typed : &text;
    if (status == IV_OK) status = iv_config_unpacked(path.data, from->data, from->len, &d->config, err);
    iv_buf_free(&path), iv_buf_free(&text), iv_buf_free(&typed);
    return status;
}

iv_status iv_model_dir_open(const char *path, const char *source, bool overwrite, bool has_dtype, iv_dtype dtype,
                            iv_model_dir *d, iv_error *err) {
    *d = (iv_model_dir){.path = path, .source = source};
    iv_status status = make_config(d, has_dtype, dtype, err);
    if (status == IV_OK) {
        d->made = mkdir(path, 0777) == 0;
        status = !d->made && errno != EEXIST
                     ? iv_fail(err, IV_IO, "%s: cannot make the directory: %s", path, strerror(errno))
                     : check_there(d, overwrite, err);
        if (status != IV_OK && d->made) rmdir(path);
    }
    if (status != IV_OK) iv_buf_free(&d->config);
    return status;
}

/* Not being there is fine. */
static iv_status remove_in(const iv_model_dir *d, const char *name, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(d->path, name, &path, err);
    if (status == IV_OK && unlink(path.data) != 0 && errno != ENOENT)
        status = iv_fail(err, IV_IO, "%s: cannot be removed: %s", path.data, strerror(errno));
    iv_buf_free(&path);
    return status;
}

iv_status iv_model_dir_clear(iv_model_dir *d, iv_error *err) {
    if (d->was_empty) return IV_OK;
    IV_TRY(remove_in(d, CONFIG_NAME, err));
    return iv_checkpoint_remove(d->path, err);
}

/* An old file goes in any case, so that no tokenizer of two models results and no link is written through. */
static iv_status copy_file(const iv_model_dir *d, const char *name, iv_error *err) {
    iv_buf path = {0}, bytes = {0};
    iv_status status = remove_in(d, name, err);
    if (status == IV_OK && iv_model_file_exists(d->source, name)) {
        status = read_from(d->source, name, &path, &bytes, err);
        if (status == IV_OK) status = iv_path_join(d->path, name, &path, err);
        if (status == IV_OK) status = iv_file_write(path.data, bytes.data, bytes.len, err);
    }
    iv_buf_free(&path), iv_buf_free(&bytes);
    return status;
}

static iv_status copy_all(const iv_model_dir *d, iv_error *err) {
    for (size_t i = 0; i < COPIED; i++) IV_TRY(copy_file(d, copied[i], err));
    iv_buf path = {0};
    iv_status status = iv_path_join(d->path, CONFIG_NAME, &path, err);
    if (status == IV_OK) status = iv_file_write(path.data, d->config.data, d->config.len, err);
    iv_buf_free(&path);
    return status;
}

iv_status iv_model_dir_close(iv_model_dir *d, iv_status status, iv_error *err) {
    iv_error unused;
    if (status == IV_OK) status = copy_all(d, err);
    if (status != IV_OK && d->was_empty) {
        for (size_t i = 0; i < COPIED; i++) remove_in(d, copied[i], &unused);
        iv_checkpoint_remove(d->path, &unused);
        if (d->made) rmdir(d->path);
    }
    iv_buf_free(&d->config);
    return status;
}
