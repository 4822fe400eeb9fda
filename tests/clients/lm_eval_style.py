"""The requests of lm-evaluation-harness's local-completions, and its reading of the answers."""

from support import call, check, main, post

PAIRS = [("2 + 2 =", " 4"), ("10 + 5 =", " 15"), ("10 + 5 =", " 99"), ("What is", " 3 + 4?")]


def ids_of(text):
    return post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def parse(choice, context):
    """The sum and the greedy flag of the continuation; the last token is the generated one."""
    l = choice["logprobs"]
    values, tops = l["token_logprobs"][context:-1], l["top_logprobs"][context:-1]
    return sum(values), all(value == max(top.values()) for value, top in zip(values, tops))


def test_loglikelihood():
    prompts = [ids_of(a) + ids_of(b) for a, b in PAIRS]
    body = {"model": "", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    del body["model"]
    answer = post("/v1/completions", body)
    choices = sorted(answer["choices"], key=lambda c: c["index"])
    check(len(choices) == len(PAIRS))
    sums = []
    for (a, b), prompt, choice in zip(PAIRS, prompts, choices):
        l = choice["logprobs"]
        check(l["token_logprobs"][0] is None and l["top_logprobs"][0] is None)
        check(len(l["tokens"]) == len(prompt) + 1 and "".join(l["tokens"][: len(prompt)]) == a + b)
        total, greedy = parse(choice, len(ids_of(a)))
        sums.append((total, greedy))
        alone = post("/v1/completions", body | {"prompt": [prompt]})["choices"][0]
        check(parse(alone, len(ids_of(a))) == sums[-1], "the same alone")
        scored = post("/v1/completions", body | {"prompt": [prompt], "max_tokens": 0})["choices"][0]["logprobs"]
        check(scored["token_logprobs"] == l["token_logprobs"][:-1], "and without the generated token")
    check(sums[1][0] > sums[2][0], "a control: the right sum is likelier")


def test_prompt_logprobs():
    ids = ids_of("2 + 2 = 4")
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2}
    listed = post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    echoed = post("/v1/completions", body | {"echo": True, "logprobs": 0})["choices"][0]["logprobs"]
    check(listed[0] is None and len(listed) == len(ids))
    for i in range(1, len(ids)):
        check(listed[i][str(ids[i])]["logprob"] == echoed["token_logprobs"][i])
        check(min(e["rank"] for e in listed[i].values() if e["rank"]) == 1)


def test_generate_until():
    body = {"prompt": ["2 + 2 =", "3 + 9 ="], "max_tokens": 20, "temperature": 0, "stop": ["\n"], "seed": 1234}
    answer = post("/v1/completions", body)
    for choice in answer["choices"]:
        check("\n" not in choice["text"])


def test_sampling_logprobs():
    body = {"prompt": "2 + 2 =", "max_tokens": 6, "logprobs": 0, "return_sampling_logprobs": True, "seed": 3}
    neutral = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0}
    l = post("/v1/completions", body | neutral)["choices"][0]["logprobs"]
    check(all(abs(a - b) < 1e-4 for a, b in zip(l["sampling_logprobs"], l["token_logprobs"])), l)
    l = post("/v1/completions", body | {"temperature": 0})["choices"][0]["logprobs"]
    check(all(v == 0 for v in l["sampling_logprobs"]))
    l = post("/v1/completions", body | neutral | {"temperature": 3})["choices"][0]["logprobs"]
    check(l["sampling_logprobs"] != l["token_logprobs"], "a control: temperature shows")


def test_tokenizer_of_the_server():
    status, info = call("GET", "/tokenizer_info")
    check(status == 200 and info["eos_token"])
    text = "12 + 30 = 42"
    check(post("/detokenize", {"tokens": ids_of(text)})["prompt"] == text)


main(*[f for name, f in sorted(globals().items()) if name.startswith("test_")])
