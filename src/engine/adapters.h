/* adapters.h: the adapters that an engine has loaded. Each has a slot until it was unloaded and its last sequence
 * ended. Between two steps only. */
#ifndef IV_ENGINE_ADAPTERS_H
#define IV_ENGINE_ADAPTERS_H

#include "engine/state.h"

/* Slots of an engine: of those that are loaded, and of those that are unloaded and in use. */
enum { IV_ADAPTERS_RETIRED_MAX = 64 };
static inline size_t iv_adapters_slots(size_t max_loras) { return max_loras ? max_loras + IV_ADAPTERS_RETIRED_MAX : 0; }

/* Room for o->max_loras; before the model's forward passes are opened. Checks both options. */
iv_status iv_adapters_open(iv_engine *e, const iv_engine_options *o, iv_error *err);
void iv_adapters_close(iv_engine *e); /* after the sequences */

/* adapter_room.c: what one adapter takes that has this rank on every linear layer, the head and the embedding, on all
 * ranks together, packed. False: an overflow. */
bool iv_adapters_room(const iv_model *plan, size_t ranks, size_t rank, size_t *bytes);
/* An adapter that was made for this engine's model becomes `name`, in place of one of that name, whose requests keep
 * it. It then belongs to the engine, unless this fails. path: of its facts. Not under mpirun. */
iv_status iv_adapters_put(iv_engine *e, const char *name, const char *path, iv_adapter *weights, iv_error *err);
/* The facts of one by its name; false: there is none. */
bool iv_adapters_info(const iv_engine *e, const char *name, iv_adapter_info *out);

/* By iv_request.adapter; *out is NULL for the base alone. IV_NOT_FOUND lists the names. */
iv_status iv_adapters_find(const iv_engine *e, const char *name, iv_loaded_adapter **out, iv_error *err);

/* The sequence uses it, also for its prefixes; once, before its first step. NULL is fine. */
void iv_adapters_use(iv_loaded_adapter *a, iv_sequence *s);

/* Frees those that are unloaded and have no users. */
iv_status iv_adapters_sweep(iv_engine *e, iv_error *err);

/* "FINGERPRINT+lora-" and the first 16 digits of a digest. */
void iv_adapters_fingerprint(const char *fingerprint, const char *digest, char out[IV_ADAPTED_FINGERPRINT_BYTES]);

#endif
