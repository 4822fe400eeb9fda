/* profile.h: a trace of the engine's steps in Chrome's trace format (chrome://tracing, Perfetto), as SGLang's
 * /start_profile makes. All calls come from the engine's thread. */
#ifndef IV_SERVE_ENGINE_PROFILE_H
#define IV_SERVE_ENGINE_PROFILE_H

#include "base/buf.h"
#include "base/status.h"
#include "invar.h"

enum { IV_PROFILE_BYTES_MAX = 64 << 20 }; /* of a trace; later steps are counted, not recorded */

/* Zero-initialise. */
typedef struct iv_bridge_profile {
    bool on, comma;
    char *path;
    iv_buf events;
    uint64_t skip, left; /* steps before the first, and still to record; left 0: until it is stopped */
    uint64_t dropped;
    double began; /* of the present step */
    iv_engine_stats before;
} iv_bridge_profile;

/* text: {"output_dir", "profile_prefix", "start_step", "num_steps"}. start_step: steps of the engine from now on that
 * are not recorded, plus one. num_steps: it is then stopped and written by itself. The directory is made if it is
 * missing. */
iv_status iv_bridge_profile_start(iv_bridge_profile *p, const char *text, iv_error *err);
/* Writes the trace. *result: its path. IV_INVALID: none is recorded. */
iv_status iv_bridge_profile_stop(iv_bridge_profile *p, iv_buf *result, iv_error *err);
void iv_bridge_profile_begin(iv_bridge_profile *p, const iv_engine *engine); /* before a step */
void iv_bridge_profile_end(iv_bridge_profile *p, const iv_engine *engine);
void iv_bridge_profile_free(iv_bridge_profile *p);

#endif
