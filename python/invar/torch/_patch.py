"""patch(): a transformers model whose forward pass is the engine's."""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import _check
from .._errors import Status
from . import _native as native
from ._blocks import AttentionBlock, Batch, Embed, HeadLogits, HeadLogprobs, MlpBlock, Shape
from ._experts import ExpertsBlock
from ._native import refuse
from ._step import Pass, Step, active_pass

CLASSES = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
VECTORS = ("norm.weight", "layernorm.weight", ".bias")


# ---- what is patched


def patch(model: Any, dtype: str | torch.dtype = "auto", arithmetic: str = "auto") -> Any:
    """Replaces the forward pass of a transformers ForCausalLM in place, and returns it: its log-probabilities are then
    those of the engine, in every bit. Parameters keep their names, so that checkpoints do not change.

    dtype: the GEMM type; auto: that of the parameters. Parameters of float32 with a 16-bit dtype are master weights:
    the forward pass rounds matrices, and patch() rounds the initial ones. arithmetic: auto is as the engine's on the
    model's device: fma32 on a CPU, on a GPU tc16 (fma32 for float32). The model stays on that device. An InvarError
    names what the engine does not compute. copy.deepcopy and pickle give patched models."""
    inner = type(model).__module__.startswith("transformers.models.")
    if not inner or type(model).__name__ not in CLASSES:
        raise refuse(f"patch: wanted one of {', '.join(CLASSES)} of transformers, found {type(model).__name__}")
    if getattr(model, "_invar", None) is not None:
        raise refuse("patch: the model is patched already", Status.INVALID)
    check_config(model.config)
    text = json.dumps(model.config.to_dict(), default=str)
    config = native.config_of(text)
    device, found = native.device_of(list(model.named_parameters())), model.model.embed_tokens.weight.dtype
    device = native.CPU if device.type == "meta" else device
    gemm = found if str(dtype) == "auto" else native.dtype_of(dtype)
    ops = native.context(gemm, arithmetic, device)
    shape = Shape(
        ops, config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rms_norm_eps, text,
        config.max_position_embeddings, config.tie_word_embeddings, {},
    )  # fmt: skip
    check_modules(model, config)
    check_parameters(model, gemm)
    if gemm != torch.float32:
        round_matrices(model, ops)
    shape.dtypes.update((name, p.dtype) for name, p in model.named_parameters())
    model._invar = shape
    model.forward = partial(forward_causal, model)  # unlike a bound method, copy and pickle know it
    model.model.forward = partial(forward_inner, model.model)
    for i, layer in enumerate(model.model.layers):
        layer._invar = shape, f"model.layers.{i}.", config.layers[i].sliding_window
        layer._invar_experts = (config.num_experts_per_tok, config.norm_topk_prob) if has_experts(config, i) else None
        layer.forward = partial(forward_layer, layer)
    return model


def check_config(config: Any) -> None:
    if getattr(config, "_attn_implementation", None) not in (None, "eager", "sdpa"):
        raise refuse(f"patch: attention: wanted eager or sdpa, which it replaces, found {config._attn_implementation}")
    if getattr(config, "attention_dropout", 0.0):
        raise refuse(f"patch: attention_dropout: wanted 0, found {config.attention_dropout}")
    if getattr(config, "quantization_config", None) is not None:
        raise refuse("patch: wanted a model without quantization")


def check_modules(model: Any, config: Any) -> None:
    """Every module is the plain one of its family: no adapter, no quantized layer."""

    def linear(name: str, module: Any, n: int, k: int, bias: bool) -> None:
        if type(module) is not nn.Linear or tuple(module.weight.shape) != (n, k) or (module.bias is not None) != bias:
            kind = "with" if bias else "without"
            raise refuse(f"patch: {name}: wanted a Linear [{n}, {k}] {kind} bias, found {module}")

    h, d, m = config.hidden_size, config.head_dim, config.intermediate_size
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    if type(model.model.embed_tokens) is not nn.Embedding:
        raise refuse(f"patch: embed_tokens: wanted an Embedding, found {model.model.embed_tokens}")
    linear("lm_head", model.lm_head, config.vocab_size, h, False)
    if (model.lm_head.weight is model.model.embed_tokens.weight) != config.tie_word_embeddings:
        raise refuse("patch: lm_head: wanted it to share the embedding exactly if tie_word_embeddings says so")
    if len(model.model.layers) != len(config.layers):
        raise refuse(f"patch: wanted {len(config.layers)} layers, found {len(model.model.layers)}")
    for i, layer in enumerate(model.model.layers):
        a, mlp, at = layer.self_attn, layer.mlp, f"layers.{i}."
        for name, module, n, k, bias in (
            ("q_proj", a.q_proj, q, h, config.attention_bias),
            ("k_proj", a.k_proj, kv, h, config.attention_bias),
            ("v_proj", a.v_proj, kv, h, config.attention_bias),
            ("o_proj", a.o_proj, h, q, config.attention_out_bias),
            *(() if has_experts(config, i) else (
                ("gate_proj", getattr(mlp, "gate_proj", None), m, h, config.mlp_bias),
                ("up_proj", getattr(mlp, "up_proj", None), m, h, config.mlp_bias),
                ("down_proj", getattr(mlp, "down_proj", None), h, m, config.mlp_bias),
            )),
        ):  # fmt: skip
            linear(at + name, module, n, k, bias)
        if has_experts(config, i):
            check_experts(at, mlp, config)
        if hasattr(a, "q_norm") != config.qk_norm:
            raise refuse(f"patch: {at}self_attn: wanted head norms exactly if the family has them")


def has_experts(config: Any, layer: int) -> bool:
    return config.layers[layer].mlp == "experts"


def check_experts(at: str, mlp: Any, config: Any) -> None:
    experts, width = config.num_experts, config.moe_intermediate_size
    wanted = {
        "gate.weight": (experts, config.hidden_size),
        "experts.gate_up_proj": (experts, 2 * width, config.hidden_size),
        "experts.down_proj": (experts, config.hidden_size, width),
    }
    found = {name: tuple(p.shape) for name, p in mlp.named_parameters()}
    if type(mlp).__name__ != "Qwen3MoeSparseMoeBlock" or found != wanted:
        raise refuse(f"patch: {at}mlp: wanted experts with {wanted}, found {type(mlp).__name__} with {found}")


def is_vector(name: str) -> bool:
    return name.endswith(VECTORS)


def check_parameters(model: Any, gemm: torch.dtype) -> None:
    for name, p in model.named_parameters():
        if p.dtype not in (torch.float32, gemm):
            raise refuse(f"patch: {name}: wanted float32 or {gemm}, found {p.dtype}")


def round_matrices(model: Any, ops: native.Context) -> None:
    """Initial master weights are those of the forward pass (NUMERICS.md 15.1)."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dtype == torch.float32 and not is_vector(name) and p.device.type != "meta":
                p.copy_(native.rounded(ops, p.contiguous()).float())


# ---- the forward pass


def check_mode() -> None:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise refuse("invar.torch: wanted no autocast: the law rounds where NUMERICS.md says")
    if torch.compiler.is_compiling():
        raise refuse("invar.torch: wanted no torch.compile: compiled code may fuse and reorder")


def plain(tensor: Tensor | None, name: str, shape: Shape) -> Tensor | None:
    """A parameter in its own type, whole: mixed precision of a wrapper would round norms too."""
    if tensor is None:
        return None
    if shape.dtypes.get(name, tensor.dtype) != tensor.dtype:
        raise refuse(f"{name}: wanted {shape.dtypes[name]} as patch() found it, found {tensor.dtype}")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise refuse(
            f"{name}: wanted a plain parameter, found {type(tensor).__name__}: shard whole decoder layers and the whole "
            "model with fully_shard, not modules inside a layer"
        )
    return tensor


def parameters_of(prefix: str, names: Items[str], module: Any, shape: Shape) -> list[Tensor | None]:
    """By path, e.g. "mlp.down_proj.bias"; None where there is none."""
    out = []
    for name in names:
        at: Any = module
        for word in name.split("."):
            at = getattr(at, word, None)
        out.append(plain(at, prefix + name, shape))
    return out


ATTENTION = [
    "input_layernorm.weight",
    *(f"self_attn.{c}_proj.{part}" for part in ("weight", "bias") for c in "qkv"),
    "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight", "self_attn.o_proj.bias",
]  # fmt: skip
MLP = [
    "post_attention_layernorm.weight",
    *(f"mlp.{name}_proj.{part}" for part in ("weight", "bias") for name in ("gate", "up")),
    "mlp.down_proj.weight", "mlp.down_proj.bias",
]  # fmt: skip

EXPERTS = ["post_attention_layernorm.weight", "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def forward_layer(self: Any, x: Tensor, batch: Any = None, **others: Any) -> Tensor:
    if not isinstance(batch, Batch) or others:
        raise refuse("a layer of a patched model: wanted a call by the model", Status.INVALID)
    shape, prefix, window = self._invar
    p = parameters_of(prefix, ATTENTION, self, shape)
    m = parameters_of(prefix, EXPERTS if self._invar_experts else MLP, self, shape)
    x = AttentionBlock.apply(x, shape, batch, prefix, window, *p)  # type: ignore[no-untyped-call]
    if self._invar_experts:
        return ExpertsBlock.apply(x, shape, batch, prefix, *self._invar_experts, *m)  # type: ignore[no-untyped-call, no-any-return]
    return MlpBlock.apply(x, shape, batch, prefix, *m)  # type: ignore[no-untyped-call, no-any-return]


def forward_inner(self: Any, batch: Any = None, **others: Any) -> Tensor:
    if not isinstance(batch, Batch) or others:
        raise refuse("the inner model of a patched model: wanted a call by the model", Status.INVALID)
    shape = self.layers[0]._invar[0]
    table = plain(self.embed_tokens.weight, "model.embed_tokens.weight", shape)
    x: Tensor = Embed.apply(table, shape, batch)  # type: ignore[no-untyped-call]
    for layer in self.layers:
        x = layer(x, batch)
    return x


def ids_of(value: Any, what: str) -> Tensor:
    """Token ids on the CPU: a tensor, an array, a list."""
    if not isinstance(value, Tensor):
        return torch.tensor(_check.token_ids(value, what), dtype=torch.int64)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise refuse(f"{what}: wanted integers, found {value.dtype}", Status.INVALID)
    return value.detach().cpu().to(torch.int64)


def mask_of(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.from_numpy(_check.floats(value, None, what).copy())
    mask: Tensor = value.detach().cpu() != 0
    return mask


class Ask:
    """A call of a patched model: packed sequences, and what is wanted of them."""

    def __init__(self, sequences: list[Tensor], part: Pass) -> None:
        self.sequences, self.part = sequences, part
        self.rows: Tensor | None = None  # of predictions; None: logits
        self.counts: list[int] = []
        self.targets = torch.empty(0, dtype=torch.int32)
        self.temperature = 1.0
        self.undrawn = torch.empty(0, dtype=torch.int64)  # ids of probability 0

    def batch(self, shape: Shape, vocab: int) -> Batch:
        ids = torch.cat([*(ids_of(s, "ids") for s in self.sequences), torch.empty(0, dtype=torch.int64)])
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            raise refuse(f"ids: wanted 0 to {vocab - 1}, found {int(ids.min())}, {int(ids.max())}", Status.INVALID)
        lengths = [len(s) for s in self.sequences]
        return Batch(ids.to(torch.int32), lengths, self.part, shape.tables_of(max([1, *lengths])))


def forward_causal(self: Any, input_ids: Any = None, attention_mask: Tensor | None = None, **others: Any) -> Any:
    """transformers' forward: logits in float32 as the engine has them; and, with an Ask, log-probabilities."""
    check_mode()
    if not isinstance(input_ids, Ask):
        return forward_padded(self, input_ids, attention_mask, others)
    if attention_mask is not None or others:
        raise refuse("a patched model: wanted no other arguments", Status.INVALID)
    ask, shape = input_ids, self._invar
    batch = ask.batch(shape, self.lm_head.weight.shape[0])
    x = self.model(batch)
    norm = plain(self.model.norm.weight, "model.norm.weight", shape)
    head = plain(self.lm_head.weight, "lm_head.weight", shape)
    if ask.rows is None:
        out = HeadLogits.apply(x, norm, head, shape, batch)  # type: ignore[no-untyped-call]
    else:
        args = (ask.rows, ask.counts, ask.targets, ask.temperature, ask.undrawn)
        out = HeadLogprobs.apply(x, norm, head, shape, batch, *args)  # type: ignore[no-untyped-call]
    shape.ops.finish()
    return out


IGNORED = {"use_cache", "return_dict", "output_attentions", "output_hidden_states"}  # where they ask for nothing


def forward_padded(self: Any, input_ids: Any, attention_mask: Tensor | None, others: dict[str, Any]) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    keep = others.pop("logits_to_keep", 0)
    positions = others.pop("position_ids", None)
    for name, value in others.items():
        if name == "use_cache" and value and not torch.is_grad_enabled():
            raise refuse("a patched model: use_cache: wanted False: it keeps no keys and values; sample with invar.LLM")
        if value is not None and value is not False and name not in ("use_cache", "return_dict"):
            raise refuse(f"a patched model: {name}: wanted None: the engine's forward pass lacks it")
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2:
        raise refuse("a patched model: input_ids: wanted a tensor [batch, tokens]", Status.INVALID)
    keep = _check.integer(keep, "a patched model: logits_to_keep", 0, _check.INT32_MAX)
    input_ids, attention_mask, positions = (t if t is None else t.cpu() for t in (input_ids, attention_mask, positions))
    cuts = cuts_of(input_ids, attention_mask, positions)
    sequences = [input_ids[row, a:b] for row, a, b in cuts]
    part = active_pass()
    order = list(range(len(cuts)))
    if part is None:
        part = whole_pass([len(s) for s in sequences])
        order = part.indices
    check_lengths(part, [len(sequences[i]) for i in order])
    packed = forward_causal(self, Ask([sequences[i] for i in order], part))
    logits = packed.new_zeros(*input_ids.shape, packed.shape[1])
    at = torch.cat([torch.arange(cuts[i][1], cuts[i][2]) + cuts[i][0] * input_ids.shape[1] for i in order])
    logits = logits.view(-1, packed.shape[1]).index_copy(0, at.to(packed.device), packed).view_as(logits)
    return CausalLMOutputWithPast(logits=logits[:, -keep:] if keep else logits)


def cuts_of(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[tuple[int, int, int]]:
    """The sequences of a padded batch: row, first column, end. A row without padding may hold several sequences, by
    position_ids that begin again at 0."""
    cuts: list[tuple[int, int, int]] = []
    if mask is not None and mask.shape != ids.shape:
        raise refuse(f"attention_mask: wanted {list(ids.shape)}, found {list(mask.shape)}", Status.INVALID)
    for row in range(ids.shape[0]):
        n = ids.shape[1]
        ones = mask[row].nonzero().flatten() if mask is not None else torch.arange(n)
        if len(ones) == 0 or int(ones[-1]) - int(ones[0]) + 1 != len(ones):
            raise refuse(f"attention_mask: row {row}: wanted one run of ones", Status.INVALID)
        first, end = int(ones[0]), int(ones[-1]) + 1
        p = positions[row if positions.shape[0] > 1 else 0, first:end] if positions is not None else None
        if p is None or torch.equal(p - p[0], torch.arange(end - first)):
            cuts.append((row, first, end))
            continue
        begins = (p == 0).nonzero().flatten().tolist()
        ends = [*begins[1:], end - first]
        wanted = torch.cat([torch.arange(b - a) for a, b in zip(begins, ends)]) if begins else p[:0]
        if begins[:1] != [0] or not torch.equal(p, wanted):
            raise refuse(f"position_ids: row {row}: wanted runs of 0, 1, 2, ...", Status.INVALID)
        cuts += [(row, first + a, first + b) for a, b in zip(begins, ends)]
    return cuts


def whole_pass(lengths: Items[int]) -> Pass:
    """A step of its own for a call outside of any: gradients are complete after one backward."""
    [part] = Step(lengths, alone=True).passes()
    return part


def check_lengths(part: Pass, lengths: list[int]) -> None:
    if lengths != part.lengths:
        raise refuse(f"pass: wanted sequences of {part.lengths} tokens, as its indices say, found {lengths}", Status.INVALID)


# ---- log-probabilities


def logprobs(
    model: Any, sequences: Items[Any], masks: Items[Any] | None = None, temperature: float = 1.0,
    undrawn: Items[int] = (),
) -> Tensor:  # fmt: skip
    """The log-probability of every token from those before it, of all sequences in a row (`.split(lengths)` cuts them),
    in every bit that of `LLM.score` and of prompt_logprobs. undrawn: ids that have probability 0, `LLM.undrawn_ids` for
    a policy: then, at any temperature, that of sampling_logprob. A sequence's first token, and tokens whose mask is 0,
    have 0.

    Inside a Pass the sequences are those of its indices; outside they are a step of their own. The loss of the law is
    `-(coefficients * logprobs).sum()`, without a division: that is AdamW.step's denominator."""
    check_patched(model)
    temperature = _check.number(temperature, "temperature", 0)
    if temperature == 0:
        raise refuse("temperature: wanted above 0, found 0", Status.INVALID)
    ids = [ids_of(s, f"sequence {i}: ids") for i, s in enumerate(_check.listing(sequences, "sequences", "a list of token ids"))]
    given = None if masks is None else _check.listing(masks, "masks", "a list of masks")
    if given is not None and len(given) != len(ids):
        raise refuse(f"masks: wanted {len(ids)}, found {len(given)}", Status.INVALID)
    chosen = [default_mask(s) if given is None else mask_of(given[i], f"sequence {i}: mask") for i, s in enumerate(ids)]
    for i, (s, m) in enumerate(zip(ids, chosen)):
        if s.dim() != 1 or len(s) < 1 or m.shape != s.shape or bool(m[0]):
            raise refuse(f"sequence {i}: wanted ids [n] and a mask [n] with mask[0] = 0", Status.INVALID)
    part = active_pass()
    order = list(range(len(ids)))
    if part is None:
        part = whole_pass([len(s) for s in ids])
        order = part.indices
    check_lengths(part, [len(ids[i]) for i in order])
    ask = Ask([ids[i] for i in order], part)
    marks = [chosen[i] for i in order]
    flat = torch.cat([*marks, torch.empty(0, dtype=torch.bool)])
    at = flat.nonzero().flatten()
    ask.rows, ask.counts, ask.temperature = at - 1, [int(m.sum()) for m in marks], temperature
    ask.targets = torch.cat([*ask.sequences, torch.empty(0, dtype=torch.int64)])[at].to(torch.int32)
    ask.undrawn = torch.as_tensor(list(undrawn), dtype=torch.int64)
    if len(undrawn) and bool(torch.isin(ask.targets, ask.undrawn.to(torch.int32)).any()):
        raise refuse("logprobs: wanted tokens that may be drawn, found one of undrawn", Status.INVALID)
    found: Tensor = model(ask)
    whole = torch.zeros(len(flat), device=found.device).index_copy(0, at.to(found.device), found)
    if order == sorted(order):
        return whole
    parts = dict(zip(order, torch.split(whole, [len(ids[i]) for i in order])))
    return torch.cat([parts[i] for i in range(len(ids))])


def check_patched(model: Any) -> None:
    """Also in a wrapper of DDP."""
    if getattr(getattr(model, "module", model), "_invar", None) is None:
        raise refuse(f"logprobs: wanted a patched model, found {type(model).__name__}: invar.torch.patch(model)", Status.INVALID)


def default_mask(ids: Tensor) -> Tensor:
    mask = torch.ones(len(ids), dtype=torch.bool)
    mask[:1] = False
    return mask
