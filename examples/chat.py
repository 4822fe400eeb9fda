"""A conversation, and its replay from a receipt: chat.py [MODEL]"""
import sys

from invar import LLM, SamplingParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math")
params = SamplingParams(temperature=0.6, seed=7, max_tokens=200, receipt=True)
[output] = llm.chat([{"role": "user", "content": "What is 17 * 6?"}], params)
answer = output.outputs[0]
print(answer.text)
print("replayed:", "every bit equal" if llm.replay(answer.receipt) else "differs")
