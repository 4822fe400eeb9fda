"""Constrained answers: structured_output.py [MODEL]"""
import json
import sys

from invar import LLM, SamplingParams, StructuredOutputsParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math")
question = [{"role": "user", "content": "What is 17 * 6?"}]
for form in (
    StructuredOutputsParams(choice=["17", "102", "unknown"]),
    StructuredOutputsParams(regex=r"[0-9]{1,4}"),
    StructuredOutputsParams(json={"type": "integer", "minimum": 0, "maximum": 999}),
    StructuredOutputsParams(grammar='root ::= [1-9] digit*\ndigit ::= [0-9]'),
):
    params = SamplingParams(temperature=0, max_tokens=100, structured_outputs=form)
    text = llm.chat(question, params, use_tqdm=False)[0].outputs[0].text
    answer = text.split("</think>")[-1].strip()  # the constraint begins after the model's reasoning
    print(answer)
    if form.json:
        assert json.loads(answer) == 102
