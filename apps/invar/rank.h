/* rank.h: this program under mpirun: every process runs the same command as far as the engine; from there rank 0 goes
 * on, and the others serve it and end. They write nothing to standard output. */
#ifndef INVAR_CLI_RANK_H
#define INVAR_CLI_RANK_H

#include "flags.h"

/* Is this a process of mpirun other than the first? From the environment alone. */
bool cli_is_other_rank(void);

/* Is this one of several processes of mpirun, the first included? */
bool cli_has_other_ranks(void);

/* When something failed rank 0 tells it, and mpirun then ends everybody. Whoever is still here after this pause has to
 * speak up itself: it may have failed alone, or rank 0 may be the one that is lost. */
void cli_let_rank_0_speak(void);

/* Serves until rank 0 closes its engine, which is CLI_SERVED. Closes the engine. */
int cli_serve_rank(iv_engine *engine, iv_error *err);

#endif
