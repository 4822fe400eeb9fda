/* adapter_write.c */
#include "format/adapter_write.h"
#include "base/size.h"
#include "format/safetensors_write.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20 };

static iv_status put_tensor(const iv_adapter_files *f, const iv_tensor_info *t, void *chunk, iv_safetensors_writer *w,
                            iv_error *err) {
    for (size_t at = 0, n; at < t->bytes; at += n) {
        n = iv_size_min(CHUNK_BYTES, t->bytes - at);
        IV_TRY(iv_adapter_read(f, t, chunk, at, n, err));
        IV_TRY(iv_safetensors_writer_put(w, chunk, n, err));
    }
    return IV_OK;
}

static iv_status put_all(const iv_adapter_files *f, void *chunk, iv_safetensors_writer *w, iv_error *err) {
    for (size_t i = 0; i < f->parts.count; i++) {
        IV_TRY(put_tensor(f, &f->parts.part[i].a, chunk, w, err));
        IV_TRY(put_tensor(f, &f->parts.part[i].b, chunk, w, err));
    }
    return IV_OK;
}

static iv_status write_tensors(const iv_adapter_files *f, const char *path, iv_error *err) {
    iv_safetensors_writer w;
    size_t n = f->parts.count;
    iv_tensor_info *infos = calloc(2 * n, sizeof *infos);
    void *chunk = malloc(CHUNK_BYTES);
    iv_status status = infos && chunk ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", path);
    for (size_t i = 0; status == IV_OK && i < n; i++)
        infos[2 * i] = f->parts.part[i].a, infos[2 * i + 1] = f->parts.part[i].b;
    if (status == IV_OK) status = iv_safetensors_writer_open(path, infos, 2 * n, "pt", &w, err);
    if (status == IV_OK) status = iv_safetensors_writer_close(&w, put_all(f, chunk, &w, err), err);
    free(infos), free(chunk);
    return status;
}

static iv_status write_config(const iv_adapter_files *f, const char *path, iv_error *err) {
    char *text = json_dumps(f->config.root, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) return iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", path);
    iv_status status = iv_file_write(path, text, strlen(text), err);
    free(text);
    return status;
}

iv_status iv_adapter_write(const iv_adapter_files *f, const char *dir, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(dir, IV_ADAPTER_WEIGHTS_NAME, &path, err);
    if (status == IV_OK) status = write_tensors(f, path.data, err);
    if (status == IV_OK) status = iv_path_join(dir, IV_ADAPTER_CONFIG_NAME, &path, err);
    if (status == IV_OK) status = write_config(f, path.data, err);
    iv_buf_free(&path);
    return status;
}
