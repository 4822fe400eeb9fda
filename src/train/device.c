/* device.c: the choice is the engine's (engine/device.c). */
#include "train/device.h"
#include "comm/mpi.h"

#include <string.h>

/* With the arithmetic that such a GPU has, does each rank find one? */
static bool prefers_gpu(const iv_train_options *t, iv_numerics numerics, size_t gpus, bool given) {
    iv_gpu *gpu;
    iv_error unused;
    size_t count;
    if (numerics != IV_INVAR || (given && t->arithmetic == IV_FMA32)) return false;
    if (iv_mpi_processes() > 1 || iv_gpu_count(&count, &unused) != IV_OK || gpus > count) return false;
    if (t->ordinal + t->world * t->tp > count) return false;
    if (iv_gpu_open(t->ordinal, true, &gpu, &unused) != IV_OK) return false;
    iv_gpu_close(gpu);
    return true;
}

static iv_status check_gpu(const iv_train_options *t, iv_numerics numerics, iv_dtype gemm, iv_error *err) {
    if (numerics != IV_INVAR)
        return iv_fail(err, IV_UNSUPPORTED, "numerics: wanted invar for training on device cuda, found %s",
                       iv_numerics_name(numerics));
    return iv_arithmetic_check(t->arithmetic, gemm, err);
}

iv_status iv_train_choose_device(const char *device, const char *arithmetic, iv_numerics numerics, size_t gpus,
                                 iv_train_options *t, iv_error *err) {
    bool given, automatic = strcmp(device, "auto") == 0;
    iv_dtype type = IV_BF16; /* unused on a CPU */
    t->cuda = strcmp(device, "cuda") == 0;
    if (!automatic && !t->cuda && strcmp(device, "cpu") != 0)
        return iv_fail(err, IV_INVALID, "device: wanted auto, cpu or cuda, found '%s'", device);
    IV_TRY(iv_arithmetic_parse(arithmetic, &given, &t->arithmetic, err));
    if (automatic || t->cuda) {
        iv_model_options m = {
            .has_dtype = t->has_dtype, .dtype = t->dtype, .dummy = t->dummy, .dummy_seed = t->dummy_seed};
        IV_TRY(iv_model_dtype(t->model_dir, &m, &type, err));
    }
    if (automatic && type != IV_F32) t->cuda = prefers_gpu(t, numerics, gpus, given);
    if (!given) t->arithmetic = iv_arithmetic_auto(t->cuda, type);
    return t->cuda ? check_gpu(t, numerics, type, err) : IV_OK;
}
