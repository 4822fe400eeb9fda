/* events.c: TFRecord framing around hand-written protocol buffers. */
#include "train/metrics/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- CRC-32C ---- */

uint32_t iv_train_crc32c(const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *bytes, size_t n) {
    uint32_t crc = iv_train_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protocol buffers ---- */

typedef enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire;

static bool put_varint(iv_buf *b, uint64_t v) {
    for (; v >= 0x80; v >>= 7)
        if (!iv_buf_putc(b, (char)(uint8_t)(v | 0x80))) return false;
    return iv_buf_putc(b, (char)v);
}

static bool put_little(iv_buf *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++)
        if (!iv_buf_putc(b, (char)(uint8_t)(v >> (8 * i)))) return false;
    return true;
}

static bool put_key(iv_buf *b, unsigned number, wire type) { return put_varint(b, number << 3 | (unsigned)type); }

static bool put_bytes(iv_buf *b, unsigned number, const void *bytes, size_t n) {
    return put_key(b, number, WIRE_BYTES) && put_varint(b, n) && iv_buf_append(b, bytes, n);
}

/* The fields of Event. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE_VALUE = 2 };

static bool put_head(iv_buf *b, double seconds, uint64_t step) {
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    return put_key(b, EVENT_WALL_TIME, WIRE_64) && put_little(b, bits, 8) && put_key(b, EVENT_STEP, WIRE_VARINT) &&
           put_varint(b, step);
}

static bool put_value(iv_buf *b, iv_buf *scratch, const iv_train_metric *m) {
    float value = (float)m->value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    iv_buf_clear(scratch);
    return put_bytes(scratch, VALUE_TAG, m->name, strlen(m->name)) && put_key(scratch, VALUE_SIMPLE_VALUE, WIRE_32) &&
           put_little(scratch, bits, 4) && put_bytes(b, SUMMARY_VALUE, scratch->data, scratch->len);
}

/* ---- the file ---- */

struct iv_train_events {
    iv_buf path;
    int fd;
    off_t end; /* after the last whole record */
    iv_buf event, summary, value, record;
};

static iv_status no_memory(const iv_train_events *e, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", e->path.data);
}

/* Writes e->event as a record; a part of one is cut off again. */
static iv_status write_event(iv_train_events *e, iv_error *err) {
    iv_buf *r = &e->record;
    iv_buf_clear(r);
    bool ok = put_little(r, e->event.len, 8) && put_little(r, masked(r->data, 8), 4) &&
              iv_buf_append(r, e->event.data, e->event.len) && put_little(r, masked(e->event.data, e->event.len), 4);
    if (!ok) return no_memory(e, err);
    for (size_t done = 0; done < r->len;) {
        ssize_t put = write(e->fd, r->data + done, r->len - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            int reason = errno, cut = ftruncate(e->fd, e->end);
            (void)cut;
            return iv_fail(err, IV_IO, "%s: write failed: %s", e->path.data, strerror(reason));
        }
        done += (size_t)put;
    }
    e->end += (off_t)r->len;
    return IV_OK;
}

static iv_status write_start(iv_train_events *e, uint64_t next, double seconds, iv_error *err) {
    static const char version[] = "brain.Event:2", start[] = {1 << 3 | WIRE_VARINT, 1}; /* SessionLog.status = START */
    iv_buf_clear(&e->event);
    if (!put_head(&e->event, seconds, 0) || !put_bytes(&e->event, EVENT_FILE_VERSION, version, sizeof version - 1))
        return no_memory(e, err);
    IV_TRY(write_event(e, err));
    if (next <= 1) return IV_OK;
    iv_buf_clear(&e->event);
    if (!put_head(&e->event, seconds, next) || !put_bytes(&e->event, EVENT_SESSION_LOG, start, sizeof start))
        return no_memory(e, err);
    return write_event(e, err);
}

/* N counts up until the name is new. */
static iv_status create(iv_train_events *e, const char *dir, double seconds, iv_error *err) {
    char host[65] = "host";
    if (gethostname(host, sizeof host - 1) != 0 || strchr(host, '/')) snprintf(host, sizeof host, "host");
    for (unsigned n = 0;; n++) {
        iv_buf_clear(&e->path);
        if (!iv_buf_printf(&e->path, "%s/events.out.tfevents.%010lld.%s.%ld.%u", dir, (long long)seconds, host,
                           (long)getpid(), n))
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
        e->fd = open(e->path.data, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (e->fd >= 0) return IV_OK;
        if (errno != EEXIST) return iv_fail(err, IV_IO, "%s: cannot write: %s", e->path.data, strerror(errno));
    }
}

iv_status iv_train_events_open(const char *dir, uint64_t next, double seconds, iv_train_events **out, iv_error *err) {
    iv_train_events *e = calloc(1, sizeof *e);
    iv_error ignored;
    if (!e) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    e->fd = -1;
    iv_status status = create(e, dir, seconds, err);
    if (status == IV_OK) status = write_start(e, next, seconds, err);
    if (status == IV_OK)
        *out = e;
    else
        iv_train_events_close(e, &ignored);
    return status;
}

iv_status iv_train_events_add(iv_train_events *e, const iv_train_metrics *m, double seconds, iv_error *err) {
    iv_buf_clear(&e->event), iv_buf_clear(&e->summary);
    bool ok = put_head(&e->event, seconds, m->step);
    for (size_t i = 0; ok && i < m->count; i++)
        if (!m->at[i].text[0]) ok = put_value(&e->summary, &e->value, &m->at[i]);
    ok = ok && put_bytes(&e->event, EVENT_SUMMARY, e->summary.data ? e->summary.data : "", e->summary.len);
    return ok ? write_event(e, err) : no_memory(e, err);
}

iv_status iv_train_events_close(iv_train_events *e, iv_error *err) {
    iv_status status = IV_OK;
    if (!e) return IV_OK;
    if (e->fd >= 0 && close(e->fd) != 0)
        status = iv_fail(err, IV_IO, "%s: write failed: %s", e->path.data, strerror(errno));
    iv_buf_free(&e->path), iv_buf_free(&e->event), iv_buf_free(&e->summary), iv_buf_free(&e->value);
    iv_buf_free(&e->record);
    free(e);
    return status;
}
