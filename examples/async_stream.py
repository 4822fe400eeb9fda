"""Two streams of one engine, and a cancelled one: async_stream.py [MODEL]"""
import asyncio
import sys

from invar import AsyncLLM, RequestOutputKind, SamplingParams


async def answer(llm: AsyncLLM, question: str) -> str:
    params = SamplingParams(temperature=0, max_tokens=100, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in llm.chat([{"role": "user", "content": question}], params):
        text += output.outputs[0].text
    return text


async def main(model: str) -> None:
    with AsyncLLM(model) as llm:
        for text in await asyncio.gather(answer(llm, "What is 17 * 6?"), answer(llm, "What is 9 + 8?")):
            print(text)
        stream = llm.generate("1 + 1 =", SamplingParams(max_tokens=1000, ignore_eos=True), request_id="long")
        async for output in stream:
            if len(output.outputs[0].token_ids) >= 5:
                await llm.abort("long")
        print(output.outputs[0].finish_reason)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "models/tiny-math"))
