/* special_tokens.c: two files, one form: a token is a string or an object that has it as "content". */
#include "text/special_tokens.h"
#include "base/file.h"
#include "format/json.h"

#include <string.h>

enum { MAP_BYTES_MAX = 1 << 20 };

static iv_status add(const char *path, const json_t *from, json_t *into, iv_error *err) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(from, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (!token || json_is_null(token)) continue;
        if (!json_is_string(token))
            return iv_fail(err, IV_FORMAT, "%s: %s: wanted a string, found %s", path, names[i],
                           iv_json_type_name(token));
        if (json_object_set(into, names[i], token) != 0)
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %s", path, names[i]);
    }
    return IV_OK;
}

static iv_status add_map(const char *path, json_t *into, iv_error *err) {
    json_t *map;
    if (!iv_file_exists(path)) return IV_OK;
    IV_TRY(iv_json_read(path, MAP_BYTES_MAX, &map, err));
    iv_status status = json_is_object(map)
                           ? add(path, map, into, err)
                           : iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", path, iv_json_type_name(map));
    json_decref(map);
    return status;
}

iv_status iv_special_tokens_read(const char *dir, const json_t *config, json_t *into, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(dir, "tokenizer_config.json", &path, err);
    if (status == IV_OK && config && !json_is_object(config))
        status = iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", path.data, iv_json_type_name(config));
    if (status == IV_OK) status = add(path.data, config, into, err);
    if (status == IV_OK && !json_object_get(config, "added_tokens_decoder")) {
        status = iv_path_join(dir, "special_tokens_map.json", &path, err);
        if (status == IV_OK) status = add_map(path.data, into, err);
    }
    iv_buf_free(&path);
    return status;
}
