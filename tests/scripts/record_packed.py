#!/usr/bin/env python3
"""record_packed.py OUT: for each scheme of packed weights a directory OUT/NAME with config.json, model.safetensors (one module, m) and
expected.safetensors (its weight in bfloat16 or float16, by the scheme's oracle).

Codes are random over all their values but the NaNs; scales are random, with a zero, a subnormal and a negative one among them.
Oracles: transformers' Fp8Dequantize and convert_moe_packed_tensors, compressed_tensors' decompress, and the formulas of autoawq
(through compressed_tensors' converter), GPTQ and ModelOpt, written here in torch.
Tested with compressed-tensors 0.20.1, transformers 5.24.0, torch 2.15.0. tests/format/test_quantization.c compares.
"""
import json
import os
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

G = torch.Generator().manual_seed(40)
E4M3 = torch.float8_e4m3fn


def codes(*shape, high=256):
    return torch.randint(0, high, shape, generator=G, dtype=torch.int32).to(torch.uint8)


def e4m3(*shape):
    c = codes(*shape)
    c[(c & 127) == 127] = 0x7e
    return c.view(E4M3)


def scales(*shape, dtype=torch.bfloat16):
    s = (torch.randn(*shape, generator=G) * 0.02).to(dtype)
    flat = s.view(-1)
    if flat.numel() > 3:
        flat[0], flat[1], flat[2] = 0.0, 1e-40 if dtype != torch.float16 else 6e-8, 3.0
    return s


def write(out, name, config, tensors, expected):
    here = os.path.join(out, name)
    os.makedirs(here, exist_ok=True)
    with open(os.path.join(here, "config.json"), "w") as f:
        json.dump({"model_type": "qwen3", "torch_dtype": str(expected.dtype)[6:], "quantization_config": config}, f, indent=1)
        f.write("\n")
    save_file({f"m.{k}" if not k.startswith("_") else "m" + k: v.contiguous().clone() for k, v in tensors.items()}, os.path.join(here, "model.safetensors"))
    save_file({"m.weight" if "_blocks" not in tensors else "m": expected.contiguous()}, os.path.join(here, "expected.safetensors"))


def compressed(out, name, form, weights, tensors, rows=24, columns=64, activations=None):
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = dict(tensors)
    got = BaseCompressor.load_from_registry(form).decompress(state, scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head", "re:.*gate$"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}}
    write(out, name, config, tensors, got.to(torch.bfloat16))


ROWS, COLUMNS = 24, 64


def transformers_fp8(out):
    q, s = e4m3(32, 96), scales(2, 3, dtype=torch.float32)
    write(out, "fp8_block", {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32], "activation_scheme": "dynamic"},
          {"weight": q, "weight_scale_inv": s}, Fp8Dequantize(None)._dequantize_one(q, s, torch.bfloat16))
    q, s = e4m3(ROWS, COLUMNS), torch.tensor(0.0371)
    write(out, "fp8_tensor", {"quant_method": "fp8", "activation_scheme": "static"}, {"weight": q, "weight_scale": s, "input_scale": s},
          Fp8Dequantize(None)._dequantize_one(q, s, torch.bfloat16))


def compressed_tensors(out):
    f8 = {"num_bits": 8, "type": "float", "symmetric": True}
    act = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    compressed(out, "ct_float_channel", "float-quantized", {**f8, "strategy": "channel"}, {"weight": e4m3(ROWS, COLUMNS), "weight_scale": scales(ROWS, 1)},
               activations=act)
    compressed(out, "ct_float_tensor", "naive-quantized", {**f8, "strategy": "tensor"}, {"weight": e4m3(ROWS, COLUMNS), "weight_scale": scales(1)})
    compressed(out, "ct_float_block", "float-quantized", {**f8, "strategy": "block", "block_structure": [16, 32]},
               {"weight": e4m3(ROWS + 4, COLUMNS + 8), "weight_scale": scales(2, 3)})
    i8 = {"num_bits": 8, "type": "int"}
    compressed(out, "ct_int_channel", "int-quantized", {**i8, "symmetric": True, "strategy": "channel"},
               {"weight": codes(ROWS, COLUMNS).view(torch.int8), "weight_scale": scales(ROWS, 1)})
    compressed(out, "ct_int_asymmetric", "int-quantized", {**i8, "symmetric": False, "strategy": "channel"},
               {"weight": codes(ROWS, COLUMNS).view(torch.int8), "weight_scale": scales(ROWS, 1),
                "weight_zero_point": codes(ROWS, 1).view(torch.int8)})
    for bits in (4, 8):
        i = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 16}
        w = codes(ROWS, COLUMNS, high=1 << bits).to(torch.int16) - (1 << bits - 1)
        z = codes(ROWS, COLUMNS // 16, high=1 << bits).to(torch.int16) - (1 << bits - 1)
        parts = {"weight_packed": pack_to_int32(w.to(torch.int8), bits), "weight_scale": scales(ROWS, COLUMNS // 16),
                 "weight_shape": torch.tensor([ROWS, COLUMNS])}
        compressed(out, f"ct_pack{bits}", "pack-quantized", {**i, "symmetric": True}, parts)
        parts = {**parts, "weight_zero_point": pack_to_int32(z.to(torch.int8), bits, packed_dim=0).contiguous()}
        compressed(out, f"ct_pack{bits}_asymmetric", "pack-quantized", {**i, "symmetric": False}, parts)
    w = codes(ROWS, 40, high=16).to(torch.int16) - 8
    compressed(out, "ct_pack4_channel", "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True},
               {"weight_packed": pack_to_int32(w.to(torch.int8), 4), "weight_scale": scales(ROWS, 1, dtype=torch.bfloat16),
                "weight_shape": torch.tensor([ROWS, 40])})
    f4 = {"num_bits": 4, "type": "float", "symmetric": True}
    nv = {"weight_packed": codes(ROWS, COLUMNS // 2), "weight_scale": e4m3(ROWS, COLUMNS // 16), "weight_global_scale": torch.tensor([37.25])}
    compressed(out, "ct_nvfp4", "nvfp4-pack-quantized", {**f4, "strategy": "tensor_group", "group_size": 16}, nv)
    mx = {"weight_packed": codes(ROWS, COLUMNS // 2), "weight_scale": codes(ROWS, COLUMNS // 32, high=60) + 100}
    compressed(out, "ct_mxfp4", "mxfp4-pack-quantized", {**f4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}, mx)
    compressed(out, "ct_mxfp8", "mxfp8-quantized", {**f8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
               {"weight": e4m3(ROWS, COLUMNS), "weight_scale": codes(ROWS, COLUMNS // 32, high=60) + 100})


def modelopt(out):
    """q * (s * s2)."""
    lut = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    p, s, s2 = codes(ROWS, COLUMNS // 2), e4m3(ROWS, COLUMNS // 16), torch.tensor(0.0123)
    q = torch.stack([lut[(p & 15).long()], lut[(p >> 4).long()]], -1).reshape(ROWS, COLUMNS)
    write(out, "modelopt_nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
          {"weight": p, "weight_scale": s, "weight_scale_2": s2, "input_scale": s2},
          (q * (s.float() * s2).repeat_interleave(16, 1)).to(torch.bfloat16))


def gpt_oss(out):
    """Rows lie along the outputs; transformers transposes afterwards."""
    blocks, sc = codes(2, 6, 3, 16), codes(2, 6, 3, high=60) + 100
    got = convert_moe_packed_tensors(blocks, sc)
    write(out, "mxfp4_experts", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, {"_blocks": blocks, "_scales": sc},
          (got if got.shape == (2, 6, 96) else got.transpose(1, 2)).reshape(2, 6, 96))


def awq(out):
    """Packed along the outputs in the order 0 2 4 6 1 3 5 7."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    pack = lambda w: sum((w.reshape(*w.shape[:-1], -1, 8)[..., order[i]].to(torch.int64) << 4 * i) for i in range(8)).to(torch.uint32).view(torch.int32)
    q, z, s = codes(COLUMNS, ROWS, high=16), codes(COLUMNS // 16, ROWS, high=16), scales(COLUMNS // 16, ROWS, dtype=torch.float16)
    w = ((q.half() - z.half().repeat_interleave(16, 0)) * s.repeat_interleave(16, 0)).T
    write(out, "awq", {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True},
          {"qweight": pack(q), "qzeros": pack(z), "scales": s}, w)


def gptq(out):
    """Packed along the inputs; stored zero points are one too small; g_idx in activation order."""
    for bits in (4, 8):
        n = 32 // bits
        rowpack = lambda w: sum((w.reshape(-1, n, w.shape[-1])[:, i].to(torch.int64) << bits * i) for i in range(n)).to(torch.uint32).view(torch.int32)
        q = codes(COLUMNS, ROWS, high=1 << bits)
        z = codes(COLUMNS // 16, ROWS, high=(1 << bits) - 1)
        s = scales(COLUMNS // 16, ROWS, dtype=torch.float16)
        g = torch.arange(COLUMNS)[torch.randperm(COLUMNS, generator=G)] // 16
        w = ((q.int() - (z[g].int() + 1)).half() * s[g]).T
        write(out, f"gptq{bits}", {"quant_method": "gptq", "bits": bits, "group_size": 16, "desc_act": True, "sym": False},
              {"qweight": rowpack(q), "qzeros": rowpack(z.T.contiguous()).T.contiguous(), "scales": s, "g_idx": g.int()}, w)



def main(out):
    """In this order: all draw from one generator."""
    for method in (transformers_fp8, compressed_tensors, modelopt, gpt_oss, awq, gptq):
        method(out)


if __name__ == "__main__":
    main(sys.argv[1])
