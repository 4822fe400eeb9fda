/* model_names.c: the names that requests may use for the model. */
#include "serve/state/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The start of a path's last component, and *end. */
static size_t last_part(const char *path, size_t *end) {
    size_t start;
    for (*end = strlen(path); *end > 1 && path[*end - 1] == '/';) --*end;
    for (start = *end; start > 0 && path[start - 1] != '/'; start--) continue;
    return start;
}

/* "." or "..", which give no name. */
static bool is_step(const char *path) {
    size_t end, start = last_part(path, &end);
    return end - start <= 2 && strncmp(path + start, "..", end - start) == 0;
}

void iv_server_default_name(const char *path, char *out, size_t capacity) {
    const char *place = is_step(path) ? realpath(path, NULL) : NULL, *named = place ? place : path;
    size_t end, start = last_part(named, &end);
    snprintf(out, capacity, "%.*s", (int)(end - start), named + start);
    free((char *)place);
}

iv_status iv_server_names_check(const char *list, iv_error *err) {
    iv_server s = {.model_names = list, .model_name = ""};
    size_t at = 0, bytes, other_bytes;
    if (!*list) return iv_fail(err, IV_INVALID, "wanted a name, found nothing");
    for (const char *name; (name = iv_server_next_name(&s, &at, &bytes)) != NULL;) {
        if (bytes == 0 || bytes >= IV_MODEL_NAME_BYTES)
            return iv_fail(err, IV_INVALID, "wanted names of 1 to %d bytes, separated by commas, found %s",
                           IV_MODEL_NAME_BYTES - 1, bytes ? "a longer one" : "an empty one");
        size_t before = 0;
        for (const char *other; (other = iv_server_next_name(&s, &before, &other_bytes)) != name;)
            if (other_bytes == bytes && memcmp(other, name, bytes) == 0)
                return iv_fail(err, IV_INVALID, "wanted different names, found \"%.*s\" twice", (int)bytes, name);
    }
    return IV_OK;
}

const char *iv_server_next_name(const iv_server *s, size_t *at, size_t *bytes) {
    const char *list = s->model_names ? s->model_names : s->model_name;
    if (*at > strlen(list)) return NULL;
    const char *name = list + *at;
    *bytes = s->model_names ? strcspn(name, ",") : strlen(name);
    *at += *bytes + 1;
    return name;
}

void iv_server_take_names(iv_server *s, const char *list, const char *model, char *own) {
    if (list)
        snprintf(own, IV_MODEL_NAME_BYTES, "%.*s", (int)strcspn(list, ","), list);
    else
        iv_server_default_name(model, own, IV_MODEL_NAME_BYTES);
    s->model_name = own, s->model_names = list;
}
