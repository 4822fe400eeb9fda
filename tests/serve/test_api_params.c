/* Fields of bodies: values, and refusals with their names. */
#include "format/json.h"
#include "serve/api/params.h"
#include "support.h"

#include <math.h>

static const iv_request defaults = {.add_special = true,
                                    .temperature = 1.0f,
                                    .top_p = 1.0f,
                                    .repetition_penalty = 1.0f,
                                    .logprobs = -1,
                                    .prompt_logprobs = -1};

static iv_status read_text(unsigned body, const char *text, iv_api_params *p, json_t **json, iv_error *err) {
    iv_api_params_init(p, &defaults);
    p->text = text, p->bytes = strlen(text);
    ASSERT_OK(iv_json_parse("test", text, strlen(text), json, err), err);
    iv_status status = iv_api_params_read(p, body, "", *json, err);
    if (status == IV_OK && body & (IV_API_COMPLETIONS | IV_API_CHAT)) status = iv_api_params_finish(p, body, err);
    return status;
}

static void every_field_arrives(void **state) {
    (void)state;
    iv_api_params p;
    iv_error err;
    json_t *json;
    ASSERT_OK(
        read_text(IV_API_COMPLETIONS,
                  "{\"temperature\":0.5,\"top_p\":0.25,\"top_k\":-1,\"min_p\":0.125,\"repetition_penalty\":1.5,"
                  "\"presence_penalty\":-2,\"frequency_penalty\":2,\"logit_bias\":{\"5\":-100,\"6\":1.5},\"seed\":"
                  "9223372036854775807,\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[1,2,3],\"ignore_eos\":true,"
                  "\"skip_special_tokens\":false,\"n\":4,\"max_tokens\":0,\"best_of\":1,\"echo\":true,\"stream\":"
                  "true,\"logprobs\":3,\"stream_options\":{\"include_usage\":true},\"model\":\"m\",\"user\":"
                  "\"u\",\"suffix\":null,\"prompt\":[1],\"priority\":-7,\"lora_path\":null}",
                  &p, &json, &err),
        &err);
    const iv_request *r = &p.request;
    assert_true(r->temperature == 0.5f && r->top_p == 0.25f && r->top_k == 0 && r->min_p == 0.125f);
    assert_true(r->repetition_penalty == 1.5f && r->presence_penalty == -2 && r->frequency_penalty == 2);
    assert_int_equal(r->logit_bias_count, 2);
    assert_true(r->logit_bias[0].id == 5 && r->logit_bias[0].bias == -100 && r->logit_bias[1].bias == 1.5f);
    assert_true(r->has_seed && r->seed == INT64_MAX);
    assert_true(r->stop_count == 2 && strcmp(r->stop[1], "b") == 0 && r->stop_id_count == 3 && r->stop_ids[2] == 3);
    assert_true(r->ignore_eos && r->keep_special && p.n == 4 && p.max_tokens == 0 && p.echo && p.stream);
    assert_true(p.include_usage && p.want_logprobs && r->logprobs == 3 && r->priority == -7);
    assert_string_equal(p.model, "m");
    json_decref(json);
    assert_string_equal(p.model, "m"); /* a copy */
    assert_string_equal(r->stop[0], "a");
    iv_api_params_free(&p);
}

static void nothing_changes_what_is_absent(void **state) {
    (void)state;
    iv_api_params p;
    iv_error err;
    json_t *json;
    ASSERT_OK(read_text(IV_API_CHAT,
                        "{\"temperature\":null,\"stop\":null,\"n\":null,\"logprobs\":null,\"verbosity\":null}", &p,
                        &json, &err),
              &err);
    assert_true(p.request.temperature == 1 && p.n == 1 && p.max_tokens == -1 && !p.want_logprobs);
    assert_true(p.request.logprobs == -1 && !p.request.has_seed && p.separate_reasoning && p.add_generation_prompt);
    json_decref(json);
    iv_api_params_free(&p);
}

/* Fields without effect, and values that request the default. */
static void labels_are_accepted(void **state) {
    (void)state;
    static const struct {
        unsigned body;
        const char *text;
    } cases[] = {
        {IV_API_CHAT, "{\"store\":true,\"metadata\":{\"a\":\"b\"},\"user\":\"u\",\"service_tier\":\"flex\","
                      "\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\",\"prompt_cache_retention\":\"24h\"}"},
        {IV_API_CHAT, "{\"verbosity\":\"low\",\"prediction\":{\"type\":\"content\",\"content\":\"x = 1\"}}"},
        {IV_API_CHAT, "{\"store\":false,\"verbosity\":\"medium\",\"stream_reasoning\":true,\"ebnf\":null,"
                      "\"return_hidden_states\":false}"},
        {IV_API_COMPLETIONS, "{\"metadata\":{},\"service_tier\":\"priority\",\"suffix\":\"\"}"},
        {IV_API_GENERATE, "{\"return_routed_experts\":false,\"return_prompt_token_ids\":false,\"return_bytes\":false,"
                          "\"return_entropy\":false,\"session_id\":\"s\",\"custom_labels\":{\"a\":\"b\"}}"},
        {IV_API_GENERATE, "{\"background\":false,\"no_logs\":false,\"log_metrics\":true}"},
        {IV_API_RESPONSES, "{\"store\":true,\"service_tier\":\"scale\",\"prompt_cache_retention\":\"24h\","
                           "\"max_tool_calls\":3}"},
        {IV_API_CHAT, "{\"spaces_between_special_tokens\":false}"},
        {IV_API_SAMPLING, "{\"spaces_between_special_tokens\":true}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_api_params p;
        iv_error err;
        json_t *json;
        ASSERT_OK(read_text(cases[i].body, cases[i].text, &p, &json, &err), &err);
        assert_memory_equal(&p.request, &defaults, sizeof defaults);
        json_decref(json);
        iv_api_params_free(&p);
    }
}

/* Signed and unsigned: the same bits. */
static void seeds_have_64_bits(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t seed;
        bool is_unsigned;
    } cases[] = {{"{\"seed\":-2}", UINT64_MAX - 1, false},
                 {"{\"seed\":-9223372036854775808}", (uint64_t)1 << 63, false},
                 {"{\"seed\":9223372036854775807}", INT64_MAX, false},
                 {"{\"n\":1,\"seed\" : 9223372036854775808 }", (uint64_t)1 << 63, true},
                 {"{\"s\\u0065ed\":12345678901234567891,\"user\":\"seed\"}", 12345678901234567891u, true},
                 {"{\"seed\":18446744073709551615}", UINT64_MAX, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_api_params p;
        iv_error err;
        json_t *json;
        ASSERT_OK(read_text(IV_API_CHAT, cases[i].text, &p, &json, &err), &err);
        assert_true(p.request.has_seed && p.request.seed == cases[i].seed && p.seed_unsigned == cases[i].is_unsigned);
        json_decref(json);
        iv_api_params_free(&p);
    }
}

/* Clients send small temperatures for greedy answers; all bodies treat them as 0. */
static void small_temperatures_are_zero(void **state) {
    (void)state;
    static const unsigned bodies[] = {IV_API_COMPLETIONS, IV_API_CHAT, IV_API_RESPONSES, IV_API_SAMPLING};
    static const struct {
        const char *text;
        float value;
    } cases[] = {{"0", 0},    {"-0.0", 0},   {"5e-324", 0},   {"1e-10", 0},      {"1e-7", 0},     {"1e-6", 0},
                 {"1e-5", 0}, {"9.9e-5", 0}, {"1e-4", 1e-4f}, {"0.0001", 1e-4f}, {"0.01", 0.01f}, {"2", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 4; i++) {
        char text[64];
        iv_api_params p;
        iv_error err;
        json_t *json;
        snprintf(text, sizeof text, "{\"temperature\":%s}", cases[i / 4].text);
        iv_status status = read_text(bodies[i % 4], text, &p, &json, &err);
        if (status != IV_OK) fail_msg("%s: %s", text, err.message);
        if (p.request.temperature != cases[i / 4].value || signbit(p.request.temperature))
            fail_msg("%s: found %g", text, (double)p.request.temperature);
        json_decref(json);
        iv_api_params_free(&p);
    }
}

static const struct {
    unsigned body;
    const char *text, *message;
} refusals[] = {
    {IV_API_CHAT, "{\"temprature\":1}", "temprature: this field is not known here"},
    {IV_API_CHAT, "{\"prompt\":\"x\"}", "prompt: "},
    {IV_API_COMPLETIONS, "{\"messages\":[]}", "messages: "},
    {IV_API_CHAT, "{\"temperature\":-1e-7}", "temperature: wanted a number from 0 to 100, found -1e-7"},
    {IV_API_CHAT, "{\"temperature\":100.5}", "temperature: wanted a number from 0 to 100, found 100.5"},
    {IV_API_CHAT, "{\"temperature\":\"1\"}", "temperature: wanted a number from 0 to 100, found \"1\""},
    {IV_API_CHAT, "{\"top_k\":2147483648}", "top_k: wanted an integer"},
    {IV_API_CHAT, "{\"top_k\":1.5}", "top_k: wanted an integer"},
    {IV_API_CHAT, "{\"n\":129}", "n: wanted an integer from 1 to 128, found 129"},
    {IV_API_CHAT, "{\"seed\":18446744073709551616}", "seed: wanted an integer of 64 bits"},
    {IV_API_CHAT, "{\"seed\":-9223372036854775809}", "seed: "},
    {IV_API_CHAT, "{\"seed\":9.3e18}", "seed: "},
    {IV_API_CHAT, "{\"seed\":18446744073709551615.0}", "seed: "},
    {IV_API_CHAT, "{\"seed\":\"5\"}", "seed: "},
    {IV_API_CHAT, "{\"seed\":1.5}", "seed: "},
    {IV_API_CHAT, "{\"stream\":1}", "stream: wanted true or false, found 1"},
    {IV_API_CHAT, "{\"logprobs\":1}", "logprobs: wanted true or false, found 1"},
    {IV_API_CHAT, "{\"top_logprobs\":1}", "top_logprobs: wanted only with"},
    {IV_API_CHAT, "{\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs: wanted an integer from 0 to 20"},
    {IV_API_COMPLETIONS, "{\"logprobs\":21}", "logprobs: wanted an integer from 0 to 20, found 21"},
    {IV_API_COMPLETIONS, "{\"logprobs\":true}", "logprobs: wanted an integer"},
    {IV_API_COMPLETIONS, "{\"suffix\":\"x\"}", "suffix: wanted null"},
    {IV_API_COMPLETIONS, "{\"store\":true}", "store: this field is not known here"},
    {IV_API_CHAT, "{\"store\":\"yes\"}", "store: wanted true false"},
    {IV_API_CHAT, "{\"verbosity\":\"loud\"}", "verbosity: wanted \"low\" \"medium\" \"high\""},
    {IV_API_CHAT, "{\"reasoning_effort\":\"huge\"}", "reasoning_effort: wanted \"none\" \"minimal\" \"low\""},
    {IV_API_CHAT, "{\"reasoning\":{}}", "reasoning: this field is not known here"},
    {IV_API_RESPONSES, "{\"reasoning\":\"low\"}", "reasoning: wanted object"},
    {IV_API_CHAT, "{\"stream_reasoning\":false}", "stream_reasoning: wanted true"},
    {IV_API_CHAT, "{\"ebnf\":1}", "ebnf: wanted string"},
    {IV_API_RESPONSES, "{\"regex\":\"a\"}", "regex: this field is not known here"},
    {IV_API_COMPLETIONS, "{\"best_of\":2}", "best_of: wanted 1"},
    {IV_API_COMPLETIONS, "{\"stream_options\":{}}", "stream_options: wanted only with"},
    {IV_API_COMPLETIONS, "{\"stream\":true,\"stream_options\":{\"x\":1}}", "stream_options.x: "},
    {IV_API_COMPLETIONS, "{\"stop\":[1]}", "stop: wanted strings, found 1"},
    {IV_API_COMPLETIONS, "{\"stop\":\"a\\u0000b\"}", "stop: "},
    {IV_API_COMPLETIONS,
     "{\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\","
     "\"h\"]}",
     "stop: wanted at most 16"},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"x\":1}}", "logit_bias: wanted token ids as keys"},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"-1\":1}}", "logit_bias: "},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"1\":101}}", "logit_bias: "},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"5\":1,\"05\":2}}", "logit_bias: wanted token ids as keys, found \"05\""},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"+5\":1}}", "logit_bias: wanted token ids as keys, found \"+5\""},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\" 5\":1}}", "logit_bias: wanted token ids as keys, found \" 5\""},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"5 \":1}}", "logit_bias: wanted token ids as keys, found \"5 \""},
    {IV_API_COMPLETIONS, "{\"logit_bias\":{\"2147483648\":1}}", "logit_bias: wanted token ids as keys"},
    {IV_API_COMPLETIONS, "{\"response_format\":\"json\"}", "response_format: wanted object"},
    {IV_API_COMPLETIONS, "{\"model\":5}", "model: "},
    {IV_API_SAMPLING, "{\"seed\":5}", "seed: "},
    {IV_API_SAMPLING, "{\"regex\":5}", "regex: wanted string"},
    {IV_API_SAMPLING, "{\"ebnf\":[]}", "ebnf: wanted string"},
    {IV_API_GENERATE, "{\"temperature\":1}", "temperature: "},
    {IV_API_CHAT, "{\"spaces_between_special_tokens\":0}",
     "spaces_between_special_tokens: wanted true false (nothing else is supported), found 0"},
    {IV_API_GENERATE, "{\"return_routed_experts\":5}", "return_routed_experts: wanted"},
};

static void refusals_name_the_field(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        iv_api_params p;
        iv_error err;
        json_t *json;
        iv_status status = read_text(refusals[i].body, refusals[i].text, &p, &json, &err);
        if (status != IV_INVALID || strncmp(err.message, refusals[i].message, strlen(refusals[i].message)) != 0)
            fail_msg("%s: %d %s", refusals[i].text, (int)status, status == IV_OK ? "" : err.message);
        json_decref(json);
        iv_api_params_free(&p);
    }
}

/* A hostile value must not make a message long or invalid. */
static void long_values_are_cut(void **state) {
    (void)state;
    char text[20000];
    iv_api_params p;
    iv_error err;
    json_t *json;
    memset(text, 'a', sizeof text);
    memcpy(text, "{\"temperature\":\"", 16);
    memcpy(text + sizeof text - 3, "\"}", 3);
    assert_int_equal(read_text(IV_API_CHAT, text, &p, &json, &err), IV_INVALID);
    assert_true(strlen(err.message) < 300);
    json_decref(json);
    iv_api_params_free(&p);
}

static void drawn_seeds_differ_and_fit(void **state) {
    (void)state;
    iv_error err;
    iv_request a = {0}, b = {0}, given = {.has_seed = true, .seed = 5};
    ASSERT_OK(iv_api_params_seed(&a, &err), &err);
    ASSERT_OK(iv_api_params_seed(&b, &err), &err);
    ASSERT_OK(iv_api_params_seed(&given, &err), &err);
    assert_true(a.has_seed && a.seed < (uint64_t)1 << 53 && a.seed != b.seed && given.seed == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_arrives),        cmocka_unit_test(nothing_changes_what_is_absent),
        cmocka_unit_test(labels_are_accepted),        cmocka_unit_test(seeds_have_64_bits),
        cmocka_unit_test(refusals_name_the_field),    cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(drawn_seeds_differ_and_fit), cmocka_unit_test(small_temperatures_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
