/* lora_modules.c: each is a command to the engine, and its answer is awaited. */
#include "serve/lora_modules.h"
#include "serve/api/handlers.h"

#include <poll.h>

static iv_status load_module(const iv_server *s, const iv_lora_module *m, iv_error *err) {
    iv_buf text = {0};
    iv_bridge_event r;
    iv_status status =
        iv_adapters_make_load(s, &(iv_adapter_command){.name = m->name, .path = m->path}, m->base, &text, err);
    if (status == IV_OK) status = iv_bridge_command(s->bridge, IV_COMMAND_LOAD_ADAPTER, text.data, NULL, err);
    iv_buf_free(&text);
    IV_TRY(status);
    while (!iv_bridge_next(s->bridge, &r)) {
        struct pollfd p = {.fd = iv_bridge_fd(s->bridge), .events = POLLIN};
        poll(&p, 1, -1);
    }
    return r.status == IV_OK ? IV_OK : iv_fail(err, r.status, "%s", r.message);
}

iv_status iv_adapters_load_modules(const iv_server *s, const iv_lora_module *modules, size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++) {
        iv_status status = load_module(s, &modules[i], err);
        if (status != IV_OK) return iv_error_prefix(err, "--lora-modules %.200s", modules[i].name);
    }
    return IV_OK;
}
