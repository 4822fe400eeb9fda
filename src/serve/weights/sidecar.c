/* sidecar.c: frames over the socket of a child process. */
#include "serve/weights/sidecar.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "base/process.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POLL_MS = 50, ANSWER_BYTES_MAX = 1 << 20, PATH_BYTES = 4096, WORDS_BYTES = 400, SLACK_S = 5 };
static const char MODULE[] = "invar.weights";
static const char INSTALL[] = "wanted a Python with torch and the package invar (pip install torch, and invar as "
                              "docs/PYTHON.md says; --weights-python names the Python)";

struct iv_sidecar {
    iv_sidecar_options o;
    iv_process process; /* pid 0: none */
    int words;          /* a file in memory: standard error until it is ready; -1: none */
    char python[PATH_BYTES];
};

iv_status iv_sidecar_open(const iv_sidecar_options *o, iv_sidecar **out, iv_error *err) {
    iv_sidecar *s = *out = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    s->o = *o, s->process.fd = s->words = -1;
    return IV_OK;
}

static void end(iv_sidecar *s, char *how, size_t capacity) {
    iv_process_end(&s->process, how, capacity);
    if (s->words >= 0) close(s->words);
    s->words = -1;
}

void iv_sidecar_close(iv_sidecar *s) {
    char how[64];
    if (!s) return;
    end(s, how, sizeof how);
    free(s);
}

/* ---- bytes -------------------------------------------------------------------------------------------- */

static iv_status wait_for(const iv_sidecar *s, short events, double deadline, iv_error *err) {
    struct pollfd p = {.fd = s->process.fd, .events = events};
    while (poll(&p, 1, POLL_MS) <= 0) {
        if (atomic_load(s->o.stop)) return iv_fail(err, IV_IO, "the server is shutting down");
        if (iv_now() > deadline) return iv_fail(err, IV_BUSY, "it said nothing for %g s", s->o.seconds + SLACK_S);
    }
    return IV_OK;
}

/* Sends, or receives, n bytes. */
static iv_status move_bytes(const iv_sidecar *s, bool sends, void *bytes, size_t n, double deadline, iv_error *err) {
    for (size_t at = 0; at < n;) {
        char *from = (char *)bytes + at;
        ssize_t moved = sends ? send(s->process.fd, from, n - at, MSG_NOSIGNAL) : recv(s->process.fd, from, n - at, 0);
        if (moved > 0)
            at += (size_t)moved;
        else if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            IV_TRY(wait_for(s, sends ? POLLOUT : POLLIN, deadline, err));
        else
            return iv_fail(err, IV_IO, "it ended");
    }
    return IV_OK;
}

static double deadline_of(const iv_sidecar *s) { return iv_now() + s->o.seconds + SLACK_S; }

static iv_status send_frame(const iv_sidecar *s, const void *bytes, size_t n, iv_error *err) {
    uint64_t head = n;
    double deadline = deadline_of(s);
    IV_TRY(move_bytes(s, true, &head, sizeof head, deadline, err));
    return move_bytes(s, true, (void *)(uintptr_t)bytes, n, deadline, err);
}

static iv_status receive_frame(const iv_sidecar *s, iv_buf *out, iv_error *err) {
    uint64_t n = 0;
    double deadline = deadline_of(s);
    IV_TRY(move_bytes(s, false, &n, sizeof n, deadline, err));
    out->len = 0;
    if (n > ANSWER_BYTES_MAX) return iv_fail(err, IV_IO, "it sent a damaged answer");
    if (!iv_buf_reserve(out, (size_t)n + 1)) return iv_fail(err, IV_NO_MEMORY, "no memory for its answer");
    IV_TRY(move_bytes(s, false, out->data, (size_t)n, deadline, err));
    out->len = (size_t)n;
    return IV_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

typedef struct reply {
    bool working; /* no answer yet */
    bool begun;   /* the request has been read */
    iv_status status;
    size_t tensors;
    iv_error why;
} reply;

static bool status_of(const char *name, iv_status *out) {
    static const struct {
        const char *name;
        iv_status status;
    } names[] = {{"ok", IV_OK},         {"invalid", IV_INVALID}, {"unsupported", IV_UNSUPPORTED},
                 {"format", IV_FORMAT}, {"limit", IV_LIMIT},     {"no_memory", IV_NO_MEMORY},
                 {"io", IV_IO}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].status;
            return true;
        }
    return false;
}

static iv_status read_reply(const iv_buf *frame, reply *r, iv_error *err) {
    json_t *json = NULL;
    *r = (reply){.begun = true};
    if (iv_json_parse("answer", frame->data, frame->len, &json, err) != IV_OK)
        return iv_fail(err, IV_IO, "it sent a damaged answer");
    const char *status = json_string_value(json_object_get(json, "status")),
               *message = json_string_value(json_object_get(json, "message"));
    json_int_t tensors = json_integer_value(json_object_get(json, "tensors"));
    r->working = status && strcmp(status, "working") == 0;
    bool good = status && message && tensors >= 0 && (r->working || status_of(status, &r->status));
    if (good && r->status != IV_OK) iv_fail(&r->why, r->status, "%s", message);
    r->tensors = good ? (size_t)tensors : 0;
    json_decref(json);
    return good ? IV_OK : iv_fail(err, IV_IO, "it sent a damaged answer");
}

static iv_status await_reply(const iv_sidecar *s, reply *r, iv_error *err) {
    iv_buf frame = {0};
    iv_status status;
    do {
        status = receive_frame(s, &frame, err);
        if (status == IV_OK) status = read_reply(&frame, r, err);
    } while (status == IV_OK && r->working);
    iv_buf_free(&frame);
    return status;
}

/* ---- starting ----------------------------------------------------------------------------------------- */

/* A virtual environment has both programs in one folder. */
static const char *choose_python(iv_sidecar *s) {
    static const char name[] = "python3";
    if (s->o.python) return s->o.python;
    ssize_t n = readlink("/proc/self/exe", s->python, sizeof s->python - sizeof name);
    char *slash = NULL;
    if (n > 0) s->python[n] = 0, slash = strrchr(s->python, '/');
    if (slash) strcpy(slash + 1, name);
    return slash && access(s->python, X_OK) == 0 ? s->python : name;
}

/* The last line that the process has written. */
static void last_words(const iv_sidecar *s, char out[WORDS_BYTES]) {
    char text[4 * WORDS_BYTES];
    off_t size = lseek(s->words, 0, SEEK_END), from = size > (off_t)sizeof text - 1 ? size - (off_t)sizeof text + 1 : 0;
    ssize_t n = size > 0 ? pread(s->words, text, sizeof text - 1, from) : 0;
    while (n > 0 && text[n - 1] == '\n') n--;
    text[n > 0 ? n : 0] = 0;
    const char *line = strrchr(text, '\n');
    snprintf(out, WORDS_BYTES, "%.390s", line ? line + 1 : text);
}

static iv_status not_ready(iv_sidecar *s, const iv_error *why, iv_error *err) {
    char how[64], words[WORDS_BYTES];
    last_words(s, words);
    end(s, how, sizeof how);
    return iv_fail(err, atomic_load(s->o.stop) ? IV_IO : IV_UNSUPPORTED, "%s -m %s: %s, found %s%s%s (%s)",
                   choose_python(s), MODULE, INSTALL, why->message, *words ? ": " : "", words, how);
}

static iv_status start(iv_sidecar *s, iv_error *err) {
    char option[] = "-m", module[] = "invar.weights";
    char *argv[] = {(char *)(uintptr_t)choose_python(s), option, module, NULL};
    iv_error why;
    reply hello = {0};
    s->words = memfd_create("words", MFD_CLOEXEC);
    if (s->words < 0) return iv_fail(err, IV_IO, "%s: no file in memory: %s", MODULE, strerror(errno));
    iv_process_program program = {.path = argv[0], .argv = argv, .errors = s->words};
    iv_status status = iv_process_start(&program, &s->process, &why);
    if (status == IV_OK && fcntl(s->process.fd, F_SETFL, O_NONBLOCK) != 0)
        status = iv_fail(&why, IV_IO, "no socket: %s", strerror(errno));
    if (status == IV_OK) status = await_reply(s, &hello, &why);
    if (status == IV_OK && hello.status != IV_OK) status = hello.status, why = hello.why;
    if (status != IV_OK) return not_ready(s, &why, err);
    close(s->words);
    s->words = -1;
    return IV_OK;
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static iv_status send_request(const iv_sidecar *s, const char *route, const char *file, const iv_buf *body,
                              iv_error *err) {
    iv_buf head = {0};
    iv_json_out o = {.buf = &head};
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "route", route);
    iv_out_kv_text(&o, "file", file);
    iv_out_kv_uint(&o, "ranks", s->o.ranks);
    iv_out_kv_double(&o, "seconds", s->o.seconds);
    iv_out_close(&o, '}');
    iv_status status = o.failed ? iv_fail(err, IV_NO_MEMORY, "no memory for the request") : IV_OK;
    if (status == IV_OK) status = send_frame(s, head.data, head.len, err);
    if (status == IV_OK) status = send_frame(s, body->data, body->len, err);
    iv_buf_free(&head);
    return status;
}

static iv_status call(iv_sidecar *s, const char *route, const char *file, const iv_buf *body, reply *r, iv_error *err) {
    iv_status status = send_request(s, route, file, body, err);
    return status == IV_OK ? await_reply(s, r, err) : status;
}

/* A process that ended since the last call is no fault of this one. */
iv_status iv_sidecar_call(iv_sidecar *s, const char *route, const char *file, const iv_buf *body, size_t *tensors,
                          iv_error *err) {
    char how[64];
    iv_error why;
    reply r = {0};
    bool old = s->process.pid > 0;
    *tensors = 0;
    if (!old) IV_TRY(start(s, err));
    iv_status status = call(s, route, file, body, &r, &why);
    if (status != IV_OK && status != IV_BUSY && old && !r.begun && !atomic_load(s->o.stop)) {
        end(s, how, sizeof how);
        IV_TRY(start(s, err));
        status = call(s, route, file, body, &r, &why);
    }
    if (status != IV_OK) {
        end(s, how, sizeof how);
        return iv_fail(err, status == IV_BUSY ? IV_IO : status,
                       "%s: the weights process: %s (%s); the next request starts another", route, why.message, how);
    }
    *tensors = r.tensors;
    if (r.status != IV_OK) *err = r.why;
    return r.status;
}
