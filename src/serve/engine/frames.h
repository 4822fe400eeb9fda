/* frames.h: the records between a server and its engine process, and their buffers at a socket.
 *
 * A record is a header of 16 bytes (magic, version, kind, payload bytes) and a payload. Both processes run one binary
 * on one machine, so numbers have its byte order; each takes 8 bytes, and arrays are padded to 8, so that a decoded
 * record points into the bytes it came from. A reader trusts nothing: every size is checked against the bytes that are
 * there, every flag and enum against its range, every text for its NUL. */
#ifndef IV_SERVE_ENGINE_FRAMES_H
#define IV_SERVE_ENGINE_FRAMES_H

#include "base/buf.h"
#include "serve/engine/bridge.h"

enum {
    IV_FRAME_MAGIC = 0x31455649, /* "IVE1" */
    IV_FRAME_VERSION = 1,
    IV_FRAME_HEADER_BYTES = 16,
    IV_FRAME_BYTES_MAX = 1 << 30 /* of a payload */
};

typedef enum iv_frame_kind {
    /* To the engine process. */
    IV_FRAME_OPEN = 1, /* options, text: directory of updated weights or NULL, weight_version, beat_ms */
    IV_FRAME_SUBMIT,   /* id, request, flag: held */
    IV_FRAME_CANCEL,   /* id */
    IV_FRAME_HOLD,     /* id, flag: hold */
    IV_FRAME_COMMAND,  /* id, command, text */
    /* From it. */
    IV_FRAME_PROGRESS, /* done, total: bytes, while weights load */
    IV_FRAME_READY,    /* info, request: the defaults, stats */
    IV_FRAME_FAILED,   /* status, text: the engine did not open */
    IV_FRAME_IDENTITY, /* weight_version, text: the fingerprint of the events that follow */
    IV_FRAME_EVENT,    /* id, event, details */
    IV_FRAME_REFUSED,  /* id, status, text */
    IV_FRAME_RESULT,   /* id, status, text, weight_version: of a command */
    IV_FRAME_STATS,    /* stats, done: submissions received so far */
    IV_FRAME_ALIVE,    /* done: milliseconds since the engine's last progress, if it has work */
    IV_FRAME_LOST,     /* status, text: the engine is lost; the process ends */
    IV_FRAME_KINDS     /* their number, plus one */
} iv_frame_kind;

/* Members that the kind does not name are 0. Decoded pointers live as long as the bytes and the struct. */
typedef struct iv_frame {
    iv_frame_kind kind;
    uint64_t id;
    bool flag;
    iv_status status;
    iv_command command;
    const char *text;
    uint64_t weight_version, done, total, beat_ms;
    iv_engine_options options; /* without progress and user */
    iv_engine_info info;
    iv_request request; /* without id, compiled and keep_logits */
    const char *stop[IV_STOPS_MAX];
    iv_event event; /* without logits */
    iv_event_details details;
    iv_bridge_stats stats;
} iv_frame;

/* Appends a record. False: no memory, or above IV_FRAME_BYTES_MAX; *out is then unchanged. */
bool iv_frame_encode(const iv_frame *f, iv_buf *out);
/* Decodes the record at the start of n bytes, aligned to 8. *used is its size; 0: it is incomplete. IV_FORMAT: it is
 * damaged, and so is the rest. */
iv_status iv_frame_decode(const char *bytes, size_t n, iv_frame *f, size_t *used, iv_error *err);

/* ---- buffers at a socket ------------------------------------------------------------------------------ */

/* Zero-initialise. */
typedef struct iv_frame_reader {
    char *data;
    size_t begin, end, capacity;
} iv_frame_reader;

typedef enum iv_frame_io { IV_FRAME_IO_MORE, IV_FRAME_IO_NONE, IV_FRAME_IO_END } iv_frame_io;

/* Receives what is there, without blocking. END: the peer has closed, or there is no memory. Invalidates decoded
 * records. */
iv_frame_io iv_frame_receive(iv_frame_reader *r, int fd);
/* Decodes the next record. *got false: none is complete. *raw (may be NULL): its payload. */
iv_status iv_frame_next(iv_frame_reader *r, iv_frame *f, bool *got, const char **raw, size_t *raw_bytes, iv_error *err);
void iv_frame_reader_free(iv_frame_reader *r);

/* Zero-initialise. */
typedef struct iv_frame_writer {
    iv_buf buf;
    size_t sent;
} iv_frame_writer;

static inline size_t iv_frame_unsent(const iv_frame_writer *w) { return w->buf.len - w->sent; }
/* Sends what the socket takes, without blocking. False: the peer is gone. */
bool iv_frame_send(iv_frame_writer *w, int fd);
void iv_frame_writer_free(iv_frame_writer *w);

#endif
