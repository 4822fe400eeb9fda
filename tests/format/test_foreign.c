/* Directories in other formats: the error names the file that was found. */
#include "scratch.h"
#include "format/checkpoint.h"
#include "format/foreign.h"
#include "format/model_config.h"

#include <sys/stat.h>

static void put(const scratch *s, const char *name) { scratch_write(s, name, "x", 1); }

static void nothing_to_say(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    put(&s, "README.md");
    assert_string_equal(iv_foreign_weights(s.dir), "");
    assert_string_equal(iv_foreign_config(s.dir), "");
    assert_string_equal(iv_foreign_tokenizer(s.dir), "");
    assert_string_equal(iv_foreign_weights(scratch_path(&s, "none")), "");
    scratch_close(&s);
}

static void what_was_found_is_named(void **state) {
    (void)state;
    static const struct {
        const char *file, *text;
        const char *(*hint)(const char *dir);
    } cases[] = {
        {"pytorch_model.bin", "but pytorch_model.bin: only safetensors are read", iv_foreign_weights},
        {"pytorch_model.bin.index.json", "but pytorch_model.bin.index.json: only", iv_foreign_weights},
        {"adapter_model.safetensors", "an adapter is given next to its base", iv_foreign_weights},
        {"consolidated.safetensors", "Mistral's own form", iv_foreign_weights},
        {"adapter_config.json", "found adapter_config.json: an adapter", iv_foreign_config},
        {"params.json", "found params.json, Mistral's own form", iv_foreign_config},
        {"snapshots", "the model is a folder in it", iv_foreign_config},
        {"a.gguf", " (found a.gguf: of GGUF files a model, or the first of its shards, is read)", iv_foreign_config},
        {"a.gguf", ", but a.gguf: of GGUF files a model", iv_foreign_weights},
        {"tekken.json", "but tekken.json, Mistral's own form", iv_foreign_tokenizer},
        {"tokenizer.model", "but tokenizer.model, which transformers", iv_foreign_tokenizer},
        {"vocab.json", "but vocab.json, which", iv_foreign_tokenizer},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        scratch_open(&s);
        put(&s, cases[i].file);
        const char *hint = cases[i].hint(s.dir);
        if (!strstr(hint, cases[i].text)) fail_msg("%s: wanted '%s', found '%s'", cases[i].file, cases[i].text, hint);
        scratch_close(&s);
    }
}

static void errors_say_so(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c = NULL;
    iv_model_config config;
    iv_error err;
    scratch_open(&s);
    put(&s, "pytorch_model.bin");
    put(&s, "adapter_config.json");
    expect_error("weights", iv_checkpoint_open(s.dir, &c, &err), &err, IV_NOT_FOUND,
                 "found neither, but pytorch_model.bin");
    expect_error("config", iv_model_config_read(s.dir, &config, &err), &err, IV_NOT_FOUND,
                 "config.json: no such file (found adapter_config.json");
    scratch_close(&s);
}

/* The newest checkpoint of a run, and a checkpoint itself. */
static void a_training_run_names_its_model(void **state) {
    (void)state;
    static const char *const folders[] = {"checkpoint-000010", "checkpoint-000020", "checkpoint-000030"};
    scratch s;
    iv_model_config config;
    iv_error err;
    char dir[1100], want[1200], nested[100];
    scratch_open(&s);
    for (size_t i = 0; i < 3; i++) {
        snprintf(dir, sizeof dir, "%s", scratch_path(&s, folders[i]));
        assert_int_equal(mkdir(dir, 0777), 0);
        snprintf(nested, sizeof nested, "%s/model", folders[i]);
        assert_int_equal(mkdir(scratch_path(&s, nested), 0777), 0);
        snprintf(nested, sizeof nested, "%s/model/config.json", folders[i]);
        if (i < 2) put(&s, nested); /* the last one was not finished */
    }
    snprintf(want, sizeof want, "its model is %s/checkpoint-000020/model)", s.dir);
    expect_error("run", iv_model_config_read(s.dir, &config, &err), &err, IV_NOT_FOUND, want);
    snprintf(dir, sizeof dir, "%s", scratch_path(&s, folders[0]));
    snprintf(want, sizeof want, "its model is %s/model)", dir);
    expect_error("checkpoint", iv_model_config_read(dir, &config, &err), &err, IV_NOT_FOUND, want);
    for (size_t i = 0; i < 3; i++) {
        snprintf(nested, sizeof nested, "%s/model/config.json", folders[i]);
        if (i < 2) assert_int_equal(unlink(scratch_path(&s, nested)), 0);
        snprintf(nested, sizeof nested, "%s/model", folders[i]);
        assert_int_equal(rmdir(scratch_path(&s, nested)), 0);
    }
    scratch_close(&s);
}

static void files_instead_of_directories(void **state) {
    (void)state;
    static const char *const names[] = {"m.gguf", "magic", "model.safetensors", "other"};
    static const char *const words[] = {"found a file that does not begin as GGUF does",
                                        "do not fit a file of 5 (cut short?)",
                                        "found a file: give the directory that it is in", "found a file"};
    scratch s;
    iv_model_config config;
    iv_checkpoint *c = NULL;
    iv_error err;
    scratch_open(&s);
    for (size_t i = 0; i < 4; i++) {
        scratch_write(&s, names[i], i == 1 ? "GGUF3" : "x", i == 1 ? 5 : 1);
        expect_error(names[i], iv_model_config_read(scratch_path(&s, names[i]), &config, &err), &err,
                     i == 1 ? IV_FORMAT : IV_NOT_FOUND, words[i]);
        expect_error(names[i], iv_checkpoint_open(scratch_path(&s, names[i]), &c, &err), &err,
                     i == 1 ? IV_FORMAT : IV_IO, words[i]);
    }
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_say), cmocka_unit_test(what_was_found_is_named), cmocka_unit_test(errors_say_so),
        cmocka_unit_test(a_training_run_names_its_model), cmocka_unit_test(files_instead_of_directories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
