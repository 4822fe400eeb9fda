/* params_help.c: what each field does, for the reference; and the nearest name to a misspelt one. */
#include "serve/api/params_table.h"

#include <string.h>

static const struct {
    const char *name, *help;
} helps[] = {
    {"temperature", "divides the logits; 0: greedy"},
    {"top_p", "samples among the likeliest tokens with this sum of probabilities"},
    {"top_k", "samples among this many of the likeliest tokens; 0 or -1: off"},
    {"min_p", "leaves out tokens less likely than this part of the likeliest"},
    {"repetition_penalty", "divides the logits of tokens that the prompt or the answer has"},
    {"presence_penalty", "subtracted from the logits of tokens that the answer has"},
    {"frequency_penalty", "the same for each occurrence"},
    {"logit_bias", "token ids and what is added to their logits, -100 to 100"},
    {"seed", "of sampling, 64 bits; drawn and reported if absent"},
    {"sampling_seed", "of sampling, 64 bits"},
    {"stop", "strings that end the answer"},
    {"stop_sequences", "strings that end the answer"},
    {"stop_token_ids", "token ids that end the answer"},
    {"ignore_eos", "the model's end tokens do not end the answer"},
    {"skip_special_tokens", "special tokens have no text"},
    {"spaces_between_special_tokens", "of slow tokenizers"},
    {"n", "answers to each prompt"},
    {"best_of", "1, or as many as n"},
    {"max_tokens", "of the answer"},
    {"max_completion_tokens", "of the answer; takes precedence over max_tokens"},
    {"max_output_tokens", "of the answer"},
    {"max_new_tokens", "of the answer"},
    {"min_tokens", "before which the answer cannot end"},
    {"min_new_tokens", "before which the answer cannot end"},
    {"system", "the system prompt: a string, or blocks of text"},
    {"thinking",
     "type enabled, adaptive or disabled: the template's enable_thinking; budget_tokens and display change nothing"},
    {"output_config", "effort, as reasoning_effort; format, a JSON schema of the answer"},
    {"output_format", "a JSON schema of the answer: older name of output_config.format"},
    {"context_management", "edits of the type clear_thinking_20251015"},
    {"cache_control", "the cache needs no marks"},
    {"speed", "there is one"},
    {"inference_geo", "a label"},
    {"diagnostics", "a label"},
    {"container", "of code that Anthropic's servers run"},
    {"mcp_servers", "of tools that Anthropic's servers call"},
    {"metadata", "a label"},
    {"service_tier", "a label"},
    {"use_beam_search", "beam search"},
    {"length_penalty", "of beam search"},
    {"include_stop_str_in_output", "the text ends with the stop string"},
    {"no_stop_trim", "the text ends with the stop string"},
    {"allowed_token_ids", "the only ids that are sampled; with the end token among them the answer can end"},
    {"bad_words", "strings whose tokens are not sampled in a row"},
    {"truncate_prompt_tokens", "only the last tokens of the prompt are read; -1: as many as fit"},
    {"response_format", "text, json_object or json_schema"},
    {"structured_outputs", "json, regex, choice, grammar or json_object, as in vLLM"},
    {"guided_json", "a JSON schema of the answer"},
    {"guided_regex", "an expression that the answer matches"},
    {"guided_choice", "strings, one of which is the answer"},
    {"guided_grammar", "a grammar of the answer"},
    {"grammar", "a grammar of the answer, in llama.cpp's notation"},
    {"json_schema", "a JSON schema of the answer"},
    {"regex", "an expression that the answer matches"},
    {"ebnf", "a grammar of the answer"},
    {"structural_tag", "SGLang's tags"},
    {"stop_regex", "expressions that end the answer"},
    {"custom_params", "return_top_p_token_ids"},
    {"return_top_p_token_ids", "the answer lists the tokens that the sampler kept"},
    {"stream", "the answer comes as events"},
    {"echo", "the text begins with the prompt"},
    {"logprobs", "log-probabilities of the answer's tokens: a number of alternatives, in chats true"},
    {"top_logprobs", "alternatives for each token"},
    {"prompt_logprobs", "log-probabilities of the prompt's tokens, with this many alternatives"},
    {"return_sampling_logprobs", "log-probabilities after temperature and filters, too"},
    {"return_receipt", "the answer has a receipt, for invar replay"},
    {"return_token_ids", "the answer has the token ids"},
    {"return_tokens_as_token_ids", "tokens are named token_id:N"},
    {"include_usage", "a last event with the usage"},
    {"continuous_usage_stats", "the usage in each event"},
    {"include_obfuscation", "events of random length"},
    {"reasoning_summary_delivery", "the reasoning is whole, as it comes"},
    {"separate_reasoning", "the reasoning is not part of the content"},
    {"include_reasoning", "the reasoning is returned"},
    {"stream_reasoning", "the reasoning is streamed"},
    {"verbosity", "for the template"},
    {"return_logprob", "log-probabilities of tokens"},
    {"logprob_start_len", "the first token of the prompt with a log-probability; -1: the last"},
    {"top_logprobs_num", "alternatives for each token"},
    {"return_text_in_logprobs", "log-probabilities have the tokens' texts"},
    {"token_ids_logprob", "ids whose log-probabilities are reported at each token"},
    {"return_hidden_states", "hidden states"},
    {"return_routed_experts", "the experts of each token (/generate)"},
    {"routed_experts_start_len", "the first token whose experts are reported"},
    {"return_prompt_token_ids", "ids of the prompt: return_token_ids"},
    {"return_bytes", "the text as bytes"},
    {"return_entropy", "entropies"},
    {"return_token_strs", "the tokens' texts, too"},
    {"query", "the text before each item"},
    {"items", "the texts to score"},
    {"questions", "predicates, choices and scores about the input"},
    {"label_token_ids", "the tokens whose probabilities are the scores"},
    {"apply_softmax", "the scores of an item add up to 1"},
    {"item_first", "the item comes before the query"},
    {"model", "one of --served-model-name"},
    {"prompt", "a text or token ids, or a list of them"},
    {"input", "a text, or items of a conversation"},
    {"instructions", "a system message before the input"},
    {"text", "the prompt, or several (/generate); format and verbosity (/v1/responses)"},
    {"input_ids", "the prompt's ids, or several"},
    {"tokens", "ids"},
    {"sampling_params", "one object, or one for each prompt"},
    {"rid", "name of the request, for /abort_request"},
    {"request_id", "part of the answer's id"},
    {"suffix", "text after the answer"},
    {"add_special_tokens", "the tokenizer adds its own, such as <s>"},
    {"split_special_tokens", "special tokens spelled in the text are plain text"},
    {"messages", "the conversation"},
    {"tools", "functions that the model may call"},
    {"tool_choice", "whether calls are possible or forced"},
    {"parallel_tool_calls", "false: at most one call"},
    {"chat_template_kwargs", "variables of the chat template"},
    {"add_generation_prompt", "the prompt ends where the assistant begins"},
    {"continue_final_message", "the answer continues the last message"},
    {"reasoning_effort", "for the template, with enable_thinking"},
    {"reasoning", "effort for the template; summary has no effect"},
    {"effort", "for the template, with enable_thinking"},
    {"context", "which reasoning the model sees"},
    {"summary", "the reasoning itself is returned"},
    {"generate_summary", "the reasoning itself is returned"},
    {"format", "a JSON schema of the answer"},
    {"chat_template", "a template of the client"},
    {"documents", "for templates of retrieval"},
    {"functions", "older form of tools"},
    {"function_call", "older form of tool_choice"},
    {"modalities", "of the answer"},
    {"audio", "of the answer"},
    {"prediction", "a hint for speed"},
    {"web_search_options", "of OpenAI's servers"},
    {"previous_response_id", "a stored response that is continued"},
    {"client_metadata", "a label"},
    {"conversation", "kept by OpenAI's servers"},
    {"background", "answers later"},
    {"truncation", "auto: items are dropped until the input fits"},
    {"include", "message.output_text.logprobs; the other values have no content here"},
    {"stream_options", "of events"},
    {"priority", "smaller is earlier"},
    {"image_data", "images"},
    {"input_embeds", "embeddings"},
    {"session_params", "sessions"},
    {"custom_logit_processor", "code"},
    {"lora_path", "the name of an adapter; for several prompts also a list, with null for the base"},
    {"log_metrics", "a label"},
    {"no_logs", "a label"},
    {"user", "a label"},
    {"store", "a response is stored (--response-dir)"},
    {"safety_identifier", "a label"},
    {"prompt_cache_key", "a label"},
    {"prompt_cache_retention", "a label"},
    {"prompt_cache_options", "a label"},
    {"session_id", "a label"},
    {"custom_labels", "a label"},
    {"max_tool_calls", "of OpenAI's own tools"},
    {"abort_all", "all requests"},
    {"model_path", "a folder with weights"},
    {"weight_dir", "a folder with weights"},
    {"weight_version", "a name of the weights"},
    {"load_format", "of the weights"},
    {"abort_all_requests", "open requests end first"},
    {"flush_cache", "cached pages are of the old weights"},
};

const char *iv_api_field_help(const char *name) {
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++)
        if (strcmp(helps[i].name, name) == 0) return helps[i].help;
    return NULL;
}

/* ---- near names --------------------------------------------------------------------------------------- */

enum { NAME_BYTES_MAX = 40 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Letters changed, added, left out or exchanged with the next one. */
static size_t distance(const char *a, size_t n, const char *b, size_t m) {
    size_t rows[3][NAME_BYTES_MAX + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t k = 0; k <= m; k++) last[k] = k;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t k = 1; k <= m; k++) {
            now[k] = least(least(last[k], now[k - 1]) + 1, last[k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                now[k] = least(now[k], before[k - 2] + 1);
        }
        size_t *free = before;
        before = last, last = now, now = free;
    }
    return last[m];
}

const char *iv_api_field_like(unsigned body, const char *name) {
    const char *best = NULL;
    size_t n = strlen(name), nearest = n / 3 < 3 ? n / 3 : 3; /* a third of the letters, at most 3, may differ */
    if (n > NAME_BYTES_MAX) return NULL;
    for (size_t i = 0; i < iv_api_field_count; i++) {
        const iv_api_field *f = &iv_api_fields[i];
        if (!(f->bodies & body) || strlen(f->name) > NAME_BYTES_MAX) continue;
        size_t d = distance(name, n, f->name, strlen(f->name));
        if (d <= nearest && (!best || d < nearest)) best = f->name, nearest = d;
    }
    return best;
}
