/* rl.c */
#include "train/run_state.h"
iv_status iv_run_rl(iv_run *r, iv_error *err) { (void)r; return iv_fail(err, IV_UNSUPPORTED, "rl"); }
