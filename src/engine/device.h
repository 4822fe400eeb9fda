/* device.h: where an engine computes: the CPU, or GPUs of this machine, one a rank. */
#ifndef IV_ENGINE_DEVICE_H
#define IV_ENGINE_DEVICE_H

#include "engine/engine.h"

/* Decides device and arithmetic from the options, opens the GPUs, and says in *m where weights go. Before it
 * e->numerics and the dtype asked for are known. */
iv_status iv_device_choose(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err);

/* Bytes over all GPUs that weights and pages of a model held in `type` may take; *working: what each needs beside. */
size_t iv_device_memory_available(const iv_engine *e, const iv_model_config *c, iv_dtype type,
                                  const iv_engine_options *o, size_t *working);

/* The weights are on the GPUs: opens the rest of the model there. */
iv_status iv_device_open_model(iv_engine *e, const iv_engine_options *o, size_t pages, iv_error *err);

#endif
