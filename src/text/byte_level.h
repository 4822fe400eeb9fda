/* byte_level.h: GPT-2's one-to-one map between the 256 bytes and 256 printable characters below U+0144. */
#ifndef IV_TEXT_BYTE_LEVEL_H
#define IV_TEXT_BYTE_LEVEL_H

#include <stddef.h>
#include <stdint.h>

/* The character of a byte, as UTF-8 in out[2]; returns its length, 1 or 2. */
size_t iv_byte_level_encode(uint8_t byte, char out[2]);

/* The byte of a character, or -1 if it is not one of the 256. */
int iv_byte_level_decode(uint32_t cp);

#endif
