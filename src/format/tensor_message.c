/* tensor_message.c: the meaning of the few calls in such a message. */
#include "format/tensor_message.h"
#include "base/size.h"
#include "format/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef iv_pickle_value value;

enum { SERIALIZED_DEPTH_MAX = 1, HANDLE_PREFIX = 2, CUDA_ARGUMENTS = 15 };

static const char REDUCTIONS[] = "torch.multiprocessing.reductions", UTILS[] = "torch._utils";

typedef struct reading {
    const char *name;   /* of the message */
    const char *tensor; /* of the tensor being read, or NULL */
    size_t rank;
    iv_arena *arena;
    iv_tensor_message *out;
    const value **seen; /* [storage_room]: the value of each storage */
    size_t tensor_room, storage_room;
    iv_error *err;
} reading;

/* A tensor before it has a name. */
typedef struct shape_and_place {
    iv_dtype dtype;
    int ndim;
    int64_t shape[IV_TENSOR_DIMS_MAX];
    size_t elements, bytes, storage, offset;
} shape_and_place;

static iv_status wrong(const reading *r, iv_status status, const char *what, const value *found) {
    char is[160];
    return iv_fail(r->err, status, "%s%s%.200s: wanted %s, found %s", r->name, r->tensor ? ": " : "",
                   r->tensor ? r->tensor : "", what, iv_pickle_describe(found, is));
}

static iv_status bad(const reading *r, iv_status status, const char *what) {
    return iv_fail(r->err, status, "%s%s%.200s: %s", r->name, r->tensor ? ": " : "", r->tensor ? r->tensor : "", what);
}

static iv_status no_memory(const reading *r) { return bad(r, IV_NO_MEMORY, "no memory for its parts"); }

/* ---- small values ------------------------------------------------------------------------------------- */

static bool is_call(const value *v, const char *module, const char *function) {
    return v->kind == IV_PICKLE_CALL && iv_pickle_is_global(v->items[0], module, function);
}

/* The arguments of a call, at least n. */
static iv_status arguments(const reading *r, const value *v, size_t n, value ***out) {
    if (v->items[1]->count < n) return wrong(r, IV_FORMAT, "more arguments", v);
    *out = v->items[1]->items;
    return IV_OK;
}

static iv_status take_size(const reading *r, const value *v, const char *what, size_t *out) {
    if (v->kind != IV_PICKLE_INT || v->number < 0) return wrong(r, IV_FORMAT, what, v);
    *out = (size_t)v->number;
    return IV_OK;
}

static iv_status take_dtype(const reading *r, const value *v, iv_dtype *out) {
    for (int t = 0; t < IV_DTYPE_COUNT; t++)
        if (iv_pickle_is_global(v, "torch", iv_dtype_name((iv_dtype)t))) {
            *out = (iv_dtype)t;
            return IV_OK;
        }
    return wrong(r, IV_UNSUPPORTED, "a torch.dtype that a checkpoint may have", v);
}

/* A tuple of sizes, or torch.Size of one. */
static iv_status take_dims(const reading *r, const value *v, int64_t *dims, int *ndim) {
    if (is_call(v, "torch", "Size") && v->items[1]->count == 1) v = v->items[1]->items[0];
    if (v->kind != IV_PICKLE_TUPLE && v->kind != IV_PICKLE_LIST) return wrong(r, IV_FORMAT, "a shape", v);
    if (v->count > IV_TENSOR_DIMS_MAX) return wrong(r, IV_LIMIT, "at most 8 dimensions", v);
    for (size_t i = 0; i < v->count; i++) {
        size_t n = 0;
        IV_TRY(take_size(r, v->items[i], "a size", &n));
        dims[i] = (int64_t)n;
    }
    *ndim = (int)v->count;
    return IV_OK;
}

/* Row-major without gaps. A dimension of one element may have any stride. */
static iv_status check_strides(const reading *r, const shape_and_place *t, const value *v) {
    int64_t strides[IV_TENSOR_DIMS_MAX], want = 1;
    int n = 0;
    IV_TRY(take_dims(r, v, strides, &n));
    if (n != t->ndim) return bad(r, IV_FORMAT, "its shape and its strides have different lengths");
    if (t->elements == 0) return IV_OK;
    for (int i = n; i-- > 0; want *= t->shape[i])
        if (t->shape[i] != 1 && strides[i] != want)
            return bad(r, IV_UNSUPPORTED, "it is not contiguous: send tensor.contiguous()");
    return IV_OK;
}

static iv_status take_shape(const reading *r, const value *v, shape_and_place *t) {
    IV_TRY(take_dims(r, v, t->shape, &t->ndim));
    if (iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &t->elements, &t->bytes)) return IV_OK;
    return bad(r, IV_FORMAT, "its shape's size overflows");
}

/* The tensor must lie in its storage. offset: in elements. */
static iv_status place(const reading *r, shape_and_place *t, size_t storage, size_t offset) {
    const iv_message_storage *s = &r->out->storages[storage];
    t->storage = storage;
    if (!iv_size_mul(offset, iv_dtype_bytes(t->dtype), &t->offset) || t->offset > s->bytes ||
        t->bytes > s->bytes - t->offset)
        return iv_fail(r->err, IV_FORMAT, "%s: %.200s: wanted %zu bytes from element %zu on, found a storage of %zu",
                       r->name, r->tensor ? r->tensor : "a tensor", t->bytes, offset, s->bytes);
    return IV_OK;
}

/* ---- storages ----------------------------------------------------------------------------------------- */

static iv_status add_storage(reading *r, const value *v, iv_message_storage **out, size_t *index) {
    iv_tensor_message *m = r->out;
    if (m->storage_count == r->storage_room) {
        size_t room = r->storage_room ? 2 * r->storage_room : 16;
        iv_message_storage *more = IV_ARENA_NEW(r->arena, room, iv_message_storage);
        const value **seen = IV_ARENA_NEW(r->arena, room, const value *);
        if (!more || !seen) return no_memory(r);
        for (size_t i = 0; i < m->storage_count; i++) more[i] = m->storages[i], seen[i] = r->seen[i];
        m->storages = more, r->seen = seen, r->storage_room = room;
    }
    *index = m->storage_count++;
    *out = &m->storages[*index];
    r->seen[*index] = v;
    return IV_OK;
}

/* A name of torch's: others are not opened. */
static iv_status take_shm_name(const reading *r, const value *v, char out[IV_SHM_NAME_BYTES]) {
    static const char begin[] = "/torch_";
    if (v->kind != IV_PICKLE_BYTES && v->kind != IV_PICKLE_TEXT) return wrong(r, IV_FORMAT, "a shared-memory name", v);
    if (v->bytes >= IV_SHM_NAME_BYTES || v->bytes < sizeof begin || memcmp(v->text, begin, sizeof begin - 1) != 0 ||
        memchr(v->text, 0, v->bytes) || memchr(v->text + 1, '/', v->bytes - 1))
        return bad(r, IV_UNSUPPORTED, "wanted a shared-memory name that begins with /torch_, found another");
    memcpy(out, v->text, v->bytes);
    out[v->bytes] = 0;
    return IV_OK;
}

/* rebuild_storage_filename(class, manager, handle, bytes[, dtype]) */
static iv_status take_shm(const reading *r, const value *v, iv_message_storage *s) {
    value **a = NULL;
    IV_TRY(arguments(r, v, 4, &a));
    IV_TRY(take_shm_name(r, a[2], s->shm));
    IV_TRY(take_size(r, a[3], "a storage's size", &s->bytes));
    s->kind = IV_STORAGE_SHM;
    return IV_OK;
}

/* torch.save's older form: five pickles (magic, version, system, the storage as a persistent id, its key), then the
 * number of elements and the bytes. */
static iv_status take_saved(const reading *r, const value *v, iv_message_storage *s) {
    static const unsigned char magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    const char *at = v->text;
    size_t left = v->bytes, used;
    uint64_t count;
    for (int i = 0; i < 5; i++, at += used, left -= used) {
        value *part;
        IV_TRY(iv_pickle_read(r->name, at, left, r->arena, &part, &used, r->err));
        if (i == 0 && (part->kind != IV_PICKLE_BYTES || part->bytes != sizeof magic ||
                       memcmp(part->text, magic, sizeof magic) != 0))
            return bad(r, IV_UNSUPPORTED, "wanted bytes of torch.save's older form");
        if (i == 3 && part->kind != IV_PICKLE_PERSISTENT) return wrong(r, IV_FORMAT, "a saved storage", part);
        if (i == 4 && (part->kind != IV_PICKLE_LIST || part->count != 1))
            return wrong(r, IV_FORMAT, "one storage", part);
    }
    if (left < sizeof count) return bad(r, IV_FORMAT, "the saved storage ends early");
    memcpy(&count, at, sizeof count);
    s->kind = IV_STORAGE_INLINE, s->data = (const unsigned char *)at + sizeof count, s->bytes = left - sizeof count;
    if (count > s->bytes) return bad(r, IV_FORMAT, "the saved storage ends early");
    return IV_OK;
}

static iv_status take_load_from_bytes(const reading *r, const value *v, iv_message_storage *s) {
    value **a = NULL;
    IV_TRY(arguments(r, v, 1, &a));
    if (a[0]->kind != IV_PICKLE_BYTES) return wrong(r, IV_FORMAT, "bytes", a[0]);
    return take_saved(r, a[0], s);
}

static iv_status fill_storage(const reading *r, const value *v, iv_message_storage *s) {
    if (is_call(v, REDUCTIONS, "rebuild_storage_filename")) return take_shm(r, v, s);
    if (is_call(v, "torch.storage", "_load_from_bytes")) return take_load_from_bytes(r, v, s);
    if (is_call(v, REDUCTIONS, "rebuild_storage_empty")) return IV_OK;
    if (is_call(v, REDUCTIONS, "rebuild_storage_fd"))
        return bad(
            r, IV_UNSUPPORTED,
            "it is shared by torch's file_descriptor strategy, whose descriptors no other program can receive: call "
            "torch.multiprocessing.set_sharing_strategy('file_system') before serializing");
    return wrong(r, IV_UNSUPPORTED, "a storage in shared memory, or bytes", v);
}

/* The index of a storage; tensors may share one. *dtype: of a typed storage. */
static iv_status take_storage(reading *r, const value *v, iv_dtype *dtype, bool *typed, size_t *index) {
    iv_message_storage *s;
    *typed = is_call(v, REDUCTIONS, "rebuild_typed_storage") && v->items[1]->count >= 2;
    if (*typed) {
        IV_TRY(take_dtype(r, v->items[1]->items[1], dtype));
        v = v->items[1]->items[0];
    }
    for (size_t i = 0; i < r->out->storage_count; i++)
        if (r->seen[i] == v) {
            *index = i;
            return IV_OK;
        }
    iv_message_storage filled = {.kind = IV_STORAGE_EMPTY};
    IV_TRY(fill_storage(r, v, &filled));
    IV_TRY(add_storage(r, v, &s, index));
    *s = filled;
    return IV_OK;
}

/* The element type of a saved storage: "FloatStorage" and so on, of the persistent id. */
static bool saved_dtype(const value *v, iv_dtype *out) {
    static const struct {
        const char *name;
        iv_dtype dtype;
    } names[] = {{"BFloat16Storage", IV_BF16}, {"HalfStorage", IV_F16},  {"FloatStorage", IV_F32},
                 {"DoubleStorage", IV_F64},    {"CharStorage", IV_I8},   {"ByteStorage", IV_U8},
                 {"BoolStorage", IV_BOOL},     {"ShortStorage", IV_I16}, {"IntStorage", IV_I32},
                 {"LongStorage", IV_I64}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (iv_pickle_is_global(v, "torch", names[i].name)) {
            *out = names[i].dtype;
            return true;
        }
    return false;
}

/* Reads the type again from the bytes: the tensor's call does not tell. */
static iv_status dtype_of_saved(const reading *r, const value *v, iv_dtype *out) {
    if (!is_call(v, "torch.storage", "_load_from_bytes") || v->items[1]->count < 1 ||
        v->items[1]->items[0]->kind != IV_PICKLE_BYTES)
        return wrong(r, IV_UNSUPPORTED, "a storage with a type", v);
    const char *at = v->items[1]->items[0]->text;
    size_t left = v->items[1]->items[0]->bytes, used;
    value *part = NULL;
    for (int i = 0; i < 4; i++, at += used, left -= used)
        IV_TRY(iv_pickle_read(r->name, at, left, r->arena, &part, &used, r->err));
    const value *id = part->kind == IV_PICKLE_PERSISTENT ? part->items[0] : part;
    if (id->kind == IV_PICKLE_TUPLE && id->count >= 2 && saved_dtype(id->items[1], out)) return IV_OK;
    return wrong(r, IV_UNSUPPORTED, "a saved storage of a known type", id);
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

/* (class, storage, (offset, shape, strides, requires_grad)) */
static iv_status take_rebuilt(reading *r, const value *v, shape_and_place *t) {
    value **a = NULL;
    size_t storage = 0, offset = 0;
    bool typed;
    IV_TRY(arguments(r, v, 3, &a));
    if (a[2]->kind != IV_PICKLE_TUPLE || a[2]->count < 3) return wrong(r, IV_FORMAT, "offset, shape and strides", a[2]);
    IV_TRY(take_storage(r, a[1], &t->dtype, &typed, &storage));
    if (!typed) return wrong(r, IV_UNSUPPORTED, "a storage with a type", a[1]);
    IV_TRY(take_size(r, a[2]->items[0], "an offset", &offset));
    IV_TRY(take_shape(r, a[2]->items[1], t));
    IV_TRY(check_strides(r, t, a[2]->items[2]));
    return place(r, t, storage, offset);
}

/* (storage, offset, shape, strides, requires_grad, hooks) */
static iv_status take_plain(reading *r, const value *v, shape_and_place *t) {
    value **a = NULL;
    size_t storage = 0, offset = 0;
    bool typed;
    IV_TRY(arguments(r, v, 4, &a));
    IV_TRY(take_storage(r, a[0], &t->dtype, &typed, &storage));
    if (!typed) IV_TRY(dtype_of_saved(r, a[0], &t->dtype));
    IV_TRY(take_size(r, a[1], "an offset", &offset));
    IV_TRY(take_shape(r, a[2], t));
    IV_TRY(check_strides(r, t, a[3]));
    return place(r, t, storage, offset);
}

/* The handle of cudaMalloc's memory; torch 2.5 and later put a version and a kind before it. */
static iv_status take_handle(const reading *r, const value *v, unsigned char out[IV_CUDA_HANDLE_BYTES]) {
    const char *at = v->text;
    if (v->kind != IV_PICKLE_BYTES) return wrong(r, IV_FORMAT, "a CUDA IPC handle", v);
    if (v->bytes == HANDLE_PREFIX + IV_CUDA_HANDLE_BYTES && at[1] == 'c')
        at += HANDLE_PREFIX;
    else if (v->bytes != IV_CUDA_HANDLE_BYTES)
        return bad(
            r, IV_UNSUPPORTED,
            "wanted a CUDA IPC handle of 64 bytes, found another: expandable segments cannot be opened here (unset "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)");
    memcpy(out, at, IV_CUDA_HANDLE_BYTES);
    return IV_OK;
}

static iv_status take_device(const reading *r, const value *v, char out[IV_CUDA_DEVICE_BYTES]) {
    if (v->kind == IV_PICKLE_INT && v->number >= 0 && v->number < 1024) {
        snprintf(out, IV_CUDA_DEVICE_BYTES, "%d", (int)v->number);
        return IV_OK;
    }
    if (v->kind != IV_PICKLE_TEXT || v->bytes >= IV_CUDA_DEVICE_BYTES) return wrong(r, IV_FORMAT, "a GPU", v);
    memcpy(out, v->text, v->bytes);
    out[v->bytes] = 0;
    return IV_OK;
}

/* (class, shape, strides, offset, storage class, dtype, device, handle, bytes, byte offset, requires_grad, counter,
 * place in it, event, whether to wait for it) */
static iv_status take_cuda(reading *r, const value *v, shape_and_place *t) {
    value **a = NULL;
    size_t index = 0, offset = 0;
    iv_message_storage *s, filled = {.kind = IV_STORAGE_CUDA};
    IV_TRY(arguments(r, v, CUDA_ARGUMENTS, &a));
    IV_TRY(take_dtype(r, a[5], &t->dtype));
    IV_TRY(take_shape(r, a[1], t));
    IV_TRY(check_strides(r, t, a[2]));
    IV_TRY(take_size(r, a[3], "an offset", &offset));
    IV_TRY(take_size(r, a[8], "a storage's size", &filled.bytes));
    if (a[7]->kind == IV_PICKLE_NONE || filled.bytes == 0) {
        filled = (iv_message_storage){.kind = IV_STORAGE_EMPTY};
    } else {
        IV_TRY(take_device(r, a[6], filled.device));
        IV_TRY(take_handle(r, a[7], filled.ipc));
        IV_TRY(take_size(r, a[9], "an offset", &filled.ipc_offset));
        IV_TRY(take_shm_name(r, a[11], filled.counter));
        IV_TRY(take_size(r, a[12], "a place in the counter's file", &filled.counter_index));
        filled.has_event = a[14]->kind == IV_PICKLE_BOOL && a[14]->number;
        if (filled.has_event && (a[13]->kind != IV_PICKLE_BYTES || a[13]->bytes != IV_CUDA_HANDLE_BYTES))
            return wrong(r, IV_FORMAT, "an event's handle", a[13]);
        if (filled.has_event) memcpy(filled.event, a[13]->text, IV_CUDA_HANDLE_BYTES);
    }
    IV_TRY(add_storage(r, v, &s, &index));
    *s = filled;
    return place(r, t, index, offset);
}

static iv_status take_tensor(reading *r, const value *v, shape_and_place *t, int depth);

/* LocalSerializedTensor(values): the value of this rank is a pickle of its own. */
static iv_status take_serialized(reading *r, const value *v, shape_and_place *t, int depth) {
    const value *values = v->state ? iv_pickle_member(v->state, "values") : NULL;
    value *inner;
    size_t used;
    if (!values || values->kind != IV_PICKLE_LIST) return wrong(r, IV_FORMAT, "its values", v);
    if (r->rank >= values->count) return wrong(r, IV_FORMAT, "a value for each rank", values);
    const value *own = values->items[r->rank];
    if (own->kind != IV_PICKLE_BYTES || depth >= SERIALIZED_DEPTH_MAX) return wrong(r, IV_FORMAT, "bytes", own);
    IV_TRY(iv_pickle_read(r->name, own->text, own->bytes, r->arena, &inner, &used, r->err));
    return take_tensor(r, inner, t, depth + 1);
}

static iv_status take_tensor(reading *r, const value *v, shape_and_place *t, int depth) {
    if (is_call(v, UTILS, "_rebuild_parameter") && v->items[1]->count >= 1) v = v->items[1]->items[0];
    if (is_call(v, REDUCTIONS, "rebuild_tensor")) return take_rebuilt(r, v, t);
    if (is_call(v, UTILS, "_rebuild_tensor_v2")) return take_plain(r, v, t);
    if (is_call(v, REDUCTIONS, "rebuild_cuda_tensor") || is_call(v, NULL, "_rebuild_cuda_tensor_modified"))
        return take_cuda(r, v, t);
    if (v->kind == IV_PICKLE_OBJECT && iv_pickle_is_global(v->items[0], NULL, "LocalSerializedTensor"))
        return take_serialized(r, v, t, depth);
    return wrong(r, IV_UNSUPPORTED, "a torch tensor", v);
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static iv_status take_name(reading *r, const value *v) {
    r->tensor = NULL;
    if (v->kind != IV_PICKLE_TEXT || v->bytes == 0 || v->bytes > IV_TENSOR_NAME_BYTES_MAX)
        return wrong(r, IV_FORMAT, "a tensor's name", v);
    r->tensor = iv_arena_strndup(r->arena, v->text, v->bytes);
    return r->tensor ? IV_OK : no_memory(r);
}

static iv_status add_tensor(reading *r, const shape_and_place *t) {
    iv_tensor_message *m = r->out;
    if (m->count == r->tensor_room) {
        size_t room = r->tensor_room ? 2 * r->tensor_room : 64;
        iv_message_tensor *more =
            room <= IV_MESSAGE_TENSORS_MAX ? IV_ARENA_NEW(r->arena, room, iv_message_tensor) : NULL;
        if (!more) return no_memory(r);
        if (m->count) memcpy(more, m->tensors, m->count * sizeof *more);
        m->tensors = more, r->tensor_room = room;
    }
    iv_message_tensor *to = &m->tensors[m->count++];
    *to = (iv_message_tensor){.name = r->tensor,
                              .dtype = t->dtype,
                              .ndim = t->ndim,
                              .bytes = t->bytes,
                              .storage = t->storage,
                              .offset = t->offset};
    memcpy(to->shape, t->shape, sizeof to->shape);
    return IV_OK;
}

static iv_status read_list(reading *r, const value *root) {
    if (root->kind != IV_PICKLE_LIST && root->kind != IV_PICKLE_TUPLE)
        return wrong(r, IV_UNSUPPORTED, "a list of names and tensors", root);
    for (size_t i = 0; i < root->count; i++) {
        const value *item = root->items[i];
        shape_and_place t = {.ndim = 0};
        r->tensor = NULL;
        if ((item->kind != IV_PICKLE_TUPLE && item->kind != IV_PICKLE_LIST) || item->count != 2)
            return wrong(r, IV_FORMAT, "a name and a tensor", item);
        IV_TRY(take_name(r, item->items[0]));
        IV_TRY(take_tensor(r, item->items[1], &t, 0));
        IV_TRY(add_tensor(r, &t));
    }
    return IV_OK;
}

static iv_status member(const reading *r, const value *dict, const char *key, const value **out) {
    *out = iv_pickle_member(dict, key);
    if (*out) return IV_OK;
    char what[80];
    snprintf(what, sizeof what, "a member \"%s\"", key);
    return wrong(r, IV_FORMAT, what, dict);
}

/* One of the flattened tensor's parts: its range is in elements of that tensor, which are bytes since SGLang 0.5. */
static iv_status read_part(reading *r, const value *meta, const shape_and_place *flat) {
    const value *v, *fields = meta->state;
    shape_and_place t = {.storage = flat->storage};
    size_t first = 0, end = 0, each = iv_dtype_bytes(flat->dtype), bytes;
    r->tensor = NULL;
    if (meta->kind != IV_PICKLE_OBJECT || !iv_pickle_is_global(meta->items[0], NULL, "FlattenedTensorMetadata") ||
        !fields)
        return wrong(r, IV_UNSUPPORTED, "FlattenedTensorMetadata", meta);
    IV_TRY(member(r, fields, "name", &v));
    IV_TRY(take_name(r, v));
    IV_TRY(member(r, fields, "dtype", &v));
    IV_TRY(take_dtype(r, v, &t.dtype));
    IV_TRY(member(r, fields, "shape", &v));
    IV_TRY(take_shape(r, v, &t));
    IV_TRY(member(r, fields, "start_idx", &v));
    IV_TRY(take_size(r, v, "start_idx", &first));
    IV_TRY(member(r, fields, "end_idx", &v));
    IV_TRY(take_size(r, v, "end_idx", &end));
    if (first > end || end > flat->elements || !iv_size_mul(end - first, each, &bytes) || bytes != t.bytes)
        return iv_fail(
            r->err, IV_FORMAT,
            "%s: %.200s: wanted %zu bytes for its shape, found elements %zu to %zu of %zu, of %zu bytes each", r->name,
            r->tensor, t.bytes, first, end, flat->elements, each);
    t.offset = flat->offset + first * each;
    return add_tensor(r, &t);
}

static iv_status read_bucket(reading *r, const value *root) {
    const value *tensor, *metadata;
    shape_and_place flat = {.ndim = 0};
    if (root->kind != IV_PICKLE_DICT)
        return wrong(r, IV_UNSUPPORTED, "a dict with flattened_tensor and metadata (load_format flattened_bucket)",
                     root);
    IV_TRY(member(r, root, "metadata", &metadata));
    if (metadata->kind != IV_PICKLE_LIST) return wrong(r, IV_FORMAT, "metadata as a list", metadata);
    if (metadata->count == 0) return IV_OK;
    IV_TRY(member(r, root, "flattened_tensor", &tensor));
    r->tensor = "flattened_tensor";
    IV_TRY(take_tensor(r, tensor, &flat, 0));
    for (size_t i = 0; i < metadata->count; i++) IV_TRY(read_part(r, metadata->items[i], &flat));
    return IV_OK;
}

iv_status iv_tensor_message_read(const char *name, const void *bytes, size_t n, bool flattened, size_t rank,
                                 iv_arena *arena, iv_tensor_message *out, iv_error *err) {
    reading r = {.name = name, .rank = rank, .arena = arena, .out = out, .err = err};
    value *root;
    size_t used;
    *out = (iv_tensor_message){0};
    IV_TRY(iv_pickle_read(name, bytes, n, arena, &root, &used, err));
    if (used != n) return iv_fail(err, IV_FORMAT, "%s: pickle: wanted %zu bytes, found %zu", name, used, n);
    return flattened ? read_bucket(&r, root) : read_list(&r, root);
}
