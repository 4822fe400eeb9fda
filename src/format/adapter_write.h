/* adapter_write.h: an adapter as PEFT's save_pretrained writes it. docs/formats/adapter.md. */
#ifndef IV_FORMAT_ADAPTER_WRITE_H
#define IV_FORMAT_ADAPTER_WRITE_H

#include "format/adapter.h"

/* Writes adapter_model.safetensors, and last adapter_config.json, into a directory that is there. Each file is whole or
 * as it was. */
iv_status iv_adapter_write(const iv_adapter_files *f, const char *dir, iv_error *err);

#endif
