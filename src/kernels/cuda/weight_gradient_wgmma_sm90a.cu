/* weight_gradient_wgmma_sm90a.cu: the shapes of weight_gradient_wgmma.cuh and their launch. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_wgmma.cuh"

typedef void (*iv_gradient_function)(const CUtensorMap, const CUtensorMap, const iv_gradient_problem);

struct iv_gradient_instance {
    int inputs, peers, levels, threads, shared;
    iv_gradient_function kernel[2]; /* [has groups] */
};

template <iv_dtype TYPE, int QN, int KEPT, int PEERS> static constexpr iv_gradient_instance instance_of(void) {
    typedef iv_gradient_shape<TYPE, QN, KEPT, PEERS, false> S;
    return {S::QN,     S::PEERS,
            S::LEVELS, S::THREADS,
            S::SHARED, {iv_gradient_kernel<S>, iv_gradient_kernel<iv_gradient_shape<TYPE, QN, KEPT, PEERS, true>>}};
}

template <iv_dtype TYPE> static iv_gradient_instance instance(iv_weight_gradient_shape shape) {
    static const iv_gradient_instance all[IV_GRADIENT_SHAPES] = {
        instance_of<TYPE, 256, 0, 2>(), instance_of<TYPE, 128, 2, 2>(), instance_of<TYPE, 128, 2, 1>()};
    return all[shape];
}

static iv_gradient_instance find(iv_dtype type, iv_weight_gradient_shape shape) {
    return type == IV_BF16 ? instance<IV_BF16>(shape) : instance<IV_F16>(shape);
}

static bool fits_tma(const void *p, size_t stride) { return (uintptr_t)p % 16 == 0 && stride % 8 == 0; }

bool iv_gpu_weight_gradient_takes(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan,
                                  iv_weight_gradient_shape shape) {
    if (a->arithmetic != IV_TC16 || a->type == IV_F32 || a->axis->padded == 0) return false;
    if (!fits_tma(a->dy, a->dy_stride) || !fits_tma(a->x, a->x_stride)) return false;
    if (a->n > 1u << 24 || a->k > 1u << 24) return false;
    iv_gradient_instance w = find(a->type, shape);
    for (int i = 0; i < plan->ranges; i++)
        if (plan->range[i].to == IV_SUM_WAITS && plan->range[i].joins >= w.levels) return false;
    return a->sms >= w.peers;
}

/* [token][column], in boxes of 64 tokens by 64 columns; zeros beyond the ends. */
static int encode(CUtensorMap *map, iv_dtype type, const void *data, size_t columns, size_t tokens, size_t stride) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    cuuint64_t dims[4] = {columns, tokens, 1, 1}, strides[3] = {stride * 2, stride * 2, stride * 2};
    cuuint32_t boxes[4] = {64, IV_GRADIENT_BLOCK, 1, 1}, ones[4] = {1, 1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, type == IV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                   (void *)data, dims, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

int iv_gpu_weight_gradient_wgmma(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan,
                                 iv_weight_gradient_shape shape, iv_gpu_stream stream) {
    CUtensorMap dy, x;
    if (!iv_gpu_weight_gradient_takes(a, plan, shape)) return cudaErrorInvalidValue;
    iv_gradient_instance w = find(a->type, shape);
    iv_gradient_problem p = {};
    p.plan = *plan, p.offsets = a->offsets, p.n = (int)a->n, p.k = (int)a->k;
    p.scratch = (float *)a->scratch, p.scratch_floats = IV_WEIGHT_GRADIENT_SCRATCH / sizeof(float);
    size_t peers = (size_t)w.peers, rows = ceil_div(a->n, peers * IV_GRADIENT_OUTPUTS);
    p.tiles_k = (int)ceil_div(a->k, (size_t)w.inputs);
    size_t tiles = rows * (size_t)p.tiles_k, most = (size_t)a->sms / peers;
    if (!iv_gradient_set_groups(a, tiles, &p)) return cudaErrorInvalidValue;
    tiles = (size_t)p.tiles;
    iv_gradient_function kernel = w.kernel[a->groups != NULL];
    int e = encode(&dy, a->type, a->dy, a->n, a->axis->padded, a->dy_stride);
    if (!e) e = encode(&x, a->type, a->x, a->k, a->axis->padded, a->x_stride);
    if (!e) e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, w.shared);
    if (e) return e;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)w.peers;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3((unsigned)w.threads), config.dynamicSmemBytes = (size_t)w.shared;
    config.stream = (cudaStream_t)stream, config.attrs = attributes, config.numAttrs = w.peers > 1 ? 2 : 1;
    config.gridDim = dim3((unsigned)((tiles < most ? tiles : most) * peers));
    return cudaLaunchKernelEx(&config, kernel, dy, x, p);
}
