/* tools.c: the form of calls, the fields about tools, the ids of calls. */
#include "serve/api/tools.h"
#include "base/digest.h"
#include "serve/api/constraint.h"

#include <stdio.h>
#include <string.h>

/* ---- the form ------------------------------------------------------------------------------------------ */

static bool is_mistral(iv_tool_form form) {
    return form >= IV_TOOL_FORM_MISTRAL && form <= IV_TOOL_FORM_MISTRAL_CALL_ID;
}

/* A special token that the model can draw, and that is in its texts only if that is asked for. */
static bool find_special(const iv_bridge *b, const char *spelling, int32_t *id) {
    const iv_textual *words = iv_bridge_text_model(b);
    iv_error unused;
    iv_ids ids = {0};
    iv_text skipped = {0};
    bool found = iv_tokenize(words, spelling, strlen(spelling), false, &ids, &unused) == IV_OK && ids.count == 1 &&
                 iv_detokenize(words, ids.data, 1, false, &skipped, &unused) == IV_OK && skipped.bytes == 0 &&
                 (size_t)ids.data[0] < iv_bridge_info(b)->vocab_size;
    if (found) *id = ids.data[0];
    iv_ids_free(&ids), iv_text_free(&skipped);
    return found;
}

static void find_specials(iv_server *s) {
    static const char *const hermes[] = {"<tool_call>", "</tool_call>", NULL};
    static const char *const llama[] = {"<|python_tag|>", NULL};
    static const char *const mistral[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL};
    const char *const *names = is_mistral(s->tool_form)                   ? mistral
                               : s->tool_form == IV_TOOL_FORM_LLAMA3_JSON ? llama
                                                                          : hermes;
    for (s->tool_id_count = 0; *names && s->tool_form != IV_TOOL_FORM_NONE; names++)
        if (find_special(s->bridge, *names, &s->tool_ids[s->tool_id_count])) s->tool_id_count++;
}

iv_status iv_api_tools_open(iv_server *s, const char *name, iv_error *err) {
    static const struct {
        const char *name;
        iv_tool_form form;
    } parsers[] = {{"hermes", IV_TOOL_FORM_HERMES},
                   {"llama3_json", IV_TOOL_FORM_LLAMA3_JSON},
                   {"mistral", IV_TOOL_FORM_MISTRAL},
                   {"qwen3_coder", IV_TOOL_FORM_QWEN3_CODER},
                   {"qwen3_xml", IV_TOOL_FORM_QWEN3_CODER}, /* vLLM's other name for it */
                   {"none", IV_TOOL_FORM_NONE}};
    iv_tool_form own = iv_tool_form_of(iv_bridge_text_model(s->bridge));
    bool found = !name || strcmp(name, "auto") == 0;
    s->tool_form = own;
    for (size_t i = 0; !found && i < sizeof parsers / sizeof *parsers; i++)
        if (strcmp(name, parsers[i].name) == 0) s->tool_form = parsers[i].form, found = true;
    if (!found)
        return iv_fail(
            err, IV_INVALID,
            "tool-call-parser: wanted auto, hermes, llama3_json, mistral, qwen3_coder, qwen3_xml or none, found "
            "\"%.40s\"",
            name);
    /* How the forced ones of Mistral's are written is still the template's business. */
    if (s->tool_form == IV_TOOL_FORM_MISTRAL && is_mistral(own)) s->tool_form = own;
    find_specials(s);
    return IV_OK;
}

/* ---- the fields ---------------------------------------------------------------------------------------- */

static iv_status check_types(const json_t *tools, iv_error *err) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *type = json_string_value(json_object_get(json_array_get(tools, i), "type"));
        if (!type || strcmp(type, "function") != 0)
            return iv_fail(err, IV_INVALID, "tools[%zu].type: wanted \"function\", found \"%.40s\"", i,
                           type ? type : "nothing");
    }
    return IV_OK;
}

iv_status iv_api_tools_settle(const iv_server *s, iv_api_params *p, iv_error *err) {
    const char *choice = json_string_value(p->tool_choice), *name = NULL;
    if (json_is_object(p->tool_choice)) {
        json_t *named = json_object_get(p->tool_choice, "function"); /* a chat has the name in there */
        name = json_string_value(json_object_get(named ? named : p->tool_choice, "name"));
        choice = name ? json_string_value(json_object_get(p->tool_choice, "type")) : NULL;
    }
    const char *type = choice ? choice : json_string_value(json_object_get(p->tool_choice, "type"));
    bool forced = choice && strcmp(choice, name ? "function" : "required") == 0;
    if (p->tool_choice && !forced && !(choice && !name && (strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0)))
        return iv_fail(err, IV_UNSUPPORTED,
                       "tool_choice: wanted \"auto\", \"none\", \"required\" or a function's name in "
                       "{\"type\": \"function\", ...}, found %s%.40s",
                       json_is_string(p->tool_choice) ? "" : "an object of type ", type ? type : "nothing");
    bool needless = choice && !forced && (strcmp(choice, "none") == 0 || p->tools); /* "auto" beside an empty list */
    if (choice && !needless && json_array_size(p->tools) == 0)
        return iv_fail(err, IV_INVALID, "tool_choice: wanted \"tools\" beside \"%s\", found none", choice);
    if (choice && strcmp(choice, "none") == 0) p->tools = NULL;
    if (json_array_size(p->tools) == 0) p->tools = NULL;
    IV_TRY(check_types(p->tools, err));
    if (forced && s->tool_form == IV_TOOL_FORM_NONE)
        return iv_fail(err, IV_UNSUPPORTED,
                       "tool_choice: wanted \"auto\" or \"none\": this server looks for no calls (its "
                       "--tool-call-parser is none)");
    if (p->tools) p->request.show_ids = s->tool_ids, p->request.show_id_count = s->tool_id_count;
    if (forced) return iv_api_constraint_force(p, p->tools, name, s->tool_form, &p->request, err);
    bool either = p->tools && p->format_holds && s->tool_form != IV_TOOL_FORM_NONE;
    return either ? iv_api_constraint_either(p, p->tools, s->tool_form, &p->request, err) : IV_OK;
}

/* ---- ids ----------------------------------------------------------------------------------------------- */

void iv_api_call_id(const iv_server *s, const char *response, size_t choice, size_t i, char out[IV_CALL_ID_BYTES]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { SHORT = 9 };
    uint8_t hash[32];
    snprintf(out, IV_CALL_ID_BYTES, "call_%.40s_%zu_%zu", response, choice, i);
    if (!is_mistral(s->tool_form)) return;
    iv_digest_of(out, strlen(out), hash);
    for (size_t k = 0; k < SHORT; k++) out[k] = digits[hash[k] % (sizeof digits - 1)];
    out[SHORT] = 0;
}
