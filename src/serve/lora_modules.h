/* lora_modules.h: the adapters of a command line. */
#ifndef IV_SERVE_LORA_MODULES_H
#define IV_SERVE_LORA_MODULES_H

#include "serve/state/state.h"

/* Loads them before requests are taken: the events of the bridge are taken here. */
iv_status iv_adapters_load_modules(const iv_server *s, const iv_lora_module *modules, size_t count, iv_error *err);

#endif
