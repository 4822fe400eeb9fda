/* adapter_list.c: entries, copies of them, and the texts of commands about them. */
#include "serve/engine/adapter_list.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void iv_adapter_list_open(iv_adapter_list *l) {
    l->first = NULL;
    pthread_mutex_init(&l->mutex, NULL);
}

void iv_adapter_list_close(iv_adapter_list *l) {
    for (iv_adapter_entry *e; (e = l->first);) {
        l->first = e->next;
        free(e);
    }
    pthread_mutex_destroy(&l->mutex);
}

/* ---- any thread ---------------------------------------------------------------------------------------- */

static bool copy_out(iv_adapter_list *l, const iv_adapter_entry *e, iv_served_adapter *out) {
    if (e && out) *out = e->adapter;
    pthread_mutex_unlock(&l->mutex);
    return e != NULL;
}

bool iv_adapter_list_find(iv_adapter_list *l, const char *name, iv_served_adapter *out) {
    pthread_mutex_lock(&l->mutex);
    return copy_out(l, iv_adapter_list_entry(l, name), out);
}

bool iv_adapter_list_at(iv_adapter_list *l, size_t index, iv_served_adapter *out) {
    pthread_mutex_lock(&l->mutex);
    iv_adapter_entry *e = l->first;
    while (e && (e->retired || index--)) e = e->next;
    return copy_out(l, e, out);
}

/* ---- changes ------------------------------------------------------------------------------------------- */

iv_adapter_entry *iv_adapter_list_entry(const iv_adapter_list *l, const char *name) {
    iv_adapter_entry *e = l->first;
    while (e && (e->retired || strcmp(e->adapter.name, name) != 0)) e = e->next;
    return e;
}

iv_adapter_entry *iv_adapter_list_add(iv_adapter_list *l, const iv_served_adapter *a) {
    iv_adapter_entry *e = calloc(1, sizeof *e), *before = iv_adapter_list_entry(l, a->name), **at = &l->first;
    if (!e) return NULL;
    e->adapter = *a;
    iv_adapter_list_use(before);
    pthread_mutex_lock(&l->mutex);
    if (before) before->retired = true;
    while (*at) at = &(*at)->next;
    *at = e;
    pthread_mutex_unlock(&l->mutex);
    iv_adapter_list_leave(l, before);
    return e;
}

void iv_adapter_list_retire(iv_adapter_list *l, iv_adapter_entry *e) {
    iv_adapter_list_use(e);
    pthread_mutex_lock(&l->mutex);
    e->retired = true;
    pthread_mutex_unlock(&l->mutex);
    iv_adapter_list_leave(l, e);
}

void iv_adapter_list_use(iv_adapter_entry *e) {
    if (e) e->users++;
}

void iv_adapter_list_leave(iv_adapter_list *l, iv_adapter_entry *e) {
    if (!e || --e->users || !e->retired) return;
    pthread_mutex_lock(&l->mutex);
    iv_adapter_entry **at = &l->first;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    pthread_mutex_unlock(&l->mutex);
    free(e);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static const char load[] = "load", replace[] = "replace";

static iv_status check_name(const char *name, iv_error *err) {
    size_t n = name ? strlen(name) : 0, bad;
    if (n == 0 || n >= IV_ADAPTER_NAME_BYTES)
        return iv_fail(err, IV_INVALID, "adapter: wanted a name of 1 to %d bytes, found %zu", IV_ADAPTER_NAME_BYTES - 1,
                       n);
    if (!iv_utf8_valid((const uint8_t *)name, n, &bad))
        return iv_fail(err, IV_INVALID, "adapter: wanted a name in UTF-8, found a stray byte at %zu", bad);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127)
            return iv_fail(err, IV_INVALID, "adapter: wanted a name without control characters, found byte %d at %zu",
                           name[i], i);
    return IV_OK;
}

/* WORD, digest and name have a line each; the rest is the directory. */
iv_status iv_adapter_command_write(const iv_adapter_command *c, iv_buf *out, iv_error *err) {
    size_t n = c->path ? strlen(c->path) : 0;
    IV_TRY(check_name(c->name, err));
    if (n == 0 || n >= IV_ADAPTER_PATH_BYTES)
        return iv_fail(err, IV_INVALID, "adapter: '%s': wanted a directory's name of 1 to %d bytes, found %zu", c->name,
                       IV_ADAPTER_PATH_BYTES - 1, n);
    bool good = iv_buf_printf(out, "%s\n%s\n%s\n%s", c->in_place ? replace : load, c->digest ? c->digest : "", c->name,
                              c->path);
    return good ? IV_OK : iv_fail(err, IV_NO_MEMORY, "adapter: no memory");
}

/* The line at *at, without its end; NULL: there is none. */
static char *take_line(char **at) {
    char *line = *at, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0, *at = end + 1;
    return line;
}

bool iv_adapter_command_read(char *text, iv_adapter_command *c) {
    char *word = take_line(&text), *digest = word ? take_line(&text) : NULL, *name = digest ? take_line(&text) : NULL;
    if (!name) return false;
    *c = (iv_adapter_command){.name = name, .path = text, .digest = digest, .in_place = strcmp(word, replace) == 0};
    return c->in_place || strcmp(word, load) == 0;
}

bool iv_adapter_result_write(const iv_served_adapter *a, iv_buf *out) {
    return iv_buf_printf(out, "%s %zu %zu %zu", a->digest, a->rank, a->modules, a->bytes);
}

bool iv_adapter_result_read(const char *text, iv_served_adapter *out) {
    return sscanf(text, "%64s %zu %zu %zu", out->digest, &out->rank, &out->modules, &out->bytes) == 4;
}
