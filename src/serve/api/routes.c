/* routes.c: all routes of the server and their access, and the dispatch of the engine's events. Routes that change
 * the server need the admin key. */
#include "serve/api/handlers.h"
#include "serve/page/page.h"

const iv_http_route iv_server_routes[] = {
    {"GET", "/", IV_HTTP_OPEN, iv_page_handle}, /* contains no secret; its API calls need the key */
    {"GET", "/health", IV_HTTP_OPEN | IV_HTTP_ALWAYS, iv_handle_health},
    {"GET", "/ping", IV_HTTP_OPEN | IV_HTTP_ALWAYS, iv_handle_health},
    {"GET", "/health_generate", IV_HTTP_KEY, iv_handle_health_generate},
    {"GET", "/version", IV_HTTP_KEY, iv_handle_version},
    {"GET", "/openapi.json", IV_HTTP_KEY, iv_handle_openapi},
    {"GET", "/metrics", IV_HTTP_KEY | IV_HTTP_ALWAYS, iv_handle_metrics},
    /* OpenAI */
    {"GET", "/v1/models", IV_HTTP_KEY, iv_handle_models},
    {"GET", "/v1/models/*", IV_HTTP_KEY, iv_handle_models},
    {"POST", "/v1/completions", IV_HTTP_KEY, iv_handle_completions},
    {"POST", "/v1/chat/completions", IV_HTTP_KEY, iv_handle_chat},
    {"POST", "/v1/responses", IV_HTTP_KEY, iv_handle_responses},
    {"POST", "/v1/responses/input_tokens", IV_HTTP_KEY, iv_handle_input_tokens},
    {"GET", "/v1/responses/*", IV_HTTP_KEY, iv_handle_stored_response},
    {"DELETE", "/v1/responses/*", IV_HTTP_KEY, iv_handle_remove_response},
    {"POST", "/v1/messages", IV_HTTP_KEY, iv_handle_messages}, /* Anthropic's */
    {"POST", "/v1/messages/count_tokens", IV_HTTP_KEY, iv_handle_count_tokens},
    {"POST", "/v1/embeddings", IV_HTTP_KEY, iv_handle_embeddings},
    {"POST", "/v1/score", IV_HTTP_KEY, iv_handle_score},
    {"POST", "/v1/decisions", IV_HTTP_KEY, iv_handle_decisions}, /* OpenAI's */
    {"POST", "/tokenize", IV_HTTP_KEY, iv_handle_tokenize},
    {"POST", "/detokenize", IV_HTTP_KEY, iv_handle_detokenize},
    {"GET", "/tokenizer_info", IV_HTTP_KEY, iv_handle_tokenizer_info},
    {"POST", "/v1/load_lora_adapter", IV_HTTP_ADMIN, iv_handle_load_lora}, /* vLLM's */
    {"POST", "/v1/unload_lora_adapter", IV_HTTP_ADMIN, iv_handle_unload_lora},
    /* SGLang */
    {"POST", "/generate", IV_HTTP_KEY, iv_handle_generate},
    {"GET", "/get_model_info", IV_HTTP_KEY, iv_handle_model_info},
    {"GET", "/model_info", IV_HTTP_KEY, iv_handle_model_info},
    {"GET", "/server_info", IV_HTTP_KEY, iv_handle_server_info},
    {"GET", "/get_server_info", IV_HTTP_KEY, iv_handle_server_info},
    {"*", "/get_weight_version", IV_HTTP_KEY, iv_handle_weight_version},
    {"GET", "/weight_version", IV_HTTP_KEY, iv_handle_weight_version},
    {"GET", "/v1/loads", IV_HTTP_KEY, iv_handle_loads},
    {"*", "/flush_cache", IV_HTTP_CACHE, iv_handle_flush},
    {"POST", "/abort_request", IV_HTTP_ADMIN, iv_handle_abort},
    {"POST", "/pause_generation", IV_HTTP_ADMIN, iv_handle_pause},
    {"POST", "/continue_generation", IV_HTTP_ADMIN, iv_handle_continue},
    {"POST", "/update_weights_from_disk", IV_HTTP_ADMIN, iv_handle_update_weights},
    {"POST", "/update_weights_from_tensor", IV_HTTP_ADMIN, iv_handle_update_from_tensor},
    {"POST", "/update_weights_from_distributed", IV_HTTP_ADMIN, iv_handle_update_from_distributed},
    {"POST", "/begin_weight_update", IV_HTTP_ADMIN, iv_handle_begin_update},
    {"POST", "/end_weight_update", IV_HTTP_ADMIN, iv_handle_end_update},
    {"POST", "/init_weights_update_group", IV_HTTP_ADMIN, iv_handle_init_group},
    {"POST", "/destroy_weights_update_group", IV_HTTP_ADMIN, iv_handle_destroy_group},
    {"POST", "/release_memory_occupation", IV_HTTP_ADMIN, iv_handle_release},
    {"POST", "/resume_memory_occupation", IV_HTTP_ADMIN, iv_handle_resume},
    {"POST", "/load_lora_adapter", IV_HTTP_ADMIN, iv_handle_load_lora},
    {"POST", "/unload_lora_adapter", IV_HTTP_ADMIN, iv_handle_unload_lora},
    {"POST", "/weights_checker", IV_HTTP_ADMIN, iv_handle_weights_checker},
    {"POST", "/start_profile", IV_HTTP_ADMIN, iv_handle_start_profile},
    {"POST", "/stop_profile", IV_HTTP_ADMIN, iv_handle_stop_profile},
    /* names used by other RL clients */
    {"POST", "/reset_prefix_cache", IV_HTTP_CACHE, iv_handle_flush},
    {"POST", "/pause", IV_HTTP_ADMIN, iv_handle_pause},
    {"POST", "/resume", IV_HTTP_ADMIN, iv_handle_continue},
    {"POST", "/update_weights", IV_HTTP_ADMIN, iv_handle_update_weights},
};
const size_t iv_server_route_count = sizeof iv_server_routes / sizeof *iv_server_routes;

void iv_server_take_event(iv_server *s, const iv_bridge_event *event) {
    if (event->kind == IV_BRIDGE_EVENT_COMMAND)
        iv_admin_take_event(s, event);
    else
        iv_task_take_event(event);
}
