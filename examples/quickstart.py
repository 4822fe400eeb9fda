"""vLLM's quickstart with the import changed: quickstart.py [MODEL]"""
import sys

from invar import LLM, SamplingParams

questions = ["What is 17 * 6?", "What is 9 + 8?"]
conversations = [[{"role": "user", "content": question}] for question in questions]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=100, seed=1)

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math")
outputs = llm.chat(conversations, sampling_params)

for question, output in zip(questions, outputs):
    print(f"Question: {question!r}, Answer: {output.outputs[0].text!r}, {output.outputs[0].digest}")
