"""The openai package, unmodified, with adapters of tiny-math: each is a model of the server, loaded by vLLM's route."""

import tempfile

from adapters import make_adapter
from support import check, skip
from upstream import TINY_MATH, serving

try:
    import openai
except ImportError:
    skip("the openai package is not installed")

QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
TOKENS = {"max_tokens": 16, "seed": 3, "extra_body": {"ignore_eos": True}}


def digest_of_stream(client, model):
    last = None
    for event in client.chat.completions.create(model=model, messages=QUESTION, stream=True, **TOKENS):
        check(event.model == model, event.model)
        last = getattr(event, "invar", None) or last
    return last["digest"]


def answers(client, model):
    """The digest of a chat, which is that of its stream, and of a completion."""
    chat = client.chat.completions.create(model=model, messages=QUESTION, **TOKENS)
    check(chat.model == model and ("+lora-" in chat.system_fingerprint) == (model != "tiny-math"), chat.model, chat.system_fingerprint)
    check(chat.invar["digest"] == digest_of_stream(client, model), "the stream's")
    response = client.responses.create(model=model, input="What is 12 + 30?", max_output_tokens=8)
    check(response.model == model, response.model)
    return chat.invar["digest"], client.completions.create(model=model, prompt="12 + 30 =", **TOKENS).invar["digest"]


def load(client, path, **body):
    return client.post(path, cast_to=str, body=body)


def main(folder):
    folders = [make_adapter(f"{folder}/{i}", TINY_MATH, i, size=0.3) for i in range(2)]
    with serving(TINY_MATH, "--lora-modules", f"first={folders[0]}", "--max-loras", "2") as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120)
        check([m.id for m in client.models.list().data] == ["tiny-math", "first"], client.models.list())
        check("added successfully" in load(client, "/load_lora_adapter", lora_name="second", lora_path=folders[1]), "load")
        card = client.models.retrieve("second")
        check(card.parent == "tiny-math" and card.root == folders[1], card)
        got = {m: answers(client, m) for m in ("tiny-math", "first", "second")}
        check(len(set(got.values())) == 3 and got == {m: answers(client, m) for m in got}, got)
        try:
            load(client, "/load_lora_adapter", lora_name="second", lora_path=folders[0])
            check(False, "a name was loaded twice")
        except openai.BadRequestError as e:
            check("has already been loaded" in e.message and e.body["type"] == "InvalidUserInput", e.message, e.body)
        check("added" in load(client, "/load_lora_adapter", lora_name="second", lora_path=folders[0], load_inplace=True), "in place")
        check(answers(client, "second") == got["first"], "the first one's bits under another name")
        check("removed successfully" in load(client, "/unload_lora_adapter", lora_name="second"), "unload")
        for call in (lambda: answers(client, "second"), lambda: load(client, "/unload_lora_adapter", lora_name="second"),
                     lambda: client.models.retrieve("second")):
            try:
                call()
                check(False, "an adapter that was unloaded was found")
            except openai.NotFoundError as e:
                check("second" in e.message, e.message)
    print(f"openai {openai.__version__}: {len(got)} models")


with tempfile.TemporaryDirectory() as made:
    main(made)
