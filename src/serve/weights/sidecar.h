/* sidecar.h: the process that takes tensors from a trainer by torch's means (python -m invar.weights): pickles, shared
 * memory, CUDA IPC, process groups. It is started by the first call; one that has died, or says nothing for the
 * timeout, is ended, and the next call starts another. One thread. python/invar/weights/_frames.py has the protocol. */
#ifndef IV_SERVE_WEIGHTS_SIDECAR_H
#define IV_SERVE_WEIGHTS_SIDECAR_H

#include "base/buf.h"
#include "base/status.h"

#include <stdatomic.h>

typedef struct iv_sidecar iv_sidecar;

typedef struct iv_sidecar_options {
    const char *python; /* NULL: python3 next to this program if it is there, else of $PATH; outlives the sidecar */
    size_t ranks;       /* of this server, in a trainer's group */
    double seconds;     /* timeout of a trainer's group; the process may be silent for a little more */
    const atomic_bool *stop; /* ends calls */
} iv_sidecar_options;

/* Starts nothing yet. */
iv_status iv_sidecar_open(const iv_sidecar_options *o, iv_sidecar **out, iv_error *err);
void iv_sidecar_close(iv_sidecar *s); /* NULL is fine */

/* Hands over a request: its route's name, its body. file: a path at which the sidecar leaves tensors (*tensors of
 * them; none: perhaps no file), or NULL. IV_UNSUPPORTED: no Python with torch and the package, the message says what is
 * missing; IV_IO: it died or hangs; else what the sidecar says. */
iv_status iv_sidecar_call(iv_sidecar *s, const char *route, const char *file, const iv_buf *body, size_t *tensors,
                          iv_error *err);

#endif
