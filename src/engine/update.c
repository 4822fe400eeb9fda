/* update.c: other weights for an open engine. */
#include "engine/engine.h"

iv_status iv_engine_update_weights(iv_engine *e, const char *dir, iv_error *err) {
    (void)e, (void)dir;
    return iv_fail(err, IV_UNSUPPORTED, "update_weights: not yet");
}
