/* profile.c: a step is one complete event ("ph": "X") with its parts below it, and one sample of the counters.
 */
#include "serve/engine/profile.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_out.h"
#include "format/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STEP_BYTES = 1024 }; /* of one step's events, at most */

void iv_bridge_profile_free(iv_bridge_profile *p) {
    free(p->path);
    iv_buf_free(&p->events);
    *p = (iv_bridge_profile){0};
}

/* ---- starting and stopping ---------------------------------------------------------------------------- */

static iv_status make_path(iv_bridge_profile *p, const json_t *o, iv_error *err) {
    const char *dir = json_string_value(json_object_get(o, "output_dir"));
    const char *prefix = json_string_value(json_object_get(o, "profile_prefix"));
    iv_buf path = {0};
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "output_dir: wanted a directory, found nothing");
    if (prefix && strchr(prefix, '/'))
        return iv_fail(err, IV_INVALID, "profile_prefix: wanted no \"/\", found \"%.100s\"", prefix);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return iv_fail(err, IV_INVALID, "output_dir: cannot make %.500s: %s", dir, strerror(errno));
    if (!iv_buf_printf(&path, "%s/%s%s%" PRId64 "-%d-TP-0.trace.json", dir, prefix ? prefix : "", prefix ? "-" : "",
                       (int64_t)time(NULL), (int)getpid()))
        return iv_fail(err, IV_NO_MEMORY, "profile: no memory");
    p->path = path.data;
    return IV_OK;
}

static iv_status begin(iv_bridge_profile *p, const json_t *o, iv_error *err) {
    json_int_t first = json_integer_value(json_object_get(o, "start_step"));
    json_int_t count = json_integer_value(json_object_get(o, "num_steps"));
    if (first < 0 || count < 0)
        return iv_fail(err, IV_INVALID, "%s: wanted 1 or more", first < 0 ? "start_step" : "num_steps");
    IV_TRY(make_path(p, o, err));
    p->skip = first > 0 ? (uint64_t)first - 1 : 0, p->left = (uint64_t)count;
    p->on = true;
    return IV_OK;
}

iv_status iv_bridge_profile_start(iv_bridge_profile *p, const char *text, iv_error *err) {
    json_t *o;
    if (p->on) return iv_fail(err, IV_INVALID, "profile: one is being recorded already: POST /stop_profile first");
    iv_bridge_profile_free(p);
    IV_TRY(iv_json_parse("profile", text, strlen(text), &o, err));
    iv_status status = begin(p, o, err);
    json_decref(o);
    if (status != IV_OK) iv_bridge_profile_free(p);
    return status;
}

static iv_status write_trace(iv_bridge_profile *p, iv_error *err) {
    iv_buf out = {0};
    bool ok =
        iv_buf_printf(&out,
                      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"invar %s\",\"dropped_steps\":%" PRIu64
                      "},\"traceEvents\":[",
                      iv_version(), p->dropped) &&
        iv_buf_append(&out, p->events.data ? p->events.data : "", p->events.len) && iv_buf_puts(&out, "]}\n");
    iv_status status = ok ? iv_file_write(p->path, out.data, out.len, err)
                          : iv_fail(err, IV_NO_MEMORY, "profile: no memory for the trace");
    iv_buf_free(&out);
    return status;
}

iv_status iv_bridge_profile_stop(iv_bridge_profile *p, iv_buf *result, iv_error *err) {
    if (!p->path)
        return iv_fail(err, IV_INVALID,
                       "profile: none is being recorded by this engine process: POST /start_profile first");
    iv_status status = p->on ? write_trace(p, err) : IV_OK; /* after num_steps it is written */
    if (status == IV_OK && !iv_buf_puts(result, p->path)) status = iv_fail(err, IV_NO_MEMORY, "profile: no memory");
    iv_bridge_profile_free(p);
    return status;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static void open_event(iv_bridge_profile *p, iv_json_out *o, const char *name, const char *phase, double at) {
    if (p->comma) o->failed |= !iv_buf_putc(o->buf, ',');
    p->comma = true, o->comma = false;
    iv_out_open(o, '{');
    iv_out_kv_text(o, "name", name), iv_out_kv_text(o, "ph", phase);
    iv_out_kv_uint(o, "pid", (uint64_t)getpid()), iv_out_kv_uint(o, "tid", 0);
    iv_out_key(o, "ts"), iv_out_real(o, at * 1e6);
}

static void part(iv_bridge_profile *p, iv_json_out *o, const char *name, double at, double seconds) {
    open_event(p, o, name, "X", at);
    iv_out_key(o, "dur"), iv_out_real(o, seconds * 1e6);
    iv_out_close(o, '}');
}

static void record(iv_bridge_profile *p, const iv_engine_stats *s, double now) {
    const iv_engine_stats *b = &p->before;
    iv_json_out o = {.buf = &p->events};
    double forward = s->forward_seconds - b->forward_seconds, sample = s->sample_seconds - b->sample_seconds;
    open_event(p, &o, "step", "X", p->began);
    iv_out_key(&o, "dur"), iv_out_real(&o, (now - p->began) * 1e6);
    iv_out_kv_open(&o, "args", '{');
    iv_out_kv_uint(&o, "step", s->steps);
    iv_out_kv_uint(&o, "tokens", s->tokens_computed - b->tokens_computed);
    iv_out_kv_uint(&o, "generated", s->tokens_generated - b->tokens_generated);
    iv_out_kv_uint(&o, "preemptions", s->preemptions - b->preemptions);
    iv_out_close(&o, '}'), iv_out_close(&o, '}');
    part(p, &o, "forward", p->began, forward);
    part(p, &o, "sample", p->began + forward, sample);
    open_event(p, &o, "engine", "C", now);
    iv_out_kv_open(&o, "args", '{');
    iv_out_kv_uint(&o, "running", s->running), iv_out_kv_uint(&o, "waiting", s->waiting);
    iv_out_kv_uint(&o, "kv_pages", s->kv_pages - s->kv_pages_free - s->kv_pages_cached);
    iv_out_close(&o, '}'), iv_out_close(&o, '}');
    if (o.failed) p->dropped++; /* no memory: the trace ends with a part of this step */
}

void iv_bridge_profile_begin(iv_bridge_profile *p, const iv_engine *engine) {
    if (!p->on) return;
    iv_engine_get_stats(engine, &p->before);
    p->began = iv_now();
}

void iv_bridge_profile_end(iv_bridge_profile *p, const iv_engine *engine) {
    iv_engine_stats s;
    iv_error unused;
    if (!p->on) return;
    iv_engine_get_stats(engine, &s);
    if (s.steps == p->before.steps) return; /* nothing was computed */
    if (p->skip > 0) {
        p->skip--;
        return;
    }
    if (p->events.len + STEP_BYTES > IV_PROFILE_BYTES_MAX || !iv_buf_reserve(&p->events, STEP_BYTES))
        p->dropped++;
    else
        record(p, &s, iv_now());
    if (p->left == 0 || --p->left > 0) return;
    p->on = write_trace(p, &unused) != IV_OK; /* num_steps are recorded; an error is reported when it is stopped */
}
