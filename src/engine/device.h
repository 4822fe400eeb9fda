/* device.h: where an engine computes: the CPU, or GPUs of this machine, one for each rank. */
#ifndef IV_ENGINE_DEVICE_H
#define IV_ENGINE_DEVICE_H

#include "engine/state.h"

/* Decides device and arithmetic from the options, opens the GPUs, and sets the memory spaces of the weights in *m.
 * e->numerics and the dtype in *m are set. */
iv_status iv_device_choose(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err);

/* Bytes over all GPUs that are available for weights and pages of a model in `type`; *working: what each GPU needs in
 * addition. */
size_t iv_device_memory_available(const iv_engine *e, const iv_model_config *c, iv_dtype type,
                                  const iv_engine_options *o, size_t *working);

/* e->model is loaded: opens the state that runs it, on the CPU or on the GPUs. */
iv_status iv_device_open_model(iv_engine *e, const iv_engine_options *o, size_t pages, iv_error *err);

/* Where an update loads its weights. GPUs have no memory for two models: theirs are staged in this process's memory. */
void iv_device_stage_weights(const iv_engine *e, iv_model_options *m);

void iv_device_close(iv_engine *e); /* the GPUs; after the model */

#endif
