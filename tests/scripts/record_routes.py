"""Records how far PyTorch's bfloat16 backward of a mixture is from its float64 backward: tests/data/train/routes.json.

    record_routes.py OUT GOLDEN      (GOLDEN: tests/data/gradients/qwen3_moe: batch.jsonl, gradients.safetensors)

`own`: with the experts that bfloat16 chooses, `same`: with those of float64, whose routing weights bfloat16 computes. Relative
errors per tensor, of the gradient of sum(-mask * log p) / sum(mask), against GOLDEN's float64 gradients; experts one by one
have no row, because transformers stacks them. Run by record_training.sh.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

MODEL = pathlib.Path(__file__).resolve().parents[1] / "data" / "hf" / "qwen3_moe"
TOPK = torch.topk


class Routes:
    """The router's choices, in order of its calls: recorded, or given again."""

    def __init__(self, given=None):
        self.given, self.made = given, []

    def topk(self, scores, k, dim=-1, **more):
        if self.given is None:
            chosen = TOPK(scores, k, dim=dim, **more)
        else:
            ids = self.given[len(self.made)]
            chosen = torch.return_types.topk((scores.gather(dim, ids), ids))
        self.made.append(chosen[1])
        return chosen


def gradients(batch, dtype, routes):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, attn_implementation="eager")
    torch.topk = routes.topk
    total = sum(sum(line["mask"]) for line in batch)
    try:
        loss = 0
        for line in batch:
            ids, mask = torch.tensor([line["ids"]]), torch.tensor(line["mask"], dtype=torch.float64)
            logits = model(input_ids=ids).logits[0]
            logits = logits if dtype == torch.float64 else logits.float()
            logp = torch.log_softmax(logits[:-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
            loss = loss - (mask[1:].to(logp.dtype) * logp).sum() / total
        loss.backward()
    finally:
        torch.topk = TOPK
    return {name: p.grad.double() for name, p in model.named_parameters() if ".experts." not in name}


def errors(found, wanted):
    """GOLDEN has every fifth element of a large tensor (thin_gradients.py)."""
    part = {name: g if g.shape == wanted[name].shape else g.flatten()[::5] for name, g in found.items() if name in wanted}
    return {name: float((g - wanted[name].double()).norm() / wanted[name].double().norm()) for name, g in part.items()}


def main(out, golden):
    golden = pathlib.Path(golden)
    batch = [json.loads(line) for line in (golden / "batch.jsonl").read_text().splitlines()]
    wanted = load_file(golden / "gradients.safetensors")
    exact, own = Routes(), Routes()
    check = errors(gradients(batch, torch.float64, exact), wanted)
    assert max(check.values()) < 1e-5, check
    result = {"torch": torch.__version__, "transformers": transformers.__version__,
              "own": errors(gradients(batch, torch.bfloat16, own), wanted),
              "same": errors(gradients(batch, torch.bfloat16, Routes(exact.made)), wanted)}
    flips = sum(int((a.sort(-1)[0] != b.sort(-1)[0]).any(-1).sum()) for a, b in zip(exact.made, own.made))
    result["tokens_and_layers"] = sum(a.shape[0] for a in exact.made)
    result["routed_otherwise"] = flips
    (pathlib.Path(out) / "routes.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
