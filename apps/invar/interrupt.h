/* interrupt.h: ending cleanly on SIGINT, SIGTERM and SIGHUP. While watched, the first signal of a kind is only noted
 * and the second has its usual effect; one that is ignored (nohup) stays so. Not nested. */
#ifndef INVAR_CLI_INTERRUPT_H
#define INVAR_CLI_INTERRUPT_H

#include <signal.h>

enum { CLI_INTERRUPTS = 3 };
typedef struct cli_interrupt {
    struct sigaction before[CLI_INTERRUPTS];
} cli_interrupt;

void cli_interrupt_watch(cli_interrupt *interrupt);
void cli_interrupt_unwatch(const cli_interrupt *interrupt); /* dispositions are as before */

/* The number of the last signal since watching began, or 0. */
int cli_interrupt_caught(void);

#endif
