/* foreign.c: file names of other formats, and advice for each. */
#include "format/foreign.h"
#include "base/file.h"

typedef struct foreign {
    const char *file, *hint;
} foreign;

#define PICKLED ": only safetensors are read (transformers' save_pretrained writes them)"
#define MISTRAL ", Mistral's own format: only that of transformers is read"

static const char *first_of(const char *dir, const foreign *files, size_t count) {
    const char *hint = "";
    iv_buf path = {0};
    iv_error ignored;
    for (size_t i = 0; i < count && !*hint; i++)
        if (iv_path_join(dir, files[i].file, &path, &ignored) == IV_OK && iv_file_exists(path.data))
            hint = files[i].hint;
    iv_buf_free(&path);
    return hint;
}

const char *iv_foreign_weights(const char *dir) {
    static const foreign files[] = {
        {"pytorch_model.bin", ", but pytorch_model.bin" PICKLED},
        {"pytorch_model.bin.index.json", ", but pytorch_model.bin.index.json" PICKLED},
        {"adapter_model.safetensors",
         ", but adapter_model.safetensors: an adapter has to be merged into its base model"},
        {"adapter_model.bin", ", but adapter_model.bin: an adapter has to be merged into its base model"},
        {"consolidated.safetensors", ", but consolidated.safetensors" MISTRAL},
    };
    return first_of(dir, files, sizeof files / sizeof *files);
}

const char *iv_foreign_config(const char *dir) {
    static const foreign files[] = {
        {"adapter_config.json", " (found adapter_config.json: an adapter has to be merged into its base model)"},
        {"params.json", " (found params.json" MISTRAL ")"},
        {"snapshots", " (found snapshots, as in the hub's cache: the model is a folder in it)"},
    };
    return first_of(dir, files, sizeof files / sizeof *files);
}

const char *iv_foreign_tokenizer(const char *dir) {
    static const foreign files[] = {
        {"tekken.json", ", but tekken.json" MISTRAL},
        {"tokenizer.model", ", but tokenizer.model, which transformers can turn into it"},
        {"vocab.json", ", but vocab.json, which transformers can turn into it"},
    };
    return first_of(dir, files, sizeof files / sizeof *files);
}
