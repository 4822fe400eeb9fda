#!/usr/bin/env python3
"""check_quantized.py QUANTIZED EXPANDED: whether compressed_tensors' decompress of the first directory's layers has the bits of the
second's weights (`invar export` of the first). Exit code 77 where compressed_tensors or torch is not installed.
Tested with compressed-tensors 0.20.1, torch 2.15.0. tests/apps/test_quantize.c runs it."""
import json
import pathlib
import sys

try:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"{missing.name} is not installed")
    sys.exit(77)


def main(quantized, expanded):
    config = json.loads((pathlib.Path(quantized) / "config.json").read_text())["quantization_config"]
    (scheme,) = QuantizationConfig.model_validate(config).config_groups.values()
    stored = load_file(f"{quantized}/model.safetensors")
    want = load_file(f"{expanded}/model.safetensors")
    modules = [name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")]
    compressor = BaseCompressor.load_from_registry(config["format"])
    for module in modules:
        parts = {name.removeprefix(module + "."): part for name, part in stored.items() if name.startswith(module + ".weight")}
        got = compressor.decompress(parts, scheme)["weight"].to(torch.bfloat16)
        if not torch.equal(got.view(torch.int16), want[module + ".weight"].view(torch.int16)):
            sys.exit(f"{module}: other bits")
    print(f"{len(modules)} layers are the same")
    return 0 if modules else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
