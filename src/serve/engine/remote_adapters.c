/* remote_adapters.c: what a new engine process gets: the adapters that the one before had loaded, and the journal.
 *
 * A request of the journal belongs to the adapter that it began with. One that was unloaded meanwhile is loaded again
 * for its requests, and unloaded behind them, before the next takes its name. */
#include "serve/engine/remote_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests and their adapters ------------------------------------------------------------------------ */

static void bind(iv_remote *r, iv_journal_entry *e, iv_adapter_entry *a) {
    iv_adapter_list_use(a);
    iv_adapter_list_leave(&r->bridge.adapters, e->adapter);
    e->adapter = a;
}

void iv_remote_bind_adapter(iv_remote *r, iv_journal_entry *e) {
    const char *name = e->request->adapter;
    if (name && *name) bind(r, e, iv_adapter_list_entry(&r->bridge.adapters, name));
}

void iv_remote_remove_entry(iv_remote *r, iv_journal_entry *e) {
    iv_adapter_list_leave(&r->bridge.adapters, e->adapter);
    iv_journal_remove(&r->journal, e);
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* The engine has carried out commands and requests in their order: those after the command have the new adapter. */
static void loaded(iv_remote *r, const iv_journal_entry *command, const char *result) {
    iv_served_adapter a;
    iv_adapter_command c;
    char *text = strdup(command->text);
    IV_ASSERT(text && iv_adapter_command_read(text, &c)); /* a restart must find it; as written */
    IV_ASSERT(iv_adapter_result_read(result, &a));
    snprintf(a.name, sizeof a.name, "%s", c.name);
    snprintf(a.path, sizeof a.path, "%s", c.path);
    iv_adapter_entry *entry = iv_adapter_list_add(&r->bridge.adapters, &a);
    IV_ASSERT(entry);
    for (iv_journal_entry *e = command->next; e; e = e->next)
        if (e->request && e->request->adapter && strcmp(e->request->adapter, c.name) == 0) bind(r, e, entry);
    free(text);
}

void iv_remote_take_adapter(iv_remote *r, const iv_journal_entry *command, const char *result) {
    if (command->command == IV_COMMAND_LOAD_ADAPTER) loaded(r, command, result);
    if (command->command != IV_COMMAND_UNLOAD_ADAPTER) return;
    iv_adapter_entry *a = iv_adapter_list_entry(&r->bridge.adapters, command->text);
    if (a) iv_adapter_list_retire(&r->bridge.adapters, a);
}

/* Its files have changed, or are gone: what began with it cannot continue. */
static void lose(iv_remote *r, iv_adapter_entry *a, const char *reason) {
    char why[sizeof r->why];
    iv_remote_note(r, "error", "the adapter %s is not loaded any more: the restarted engine could not read it: %.600s",
                   a->adapter.name, reason);
    snprintf(why, sizeof why, "the adapter %s that began this answer is no longer there: %.600s", a->adapter.name,
             reason);
    iv_adapter_list_use(a);
    if (!a->retired) iv_adapter_list_retire(&r->bridge.adapters, a);
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->adapter == a) iv_remote_end_entry(r, e, IV_IO, why);
    }
    iv_adapter_list_leave(&r->bridge.adapters, a);
}

void iv_remote_take_reloaded(iv_remote *r, uint64_t id, iv_status status, const char *message) {
    iv_adapter_entry *a = r->bridge.adapters.first;
    while (a && a->reloaded != id) a = a->next;
    if (!a) return;
    a->reloaded = 0;
    if (status != IV_OK) lose(r, a, message);
}

/* ---- to a new process ----------------------------------------------------------------------------------- */

static uint64_t put_command(iv_remote *r, iv_command command, const char *text) {
    uint64_t id = ++r->journal.next_id; /* its result finds no entry */
    iv_remote_put(r, &(iv_frame){.kind = IV_FRAME_COMMAND, .id = id, .command = command, .text = text});
    return id;
}

static void send_entry(iv_remote *r, iv_journal_entry *e) {
    if (e->continued && e->request) r->continued++;
    if (e != r->release.waiting) iv_remote_send_entry(r, e);
}

static void reload(iv_remote *r, iv_adapter_entry *a) {
    iv_buf text = {0};
    iv_error err;
    iv_adapter_command c = {.name = a->adapter.name, .path = a->adapter.path, .digest = a->adapter.digest};
    IV_ASSERT(iv_adapter_command_write(&c, &text, &err) == IV_OK); /* as it was before */
    a->reloaded = put_command(r, IV_COMMAND_LOAD_ADAPTER, text.data);
    iv_buf_free(&text);
    if (!a->retired) return;
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->adapter == a) send_entry(r, e);
    }
    put_command(r, IV_COMMAND_UNLOAD_ADAPTER, a->adapter.name);
}

void iv_remote_send_all(iv_remote *r) {
    iv_adapter_list *l = &r->bridge.adapters;
    for (iv_adapter_entry *a = l->first, *next; a; a = next) {
        iv_adapter_list_use(a);
        reload(r, a);
        next = a->next;
        iv_adapter_list_leave(l, a);
    }
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (!e->sent) send_entry(r, e);
    }
    iv_remote_flush(r);
}
