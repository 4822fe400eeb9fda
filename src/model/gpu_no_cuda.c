/* gpu_no_cuda.c: gpu_model.h and gpu_learner.h in a build without CUDA. Not reached: no GPU can be opened. */
#include "model/gpu_learner.h"
#include "model/gpu_model.h"

iv_status iv_gpu_model_check(const iv_model_config *c, iv_error *err) {
    (void)c;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

size_t iv_gpu_model_working_bytes(const iv_model_config *c, iv_dtype type, const iv_gpu_model_options *o,
                                  size_t ranks) {
    (void)c, (void)type, (void)o, (void)ranks;
    return 0;
}

iv_status iv_gpu_model_open(iv_model *first, iv_gpu *const *gpus, const iv_gpu_model_options *o, iv_gpu_model **out,
                            iv_error *err) {
    (void)first, (void)gpus, (void)o, (void)out;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

void iv_gpu_model_close(iv_gpu_model *g) { IV_ASSERT(!g); }

iv_status iv_gpu_model_replace(iv_gpu_model *g, iv_model *first, iv_pool *pool, iv_error *err) {
    (void)g, (void)first, (void)pool;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

iv_status iv_gpu_model_refresh(iv_gpu_model *g, iv_error *err) {
    (void)g;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

iv_status iv_gpu_model_load_adapter(iv_gpu_model *g, size_t slot, const iv_adapter *a, iv_error *err) {
    (void)g, (void)slot, (void)a;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

void iv_gpu_model_free_adapter(iv_gpu_model *g, size_t slot) { (void)g, (void)slot; }

void *iv_gpu_model_kv(const iv_gpu_model *g, size_t rank, size_t *bytes) {
    (void)g, (void)rank;
    *bytes = 0;
    return NULL;
}

iv_status iv_gpu_model_clear_kv(iv_gpu_model *g, iv_error *err) {
    (void)g;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

iv_status iv_gpu_model_forward(iv_gpu_model *g, const iv_batch *b, iv_error *err) {
    (void)g, (void)b;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

iv_status iv_gpu_model_connect(iv_gpu_model *g, iv_comm *comm, const char *transport, iv_error *err) {
    (void)g, (void)comm, (void)transport;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

const char *iv_gpu_model_transport(const iv_gpu_model *g) {
    (void)g;
    return "";
}

iv_status iv_gpu_learner_open(const iv_model *m, const iv_gpu_learner_options *options, iv_learner **out,
                              iv_error *err) {
    (void)m, (void)options, (void)out;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

iv_status iv_gpu_learner_join(iv_learner *const *learners, size_t ranks, iv_comm *const *comm, iv_error *err) {
    (void)learners, (void)ranks, (void)comm;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}
