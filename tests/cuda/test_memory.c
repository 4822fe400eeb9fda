/* Memory of a GPU is zeroed when it was allocated, for streams that do not wait for the default one too. */
#include "cuda/on_gpu.h"
#include "device/gpu.h"

/* The clearing of so much takes longer than a launch: what another stream writes at once must stay. */
static void zeros_do_not_come_late(void **state) {
    (void)state;
    enum { TRIALS = 20, END = 1 << 16 };
    size_t bytes = (size_t)4 << 30;
    iv_gpu *gpu;
    iv_error err;
    cudaStream_t stream;
    SKIP_WITHOUT_GPUS(1);
    ASSERT_OK(iv_gpu_open(0, false, &gpu, &err), &err);
    iv_memspace *m = iv_gpu_memspace(gpu);
    while (bytes > iv_gpu_memory_available(gpu) / 2) bytes /= 2;
    GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned char *got = malloc(END);
    for (size_t i = 0; i < TRIALS; i++) {
        unsigned char *p = m->alloc(m, bytes);
        assert_non_null(p);
        GPU_OK(cudaMemsetAsync(p + bytes - END, 0x5a, END / 2, stream));
        GPU_OK(cudaStreamSynchronize(stream));
        GPU_OK(cudaDeviceSynchronize());
        ASSERT_OK(m->read(m, got, END, p + bytes - END, END, END, 1, &err), &err);
        for (size_t k = 0; k < END; k++) assert_int_equal(got[k], k < END / 2 ? 0x5a : 0);
        m->free(m, p);
    }
    printf("%zu MiB\n", bytes >> 20);
    free(got);
    GPU_OK(cudaStreamDestroy(stream));
    iv_gpu_close(gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(zeros_do_not_come_late)};
    return run_gpu_tests(tests, 0, NULL, NULL, NULL);
}
