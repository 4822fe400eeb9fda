"""ops.py: the ops of src/kernels/cuda/ops.h on torch tensors, through libinvar_gpu_ops.so.

    ops = Ops("build/bench/gpu/libinvar_gpu_ops.so")
    linear = ops.linear(x, w, out)          # refers to the tensors
    linear()                                # enqueues on torch's current stream; may be captured into a graph

The structs mirror ops.h; every offset is checked when the library is loaded.
"""

import ctypes
import math
from ctypes import c_bool, c_float, c_int, c_int32, c_int64, c_long, c_size_t, c_uint32, c_uint64, c_void_p

import torch

DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
ARITHMETIC = {"fma32": 0, "tc16": 1}
EPILOGUES = {"store": 0, "residual": 1, "swiglu": 2}
FAMILIES = ("generic", "wgmma", "mma")
LEAVES_MAX, CHAIN_STEP, ATTENTION_BLOCK = 8, 16, 64


class Matrix(ctypes.Structure):
    _fields_ = [("type", c_int), ("n", c_size_t), ("k_padded", c_size_t), ("leaves", c_int), ("data", c_void_p),
                ("expert_bytes", c_size_t)]


class Groups(ctypes.Structure):
    _fields_ = [("experts", c_size_t), ("first", c_size_t), ("count", c_size_t), ("offsets", c_void_p),
                ("slots", c_void_p), ("weights", c_void_p), ("experts_per_token", c_size_t), ("packed", c_bool)]


class Fused(ctypes.Structure):
    _fields_ = [("addend", c_void_p), ("gate", c_void_p), ("up", c_void_p), ("logits", c_void_p), ("first", c_size_t),
                ("temperature", c_float)]


class LinearArgs(ctypes.Structure):
    _fields_ = [("arithmetic", c_int), ("w", Matrix), ("type", c_int), ("x", c_void_p), ("x_stride", c_size_t),
                ("rows", c_size_t), ("x_rows", c_size_t), ("epilogue", c_int), ("bias", c_void_p), ("out", c_void_p),
                ("out_stride", c_size_t), ("groups", ctypes.POINTER(Groups)), ("weighted", c_bool), ("spare", c_int),
                ("fused", Fused)]


class LinearConfig(ctypes.Structure):
    _fields_ = [("family", c_int), ("tile_n", c_int), ("tile_m", c_int), ("split_k", c_int), ("stages", c_int),
                ("variant", c_int), ("halves", c_int)]


class KV(ctypes.Structure):
    _fields_ = [("type", c_int), ("heads", c_size_t), ("head_dim", c_size_t), ("pages", c_void_p),
                ("page_count", c_size_t)]


class Span(ctypes.Structure):
    _fields_ = [("first_row", c_int32), ("rows", c_int32), ("position", c_int32), ("table", c_int32)]


class AttentionShape(ctypes.Structure):
    _fields_ = [("arithmetic", c_int), ("type", c_int), ("heads", c_size_t), ("kv_heads", c_size_t),
                ("head_dim", c_size_t), ("group", c_size_t), ("group_first", c_size_t), ("window", c_int64),
                ("capped", c_bool)]


class AttentionArgs(ctypes.Structure):
    _fields_ = [("shape", AttentionShape), ("kv", KV), ("scale_log2e", c_float), ("score_inner", c_float),
                ("sinks", c_void_p), ("q", c_void_p), ("out", c_void_p), ("lse2", c_void_p), ("plan", c_void_p),
                ("spans", c_void_p), ("tables", c_void_p),
                ("scratch", c_void_p), ("decode", c_bool), ("sms", c_int), ("rows", c_size_t)]


class RotateArgs(ctypes.Structure):
    _fields_ = [("qkv", c_void_p), ("rows", c_size_t), ("heads", c_size_t), ("q_norm", c_void_p),
                ("k_norm", c_void_p), ("eps", c_float), ("cosine", c_void_p), ("sine", c_void_p),
                ("positions", c_void_p), ("slots", c_void_p), ("kv", KV), ("q", c_void_p), ("q_raw", c_void_p),
                ("k_raw", c_void_p), ("bad", c_void_p), ("layer", c_uint32)]


class Sampling(ctypes.Structure):
    _fields_ = [("temperature", c_float), ("top_p", c_float), ("min_p", c_float), ("top_k", c_int32),
                ("seed", c_uint64), ("position", c_uint64), ("top_logprobs", c_int32), ("sampling_logprob", ctypes.c_bool),
                ("given", ctypes.c_bool), ("token", c_int32)]


class Sampled(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float), ("max", c_float), ("log_sum", c_float),
                ("sampling_logprob", c_float)]


MIRRORS = {"gpu_matrix": Matrix, "gpu_groups": Groups, "gpu_fused": Fused, "gpu_linear_args": LinearArgs,
           "gpu_linear_config": LinearConfig, "gpu_kv": KV, "gpu_span": Span, "gpu_attention_shape": AttentionShape,
           "gpu_attention_args": AttentionArgs, "gpu_rotate_args": RotateArgs, "row_sampling": Sampling, "row_result": Sampled}

P = ctypes.POINTER
SIGNATURES = {
    "linear": (c_int, P(LinearArgs), c_void_p),
    "linear_with": (c_int, P(LinearArgs), P(LinearConfig), c_void_p),
    "linear_configs": (c_size_t, P(LinearArgs), P(LinearConfig), c_size_t),
    "linear_choose": (LinearConfig, P(LinearArgs)),
    "linear_describe": (None, P(LinearConfig), ctypes.c_char_p, c_size_t),
    "attention": (c_int, P(AttentionArgs), c_void_p),
    "attention_plan": (c_size_t, P(AttentionShape), P(Span), c_size_t, c_int, c_void_p, c_size_t),
    "attention_plan_bytes": (c_size_t, P(AttentionShape), c_size_t, c_size_t, c_size_t),
    "attention_scratch": (c_size_t, P(AttentionShape), c_size_t, c_size_t, c_size_t),
    "pack_rows": (c_int, P(Groups), c_size_t, c_void_p, c_size_t, c_void_p, c_void_p),
    "rmsnorm": (c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_float, c_size_t, c_int, c_void_p, c_size_t, c_void_p),
    "rotate": (c_int, P(RotateArgs), c_void_p),
    "sample": (c_int, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "sample_scratch": (c_size_t, c_size_t, c_size_t),
}


def leaf_count(k_padded, of_ranks):
    """As iv_leaf_count of numerics/tree.h. of_ranks: o and down, whose K tensor-parallel ranks divide."""
    leaves = LEAVES_MAX if of_ranks else LEAVES_MAX // 2
    while leaves > 1 and k_padded % (CHAIN_STEP * leaves):
        leaves //= 2
    return leaves


def interleave(gate, up):
    """The rows of a SWIGLU matrix: groups of 8 gates, then their 8 ups (ops.h)."""
    n, k = gate.shape
    return torch.stack((gate.view(n // 8, 8, k), up.view(n // 8, 8, k)), 1).reshape(2 * n, k).contiguous()


def stream():
    return torch.cuda.current_stream().cuda_stream


def check(status, what):
    if status != 0:
        raise RuntimeError(f"{what}: CUDA error {status}")


class Ops:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.invar_gpu_op.restype = c_void_p
        self.library.invar_gpu_op.argtypes = [ctypes.c_char_p]
        self.library.invar_gpu_layout.restype = c_long
        self.library.invar_gpu_layout.argtypes = [ctypes.c_char_p]
        for name, mirror in MIRRORS.items():
            self._compare(name, ctypes.sizeof(mirror))
            for field, *_ in mirror._fields_:
                self._compare(f"{name}.{field}", getattr(mirror, field).offset)
        self._found = {}

    def _compare(self, name, ours):
        theirs = self.library.invar_gpu_layout(name.encode())
        if theirs != ours:
            raise RuntimeError(f"ops.py: {name} lies at {ours} here and at {theirs} in the library")

    def has(self, name):
        return self.library.invar_gpu_op(name.encode()) is not None

    def op(self, name):
        """The function as ops.h declares it."""
        if name not in self._found:
            address = self.library.invar_gpu_op(name.encode())
            if address is None:
                raise RuntimeError(f"ops.py: this build has no iv_gpu_{name}")
            result, *arguments = SIGNATURES[name]
            self._found[name] = ctypes.CFUNCTYPE(result, *arguments)(address)
        return self._found[name]

    # ---- linear layers

    def linear_args(self, x, w, out, epilogue="store", arithmetic="tc16", bias=None, leaves=None):
        """x [rows][k], w [n][k], out [rows][n] float32, or [rows][n / 2] of x's type for swiglu. What lies behind x in
        its storage may be read. leaves: None: as the law has them, if layers with a residual are o and down."""
        n, k = w.shape
        readable = (x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()) // x.stride(0)
        if k % CHAIN_STEP or x.shape[1] != k or not (x.is_cuda and w.is_cuda and out.is_cuda):
            raise ValueError("ops.py: linear: wanted x [rows][k] and w [n][k] on the GPU, k a multiple of 16")
        return LinearArgs(arithmetic=ARITHMETIC[arithmetic],
                          w=Matrix(type=DTYPES[w.dtype], n=n, k_padded=w.stride(0), data=w.data_ptr(),
                                   leaves=leaves or leaf_count(w.stride(0), epilogue == "residual")),
                          type=DTYPES[x.dtype], x=x.data_ptr(), x_stride=x.stride(0), rows=x.shape[0], x_rows=readable,
                          epilogue=EPILOGUES[epilogue], bias=None if bias is None else bias.data_ptr(),
                          out=out.data_ptr(), out_stride=out.stride(0))

    def linear(self, x, w, out, config=None, **options):
        """A call that computes out from x and w, by the chosen configuration, or by `config`."""
        args = self.linear_args(x, w, out, **options)
        launch, launch_with = self.op("linear"), self.op("linear_with")

        def call(keep=(x, w, out, options)):
            if config is None:
                check(launch(args, stream()), "iv_gpu_linear")
            else:
                check(launch_with(args, config, stream()), "iv_gpu_linear_with")

        return call

    def linear_configs(self, args):
        found = (LinearConfig * 1024)()
        return list(found[:min(1024, self.op("linear_configs")(args, found, 1024))])

    def linear_choose(self, args):
        return self.op("linear_choose")(args)

    def describe(self, config):
        text = ctypes.create_string_buffer(256)
        self.op("linear_describe")(config, text, len(text))
        return text.value.decode()

    # ---- attention

    def attention(self, q, pages, tables, spans, out, heads, kv_heads, head_dim, arithmetic="tc16", window=0,
                  sms=None):
        """q, out [rows][heads * head_dim]; pages [page][kv_heads][2][64][head_dim]; tables: page numbers, int32 on the
        GPU; spans: (first_row, rows, position, first table entry) each, of consecutive rows."""
        shape = AttentionShape(arithmetic=ARITHMETIC[arithmetic], type=DTYPES[q.dtype], heads=heads,
                               kv_heads=kv_heads, head_dim=head_dim, group=heads // kv_heads, group_first=0,
                               window=window)
        sms = sms or torch.cuda.get_device_properties(q.device).multi_processor_count
        rows, count = q.shape[0], len(spans)
        longest = max(position + n for _, n, position, _ in spans)
        host_spans = (Span * count)(*(Span(*s) for s in spans))
        room = self.op("attention_plan_bytes")(shape, rows, count, longest)
        host_plan = ctypes.create_string_buffer(max(room, 1))
        used = self.op("attention_plan")(shape, host_spans, count, sms, host_plan, room)
        if used == 0:
            raise RuntimeError("ops.py: no plan for these spans")

        def to_device(raw):
            return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(q.device)

        plan, device_spans = to_device(host_plan.raw), to_device(bytes(host_spans))
        scratch = torch.zeros(max(1, self.op("attention_scratch")(shape, rows, count, longest)), dtype=torch.uint8,
                              device=q.device)
        args = AttentionArgs(shape=shape,
                             kv=KV(type=DTYPES[pages.dtype], heads=kv_heads, head_dim=head_dim,
                                   pages=pages.data_ptr(), page_count=pages.shape[0]),
                             scale_log2e=math.log2(math.e) / math.sqrt(head_dim), q=q.data_ptr(), out=out.data_ptr(),
                             plan=plan.data_ptr(), spans=device_spans.data_ptr(), tables=tables.data_ptr(),
                             scratch=scratch.data_ptr(), decode=all(n == 1 for _, n, _, _ in spans), sms=sms, rows=rows)
        launch = self.op("attention")

        def call(keep=(q, pages, tables, out, plan, device_spans, scratch)):
            check(launch(args, stream()), "iv_gpu_attention")

        return call

    # ---- rows

    def rmsnorm(self, x, weight, out, eps=1e-6):
        """x [rows][n] float32, weight [n] float32, out [rows][n]."""
        launch = self.op("rmsnorm")

        def call(keep=(x, weight, out)):
            check(launch(x.data_ptr(), x.shape[1], None, weight.data_ptr(), eps, x.shape[0], DTYPES[out.dtype],
                         out.data_ptr(), out.stride(0), stream()), "iv_gpu_rmsnorm")

        return call

    def rotate(self, qkv, q_norm, k_norm, cosine, sine, positions, slots, pages, q, eps=1e-6):
        """qkv [rows][...], tables [position][head_dim / 2], norms [head_dim], all float32; positions int32, slots
        int64; pages as for attention; q [rows][heads * head_dim] is written, as are the pages."""
        _, kv_heads, _, _, head_dim = pages.shape
        bad = torch.full((1,), -1, dtype=torch.int64, device=q.device)
        args = RotateArgs(qkv=qkv.data_ptr(), rows=qkv.shape[0], heads=q.shape[1] // head_dim, q_norm=q_norm.data_ptr(),
                          k_norm=k_norm.data_ptr(), eps=eps, cosine=cosine.data_ptr(), sine=sine.data_ptr(),
                          positions=positions.data_ptr(), slots=slots.data_ptr(),
                          kv=KV(type=DTYPES[pages.dtype], heads=kv_heads, head_dim=head_dim, pages=pages.data_ptr(),
                                page_count=pages.shape[0]), q=q.data_ptr(), bad=bad.data_ptr())
        launch = self.op("rotate")

        def call(keep=(qkv, q_norm, k_norm, cosine, sine, positions, slots, pages, q, bad)):
            check(launch(args, stream()), "iv_gpu_rotate")

        return call

    def sample(self, logits, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0):
        """A call, and the ids that it writes [rows] (int32)."""
        rows, vocab = logits.shape
        each = (Sampling * rows)(*(Sampling(temperature, top_p, min_p, top_k, seed, i) for i in range(rows)))
        sampling = torch.frombuffer(bytearray(bytes(each)), dtype=torch.uint8).to(logits.device)
        out = torch.zeros(rows, ctypes.sizeof(Sampled) // 4, dtype=torch.int32, device=logits.device)
        scratch = torch.zeros(max(1, self.op("sample_scratch")(rows, vocab)), dtype=torch.uint8, device=logits.device)
        launch = self.op("sample")

        def call(keep=(logits, sampling, out, scratch)):
            check(launch(logits.data_ptr(), rows, vocab, None, sampling.data_ptr(), scratch.data_ptr(), out.data_ptr(),
                         None, stream()), "iv_gpu_sample")

        return call, out[:, 0]
