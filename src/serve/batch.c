/* batch.c: a window of lines runs through the handlers; answers are written in the order of the input.
 *
 * Invariant: a slot of the window is free, running (it has an HTTP request) or done (it has an answer). The slot of
 * the next line to write is not reused before its answer is in the file. */
#include "serve/batch.h"
#include "base/file.h"
#include "base/utf8.h"
#include "format/json.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"
#include "serve/lora_modules.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STOP_LOOK_MS = 100 }; /* longest time between two calls of stop() */
#define INPUT_BYTES_MAX ((size_t)1 << 30)
#define OUTPUT_BYTES_MAX ((size_t)1 << 34)

static const struct {
    const char *url;
    void (*handle)(void *user, iv_http_request *q);
} apis[IV_BATCH_APIS] = {[IV_BATCH_COMPLETIONS] = {"/v1/completions", iv_handle_completions},
                         [IV_BATCH_CHAT] = {"/v1/chat/completions", iv_handle_chat},
                         [IV_BATCH_RESPONSES] = {"/v1/responses", iv_handle_responses},
                         [IV_BATCH_MESSAGES] = {"/v1/messages", iv_handle_messages}};

static const char answer_begins[] = "{\"id\":\"batch_req_"; /* as take_answer writes it */

/* ---- the input ---------------------------------------------------------------------------------------- */

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

/* "-": standard input, or output. */
static bool is_standard(const char *path) { return strcmp(path, "-") == 0; }

/* A stop that comes before the read would not interrupt it: the wait has an end. */
static iv_status read_standard(const iv_batch_options *o, iv_buf *out, iv_error *err) {
    char piece[1 << 16];
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    out->limit = INPUT_BYTES_MAX;
    for (;;) {
        if (o->stop && o->stop(o->user)) return iv_fail(err, IV_IO, "standard input: interrupted");
        if (poll(&in, 1, STOP_LOOK_MS) <= 0) continue;
        ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
        if (n == 0) return IV_OK;
        if (n < 0) return iv_fail(err, IV_IO, "standard input: %s", strerror(errno));
        if (!iv_buf_append(out, piece, (size_t)n))
            return iv_fail(err, IV_LIMIT, "standard input: more than %zu bytes, or no memory", INPUT_BYTES_MAX);
    }
}

/* Reads the lines that are not blank; standard input up to its end. *out is zeroed. */
static iv_status read_lines(const iv_batch_options *o, iv_batch_lines *out, iv_error *err) {
    const char *path = o->input;
    bool standard = is_standard(path);
    IV_TRY(standard ? read_standard(o, &out->file, err) : iv_file_read(path, INPUT_BYTES_MAX, &out->file, err));
    return iv_batch_lines_split(standard ? "standard input" : path, out, err);
}

iv_status iv_batch_lines_split(const char *path, iv_batch_lines *out, iv_error *err) {
    out->index_by_id = json_object();
    bool ok = out->index_by_id != NULL;
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
    json_decref(l->index_by_id);
    *l = (iv_batch_lines){0};
}

static iv_status wrong(const char *name, const char *wanted, const json_t *found, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    return iv_fail(err, IV_INVALID, "%s: wanted %s, found %s", name, wanted, iv_json_shown(found, shown));
}

/* Reads a line's custom_id, which no earlier line may have. */
static iv_status read_id(iv_batch_lines *l, size_t index, iv_batch_request *r, iv_error *err) {
    json_t *id = json_object_get(r->root, "custom_id");
    if (!json_is_string(id)) return wrong("custom_id", "a string", id, err);
    r->id = id;
    const char *key = json_string_value(id);
    size_t n = json_string_length(id);
    json_t *known = json_object_getn(l->index_by_id, key, n);
    if (!known) {
        if (json_object_setn_new(l->index_by_id, key, n, json_integer((json_int_t)index)) != 0)
            return iv_fail(err, IV_NO_MEMORY, "custom_id: no memory");
    } else if ((size_t)json_integer_value(known) != index) {
        return iv_fail(err, IV_INVALID, "custom_id: wanted a unique one, found that of line %zu",
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
    const char *text = json_string_value(url);
    for (int i = 0; text && i < IV_BATCH_APIS; i++)
        if (strcmp(text, apis[i].url) == 0) {
            out->api = i;
            return IV_OK;
        }
    return wrong("url", "\"/v1/chat/completions\", \"/v1/completions\", \"/v1/responses\" or \"/v1/messages\"", url,
                 err);
}

iv_status iv_batch_line_read(iv_batch_lines *l, size_t index, iv_batch_request *out, iv_error *err) {
    const iv_batch_line *line = &l->lines[index];
    char name[48];
    *out = (iv_batch_request){0};
    snprintf(name, sizeof name, "line %zu", line->number);
    IV_TRY(iv_json_parse(name, line->text, line->bytes, &out->root, err));
    if (!json_is_object(out->root))
        return iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found %s", name, iv_json_type_name(out->root));
    IV_TRY(read_id(l, index, out, err));
    IV_TRY(check_names(out->root, err));
    const json_t *method = json_object_get(out->root, "method");
    if (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)
        return wrong("method", "\"POST\"", method, err);
    IV_TRY(read_url(json_object_get(out->root, "url"), out, err));
    out->body = json_object_get(out->root, "body");
    if (!json_is_object(out->body)) return wrong("body", "a JSON object", out->body, err);
    if (json_is_true(json_object_get(out->body, "stream")))
        return iv_fail(err, IV_UNSUPPORTED, "stream: wanted false in a batch, found true");
    if (!iv_json_member_text(line->text, line->bytes, "body", &out->body_text, &out->body_bytes))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    return IV_OK;
}

/* ---- the output --------------------------------------------------------------------------------------- */

/* Whether this line of the output answers line `index` of the input. */
static iv_status check_answer(const char *path, iv_batch_lines *l, size_t index, const char *text, size_t n,
                              iv_error *err) {
    json_t *answer = NULL;
    iv_batch_request r = {0};
    iv_error ignored;
    if (index >= l->count)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %zu answers, as the input has lines, found more", path,
                       l->count);
    if (n >= sizeof answer_begins - 1 && memcmp(text, answer_begins, sizeof answer_begins - 1) == 0)
        IV_TRY(iv_json_parse(path, text, n, &answer, err));
    (void)iv_batch_line_read(l, index, &r, &ignored);
    json_t *found = json_object_get(answer, "custom_id"), *null = json_null();
    bool same = json_is_object(json_object_get(answer, "response")) && json_equal(found, r.id ? r.id : null);
    json_decref(answer), json_decref(r.root);
    if (same) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: line %zu: wanted the answer to line %zu of the input, found something else",
                   path, index + 1, l->lines[index].number);
}

/* Whether this is the beginning of an answer, as an interrupted run leaves it. */
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

/* Opens and locks the output after its last whole line. *kept: lines that answer the first lines of the input. Any
 * other file is refused and left unchanged. Standard output is used as it is, and nothing is kept. */
static iv_status open_output(const char *path, iv_batch_lines *l, int *fd, size_t *kept, iv_error *err) {
    *kept = 0;
    if (is_standard(path)) {
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

enum {
    WINDOW_MIN = 64,
    WINDOW_MAX = 1024 /* lines running, or done and waiting for an earlier one */
};

typedef enum slot_state { FREE, RUNNING, DONE } slot_state;

typedef struct batch batch;
typedef struct slot {
    batch *b;
    slot_state state;
    size_t index; /* of its line */
    iv_http_request *http_request;
    iv_buf id; /* custom_id; data NULL: none */
    iv_buf answer;
    int status;
} slot;

struct batch {
    const iv_batch_options *o;
    iv_server_options server_options;
    iv_server server;
    char model_name[IV_MODEL_NAME_BYTES];
    iv_batch_lines lines;
    iv_batch_counts *counts;
    int fd;
    size_t window, next; /* next: the line whose answer is next in the file */
    slot *slots;         /* line i uses slot i % window */
    bool busy;           /* the bridge's queue is full */
    iv_status failed;    /* the error that ends the run */
    iv_error why;
};

static void fail(batch *b, iv_status status, const char *message) {
    if (b->failed == IV_OK) b->failed = iv_fail(&b->why, status, "%s", message);
}

/* ---- a line ------------------------------------------------------------------------------------------- */

static void request_id(const slot *s, char out[48]) {
    snprintf(out, 48, "batch_req_%zu", s->b->lines.lines[s->index].number);
}

/* Stores a line's answer; body is JSON. */
static void take_answer(slot *s, int status, const void *body, size_t bytes) {
    char id[48];
    iv_json_out o = {.buf = &s->answer};
    request_id(s, id);
    iv_buf_clear(&s->answer);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "id", id);
    iv_out_key(&o, "custom_id");
    if (s->id.data)
        iv_out_string(&o, s->id.data, s->id.len);
    else
        iv_out_null(&o);
    iv_out_key(&o, "response"), iv_out_open(&o, '{');
    iv_out_kv_uint(&o, "status_code", (uint64_t)status);
    iv_out_kv_text(&o, "request_id", id);
    iv_out_key(&o, "body"), iv_out_raw(&o, body, bytes);
    iv_out_close(&o, '}');
    iv_out_kv_null(&o, "error");
    iv_out_close(&o, '}');
    s->state = DONE, s->status = status;
    if (o.failed || !iv_buf_putc(&s->answer, '\n')) fail(s->b, IV_NO_MEMORY, "answer: no memory");
}

/* Errors of the server (lost engine, no memory) end the run; they are not the line's answer. */
static void replied(void *user, int status, const void *body, size_t bytes) {
    slot *s = user;
    batch *b = s->b;
    iv_bridge_stats stats;
    s->http_request = NULL;
    s->state = FREE;
    if (status == 429) {
        b->busy = true;
        return;
    }
    if (status >= 500) {
        iv_bridge_get_stats(b->server.bridge, &stats);
        if (stats.failed) {
            fail(b, IV_IO, stats.why);
            return;
        }
    }
    if (status == 503 || status == 529)
        fail(b, IV_NO_MEMORY, "request: no memory");
    else
        take_answer(s, status, body, bytes);
}

static void refuse(slot *s, const iv_batch_request *r, const iv_error *why) {
    char id[48];
    iv_buf body = {0};
    iv_json_out o = {.buf = &body};
    request_id(s, id);
    int status = iv_api_write_error(&o, r->body ? apis[r->api].url : "", id, why);
    if (o.failed || why->status == IV_NO_MEMORY)
        fail(s->b, IV_NO_MEMORY, "line: no memory");
    else
        take_answer(s, status, body.data, body.len);
    iv_buf_free(&body);
}

static void ask(slot *s, const iv_batch_request *r) {
    char id[48];
    request_id(s, id);
    s->http_request = iv_http_request_local(apis[r->api].url, id, r->body_text, r->body_bytes, replied, s);
    if (!s->http_request) {
        fail(s->b, IV_NO_MEMORY, "line: no memory");
        return;
    }
    s->state = RUNNING;
    apis[r->api].handle(&s->b->server, s->http_request);
}

static void start(batch *b, size_t index) {
    slot *s = &b->slots[index % b->window];
    iv_batch_request r;
    iv_error why = {0};
    s->b = b, s->index = index;
    iv_buf_free(&s->id);
    iv_status status = iv_batch_line_read(&b->lines, index, &r, &why);
    if (r.id && !iv_buf_append(&s->id, json_string_value(r.id), json_string_length(r.id)))
        fail(b, IV_NO_MEMORY, "line: no memory");
    else if (status != IV_OK)
        refuse(s, &r, &why);
    else
        ask(s, &r);
    json_decref(r.root);
}

/* ---- the run ------------------------------------------------------------------------------------------ */

static void write_line(batch *b, const slot *s) {
    for (size_t at = 0; at < s->answer.len;) {
        ssize_t n = write(b->fd, s->answer.data + at, s->answer.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) { /* another process has made standard output non-blocking */
            poll(&(struct pollfd){.fd = b->fd, .events = POLLOUT}, 1, STOP_LOOK_MS);
            continue;
        }
        if (n < 0) { /* a closed pipe is not reported */
            bool gone = errno == EPIPE && is_standard(b->o->output);
            if (b->failed == IV_OK)
                b->failed =
                    gone ? iv_fail(&b->why, IV_IO, "%s", "")
                         : iv_fail(&b->why, IV_IO, "%s: %s",
                                   is_standard(b->o->output) ? "standard output" : b->o->output, strerror(errno));
            return;
        }
        at += (size_t)n;
    }
    if (s->status == 200)
        b->counts->answered++;
    else
        b->counts->refused++;
}

/* Writes all answers that are next in order. */
static void write_done(batch *b) {
    while (b->failed == IV_OK && b->next < b->lines.count) {
        slot *s = &b->slots[b->next % b->window];
        if (s->state != DONE) return;
        write_line(b, s);
        iv_buf_free(&s->answer), iv_buf_free(&s->id);
        s->state = FREE;
        b->next++;
    }
}

static void take_events(batch *b) {
    iv_bridge_event event;
    struct pollfd ready = {.fd = iv_bridge_fd(b->server.bridge), .events = POLLIN};
    poll(&ready, 1, STOP_LOOK_MS); /* a signal ends it early, which is fine */
    while (iv_bridge_next(b->server.bridge, &event)) iv_server_take_event(&b->server, &event);
}

static void run(batch *b) {
    while (b->failed == IV_OK && b->next < b->lines.count) {
        if (b->o->progress) b->o->progress(b->o->user, b->next, b->lines.count);
        if (b->o->stop && b->o->stop(b->o->user)) {
            b->counts->stopped = true;
            return;
        }
        size_t before = b->next, end = b->next + b->window;
        if (end > b->lines.count) end = b->lines.count;
        b->busy = false;
        for (size_t i = b->next; i < end && !b->busy && b->failed == IV_OK; i++)
            if (b->slots[i % b->window].state == FREE) start(b, i);
        write_done(b);
        if (b->next == before && b->failed == IV_OK) take_events(b);
        write_done(b);
    }
}

static iv_status open_batch(batch *b, iv_error *err) {
    iv_bridge_options *bridge = &b->server_options.bridge;
    *bridge = b->o->bridge;
    bridge->queued_requests_max = IV_QUEUED_REQUESTS_MAX; /* one line with the maximum number of choices always fits */
    b->server.o = &b->server_options;
    iv_server_take_names(&b->server, b->o->served_model_name, bridge->engine.model, b->model_name);
    bool standard = is_standard(b->o->input); /* only rank 0 has standard input */
    if (!standard) IV_TRY(read_lines(b->o, &b->lines, err));
    IV_TRY(iv_bridge_open(bridge, &b->server.bridge, err));
    b->counts->other_rank = !b->server.bridge;
    if (!b->server.bridge) return IV_OK;
    b->counts->index_unread = iv_bridge_info(b->server.bridge)->index_unread;
    IV_TRY(iv_adapters_load_modules(&b->server, b->o->adapters, b->o->adapter_count, err));
    IV_TRY(iv_api_tools_open(&b->server, b->o->tool_call_parser, b->o->reasoning_parser, err));
    IV_TRY(iv_token_texts_open(iv_bridge_info(b->server.bridge)->vocab_size, &b->server.token_texts, err));
    if (standard) IV_TRY(read_lines(b->o, &b->lines, err));
    b->counts->lines = b->lines.count;
    IV_TRY(open_output(b->o->output, &b->lines, &b->fd, &b->counts->kept, err));
    b->next = b->counts->kept;
    b->window = 4 * iv_bridge_info(b->server.bridge)->max_num_seqs;
    b->window = b->window < WINDOW_MIN ? WINDOW_MIN : b->window > WINDOW_MAX ? WINDOW_MAX : b->window;
    b->slots = calloc(b->window, sizeof *b->slots);
    return b->slots ? IV_OK : iv_fail(err, IV_NO_MEMORY, "batch: no memory");
}

static iv_status close_batch(batch *b, iv_error *err) {
    iv_status status = IV_OK;
    for (size_t i = 0; b->slots && i < b->window; i++) {
        if (b->slots[i].http_request) iv_http_request_local_drop(b->slots[i].http_request);
        iv_buf_free(&b->slots[i].answer), iv_buf_free(&b->slots[i].id);
    }
    free(b->slots);
    iv_token_texts_close(b->server.token_texts);
    iv_bridge_close(b->server.bridge);
    iv_batch_lines_free(&b->lines);
    if (b->fd < 0) return IV_OK;
    if (!is_standard(b->o->output) && fsync(b->fd) != 0)
        status = iv_fail(err, IV_IO, "%s: %s", b->o->output, strerror(errno));
    close(b->fd);
    return status;
}

iv_status iv_batch_run(const iv_batch_options *o, iv_batch_counts *counts, iv_error *err) {
    batch b = {.o = o, .counts = counts, .fd = -1};
    iv_error closing = {0};
    *counts = (iv_batch_counts){0};
    iv_status status = open_batch(&b, err);
    if (status == IV_OK && b.slots) {
        run(&b);
        status = b.failed;
        if (status != IV_OK) *err = b.why;
    }
    iv_status closed = close_batch(&b, &closing);
    if (status != IV_OK || closed == IV_OK) return status;
    *err = closing;
    return closed;
}
