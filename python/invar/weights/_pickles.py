"""A pickle as data. Nothing that it names is imported or called: a call becomes a Call, of the functions and classes below alone."""

# mypy: disable-error-code="attr-defined,assignment"
from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from ._frames import Refused
from ._sets import CODES

REDUCTIONS = "torch.multiprocessing.reductions"
TYPED = {
    "BFloat16Storage", "HalfStorage", "FloatStorage", "DoubleStorage", "CharStorage", "ByteStorage", "BoolStorage", "ShortStorage",
    "IntStorage", "LongStorage",
}  # fmt: skip
NAMES = {
    REDUCTIONS: {
        "rebuild_tensor", "rebuild_typed_storage", "rebuild_storage_filename", "rebuild_storage_fd", "rebuild_storage_empty",
        "rebuild_cuda_tensor",
    },
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch.storage": {"_load_from_bytes", "UntypedStorage", "TypedStorage"},
    "torch": {"Tensor", "Size", "device", *CODES, *TYPED},
    "torch.nn.parameter": {"Parameter"},
    "collections": {"OrderedDict"},
    "multiprocessing.resource_sharer": {"DupFd"},  # its tensor is refused by name
}
ANYWHERE = {"LocalSerializedTensor", "FlattenedTensorMetadata", "_rebuild_cuda_tensor_modified"}  # SGLang has moved these


class Global:
    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *arguments: Any) -> Call:
        return Call(self, arguments)

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


class Call:
    """A call of a function, or an object of a class with the state that the pickle gives it."""

    def __init__(self, function: Global, arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"{self.function!r} of {len(self.arguments)} arguments"

    def member(self, name: str) -> Any:
        return self.state.get(name) if isinstance(self.state, dict) else None


def is_call(value: Any, name: str) -> bool:
    return isinstance(value, Call) and value.function.name == name


class Reader(pickle._Unpickler):  # Python's own code: what a pickle claims about sizes takes no memory
    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Global:
        if name not in NAMES.get(module, ()) and name not in ANYWHERE:
            raise Refused("unsupported", f"wanted names of torch's tensors, found {module}.{name}")
        return Global(module, name)

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("unsupported", "wanted tensors, found a persistent id")

    def load_new(self) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        if not isinstance(cls, Global) or not isinstance(arguments, tuple):
            raise Refused("format", "pickle: wanted a class and its arguments, found others")
        self.append(Call(cls, arguments))

    def load_call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Refused("format", "pickle: wanted a function and its arguments, found others")
        self.append(Call(function, arguments))

    def load_state(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Call):
            raise Refused("format", "pickle: wanted an object before its state, found another value")
        self.stack[-1].state = state

    def refuse(self) -> NoReturn:
        raise Refused("unsupported", "pickle: an opcode that no message of tensors has")

    dispatch[pickle.REDUCE[0]] = load_call
    dispatch[pickle.NEWOBJ[0]] = load_new
    dispatch[pickle.BUILD[0]] = load_state
    for opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.BYTEARRAY8, pickle.NEXT_BUFFER,
                   pickle.READONLY_BUFFER):  # fmt: skip
        dispatch[opcode[0]] = refuse


def read(data: bytes) -> Any:
    file = io.BytesIO(data)
    try:
        value = Reader(file).load()
    except Refused:
        raise
    except MemoryError:
        raise Refused("no_memory", "pickle: no memory") from None
    except Exception as error:  # whatever Python's reader says of damaged bytes
        raise Refused("format", f"pickle: wanted a whole one, found {type(error).__name__}: {error}") from None
    if file.tell() != len(data):
        raise Refused("format", f"pickle: wanted {file.tell()} bytes, found {len(data)}")
    return value


def describe(value: Any) -> str:
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (Call, Global)):
        return repr(value)
    return type(value).__name__ if isinstance(value, (bytes, str)) else repr(value)[:60]
