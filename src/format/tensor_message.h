/* tensor_message.h: named tensors as a trainer sends them: a pickle of SGLang's MultiprocessingSerializer, which is
 * Python's ForkingPickler with torch's reductions. No pickle is executed: the calls below are recognized by name and
 * read as data; any other global is refused by name.
 *
 *     [(name, tensor), ...]                  tensor: a torch.Tensor or Parameter, or LocalSerializedTensor(values),
 * whose values are such pickles of a tensor, one for each rank
 *     {"flattened_tensor": tensor, "metadata": [FlattenedTensorMetadata, ...]}
 *
 * A tensor is rebuild_tensor or rebuild_cuda_tensor (torch.multiprocessing.reductions, also as patched by SGLang),
 * _rebuild_tensor_v2 or _rebuild_parameter (torch._utils). Its data is
 *
 *     SHM       rebuild_storage_filename: torch's file_system strategy, a file of shm_open
 *     INLINE    _load_from_bytes: the bytes themselves, as pickle.dumps writes a tensor
 *     CUDA      an IPC handle of a GPU's memory (cudaIpcMemHandle_t; not of expandable segments)
 *     EMPTY     no bytes
 *
 * torch's file_descriptor strategy is refused: its descriptors are passed on only within a family of Python processes
 * that share a secret. Tensors must be row-major without gaps. */
#ifndef IV_FORMAT_TENSOR_MESSAGE_H
#define IV_FORMAT_TENSOR_MESSAGE_H

#include "base/arena.h"
#include "base/dtype.h"
#include "format/safetensors.h"

typedef enum iv_storage_kind { IV_STORAGE_EMPTY, IV_STORAGE_INLINE, IV_STORAGE_SHM, IV_STORAGE_CUDA } iv_storage_kind;

enum { IV_SHM_NAME_BYTES = 64, IV_CUDA_HANDLE_BYTES = 64, IV_CUDA_DEVICE_BYTES = 48 };

/* Memory that tensors lie in. SHM and CUDA hold one reference of the sender's count, which the receiver gives back. */
typedef struct iv_message_storage {
    iv_storage_kind kind;
    size_t bytes;
    const unsigned char *data;                                            /* INLINE; of the message */
    char shm[IV_SHM_NAME_BYTES];                                          /* SHM: "/torch_..." */
    unsigned char ipc[IV_CUDA_HANDLE_BYTES], event[IV_CUDA_HANDLE_BYTES]; /* CUDA */
    size_t ipc_offset;                 /* CUDA: of the data, in the handle's memory */
    bool has_event;                    /* CUDA: wait for it first */
    char device[IV_CUDA_DEVICE_BYTES]; /* CUDA: a UUID as torch writes it, or a number */
    char counter[IV_SHM_NAME_BYTES];   /* CUDA: the file with the sender's count, "": none ... */
    size_t counter_index;              /* ... and its place there */
} iv_message_storage;

typedef struct iv_message_tensor {
    const char *name; /* in the arena */
    iv_dtype dtype;
    int ndim;
    int64_t shape[IV_TENSOR_DIMS_MAX];
    size_t bytes;
    size_t storage, offset; /* index of the storage, and bytes from its start */
} iv_message_tensor;

typedef struct iv_tensor_message {
    iv_message_tensor *tensors;
    size_t count;
    iv_message_storage *storages;
    size_t storage_count;
} iv_tensor_message;

enum { IV_MESSAGE_TENSORS_MAX = 1 << 18 };

/* Reads a message of n bytes, which must outlive *out; *out lies in the arena. flattened: the second form.
 * rank: which of a LocalSerializedTensor's values. Errors begin with `name` and the tensor's. After IV_UNSUPPORTED or
 * IV_FORMAT of a tensor, the storages read so far are in *out. */
iv_status iv_tensor_message_read(const char *name, const void *bytes, size_t n, bool flattened, size_t rank,
                                 iv_arena *arena, iv_tensor_message *out, iv_error *err);

#endif
