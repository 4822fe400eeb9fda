/* device.h: where a trainer computes, and how it sums: `device` and `arithmetic` as people give them. */
#ifndef IV_TRAIN_DEVICE_H
#define IV_TRAIN_DEVICE_H

#include "baseline/baseline.h"
#include "train/trainer.h"

/* Sets cuda and arithmetic in *t, whose model_dir, dtype and layout are set. device: "auto", "cpu", "cuda"; auto: a GPU
 * if there are `gpus` of compute capability 9.0 and one for each rank, and neither numerics nor arithmetic want a CPU.
 * arithmetic: "auto" (tc16 on a GPU where the model's type has 16 bits, else fma32), "fma32", "tc16". IV_UNSUPPORTED: a
 * GPU for what only CPUs train. */
iv_status iv_train_choose_device(const char *device, const char *arithmetic, iv_numerics numerics, size_t gpus,
                                 iv_train_options *t, iv_error *err);

#endif
