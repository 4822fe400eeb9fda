"""vLLM's quickstart with the import changed. The answers do not depend on what else is in the batch."""

from invar import LLM, SamplingParams

prompts = ["Tom has 3 apples and buys 4 more.", "What is 12 + 30?", "Compute 7 * 8."]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=32)

llm = LLM(model="models/tiny-math")
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}, {output.outputs[0].digest[:15]}")
