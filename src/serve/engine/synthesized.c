/* synthesized.c: events that the server's half of an engine process makes itself: refusals, and ends of requests and
 * commands that no process will answer. They wait in a list. */
#include "serve/engine/local_state.h"
#include "serve/engine/remote_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void iv_remote_set_awake(iv_remote *r, bool awake) {
    uint64_t one = 1;
    if (r->awake == awake) return;
    r->awake = awake;
    ssize_t n = awake ? write(r->wake, &one, sizeof one) : read(r->wake, &one, sizeof one);
    IV_ASSERT(n == sizeof one);
}

void iv_remote_synthesize(iv_remote *r, iv_bridge_event_kind kind, const iv_journal_entry *e, iv_status status,
                          const char *message) {
    size_t n = strlen(message) + 1;
    synthesized_event *m = malloc(sizeof *m + n);
    IV_ASSERT(m); /* without the event its client would wait without end */
    *m = (synthesized_event){.head = {.kind = kind,
                                      .owner = e->owner,
                                      .id = e->request ? e->id : 0,
                                      .status = status,
                                      .message = m->message,
                                      .weight_version = r->weight_version,
                                      .fingerprint = r->fingerprint}};
    memcpy(m->message, message, n);
    if (r->synthesized_last)
        r->synthesized_last->next = m;
    else
        r->synthesized_first = m;
    r->synthesized_last = m;
    iv_remote_set_awake(r, true);
}

bool iv_remote_take_synthesized(iv_remote *r, iv_bridge_event *out) {
    synthesized_event *m = r->synthesized_first;
    if (!m) return false;
    r->synthesized_first = m->next;
    if (!r->synthesized_first) r->synthesized_last = NULL;
    r->taken = m;
    *out = m->head;
    return true;
}

void iv_remote_drop_synthesized(iv_remote *r, uint64_t id) {
    synthesized_event **at = &r->synthesized_first;
    r->synthesized_last = NULL;
    while (*at) {
        synthesized_event *m = *at;
        if (m->head.id != id) {
            r->synthesized_last = m, at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
        r->cancelled++;
    }
}
