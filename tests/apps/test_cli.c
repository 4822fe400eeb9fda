/* The program as a user runs it: each case runs the real binary and checks its output, standard error and exit code.
 * Model: models/tiny-math of the source tree, found by its bare name. */
#include "program.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define MARBLES "Mia has 34 marbles. Mia buys 18 more. Mia gives away 7. How many marbles does Mia have now?"

/* The line "digest sha256:..." of the report. */
static void digest_of_report(char out[80]) {
    const char *at = strstr(came.err, "\ndigest sha256:");
    if (!at) fail_msg("no digest in: %s", came.err);
    snprintf(out, 80, "%s", at + 8);
    out[strcspn(out, "\n")] = 0;
    assert_int_equal(strlen(out), 7 + 64);
}

/* ---- usage --------------------------------------------------------------------------------------------- */

static void usage_errors(void **state) {
    (void)state;
    static const struct {
        const char *words[6], *said;
    } cases[] = {
        {{NULL}, "wanted a command"},
        {{"generat"}, "did you mean generate?"},
        {{"--frobnicate"}, "unknown flag '--frobnicate'"},
        {{"help", "rendre"}, "did you mean render?"},
        {{"help", "generate", "serve"}, "help: wanted one COMMAND, found 'serve' as well"},
        {{"help", "bench", "serve", "chat"}, "help: wanted one COMMAND, found 'serve' as well"},
        {{"generate", "-p", "x"}, "wanted MODEL, found nothing"},
        {{"generate", "tiny-math"}, "wanted one of -p TEXT"},
        {{"generate", "tiny-math", "-p", "x", "--ids", "1"}, "found more"},
        {{"generate", "tiny-math", "other", "-p", "x"}, "wanted one MODEL, found 'other'"},
        {{"generate", "tiny-math", "--temprature", "1"}, "did you mean --temperature?"},
        {{"generate", "tiny-math", "--temperature", "hot"},
         "--temperature: wanted a number from 0 to 100, found 'hot'"},
        {{"generate", "tiny-math", "--temperature=nan"}, "--temperature: wanted a number"},
        {{"generate", "tiny-math", "--temperature", "0x1"}, "--temperature: wanted a number"},
        {{"generate", "tiny-math", "--temperature="}, "--temperature: wanted a number"},
        {{"generate", "tiny-math", "--top-p", "0"}, "--top-p: wanted a number above 0 and at most 1, found '0'"},
        {{"generate", "tiny-math", "--top-p", "1e-60"}, "--top-p: wanted a number above 0"},
        {{"generate", "tiny-math", "--presence-penalty", "-2.5"}, "--presence-penalty: wanted a number from -2 to 2"},
        {{"generate", "tiny-math", "--max-tokens", "0"}, "--max-tokens: wanted a whole number from 1"},
        {{"generate", "tiny-math", "--max-tokens", "-1"}, "--max-tokens: wanted a whole number"},
        {{"generate", "tiny-math", "--seed", "18446744073709551616"},
         "--seed: wanted a whole number from 0 to 18446744073709551615, found '18446744073709551616'"},
        {{"generate", "tiny-math", "--logprobs", "21"}, "--logprobs: wanted a whole number from 0 to 20"},
        {{"generate", "tiny-math", "--isa", "avx"}, "--isa: wanted one of: auto scalar avx2 avx512, found 'avx'"},
        {{"generate", "tiny-math", "--isa", "auto scalar"}, "--isa: wanted one of"},
        {{"generate", "tiny-math", "--ids", "1,,2"}, "--ids: wanted token ids"},
        {{"generate", "tiny-math", "--ids", "4294967296"}, "--ids: wanted token ids"},
        {{"generate", "tiny-math", "--ids", ""}, "--ids: wanted token ids"},
        {{"generate", "tiny-math", "--logit-bias", "5"}, "--logit-bias: wanted ID=F"},
        {{"generate", "tiny-math", "--logit-bias", "5=1e9"}, "--logit-bias: wanted ID=F"},
        {{"generate", "tiny-math", "--seed", "1", "--seed", "2"}, "--seed: given twice"},
        {{"generate", "tiny-math", "--chat=yes"}, "--chat: wanted no value, found 'yes'"},
        {{"generate", "tiny-math", "-p"}, "--prompt: wanted TEXT, found nothing"},
        {{"generate", "tiny-math", "-p", "\xff\x1b[31m"}, "--prompt: wanted UTF-8, found byte 0xff at offset 0"},
        {{"generate", "tiny-math", "-p", "x", "--system", "y"}, "--system needs --chat"},
        {{"generate", "tiny-math", "--ids", "1", "--chat"}, "--chat needs a text"},
        {{"generate", "tiny-math", "-x"}, "unknown flag '-x'"},
        {{"generate", "tiny-math", "--\x1b[2J"}, "unknown flag '--\\x1b[2J'"},
        {{"chat", "tiny-math", "--chat-template-kwargs", "[1]"}, "such as {\"enable_thinking\": false}, found [1]"},
        {{"chat", "tiny-math", "--chat-template-kwargs", "{"}, "--chat-template-kwargs: column"},
        {{"chat", "tiny-math", "--chat-template-kwargs", "{\"messages\":[]}"},
         "\"messages\" is reserved for the conversation"},
        {{"tokenize", "tiny-math", "--text", "a", "--ids", "1"}, "found more"},
        {{"render", "--input", "x.json"}, "wanted MODEL or --template FILE, found neither"},
        {{"render", "tiny-math"}, "wanted --input FILE"},
        {{"logits", "tiny-math", "--ids", "1"}, "wanted --out FILE"},
        {{"logits", "tiny-math", "--out", "x"}, "wanted --ids or --text, found neither"},
        {{"bench", "tiny-math", "--decode-tokens", "1"}, "--decode-tokens: wanted a whole number from 2"},
        {{"completion", "tcsh"}, "wanted one of: bash zsh fish, found 'tcsh'"},
        {{"completion"}, "wanted SHELL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[7] = {0};
        memcpy(words, cases[i].words, sizeof cases[i].words);
        finish(start(NULL, -1, words));
        expect_error(2, cases[i].said);
    }
}

/* ---- operating errors ---------------------------------------------------------------------------------- */

static void bad_models_and_files(void **state) {
    (void)state;
    RUN("inspect", "no-such-model");
    expect_error(1, "no-such-model: no such model directory");
    RUN("inspect", "./no/such");
    expect_error(1, "./no/such: no such model directory\n");
    RUN("inspect", "Qwen/Qwen3-8B");
    expect_error(1, "Qwen/Qwen3-8B: no such model directory (models are read from directories; nothing is downloaded)");
    RUN("inspect", "//");
    expect_error(1, "config.json");
    RUN("generate", "", "-p", "x");
    expect_error(1, "MODEL is empty");
    RUN("inspect", source_path("models/tiny-math/config.json"));
    expect_error(1, "wanted a model directory, found a file");
    RUN("inspect", folder);
    expect_error(1, "config.json");
    RUN("generate", "tiny-math", "--prompt-file", folder);
    expect_error(1, "wanted a file, found a directory");
    RUN("generate", "tiny-math", "--prompt-file", in_folder("absent"));
    expect_error(1, "absent: cannot open");
    write_file("bad.txt", "ab\xc0", 3);
    RUN("generate", "tiny-math", "--prompt-file", in_folder("bad.txt"));
    expect_error(1, "bad.txt: wanted UTF-8, found byte 0xc0 at offset 2");
    RUN_WITH("\xed\xa0\x80", "tokenize", "tiny-math");
    expect_error(1, "standard input: wanted UTF-8");
    RUN("logits", "tiny-math", "--ids", "1", "--out", in_folder("no/such/file"));
    expect_error(1, "no/such/file");
    RUN("logits", "tiny-math", "--ids", "100000", "--out", in_folder("x"));
    expect_error(1, "100000");
}

static void bad_requests(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "-p", "");
    expect_error(1, "prompt");
    RUN("generate", "tiny-math", "-p", "one two three four five six", "--max-model-len", "4");
    expect_error(1, "max_model_len");
    RUN("generate", "tiny-math", "--ids", "1,2,1024");
    expect_error(1, "1024");
    RUN("generate", "tiny-math", "-p", "x", "--stop", "");
    expect_error(1, "stop");
    RUN("bench", "tiny-math", "--prompt-tokens", "8", "--decode-tokens", "16", "--max-model-len", "12");
    expect_error(1, "--max-model-len");
}

static void bad_templates(void **state) {
    (void)state;
    static const char broken[] = "{{ messages", raising[] = "{{ raise_exception('no \x1b[31m roles') }}";
    write_file("broken.jinja", broken, sizeof broken - 1);
    write_file("raising.jinja", raising, sizeof raising - 1);
    write_file("empty.json", "{}", 2);
    write_file("list.json", "[]", 2);
    write_file("broken.json", "{", 1);
    RUN("render", "--template", in_folder("broken.jinja"), "--input", in_folder("empty.json"));
    expect_error(1, "broken.jinja");
    RUN("render", "--template", in_folder("raising.jinja"), "--input", in_folder("empty.json"));
    expect_error(1, "no \\x1b[31m roles");
    RUN("render", "--template", in_folder("raising.jinja"), "--input", in_folder("list.json"));
    expect_error(1, "wanted a JSON object");
    RUN("render", "--template", in_folder("raising.jinja"), "--input", in_folder("broken.json"));
    expect_error(1, "JSON");
    RUN("render", "--template", in_folder("absent"), "--input", in_folder("empty.json"));
    expect_error(1, "absent");
}

/* ---- looking into a model ------------------------------------------------------------------------------ */

static void inspects(void **state) {
    (void)state;
    RUN("inspect", "tiny-math");
    expect_ok();
    expect_out("qwen3");
    expect_out("(4984448)");
    RUN("inspect", "tiny-math", "--json", "--dtype", "float32");
    expect_ok();
    json_t *info = expect_json();
    assert_string_equal(text_of(info, "dtype"), "float32");
    assert_string_equal(text_of(info, "stored_dtype"), "bfloat16");
    assert_int_equal(json_integer_value(json_object_get(info, "vocab_size")), 1024);
    assert_true(json_is_true(json_object_get(info, "tied_embeddings")));
    json_decref(info);
}

static size_t number_of(const json_t *object, const char *name) {
    return (size_t)json_integer_value(json_object_get(object, name));
}

/* Six layers, four of them with a window of 100 positions, whose 64-token blocks are at most three. */
static void inspects_a_context(void **state) {
    (void)state;
    static const size_t page = 64 * 2 * 2 * 32 * 2 * 2; /* keys and values, 2 heads of 32, bfloat16, of two layers */
    RUN("inspect", source_path("tests/data/shapes/mixed"), "--max-model-len", "1000");
    expect_ok();
    expect_out("KV cache of 1000 tokens");
    expect_out("4 layers           6 pages");
    expect_out("2 layers           16 pages");
    RUN("inspect", source_path("tests/data/shapes/mixed"), "--json", "--max-model-len", "1000");
    expect_ok();
    json_t *info = expect_json(), *context = json_object_get(info, "context"),
           *groups = json_object_get(context, "groups");
    assert_true(json_array_size(groups) == 2 && number_of(context, "page_bytes") == page);
    const json_t *window = json_array_get(groups, 0), *full = json_array_get(groups, 1);
    assert_true(number_of(window, "window") == 100 && number_of(window, "layers") == 4);
    assert_true(number_of(window, "pages") == 2 * 3 && number_of(window, "pages_kept") == 2 * 16);
    assert_true(number_of(full, "window") == 0 && number_of(full, "pages") == 16 && number_of(full, "layers") == 2);
    assert_int_equal(number_of(context, "bytes"), 22 * page);
    assert_int_equal(number_of(context, "bytes_kept"), 48 * page);
    assert_int_equal(number_of(context, "bytes_kept") / 1024, number_of(info, "kv_bytes_per_token"));
    json_decref(info);
    RUN("inspect", source_path("tests/data/shapes/mixed"), "--max-model-len", "4097");
    expect_error(1, "max_model_len: the model has 4096 positions, wanted 4097");
}

/* config.json alone gives the same report as the model with its weights, except for the files; no other command accepts
 * it. */
static void inspects_a_configuration(void **state) {
    (void)state;
    static const char *const same[] = {"model_type", "dtype",        "parameters",         "layers",
                                       "vocab_size", "weight_bytes", "kv_bytes_per_token", "max_positions"};
    static const char *const none[] = {"tensors", "shards", "file_bytes"};
    char dir[300], to[400];
    snprintf(dir, sizeof dir, "%s", in_folder("configuration"));
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(symlink(source_path("models/tiny-math/config.json"), to), 0);
    RUN("inspect", dir);
    expect_ok();
    expect_out("4.98 million (4984448)");
    expect_out("none: model.safetensors and model.safetensors.index.json are missing");
    assert_null(strstr(came.out, "mostly"));
    RUN("inspect", dir, "--json");
    expect_ok();
    json_t *alone = expect_json();
    RUN("inspect", "tiny-math", "--json");
    json_t *whole = expect_json();
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_non_null(json_object_get(whole, same[i]));
        assert_true(json_equal(json_object_get(alone, same[i]), json_object_get(whole, same[i])));
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(json_integer_value(json_object_get(alone, none[i])), 0);
        assert_true(json_is_integer(json_object_get(alone, none[i])));
    }
    assert_true(json_is_null(json_object_get(alone, "stored_dtype")));
    assert_true(json_is_false(json_object_get(alone, "weights_found")));
    assert_true(json_is_true(json_object_get(whole, "weights_found")));
    json_decref(alone), json_decref(whole);
    RUN("generate", dir, "-p", "1");
    expect_error(1, "wanted model.safetensors or model.safetensors.index.json, found neither");
    RUN("verify", dir);
    expect_error(1, "wanted model.safetensors or model.safetensors.index.json, found neither");
}

static void models_are_found_by_name(void **state) {
    (void)state;
    RUN("tokenize", source_path("models/tiny-math"), "--text", "Mia has 34");
    expect_ok();
    assert_int_equal(symlink(source_path("models/tiny-math"), in_folder("mine")), 0);
    RUN("tokenize", "mine", "--text", "Mia");
    expect_error(1, "mine: no such model directory");
    setenv("INVAR_MODELS", folder, 1);
    RUN("tokenize", "mine", "--text", "Mia");
    expect_ok();
    RUN("tokenize", "mine//", "--text", "Mia");
    expect_ok();
    RUN("tokenize", "mine/x", "--text", "Mia");
    expect_error(1, "mine/x: no such model directory");
    unsetenv("INVAR_MODELS");
}

static void device_of_the_environment(void **state) {
    (void)state;
    const char *before = getenv("INVAR_DEVICE");
    char kept[16];
    snprintf(kept, sizeof kept, "%s", before ? before : "");
    setenv("INVAR_DEVICE", "gpu", 1);
    RUN("generate", "tiny-math", "-p", "x", "--max-tokens", "1");
    expect_error(2, "generate: $INVAR_DEVICE: wanted one of: auto cpu cuda, found 'gpu'");
    RUN("generate", "tiny-math", "-p", "x", "--max-tokens", "1", "--device", "cpu"); /* the flag overrides it */
    expect_ok();
    RUN("tokenize", "tiny-math", "--text", "x"); /* computes nothing */
    expect_ok();
    RUN("help", "generate");
    expect_ok();
    setenv("INVAR_DEVICE", kept, 1); /* empty equals unset */
}

static void tokenizes_both_ways(void **state) {
    (void)state;
    static const char text[] = "Mia has 34 marbles.\n\tTwo: \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 <|im_start|>";
    char list[4096] = "", unquoted[4096];
    RUN("tokenize", "tiny-math", "--text", "Mia has 34");
    expect_ok();
    assert_string_equal(came.out,
                        "     599  Mia\n     303  \xc4\xa0has\n     220  \xc4\xa0\n      18  3\n      19  4\n");
    RUN_WITH(text, "tokenize", "tiny-math", "--json");
    expect_ok();
    json_t *object = expect_json(), *ids = json_object_get(object, "ids"), *id;
    size_t i, n = 0;
    assert_true(json_array_size(ids) > 10);
    json_array_foreach(ids, i, id) n +=
        (size_t)snprintf(list + n, sizeof list - n, "%s%d", i ? "," : "", (int)json_integer_value(id));
    json_decref(object);
    RUN("tokenize", "tiny-math", "--ids", list, "--json");
    expect_ok();
    object = expect_json();
    assert_string_equal(text_of(object, "text"), text);
    json_decref(object);
    RUN("tokenize", "tiny-math", "--ids", list);
    expect_ok();
    snprintf(unquoted, sizeof unquoted, "%s\n", text);
    assert_string_equal(came.out, unquoted);
    RUN("tokenize", "tiny-math", "--ids", "17,1024");
    expect_error(1, "--ids: wanted ids of this vocabulary, found 1024");
    RUN("tokenize", "tiny-math", "--ids", "687,599", "--no-special");
    expect_ok();
    assert_string_equal(came.out, "Mia\n");
}

static void renders(void **state) {
    (void)state;
    static const char chat[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}";
    static const char rendered[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    static const char clock[] = "{{ strftime_now('%Y') }}:{{ n }}";
    write_file("chat.json", chat, sizeof chat - 1);
    RUN("render", "tiny-math", "--input", in_folder("chat.json"));
    expect_ok();
    assert_string_equal(came.out, rendered);
    assert_string_equal(came.err, "");
    RUN_WITH(chat, "render", "tiny-math", "--input", "-");
    expect_ok();
    assert_string_equal(came.out, rendered);
    /* messages are prepared as the server does */
    static const char made[] =
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}],\"name\":null},{\"role\":\"assistant\",\"content\":null}]}";
    RUN_WITH(made, "render", "tiny-math", "--input", "-");
    expect_ok();
    assert_string_equal(came.out, "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
    write_file("clock.jinja", clock, sizeof clock - 1);
    RUN_WITH("{\"n\": 3}", "render", "--template", in_folder("clock.jinja"), "--input", "-", "--strftime-now", "then");
    expect_ok();
    assert_string_equal(came.out, "then:3");
}

/* Ids of the tokenizers package with encode_special_tokens. */
static void splits_special_tokens(void **state) {
    (void)state;
    static const char spelled[] = "hi<|im_end|> x";
    RUN("tokenize", "tiny-math", "--text", spelled, "--json", "--split-special-tokens");
    expect_ok();
    assert_string_equal(came.out, "{\"ids\": [71, 72, 257, 256, 268, 258, 220, 87]}\n");
    RUN("generate", "tiny-math", "-p", spelled, "--split-special-tokens", "--max-tokens", "1", "--json");
    expect_ok();
    assert_non_null(strstr(came.out, "\"prompt_token_ids\": [71, 72, 257, 256, 268, 258, 220, 87]"));
    RUN("generate", "tiny-math", "-p", spelled, "--chat", "--split-special-tokens", "--max-tokens", "1", "--json");
    expect_ok();
    assert_non_null(
        strstr(came.out, "\"prompt_token_ids\": [687, 284, 198, 71, 72, 257, 256, 268, 258, 220, 87, 688,"));
}

/* generate --chat and render read messages in the same way (tests/serve/test_doors.c has the other doors). */
static void reads_messages_in_one_way(void **state) {
    (void)state;
    static const char given[] = "{\"messages\": [{\"role\": \"developer\", \"content\": \"S\"}, {\"role\": \"user\", "
                                "\"content\": [{\"type\": \"text\", \"text\": \"hi\"}]}], "
                                "\"add_generation_prompt\": true}";
    write_file("messages.json", given, sizeof given - 1);
    RUN("generate", "tiny-math", "--chat", "--system", "S", "-p", "hi", "--max-tokens", "1", "--json");
    expect_ok();
    json_t *answer = expect_json();
    RUN("render", "tiny-math", "--input", in_folder("messages.json"));
    expect_ok();
    assert_string_equal(came.out, json_string_value(json_object_get(answer, "prompt")));
    json_decref(answer);
}

static void writes_logits(void **state) {
    (void)state;
    static char bytes[OUTPUT_MAX];
    RUN("logits", "tiny-math", "--ids", "17,10,17", "--out", in_folder("logits.safetensors"));
    expect_ok();
    size_t n = read_back("logits.safetensors", bytes);
    assert_true(n > 3 * 1024 * 4 + 3 * 4 + 8);
    assert_non_null(strstr(bytes + 8, "\"logits\""));
    assert_non_null(strstr(bytes + 8, "[3,1024]"));
    assert_non_null(strstr(bytes + 8, "\"input_ids\""));
}

/* ---- generate ------------------------------------------------------------------------------------------ */

static void answers_the_marbles(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES);
    expect_ok();
    assert_true(came.out_bytes > 2);
    assert_string_equal(came.out + came.out_bytes - 2, "45");
    const char *fingerprint = strstr(came.err, "\nfingerprint iv");
    assert_non_null(fingerprint);
    const char *digest = strchr(fingerprint + 1, '\n');
    assert_non_null(digest);
    assert_int_equal(strncmp(digest, "\ndigest sha256:", 15), 0);
    assert_string_equal(strchr(digest + 1, '\n'), "\n");
    assert_non_null(strstr(came.err, "finish stop"));
    assert_non_null(strstr(came.err, "top-p 0.95 (generation_config.json)"));
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--quiet");
    expect_ok();
    assert_string_equal(came.err, "");
}

static void threads_and_isa_change_nothing(void **state) {
    (void)state;
    static const char *const isas[] = {"auto", "scalar", "avx2"};
    static const char *const threads[] = {"1", "2", "3"};
    char first[80], other[80];
    static char text[OUTPUT_MAX];
    for (size_t i = 0; i < 3; i++) {
        RUN("generate", "tiny-math", "--chat", "-p", MARBLES, "--seed", "18446744073709551615", "--temperature", "5",
            "--top-k", "0", "--top-p=1", "--max-tokens", "24", "--threads", threads[i], "--isa", isas[i],
            "--max-num-batched-tokens", i == 1 ? "7" : "512");
        expect_ok();
        assert_non_null(strstr(came.err, "seed 18446744073709551615\n"));
        digest_of_report(i == 0 ? first : other);
        if (i == 0)
            memcpy(text, came.out, came.out_bytes + 1);
        else {
            assert_string_equal(first, other);
            assert_string_equal(came.out, text);
        }
    }
    RUN("generate", "tiny-math", "--chat", "-p", MARBLES, "--seed", "4", "--temperature", "5", "--top-k", "0",
        "--top-p=1", "--max-tokens", "24");
    expect_ok();
    digest_of_report(other);
    assert_string_not_equal(first, other);
}

static void json_says_it_all(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "-p", "2 + 2 =", "--json", "--logprobs", "2", "--max-tokens", "5", "--seed",
        "18446744073709551615", "--stop", "never \"this\"\n", "--logit-bias", "17=-1.5", "--no-generation-config");
    expect_ok();
    assert_string_equal(came.err, "");
    expect_out("\"seed\": 18446744073709551615, ");
    json_error_t why;
    char *seed = strstr(came.out, "18446744073709551615");
    memset(seed, ' ', 20); /* jansson has no unsigned 64-bit integers */
    seed[0] = '7';
    json_t *o = json_loads(came.out, JSON_REJECT_DUPLICATES, &why);
    if (!o) fail_msg("%s", why.text);
    assert_string_equal(text_of(o, "model"), "tiny-math");
    assert_string_equal(text_of(o, "prompt"), "2 + 2 =");
    assert_int_equal(strncmp(text_of(o, "digest"), "sha256:", 7), 0);
    size_t n = (size_t)json_integer_value(json_object_get(o, "completion_tokens")), i;
    assert_int_equal(json_array_size(json_object_get(o, "token_ids")), n);
    json_t *rows = json_object_get(o, "logprobs"), *row;
    assert_int_equal(json_array_size(rows), n);
    json_array_foreach(rows, i, row) {
        assert_int_equal(json_integer_value(json_object_get(row, "id")),
                         json_integer_value(json_array_get(json_object_get(o, "token_ids"), i)));
        assert_int_equal(json_array_size(json_object_get(row, "top")), 2);
        assert_true(json_number_value(json_object_get(row, "logprob")) <= 0);
    }
    json_t *p = json_object_get(o, "parameters");
    assert_true(json_number_value(json_object_get(p, "temperature")) == 1);
    assert_int_equal(json_array_size(json_object_get(p, "from_generation_config")), 0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(p, "stop"), 0)), "never \"this\"\n");
    assert_true(json_number_value(json_object_get(json_object_get(p, "logit_bias"), "17")) == -1.5);
    json_decref(o);
}

static void prompts_come_from_anywhere(void **state) {
    (void)state;
    char digests[4][80];
    write_file("prompt.txt", "2 + 2 =", 7);
    RUN("generate", "tiny-math", "--temperature", "0", "--max-tokens", "6", "-p", "2 + 2 =");
    digest_of_report(digests[0]);
    RUN("generate", "tiny-math", "--temperature", "0", "--max-tokens", "6", "--prompt-file", in_folder("prompt.txt"));
    digest_of_report(digests[1]);
    RUN_WITH("2 + 2 =", "generate", "--temperature=0", "--max-tokens=6", "--prompt-file=-", "--", "tiny-math");
    digest_of_report(digests[2]);
    RUN("generate", "tiny-math", "--temperature", "0", "--max-tokens", "6", "--ids", "17,289,220,17,265");
    digest_of_report(digests[3]);
    for (size_t i = 1; i < 4; i++) assert_string_equal(digests[i], digests[0]);
}

static void stops_at_stop_texts(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--stop", "52", "--stop", "never");
    expect_ok();
    assert_string_equal(came.out, "<think>\n34 + 18 = ");
    assert_non_null(strstr(came.err, "finish stop"));
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--stop-id", "289");
    expect_ok();
    assert_string_equal(came.out, "<think>\n34 +");
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--ignore-eos", "--max-tokens", "60");
    expect_ok();
    assert_non_null(strstr(came.err, "60 generated"));
    assert_non_null(strstr(came.err, "finish length"));
}

static void continues_past_eos(void **state) {
    (void)state;
    char least[16];
    size_t short_one, long_one;
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--max-tokens", "300");
    expect_ok();
    assert_non_null(strstr(came.err, "finish stop"));
    assert_int_equal(sscanf(strstr(came.err, "prompt, "), "prompt, %zu", &short_one), 1);
    snprintf(least, sizeof least, "%zu", short_one + 1);
    RUN("generate", "tiny-math", "--chat", "--temperature", "0", "-p", MARBLES, "--max-tokens", "300", "--min-tokens",
        least);
    expect_ok();
    assert_int_equal(sscanf(strstr(came.err, "prompt, "), "prompt, %zu", &long_one), 1);
    assert_true(long_one > short_one);
    assert_non_null(strstr(came.err, ", min-tokens "));
    RUN("generate", "tiny-math", "-p", "1 +", "--max-tokens", "5", "--min-tokens", "6");
    expect_error(1, "min_tokens: wanted at most 5, as the answer may have, found 6");
}

static void answers_are_held_to_a_schema(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"maximum\":99}},"
                                 "\"required\":[\"n\"]}";
    static const char broken[] = "{\"not\":{}}";
    char path[200], receipt[200];
    snprintf(path, sizeof path, "%s", in_folder("schema.json"));
    snprintf(receipt, sizeof receipt, "%s", in_folder("receipt.json"));
    write_file("schema.json", schema, strlen(schema));
    RUN("generate", "tiny-math", "-p", "2 + 2", "--json-schema", path, "--seed", "3", "--max-tokens", "60", "--quiet");
    expect_ok();
    json_t *v = expect_json();
    assert_true(json_is_integer(json_object_get(v, "n")) && json_object_size(v) == 1);
    json_decref(v);
    char *first = strdup(came.out);
    RUN("generate", "tiny-math", "-p", "2 + 2", "--json-schema", schema, "--seed", "3", "--max-tokens", "60", "--quiet",
        "--receipt", receipt);
    expect_ok();
    assert_string_equal(came.out, first);
    free(first);
    RUN("replay", receipt);
    expect_ok();
    RUN("generate", "tiny-math", "-p", "2 + 2", "--regex", "(yes|no)!{2}", "--seed", "1", "--quiet");
    expect_ok();
    assert_true(strcmp(came.out, "yes!!") == 0 || strcmp(came.out, "no!!") == 0);
    RUN("generate", "tiny-math", "-p", "2", "--regex", "a", "--json-schema", "{}");
    expect_error(2, "--regex: cannot be combined with --json-schema");
    RUN("generate", "tiny-math", "-p", "2", "--json-schema", "nowhere.json");
    expect_error(1, "nowhere.json");
    RUN("generate", "tiny-math", "-p", "2", "--json-schema", broken);
    expect_error(1, "json_schema: #/not: this keyword is not supported");
    RUN("generate", "tiny-math", "-p", "2", "--regex", "a(");
    expect_error(1, "regex: at byte 1");
}

static void answers_are_held_to_rules(void **state) {
    (void)state;
    static const char four[] = "root ::= \"4\"\n";
    char rules[200];
    snprintf(rules, sizeof rules, "%s", in_folder("rules.gbnf"));
    write_file("rules.gbnf", four, strlen(four));
    RUN("generate", "tiny-math", "-p", "2 + 2", "--grammar", "root ::= x{2} # twice\nx ::= \"yes\" | \"no\"",
        "--quiet");
    expect_ok();
    assert_true(strlen(came.out) >= 4 && strspn(came.out, "yesno") == strlen(came.out));
    RUN("generate", "tiny-math", "-p", "2 + 2", "--grammar-file", rules, "--quiet");
    expect_ok();
    assert_string_equal(came.out, "4");
    RUN("generate", "tiny-math", "-p", "2", "--grammar", "root ::= x");
    expect_error(1, "grammar: line 1, \"x\": no rule of this name");
    RUN("generate", "tiny-math", "-p", "2", "--regex", "a", "--grammar-file", rules);
    expect_error(2, "--grammar-file: cannot be combined with --regex");
}

static void logprobs_as_a_table(void **state) {
    (void)state;
    RUN("generate", "tiny-math", "-p", "2 + 2 =", "--temperature", "0", "--max-tokens", "2", "--logprobs", "1");
    expect_ok();
    assert_non_null(strstr(came.err, "logprob token\n"));
}

/* ---- ends of all kinds --------------------------------------------------------------------------------- */

static void a_reader_that_left(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    static const char *const words[] = {"generate", "tiny-math", "-p", "x", "--max-tokens", "5", NULL};
    pid_t pid = start(NULL, ends[1], words);
    close(ends[1]);
    finish(pid);
    assert_int_equal(came.code, 1);
    assert_string_equal(came.err, "");
}

static void a_full_disk(void **state) {
    (void)state;
    int full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        printf("SKIPPED: there is no /dev/full\n");
        skip();
    }
    static const char *const words[] = {"help", NULL};
    pid_t pid = start(NULL, full, words);
    close(full);
    finish(pid);
    assert_int_equal(came.code, 1);
    assert_string_equal(came.err, "invar: standard output: No space left on device\n");
}

static void a_signal_ends_the_answer(void **state) {
    (void)state;
    /* Slow, so that the first byte comes long before the last. */
    static const char *const words[] = {
        "generate", "tiny-math",    "--isa", "scalar",  "--threads",    "1",    "--temperature",
        "0",        "--ignore-eos", "-p",    "2 + 2 =", "--max-tokens", "2000", NULL};
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = start(NULL, ends[1], words);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(pid, SIGTERM), 0);
    while (read(ends[0], &byte, 1) > 0) continue;
    close(ends[0]);
    finish(pid);
    assert_int_equal(came.code, 128 + SIGTERM);
    assert_non_null(strstr(came.err, "finish cancelled"));
    assert_non_null(strstr(came.err, "\ndigest sha256:"));
}

/* A file size limit simulates a full disk. */
static void a_file_that_cannot_be_written_stays(void **state) {
    (void)state;
    struct rlimit before, small;
    struct stat st;
    char receipt[200];
    snprintf(receipt, sizeof receipt, "%s", in_folder("kept.json"));
    write_file("kept.json", "old", 3);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before, small.rlim_cur = 200;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    RUN("generate", "tiny-math", "-p", "2", "--max-tokens", "1", "--quiet", "--receipt", receipt);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, "kept.json: cannot write: File too large\n"));
    char kept[10] = "";
    FILE *file = fopen(receipt, "re");
    assert_non_null(file);
    assert_int_equal(fread(kept, 1, sizeof kept, file), 3);
    assert_string_equal(kept, "old");
    fclose(file);
    RUN("generate", "tiny-math", "--ids", "1024", "--quiet", "--receipt", in_folder("none.json"));
    expect_error(1, "wanted an id below 1024");
    assert_int_equal(lstat(in_folder("none.json"), &st), -1); /* and no empty file is left */
}

/* ---- chat, bench, completion --------------------------------------------------------------------------- */

static void chats_line_by_line(void **state) {
    (void)state;
    char saved[300], input[1000];
    snprintf(saved, sizeof saved, "%s", in_folder("saved.json"));
    snprintf(input, sizeof input,
             "What is 5 + \\\n6?\n/temperature 0\n/seed 3\n/system Be brief.\n/reset\n%s\n/save "
             "%s\n/exit\nnot read\n",
             MARBLES, saved);
    RUN_WITH(input, "chat", "tiny-math", "--seed", "1", "--quiet");
    expect_ok();
    assert_string_equal(came.err, "");
    assert_string_equal(came.out + came.out_bytes - 3, "45\n");
    json_error_t why;
    json_t *o = json_load_file(saved, 0, &why), *messages = json_object_get(o, "messages");
    assert_int_equal(json_array_size(messages), 3);
    assert_string_equal(text_of(json_array_get(messages, 0), "content"), "Be brief.");
    assert_string_equal(text_of(json_array_get(messages, 1), "content"), MARBLES);
    assert_string_equal(text_of(json_array_get(messages, 2), "role"), "assistant");
    json_decref(o);
    RUN("render", "tiny-math", "--input", saved);
    expect_ok();
    expect_out("Be brief.");
}

static void chat_errors_do_not_end_it(void **state) {
    (void)state;
    RUN_WITH("/sed 3\n/temperature hot\n\xff\n/save\n/system \xc3\n/save /nonexistent/x\n2 + 2\n", "chat", "tiny-math",
             "--temperature", "0", "--max-tokens", "4");
    assert_int_equal(came.code, 1);
    assert_true(came.out_bytes > 1);
    assert_non_null(strstr(came.err, "unknown command '/sed': did you mean /seed?\n"));
    assert_non_null(strstr(came.err, "--temperature: wanted a number from 0 to 100, found 'hot'\n"));
    assert_non_null(strstr(came.err, "message: wanted UTF-8, found byte 0xff at offset 0\n"));
    assert_non_null(strstr(came.err, "/save: wanted a file name\n"));
    assert_non_null(strstr(came.err, "message: wanted UTF-8, found byte 0xc3 at offset 8\n"));
    assert_non_null(strstr(came.err, "/nonexistent/x: cannot write: No such file or directory\n"));
    assert_non_null(strstr(came.err, "digest sha256:"));
}

static void benches(void **state) {
    (void)state;
    char digest[2][80];
    for (int i = 0; i < 2; i++) {
        RUN("bench", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4", "--repeat", "2", "--json",
            "--threads", i ? "2" : "1", "--isa", i ? "auto" : "scalar");
        expect_ok();
        json_t *o = expect_json();
        assert_int_equal(json_integer_value(json_object_get(o, "threads")), i + 1);
        assert_true(json_number_value(json_object_get(o, "prefill_tokens_per_s")) > 0);
        assert_true(json_number_value(json_object_get(o, "decode_tokens_per_s")) > 0);
        snprintf(digest[i], sizeof digest[i], "%s", text_of(o, "digest"));
        json_decref(o);
    }
    assert_string_equal(digest[0], digest[1]);
    RUN("bench", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4");
    expect_ok();
    expect_out("medians of 3 runs");
    RUN("bench", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4", "--concurrency", "20", "--json");
    expect_ok();
    json_t *o = expect_json();
    assert_int_equal(json_integer_value(json_object_get(o, "concurrency")), 20);
    assert_true(json_number_value(json_object_get(o, "total_tokens_per_s")) > 0);
    assert_string_equal(text_of(o, "digest"), digest[0]); /* in a batch as alone */
    json_decref(o);
    RUN("bench", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4", "--concurrency", "20", "--json",
        "--numerics", "vanilla");
    expect_ok();
    o = expect_json();
    assert_string_equal(text_of(o, "numerics"), "vanilla");
    assert_string_not_equal(text_of(o, "digest"), digest[0]);
    json_decref(o);
}

/* Ranks share standard error: a line in several writes would interleave with another's. */
static void an_error_is_written_at_once(void **state) {
    (void)state;
    int ends[2], status;
    char line[500];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0); /* one read per write */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], 2);
        execl(INVAR_BINARY, INVAR_BINARY, "inspect", "no/such/model", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    ssize_t n = recv(ends[0], line, sizeof line - 1, MSG_DONTWAIT);
    assert_true(n > 0);
    line[n] = 0;
    if (strncmp(line, "invar: ", 7) != 0 || line[n - 1] != '\n') fail_msg("wanted a whole line, found '%s'", line);
    close(ends[0]), close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(an_error_is_written_at_once),
        cmocka_unit_test(bad_models_and_files),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(bad_templates),
        cmocka_unit_test(inspects),
        cmocka_unit_test(inspects_a_context),
        cmocka_unit_test(inspects_a_configuration),
        cmocka_unit_test(models_are_found_by_name),
        cmocka_unit_test(device_of_the_environment),
        cmocka_unit_test(tokenizes_both_ways),
        cmocka_unit_test(renders),
        cmocka_unit_test(splits_special_tokens),
        cmocka_unit_test(reads_messages_in_one_way),
        cmocka_unit_test(writes_logits),
        cmocka_unit_test(answers_the_marbles),
        cmocka_unit_test(threads_and_isa_change_nothing),
        cmocka_unit_test(json_says_it_all),
        cmocka_unit_test(prompts_come_from_anywhere),
        cmocka_unit_test(stops_at_stop_texts),
        cmocka_unit_test(continues_past_eos),
        cmocka_unit_test(answers_are_held_to_a_schema),
        cmocka_unit_test(answers_are_held_to_rules),
        cmocka_unit_test(logprobs_as_a_table),
        cmocka_unit_test(a_reader_that_left),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(a_signal_ends_the_answer),
        cmocka_unit_test(a_file_that_cannot_be_written_stays),
        cmocka_unit_test(chats_line_by_line),
        cmocka_unit_test(chat_errors_do_not_end_it),
        cmocka_unit_test(benches),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
