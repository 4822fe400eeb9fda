/* pulse.h: signs of life of an engine process while its engine opens, which occupies its first thread: a thread
 * of its own sends them. */
#ifndef IV_SERVE_ENGINE_PULSE_H
#define IV_SERVE_ENGINE_PULSE_H

#include "serve/engine/frames.h"

/* What this process has done so far that only a load that goes on does: it reads files or touches new memory. A thread
 * that only waits or spins does neither. Zero-initialise. */
typedef struct iv_pulse_signs {
    uint64_t reads, faults;
} iv_pulse_signs;
/* Whether there are new signs since the last call that found some. */
bool iv_pulse_moved(iv_pulse_signs *s);

typedef struct iv_pulse iv_pulse;
/* Sends an ALIVE record every beat_ms milliseconds, with the time since the last progress. The writer belongs to the
 * thread until iv_pulse_stop. If the peer is gone, the process ends. */
iv_status iv_pulse_start(iv_frame_writer *w, int fd, uint64_t beat_ms, iv_pulse **out, iv_error *err);
/* Sends a PROGRESS record. Any thread. */
void iv_pulse_progress(iv_pulse *p, size_t done_bytes, size_t total_bytes);
void iv_pulse_stop(iv_pulse *p); /* NULL is fine */

#endif
