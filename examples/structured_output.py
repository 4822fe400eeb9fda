"""Constrained answers: structured_output.py [MODEL]"""
import json
import sys

from invar import LLM, SamplingParams, StructuredOutputsParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math")
schema = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["sum"],
    "additionalProperties": False,
}
for form in (
    StructuredOutputsParams(choice=["Positive", "Negative"]),
    StructuredOutputsParams(regex=r"[0-9]{2}"),
    StructuredOutputsParams(json=schema),
    StructuredOutputsParams(grammar='root ::= "4" | "5"'),
):
    params = SamplingParams(temperature=0, max_tokens=50, structured_outputs=form)
    text = llm.generate("2 + 2 =", params, use_tqdm=False)[0].outputs[0].text
    print(text)
    if form.json:
        json.loads(text)
