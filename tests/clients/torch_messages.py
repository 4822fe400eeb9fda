"""Messages of SGLang's MultiprocessingSerializer without torch: the same pickles, opcode by opcode, as torch 2.6 makes of CPU
tensors. Modules of torch's names hold empty functions and classes, which Python's pickler writes by name.

    tensor(data, dtype, shape, how)   how: "file_system", "inline", "file_descriptor"
    named(pairs), bucket(pairs, how)  base64 texts for serialized_named_tensors"""

import base64
import contextlib
import io
import os
import pickle
import struct
import sys
import types

SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}
SHM = "/dev/shm"
made = []  # names of shared memory: the sender frees them


def module(name):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
    return sys.modules[name]


def function(module_name, name):
    def made_function(*_):
        raise AssertionError("never called")
    made_function.__module__, made_function.__qualname__, made_function.__name__ = module_name, name, name
    setattr(module(module_name), name, made_function)
    return made_function


def a_class(module_name, name, bases=(object,)):
    made_class = type(name, bases, {"__module__": module_name})
    setattr(module(module_name), name, made_class)
    return made_class


REDUCTIONS = "torch.multiprocessing.reductions"
for parent in ("torch", "torch.multiprocessing", REDUCTIONS, "torch.storage", "torch._utils", "sglang", "sglang.srt", "sglang.srt.weight_sync"):
    module(parent)
rebuild_tensor, rebuild_typed_storage = function(REDUCTIONS, "rebuild_tensor"), function(REDUCTIONS, "rebuild_typed_storage")
rebuild_storage_filename, rebuild_storage_fd = function(REDUCTIONS, "rebuild_storage_filename"), function(REDUCTIONS, "rebuild_storage_fd")
rebuild_cuda_tensor = function(REDUCTIONS, "rebuild_cuda_tensor")
rebuild_storage_empty = function(REDUCTIONS, "rebuild_storage_empty")
load_from_bytes, rebuild_tensor_v2 = function("torch.storage", "_load_from_bytes"), function("torch._utils", "_rebuild_tensor_v2")
Tensor, UntypedStorage, TypedStorage = a_class("torch", "Tensor"), a_class("torch.storage", "UntypedStorage"), a_class("torch.storage", "TypedStorage")
SizeClass = a_class("torch", "Size", (tuple,))
DupFd = a_class("multiprocessing.resource_sharer", "DupFd") if "multiprocessing.resource_sharer" not in sys.modules else sys.modules["multiprocessing.resource_sharer"].DupFd
FlattenedTensorMetadata = a_class("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata")
LocalSerializedTensor = a_class("sglang.srt.model_executor.model_runner", "LocalSerializedTensor")
STORAGES = {"bfloat16": "BFloat16Storage", "float32": "FloatStorage", "float16": "HalfStorage", "uint8": "ByteStorage"}
for storage_name in STORAGES.values():
    a_class("torch", storage_name)


class Global:
    """Written as the name of something in a module, like torch.bfloat16."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


for dtype_name in (*SIZES, "float64"):
    setattr(module("torch"), dtype_name, Global(dtype_name))
    module("torch").__dict__[dtype_name].__module__ = "torch"


class Call:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def dtype_of(name):
    return getattr(module("torch"), name)


def size(shape):
    return Call(SizeClass, tuple(shape))


def strides(shape):
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def shared(data):
    """A file as torch's allocator makes it: a count of references, then the data; one is the message's."""
    name = f"/torch_{os.getpid()}_{len(made)}_{int.from_bytes(os.urandom(4), 'little')}"
    with open(SHM + name, "wb") as file:
        file.write(struct.pack("<i", 2) + bytes(60) + data)
    made.append(name)
    return name


def references(name):
    with open(SHM + name, "rb") as file:
        return struct.unpack("<i", file.read(4))[0]


def free_all():
    for name in made:
        with contextlib.suppress(FileNotFoundError):  # the receiver's manager stands in for the sender's, which is none
            os.unlink(SHM + name)
    made.clear()


class Saved(pickle.Pickler):
    """torch.save's older form of a storage."""

    def persistent_id(self, obj):
        return obj.value if isinstance(obj, PersistentId) else None


class PersistentId:
    def __init__(self, *value):
        self.value = value


def saved(data, dtype):
    out = io.BytesIO()
    for part in (0x1950a86a20f9469cfc6c, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}):
        pickle.dump(part, out, protocol=2)
    count = len(data) // SIZES[dtype]
    Saved(out, protocol=2).dump(PersistentId("storage", getattr(module("torch"), STORAGES[dtype]), "1", "cpu", count, None))
    pickle.dump(["1"], out, protocol=2)
    out.write(struct.pack("<q", count) + data)
    return out.getvalue()


def tensor(data, dtype, shape, how="file_system", stride=None, offset=0):
    stride = strides(shape) if stride is None else stride
    if how == "inline":
        return Call(rebuild_tensor_v2, Call(load_from_bytes, saved(data, dtype)), offset, tuple(shape), stride, False, {})
    if how == "file_descriptor":
        df = DupFd.__new__(DupFd)
        df.__dict__ = {"_id": ("/tmp/pymp-none/listener-none", 1)}
        untyped = Call(rebuild_storage_fd, UntypedStorage, df, len(data))
    elif not data:
        untyped = Call(rebuild_storage_empty, UntypedStorage)
    else:
        untyped = Call(rebuild_storage_filename, UntypedStorage, b"/tmp/torch-shm-dir-none/manager.sock", shared(data).encode(), len(data))
    typed = Call(rebuild_typed_storage, untyped, dtype_of(dtype))
    return Call(rebuild_tensor, Tensor, typed, (offset, size(shape), stride, False))


def cuda_tensor(dtype, shape, handle, bytes_, device, counter, event=b"", wait=False):
    return Call(rebuild_cuda_tensor, Tensor, size(shape), strides(shape), 0, TypedStorage, dtype_of(dtype), device, handle, bytes_, 0, False,
                counter.encode(), 3, event, wait)


def raw(obj):
    """ForkingPickler without its reductions: the stand-ins above take their place."""
    return pickle.dumps(obj, protocol=4)


def text(obj):
    return base64.b64encode(raw(obj)).decode()


def named(pairs):
    return text([(name, t) for name, t in pairs])


def metadata(name, shape, dtype, first, end):
    made_metadata = FlattenedTensorMetadata()
    made_metadata.__dict__ = {"name": name, "shape": size(shape), "dtype": dtype_of(dtype), "start_idx": first, "end_idx": end, "numel": end - first}
    return made_metadata


def bucket(tensors, how="file_system"):
    """tensors: (name, dtype, shape, data); flattened to bytes, as SGLang does since 0.5."""
    at, parts = 0, []
    for name, dtype, shape, data in tensors:
        parts.append(metadata(name, shape, dtype, at, at + len(data)))
        at += len(data)
    whole = b"".join(data for *_, data in tensors)
    return text({"flattened_tensor": tensor(whole, "uint8", [len(whole)], how), "metadata": parts})


def serialized(values):
    """verl's nested form: one pickle for each rank."""
    local = LocalSerializedTensor()
    local.__dict__ = {"values": [raw(v) for v in values]}
    return local
