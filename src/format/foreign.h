/* foreign.h: files of a model directory in formats that are not supported, so that an error can name them.
 *
 * Each returns the end of a sentence about the first such file, or "". Static strings. */
#ifndef IV_FORMAT_FOREIGN_H
#define IV_FORMAT_FOREIGN_H

const char *iv_foreign_weights(const char *dir);
const char *iv_foreign_config(const char *dir);
const char *iv_foreign_tokenizer(const char *dir);

#endif
