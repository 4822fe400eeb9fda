/* batch_file.c: reading lines, and finding where an output ends. */
#include "serve/batch_file.h"
#include "base/file.h"
#include "base/utf8.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_BYTES_MAX ((size_t)1 << 30)
#define OUTPUT_BYTES_MAX ((size_t)1 << 34)

static const char answer_begins[] = "{\"id\":\"batch_req_"; /* as batch.c writes it */

/* ---- the input ----------------------------------------------------------------------------------------- */

static bool blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i])) return false;
    return true;
}

static bool add_line(iv_batch_lines *l, const iv_batch_line *line) {
    if ((l->count & (l->count + 1)) == 0) { /* grow at 0, 1, 3, 7, ... */
        iv_batch_line *more = realloc(l->lines, 2 * (l->count + 1) * sizeof *more);
        if (!more) return false;
        l->lines = more;
    }
    l->lines[l->count++] = *line;
    return true;
}

bool iv_batch_is_standard(const char *path) { return strcmp(path, "-") == 0; }

static iv_status read_standard(iv_buf *out, iv_error *err) {
    char piece[1 << 16];
    out->limit = INPUT_BYTES_MAX;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
        if (n == 0) return IV_OK;
        if (n < 0) return iv_fail(err, IV_IO, "standard input: %s", strerror(errno));
        if (!iv_buf_append(out, piece, (size_t)n))
            return iv_fail(err, IV_LIMIT, "standard input: more than %zu bytes, or no memory", INPUT_BYTES_MAX);
    }
}

iv_status iv_batch_lines_read(const char *path, iv_batch_lines *out, iv_error *err) {
    bool standard = iv_batch_is_standard(path);
    IV_TRY(standard ? read_standard(&out->file, err) : iv_file_read(path, INPUT_BYTES_MAX, &out->file, err));
    return iv_batch_lines_split(standard ? "standard input" : path, out, err);
}

iv_status iv_batch_lines_split(const char *path, iv_batch_lines *out, iv_error *err) {
    out->places = json_object();
    bool ok = out->places != NULL;
    const char *at = out->file.data, *end = at + out->file.len;
    if (at) at += iv_utf8_mark(at, out->file.len);
    for (size_t number = 1; ok && at && at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        iv_batch_line line = {.text = at, .bytes = (size_t)(stop - at), .number = number};
        if (!blank(line.text, line.bytes)) ok = add_line(out, &line);
        at = stop + (stop < end);
    }
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    return out->count ? IV_OK : iv_fail(err, IV_INVALID, "%s: wanted lines with requests, found none", path);
}

void iv_batch_lines_free(iv_batch_lines *l) {
    iv_buf_free(&l->file);
    free(l->lines);
    json_decref(l->places);
    *l = (iv_batch_lines){0};
}

static iv_status wrong(const char *name, const char *wanted, const json_t *found, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    return iv_fail(err, IV_INVALID, "%s: wanted %s, found %s", name, wanted, iv_json_shown(found, shown));
}

/* A line's custom_id, if no line before it has the same. */
static iv_status read_id(iv_batch_lines *l, size_t place, iv_batch_request *r, iv_error *err) {
    json_t *id = json_object_get(r->root, "custom_id");
    if (!json_is_string(id)) return wrong("custom_id", "a string", id, err);
    r->id = id;
    const char *key = json_string_value(id);
    size_t n = json_string_length(id);
    json_t *known = json_object_getn(l->places, key, n);
    if (!known) {
        if (json_object_setn_new(l->places, key, n, json_integer((json_int_t)place)) != 0)
            return iv_fail(err, IV_NO_MEMORY, "custom_id: no memory");
    } else if ((size_t)json_integer_value(known) != place) {
        return iv_fail(err, IV_INVALID, "custom_id: wanted one of its own, found that of line %zu",
                       l->lines[json_integer_value(known)].number);
    }
    return IV_OK;
}

static iv_status check_names(json_t *root, iv_error *err) {
    static const char *const names[] = {"custom_id", "method", "url", "body"};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        size_t i = 0;
        while (i < 4 && strcmp(key, names[i]) != 0) i++;
        if (i == 4 && !json_is_null(value))
            return iv_fail(err, IV_INVALID,
                           "%.60s: wanted one of a batch's fields, custom_id, method, url and body, found this one",
                           key);
    }
    return IV_OK;
}

static iv_status read_url(const json_t *url, iv_batch_request *out, iv_error *err) {
    static const char *const urls[] = {"/v1/completions", "/v1/chat/completions", "/v1/responses"}; /* as in `api` */
    const char *text = json_string_value(url);
    for (int i = 0; text && i < 3; i++)
        if (strcmp(text, urls[i]) == 0) {
            out->api = i;
            return IV_OK;
        }
    return wrong("url", "\"/v1/chat/completions\", \"/v1/completions\" or \"/v1/responses\"", url, err);
}

iv_status iv_batch_line_read(iv_batch_lines *l, size_t place, iv_batch_request *out, iv_error *err) {
    const iv_batch_line *line = &l->lines[place];
    char name[48];
    *out = (iv_batch_request){0};
    snprintf(name, sizeof name, "line %zu", line->number);
    IV_TRY(iv_json_parse(name, line->text, line->bytes, &out->root, err));
    if (!json_is_object(out->root))
        return iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found %s", name, iv_json_type_name(out->root));
    IV_TRY(read_id(l, place, out, err));
    IV_TRY(check_names(out->root, err));
    const json_t *method = json_object_get(out->root, "method");
    if (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)
        return wrong("method", "\"POST\"", method, err);
    IV_TRY(read_url(json_object_get(out->root, "url"), out, err));
    out->body = json_object_get(out->root, "body");
    if (!json_is_object(out->body)) return wrong("body", "a JSON object", out->body, err);
    if (json_is_true(json_object_get(out->body, "stream")))
        return iv_fail(err, IV_UNSUPPORTED, "stream: wanted false, for a batch has nobody to stream to, found true");
    if (!iv_json_member_text(line->text, line->bytes, "body", &out->body_text, &out->body_bytes))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    return IV_OK;
}

/* ---- the output ---------------------------------------------------------------------------------------- */

/* Is this line of the output the answer to the input's at `place`? */
static iv_status check_answer(const char *path, iv_batch_lines *l, size_t place, const char *text, size_t n,
                              iv_error *err) {
    json_t *answer = NULL;
    iv_batch_request r = {0};
    iv_error ignored;
    if (place >= l->count)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %zu answers, as the input has lines, found more", path,
                       l->count);
    if (n >= sizeof answer_begins - 1 && memcmp(text, answer_begins, sizeof answer_begins - 1) == 0)
        IV_TRY(iv_json_parse(path, text, n, &answer, err));
    (void)iv_batch_line_read(l, place, &r, &ignored);
    json_t *found = json_object_get(answer, "custom_id"), *null = json_null();
    bool same = json_is_object(json_object_get(answer, "response")) && json_equal(found, r.id ? r.id : null);
    json_decref(answer), json_decref(r.root);
    if (same) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: line %zu: wanted the answer to line %zu of the input, found something else",
                   path, place + 1, l->lines[place].number);
}

/* What a run that was cut leaves behind its last whole line. */
static bool cut_answer(const char *text, size_t n) {
    size_t most = sizeof answer_begins - 1;
    return memcmp(text, answer_begins, n < most ? n : most) == 0;
}

static iv_status find_end(const char *path, iv_batch_lines *l, size_t *kept, size_t *bytes, iv_error *err) {
    iv_buf file = {0};
    iv_status status = iv_file_read(path, OUTPUT_BYTES_MAX, &file, err);
    *kept = *bytes = 0;
    while (status == IV_OK && *bytes < file.len) {
        const char *at = file.data + *bytes, *stop = memchr(at, '\n', file.len - *bytes);
        if (stop) {
            status = check_answer(path, l, *kept, at, (size_t)(stop - at), err);
            ++*kept, *bytes += (size_t)(stop - at) + 1;
            continue;
        }
        if (!cut_answer(at, file.len - *bytes))
            status = iv_fail(err, IV_INVALID, "%s: wanted answers of a batch, found another file", path);
        break;
    }
    iv_buf_free(&file);
    return status;
}

static iv_status prepare(const char *path, iv_batch_lines *l, int fd, size_t *kept, iv_error *err) {
    struct stat s;
    size_t bytes;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        return iv_fail(err, IV_IO, "%s: wanted a regular file, or - for standard output, found a device or a pipe",
                       path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return iv_fail(err, IV_BUSY, "%s: another batch writes it", path);
    IV_TRY(find_end(path, l, kept, &bytes, err));
    if (ftruncate(fd, (off_t)bytes) != 0 || lseek(fd, 0, SEEK_END) < 0)
        return iv_fail(err, IV_IO, "%s: %s", path, strerror(errno));
    return IV_OK;
}

iv_status iv_batch_output_open(const char *path, iv_batch_lines *l, int *fd, size_t *kept, iv_error *err) {
    *kept = 0;
    if (iv_batch_is_standard(path)) {
        *fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
        return *fd >= 0 ? IV_OK : iv_fail(err, IV_IO, "standard output: %s", strerror(errno));
    }
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return iv_fail(err, IV_IO, "%s: cannot write: %s", path, strerror(errno));
    iv_status status = prepare(path, l, *fd, kept, err);
    if (status == IV_OK) return IV_OK;
    close(*fd);
    *fd = -1;
    return status;
}
