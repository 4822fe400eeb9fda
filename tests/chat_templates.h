/* chat_templates.h: published chat templates with their texts by Jinja2: all from INVAR_SHARED, else those in the
 * repository (tests/data/chat_templates.json), which names the models that are left out because of their licenses. */
#ifndef IV_TESTS_CHAT_TEMPLATES_H
#define IV_TESTS_CHAT_TEMPLATES_H

#include "support.h"
#include "format/json.h"

/* The caller releases it. */
static inline json_t *read_chat_templates(void) {
    const char *shared = shared_path("golden/chat_templates.json");
    json_t *file;
    iv_error err;
    ASSERT_OK(iv_json_read(shared ? shared : source_path("tests/data/chat_templates.json"), 64 << 20, &file, &err),
              &err);
    size_t count = json_array_size(json_object_get(file, "templates"));
    assert_true(count >= 36);
    if (!shared)
        printf("SKIPPED: %zu of %zu chat templates are not in the repository (set INVAR_SHARED)\n",
               json_array_size(json_object_get(file, "left_out")),
               json_array_size(json_object_get(file, "left_out")) + count);
    return file;
}

/* NULL: it is left out. */
static inline const char *chat_template_of(const json_t *file, const char *model) {
    const json_t *entry;
    size_t i;
    json_array_foreach(json_object_get(file, "templates"), i, entry) {
        if (strcmp(json_string_value(json_object_get(entry, "model")), model) == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    json_array_foreach(json_object_get(file, "left_out"), i, entry) {
        if (strcmp(json_string_value(entry), model) == 0) return NULL;
    }
    fail_msg("no template of %s", model);
    return NULL;
}

#endif
