/* rank.c: serving rank 0. */
#include "rank.h"

#include <stdlib.h>
#include <time.h>

static bool is_above(long least, const char *name) {
    const char *text = getenv(name);
    return text && strtol(text, NULL, 10) > least;
}

bool cli_is_other_rank(void) { return is_above(0, "OMPI_COMM_WORLD_RANK") || is_above(0, "PMI_RANK"); }

bool cli_has_other_ranks(void) { return is_above(1, "OMPI_COMM_WORLD_SIZE") || is_above(1, "PMI_SIZE"); }

int cli_serve_rank(iv_engine *engine, iv_error *err) {
    iv_status status = iv_engine_serve_rank(engine, err);
    iv_engine_close(engine);
    return status == IV_OK ? CLI_SERVED : CLI_FAILED;
}

void cli_let_rank_0_speak(void) { nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); }
