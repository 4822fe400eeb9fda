"""SGLang's frontend language, unmodified: programs with gen, select and regular expressions over its RuntimeEndpoint. Its package's
__init__ imports torch and the whole server, which the language does not use: its modules are imported without it."""

import importlib.util
import sys
import types

from recorder import ROOT, TOO_LONG, posts
from support import API_KEY, check, main, post, skip

spec = importlib.util.find_spec("sglang")
if spec is None:
    skip("the sglang package is not installed")
package = types.ModuleType("sglang")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["sglang"] = package
try:
    from sglang.lang import api as sgl
    from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
except ImportError as error:
    skip(f"SGLang's frontend cannot be imported ({error})")

backend = RuntimeEndpoint(ROOT, api_key=API_KEY, chat_template_name="chatml")
sgl.set_default_backend(backend)


@sgl.function
def add(s, a, b):
    s += f"{a} + {b} ="
    s += sgl.gen("sum", max_tokens=6, temperature=0, stop="\n")


@sgl.function
def talk(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=60, temperature=0))


@sgl.function
def choose(s):
    s += "10 + 5 ="
    s += sgl.select("sum", choices=[" 99", " 15", " 7"])


@sgl.function
def held(s):
    s += "2 + 2 ="
    s += sgl.gen("four", max_tokens=8, temperature=0.8, regex="[0-9]{2}-[ab]")
    s += sgl.gen("whole", dtype=int, max_tokens=8, temperature=0)


def by_hand(text, **sampling):
    return post("/generate", {"text": text, "sampling_params": sampling})["text"]


def test_programs():
    check("tiny-math" in backend.get_model_name(), backend.get_model_name())
    check(backend.get_server_info()["model_path"] == backend.get_model_name())
    state = add.run(a=12, b=30)
    check(state["sum"] == by_hand("12 + 30 =", max_new_tokens=6, temperature=0, stop=["\n"]), state.text())
    check(state.text() == "12 + 30 =" + state["sum"] and state.get_meta_info("sum")["completion_tokens"] > 0)
    said = talk.run(question="What is 12 + 30?")["answer"]
    prompt = posts()[-1][1]["text"]
    check("What is 12 + 30?" in prompt and said == by_hand(prompt, max_new_tokens=60, temperature=0), prompt)


def test_batches():
    cases = [{"a": a, "b": a * 3 % 7} for a in range(12)]
    alone = [add.run(**case)["sum"] for case in cases]
    check([s["sum"] for s in add.run_batch(cases, num_threads=6)] == alone)


def test_stream():
    whole = talk.run(question="What is 12 + 30?")["answer"]
    state = talk.run(question="What is 12 + 30?", stream=True)
    parts = list(state.text_iter("answer"))
    check("".join(parts) == whole, parts)
    check(posts()[-1][1]["stream"] and posts()[-1][3].count("data: ") > 3, "came whole")


def test_select():
    """With the default method. The two others cannot read null, which SGLang's server also returns for the first score."""
    state = choose.run()
    check(state["sum"] == " 15", state.error())
    scores = state.get_meta_info("sum")["normalized_prompt_logprobs"]
    check(len(scores) == 3 and max(scores) == scores[1], scores)


def test_constraints():
    state = held.run()
    check(len(state["four"]) == 4 and state["four"][2] == "-" and state["four"][3] in "ab", state["four"])
    check(isinstance(int(state["whole"]), int))


def test_too_long():
    """The frontend has one exception for all errors, with the server's message."""
    error = add.run(a=TOO_LONG, b=1).error()
    check(posts()[-1][2] == 400 and "maximum context length is 2048 tokens" in str(error), error)


main(test_programs, test_batches, test_stream, test_select, test_constraints, test_too_long)
