/* `is_causal: false` asks for attention in both directions: it is refused by name in the configuration of every
 * checkpoint of tests/data/families and tests/data/hf, at the top and in text_config. */
#include "format/json.h"
#include "format/model_config.h"
#include "scratch.h"

#include <dirent.h>

static void expect_refusal(const char *name, json_t *config, json_t *place) {
    scratch s;
    iv_model_config c;
    iv_error err;
    char *text;
    scratch_open(&s);
    for (int causal = 1; causal >= 0; causal--) {
        assert_int_equal(json_object_set_new(place, "is_causal", json_boolean(causal)), 0);
        assert_non_null(text = json_dumps(config, 0));
        scratch_write(&s, "config.json", text, strlen(text));
        free(text);
        iv_status status = iv_model_config_read(s.dir, &c, &err);
        if (status != (causal ? IV_OK : IV_UNSUPPORTED)) fail_msg("%s: %d: %s", name, (int)status, err.message);
    }
    if (!strstr(err.message, "is_causal: wanted true")) fail_msg("%s: %s", name, err.message);
    scratch_close(&s);
}

static size_t try_folder(const char *folder) {
    DIR *dir = opendir(source_path(folder));
    size_t count = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char relative[400];
        json_t *config;
        iv_error err;
        if (e->d_name[0] == '.') continue;
        snprintf(relative, sizeof relative, "%s/%s/config.json", folder, e->d_name);
        ASSERT_OK(iv_json_read(source_path(relative), 1 << 20, &config, &err), &err);
        json_t *text = json_object_get(config, "text_config");
        if (text) expect_refusal(e->d_name, config, text), json_object_del(text, "is_causal");
        expect_refusal(e->d_name, config, config);
        json_decref(config);
        count++;
    }
    closedir(dir);
    return count;
}

static void every_family(void **state) {
    (void)state;
    assert_true(try_folder("tests/data/families") >= 30);
    assert_int_equal(try_folder("tests/data/hf"), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
