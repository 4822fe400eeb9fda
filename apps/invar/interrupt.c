/* interrupt.c: three signals and the one number they leave. */
#include "interrupt.h"

#include <stddef.h>

static const int watched[CLI_INTERRUPTS] = {SIGINT, SIGTERM, SIGHUP};
static volatile sig_atomic_t caught;

static void on_signal(int number) { caught = number; }

/* SA_RESETHAND: the second signal of a kind has its usual effect. */
void cli_interrupt_watch(cli_interrupt *interrupt) {
    caught = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < CLI_INTERRUPTS; i++) {
        sigaction(watched[i], NULL, &interrupt->before[i]);
        if (interrupt->before[i].sa_handler != SIG_IGN) sigaction(watched[i], &action, NULL);
    }
}

void cli_interrupt_unwatch(const cli_interrupt *interrupt) {
    for (size_t i = 0; i < CLI_INTERRUPTS; i++) sigaction(watched[i], &interrupt->before[i], NULL);
}

int cli_interrupt_caught(void) { return caught; }
