/* rank.c: serving rank 0. */
#include "rank.h"

#include <stdlib.h>
#include <time.h>

static bool is_above_zero(const char *name) {
    const char *text = getenv(name);
    return text && *text >= '1' && *text <= '9';
}

bool cli_is_other_rank(void) { return is_above_zero("OMPI_COMM_WORLD_RANK") || is_above_zero("PMI_RANK"); }

int cli_serve_rank(iv_engine *engine, iv_error *err) {
    iv_status status = iv_engine_serve_rank(engine, err);
    iv_engine_close(engine);
    return status == IV_OK ? CLI_SERVED : CLI_FAILED;
}

void cli_let_rank_0_speak(void) { nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); }
