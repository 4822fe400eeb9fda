/* run_train.c: a run of either kind, from its opening to its end. */
#include "base/digest.h"
#include "train/run_state.h"

iv_status iv_run_train(const iv_run_options *o, iv_run_summary *out, iv_error *err) {
    iv_run r;
    IV_TRY(iv_run_open(&r, o, out, err));
    iv_digest_hex(r.hash, out->weights_hash);
    out->steps = r.at;
    iv_status status = o->kind == IV_RUN_RL ? iv_run_rl(&r, err) : iv_run_sft(&r, err);
    iv_run_close(&r);
    return status;
}
