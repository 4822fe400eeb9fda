/* release.c: the parts of releasing an engine's memory that touch no process. */
#include "serve/engine/remote_state.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_release_tags(const char *text, unsigned *tags, iv_error *err) {
    static const struct {
        const char *name;
        unsigned tag;
    } known[] = {{"weights", IV_RELEASE_WEIGHTS}, {"kv_cache", IV_RELEASE_KV}};
    *tags = 0;
    for (const char *at = text ? text : ""; *at;) {
        size_t n = strcspn(at, " ");
        unsigned found = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (n == strlen(known[i].name) && strncmp(at, known[i].name, n) == 0) found = known[i].tag;
        if (n && !found)
            return iv_fail(err, IV_INVALID, "tags: wanted \"weights\" or \"kv_cache\", found \"%.*s\"",
                           (int)(n < 40 ? n : 40), at);
        *tags |= found;
        at += n + (at[n] == ' ');
    }
    if (*tags == 0) *tags = IV_RELEASE_WEIGHTS | IV_RELEASE_KV;
    return IV_OK;
}

void iv_release_update(iv_release *release, char **weights, uint64_t *weight_version, const char *text) {
    char *copy = strdup(text);
    IV_ASSERT(copy); /* the next process must find these weights */
    if (release->updated)
        free(*weights);
    else
        release->weights = *weights, release->weight_version = *weight_version;
    release->updated = true;
    *weights = copy;
    ++*weight_version;
}

void iv_release_settle(iv_release *release, char **weights, uint64_t *weight_version, bool opened) {
    if (!release->updated) return;
    if (opened) {
        free(release->weights);
    } else {
        free(*weights);
        *weights = release->weights, *weight_version = release->weight_version;
    }
    release->weights = NULL, release->updated = false;
}

void iv_release_add_counters(iv_engine_stats *sum, const iv_engine_stats *s) {
    sum->steps += s->steps, sum->tokens_computed += s->tokens_computed;
    sum->tokens_generated += s->tokens_generated, sum->prompt_tokens += s->prompt_tokens;
    sum->cached_tokens += s->cached_tokens, sum->preemptions += s->preemptions;
    sum->drafted_tokens += s->drafted_tokens, sum->accepted_tokens += s->accepted_tokens;
    sum->step_seconds += s->step_seconds, sum->forward_seconds += s->forward_seconds;
    sum->sample_seconds += s->sample_seconds;
}
