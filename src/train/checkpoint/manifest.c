/* manifest.c: every member is checked on reading: against the directory's name, the files, or training.json.
 */
#include "train/checkpoint/manifest.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/json_out.h"
#include "format/json.h"
#include "train/checkpoint/files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MANIFEST_BYTES_MAX = 32 << 20, NAME_BYTES_MAX = 1024 };

iv_status iv_training_manifest_add(iv_training_manifest *m, const char *name, uint64_t bytes, const uint8_t digest[32],
                                   iv_error *err) {
    if (m->count == IV_TRAINING_FILES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: a checkpoint has at most %d files", name, IV_TRAINING_FILES_MAX);
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 16;
        iv_training_file *files = realloc(m->files, capacity * sizeof *files);
        if (!files) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its entry in the manifest", name);
        m->files = files, m->capacity = capacity;
    }
    iv_training_file *f = &m->files[m->count];
    *f = (iv_training_file){.name = strdup(name), .bytes = bytes};
    if (!f->name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its entry in the manifest", name);
    iv_digest_hex(digest, f->sha256);
    m->count++;
    return IV_OK;
}

const iv_training_file *iv_training_manifest_find(const iv_training_manifest *m, const char *name) {
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->files[i].name, name) == 0) return &m->files[i];
    return NULL;
}

void iv_training_manifest_free(iv_training_manifest *m) {
    for (size_t i = 0; i < m->count; i++) free(m->files[i].name);
    free(m->files);
    *m = (iv_training_manifest){0};
}

/* ---- writing -------------------------------------------------------------------------------------------- */

static bool make_text(const iv_training_manifest *m, iv_buf *text) {
    iv_json_out o = {.buf = text, .spaced = true};
    iv_out_open(&o, '{');
    iv_out_kv_int(&o, "training_checkpoint", IV_TRAINING_CHECKPOINT_VERSION);
    iv_out_kv_text(&o, "identity", m->identity);
    iv_out_kv_uint(&o, "step", m->step);
    iv_out_kv_open(&o, "files", '[');
    for (size_t i = 0; i < m->count; i++) {
        iv_out_open(&o, '{');
        iv_out_kv_text(&o, "name", m->files[i].name);
        iv_out_kv_uint(&o, "bytes", m->files[i].bytes);
        iv_out_kv_text(&o, "sha256", m->files[i].sha256);
        iv_out_close(&o, '}');
    }
    iv_out_close(&o, ']');
    iv_out_close(&o, '}');
    return !o.failed && iv_buf_putc(text, '\n');
}

iv_status iv_training_manifest_write(const iv_training_manifest *m, const char *dir, iv_error *err) {
    iv_buf path = {0}, text = {0};
    uint64_t bytes;
    uint8_t digest[32];
    iv_status status = iv_path_join(dir, IV_TRAINING_MANIFEST_NAME, &path, err);
    if (status == IV_OK && !make_text(m, &text)) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for it", path.data);
    if (status == IV_OK) status = iv_file_write(path.data, text.data, text.len, err);
    if (status == IV_OK) status = iv_training_hash_file(path.data, true, &bytes, digest, err);
    iv_buf_free(&path), iv_buf_free(&text);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static iv_status missing(const char *path, const char *field, iv_error *err) {
    return iv_fail(err, IV_FORMAT, "%s: %s is missing", path, field);
}

/* Files are below the checkpoint's directory, whatever a manifest says. */
static bool name_is_safe(const char *name) {
    if (!*name || strlen(name) > NAME_BYTES_MAX) return false;
    for (const char *part = name;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
        part += n;
        if (!*part) return true;
    }
}

static bool is_sha256(const char *s) { return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64; }

static iv_status read_file(const char *path, size_t index, json_t *value, iv_training_manifest *m, iv_error *err) {
    char where[64];
    iv_json_object o;
    const char *name = NULL, *sha256 = NULL;
    int64_t bytes = 0;
    bool found;
    uint8_t unset[32] = {0};
    snprintf(where, sizeof where, "files[%zu].", index);
    IV_TRY(iv_json_object_of(path, where, value, &o, err));
    IV_TRY(iv_json_object_string(&o, "name", &name, &found, err));
    if (!found) return iv_fail(err, IV_FORMAT, "%s: %sname is missing", path, where);
    IV_TRY(iv_json_object_int(&o, "bytes", 0, INT64_MAX, &bytes, &found, err));
    if (!found) return iv_fail(err, IV_FORMAT, "%s: %sbytes is missing", path, where);
    IV_TRY(iv_json_object_string(&o, "sha256", &sha256, &found, err));
    if (!found) return iv_fail(err, IV_FORMAT, "%s: %ssha256 is missing", path, where);
    if (!name_is_safe(name))
        return iv_fail(err, IV_FORMAT, "%s: %sname: wanted a file below the checkpoint, found '%.200s'", path, where,
                       name);
    if (!is_sha256(sha256) || json_object_size(value) != 3)
        return iv_fail(err, IV_FORMAT, "%s: %s: wanted name, bytes and sha256 of 64 digits", path, where);
    if (iv_training_manifest_find(m, name)) return iv_fail(err, IV_FORMAT, "%s: '%.200s' is listed twice", path, name);
    IV_TRY(iv_training_manifest_add(m, name, (uint64_t)bytes, unset, err));
    memcpy(m->files[m->count - 1].sha256, sha256, 65);
    return IV_OK;
}

static iv_status read_members(const char *path, uint64_t step, json_t *root, iv_training_manifest *m, iv_error *err) {
    iv_json_object o;
    int64_t version = 0, saved = 0;
    const char *identity = NULL;
    bool found;
    IV_TRY(iv_json_object_of(path, "", root, &o, err));
    IV_TRY(iv_json_object_int(&o, "training_checkpoint", 0, INT64_MAX, &version, &found, err));
    if (!found) return missing(path, "training_checkpoint", err);
    if (version != IV_TRAINING_CHECKPOINT_VERSION)
        return iv_fail(err, IV_UNSUPPORTED, "%s: training_checkpoint: wanted version %d, found %" PRId64, path,
                       IV_TRAINING_CHECKPOINT_VERSION, version);
    IV_TRY(iv_json_object_string(&o, "identity", &identity, &found, err));
    if (!found || strlen(identity) > IV_TRAINING_IDENTITY_BYTES_MAX) return missing(path, "identity", err);
    IV_TRY(iv_json_object_int(&o, "step", 0, INT64_MAX, &saved, &found, err));
    if (!found) return missing(path, "step", err);
    if ((uint64_t)saved != step)
        return iv_fail(err, IV_FORMAT, "%s: step: wanted %" PRIu64 " as in the directory's name, found %" PRId64, path,
                       step, saved);
    const json_t *files = json_object_get(root, "files");
    if (!json_is_array(files)) return missing(path, "files, an array,", err);
    if (json_object_size(root) != 4)
        return iv_fail(err, IV_FORMAT, "%s: wanted 4 members, found %zu", path, json_object_size(root));
    m->step = step;
    memcpy(m->identity, identity, strlen(identity) + 1);
    for (size_t i = 0; i < json_array_size(files); i++) IV_TRY(read_file(path, i, json_array_get(files, i), m, err));
    return IV_OK;
}

static iv_status check_file(const char *dir, const iv_training_file *f, bool verify, iv_buf *path, iv_error *err) {
    struct stat st;
    uint64_t bytes = 0;
    uint8_t digest[32];
    char hex[65];
    IV_TRY(iv_path_join(dir, f->name, path, err));
    if (!iv_file_exists(path->data)) return iv_fail(err, IV_FORMAT, "%s: is missing", path->data);
    if (stat(path->data, &st) != 0 || !S_ISREG(st.st_mode))
        return iv_fail(err, IV_FORMAT, "%s: wanted a file", path->data);
    if ((uint64_t)st.st_size != f->bytes)
        return iv_fail(err, IV_FORMAT, "%s: wanted %" PRIu64 " bytes, found %lld", path->data, f->bytes,
                       (long long)st.st_size);
    if (!verify) return IV_OK;
    IV_TRY(iv_training_hash_file(path->data, false, &bytes, digest, err));
    iv_digest_hex(digest, hex);
    if (bytes == f->bytes && strcmp(hex, f->sha256) == 0) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: SHA-256: wanted %s, found %s", path->data, f->sha256, hex);
}

iv_status iv_training_manifest_read(const char *dir, uint64_t step, bool verify, iv_training_manifest *m,
                                    iv_error *err) {
    iv_buf path = {0};
    json_t *root = NULL;
    *m = (iv_training_manifest){0};
    iv_status status = iv_path_join(dir, IV_TRAINING_MANIFEST_NAME, &path, err);
    if (status == IV_OK && !iv_file_exists(path.data))
        status = iv_fail(err, IV_FORMAT, "%s: is missing: the checkpoint is half written", path.data);
    if (status == IV_OK) status = iv_json_read(path.data, MANIFEST_BYTES_MAX, &root, err);
    if (status == IV_OK) status = read_members(path.data, step, root, m, err);
    json_decref(root);
    for (size_t i = 0; status == IV_OK && i < m->count; i++) status = check_file(dir, &m->files[i], verify, &path, err);
    iv_buf_free(&path);
    if (status != IV_OK) iv_training_manifest_free(m);
    return status;
}
