/* foreign.h: what a directory without the model's files has instead: other formats, a model deeper inside. An error
 * names it.
 *
 * Each returns the end of a sentence about the first such file, or "". Valid until the thread's next call. */
#ifndef IV_FORMAT_FOREIGN_H
#define IV_FORMAT_FOREIGN_H

/* What a path that is no directory is, after "wanted a model directory, found ". */
const char *iv_foreign_path(const char *path);
const char *iv_foreign_weights(const char *dir);
const char *iv_foreign_config(const char *dir);
const char *iv_foreign_tokenizer(const char *dir);

#endif
