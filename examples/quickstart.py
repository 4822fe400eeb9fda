"""vLLM's quickstart with the import changed: quickstart.py [MODEL]"""
import sys

from invar import LLM, SamplingParams

prompts = ["What is 17 * 6?", "2 + 2 ="]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64)

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math")
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}, {output.outputs[0].digest}")
